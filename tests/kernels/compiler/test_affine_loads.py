"""Random products that load through pointers, before Triton chooses layouts: where a load or a store is rewritten, the
kernel stores what it stored. Polynomials on the way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from interpreter import BUFFER, run_together

from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode
from warpplan.kernels.compiler.pointers.describing import Described, describe
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.ttgir.parsing import parse

NAMES = ("x", "y", "z")
terms = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=2).map(lambda m: tuple(sorted(m))), st.integers(-9, 9)
)
polynomials = terms.map(Polynomial.of)
points = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(-20, 20)))


def value(polynomial: Polynomial, at: dict[str, int]) -> int:
    return sum(c * int(np.prod([at[name] for name in monomial] or [1])) for monomial, c in polynomial.terms)


@given(polynomials, polynomials, points)
def test_arithmetic_of_polynomials_is_that_of_their_values(p: Polynomial, q: Polynomial, at: dict[str, int]) -> None:
    assert value(p + q, at) == value(p, at) + value(q, at)
    assert value(p - q, at) == value(p, at) - value(q, at)
    assert value(p * q, at) == value(p, at) * value(q, at)
    assert value(p.with_name("x", q), at) == value(p, {**at, "x": value(q, at)})
    assert (p - q == Polynomial()) == (p == q)


@given(polynomials, polynomials)
def test_a_quotient_times_the_divisor_is_what_was_divided(p: Polynomial, q: Polynomial) -> None:
    quotient = (p * q).divided(q)
    assert quotient in ((p,) if len(q.terms) == 1 else (p, None))


@given(polynomials, polynomials, points)
def test_quotient_and_remainder_are_what_was_divided(p: Polynomial, q: Polynomial, at: dict[str, int]) -> None:
    quotient, remainder = p.divided_with_remainder(q)
    assert quotient * q + remainder == p
    before = dict(p.terms)
    assert all(0 < c * before.get(monomial, 0) <= before[monomial] ** 2 for monomial, c in remainder.terms)
    assert value(quotient, at) * value(q, at) + value(remainder, at) == value(p, at)


def test_a_sum_is_divided_by_a_sum_and_what_is_no_multiple_remains() -> None:
    x, y, z = map(Polynomial.named, NAMES)

    def times(n: int) -> Polynomial:
        return Polynomial.constant(n)

    stride = x + times(16)
    rows = y * times(128) + z
    assert (rows * stride).divided(stride) == rows
    assert (rows * stride + y * times(3)).divided_with_remainder(stride) == (rows, y * times(3))
    assert (rows * -stride).divided(stride) == -rows
    for other in (x, y * x + y * times(8), y * x - y * times(16), x * x - times(256)):
        assert other.divided_with_remainder(stride) == (Polynomial(), other)
    assert (x * x + y).divided_with_remainder(Polynomial()) == (Polynomial(), x * x + y)


@given(polynomials, points)
def test_a_polynomial_is_a_multiple_of_its_divisor(p: Polynomial, at: dict[str, int]) -> None:
    multiple = {"x": 16, "y": 4, "z": 1}
    scaled = {name: at[name] * multiple[name] for name in NAMES}
    divisor = p.divisor(lambda name: multiple[name])
    assert value(p, scaled) % divisor == 0 if divisor else value(p, scaled) == 0


TILE = 16
BASE = 1 << 14
ROWS, COLUMNS, DEPTH, STRIDE = 27, 21, 37, 48


class Writer:
    """TTIR line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def op(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"%v{self.count} = {text} loc(unknown)")
        return f"%v{self.count}"

    def binary(self, name: str, a: str, b: str, kind: str) -> str:
        return self.op(f"arith.{name} {a}, {b} : {kind}")

    def number(self, n: int) -> str:
        return self.op(f"arith.constant {n} : i32")


def index(w: Writer, start: str, style: str, bound: str) -> tuple[str, str]:
    """A tile's index along one dimension as it is, and as it is used in addresses."""
    kind = f"tensor<{TILE}xi32>"
    arange = w.op(f"tt.make_range {{end = {TILE} : i32, start = 0 : i32}} : {kind}")
    plain = w.binary("addi", w.op(f"tt.splat {start} : i32 -> {kind}"), arange, kind)
    most = w.op(f"tt.splat {bound} : i32 -> {kind}")
    if style == "wrapped":
        return plain, w.binary("remsi", plain, most, kind)
    if style == "clamped":
        zero = w.op(f"arith.constant dense<0> : {kind}")
        inside = w.op(f"arith.cmpi slt, {plain}, {most} : {kind}")
        return plain, w.op(f"arith.select {inside}, {plain}, {zero} : tensor<{TILE}xi1>, {kind}")
    if style == "least":
        one = w.op(f"arith.constant dense<1> : {kind}")
        return plain, w.binary("minsi", plain, w.binary("subi", most, one, kind), kind)
    return plain, plain


def across(w: Writer, tile: str, dim: int, element: str = "i32") -> str:
    """A row or column of indices as a whole tile: along ``dim``."""
    thin = f"{TILE}x1" if dim == 0 else f"1x{TILE}"
    expanded = w.op(
        f"tt.expand_dims {tile} {{axis = {1 - dim} : i32}} : tensor<{TILE}x{element}> -> tensor<{thin}x{element}>"
    )
    return w.op(f"tt.broadcast {expanded} : tensor<{thin}x{element}> -> tensor<{TILE}x{TILE}x{element}>")


def bounded(w: Writer, tile: str, bound: str, style: str) -> str:
    """``tile < bound`` for a tile of indices along one dimension, in one way of several."""
    kind, most = f"tensor<{TILE}xi32>", w.op(f"tt.splat {bound} : i32 -> tensor<{TILE}xi32>")
    if style == "mirrored":
        return w.op(f"arith.cmpi sgt, {most}, {tile} : {kind}")
    if style == "up to":
        return w.op(f"arith.cmpi sle, {tile}, {most} : {kind}")
    inside = w.op(f"arith.cmpi slt, {tile}, {most} : {kind}")
    if style == "both ends":
        zero = w.op(f"arith.constant dense<0> : {kind}")
        above = w.op(f"arith.cmpi sge, {tile}, {zero} : {kind}")
        return w.binary("andi", above, inside, f"tensor<{TILE}xi1>")
    return inside


masks = st.sampled_from(["", "", "below", "mirrored", "up to", "both ends"])
operand = st.fixed_dictionaries(
    {
        "turned": st.booleans(),
        "outer": st.sampled_from(["plain", "plain", "wrapped", "clamped", "least"]),
        "outer_mask": masks,
        "depth_mask": masks,
        "shift": st.sampled_from([0, 0, 0, 3, -2]),
        "depth_shift": st.sampled_from([0, 0, 0, 5, -3]),
        "carried": st.booleans(),
        "other": st.sampled_from(["0.000000e+00", "0.000000e+00", "", "1.000000e+00"]),
    }
)
products = st.fixed_dictionaries(
    {
        "a": operand,
        "b": operand,
        "stored_rows": st.sampled_from(["", "below", "mirrored", "both ends"]),
        "stored_columns": st.sampled_from(["", "below", "mirrored", "both ends"]),
        "counted": st.booleans(),
        "first": st.sampled_from([0, 0, TILE]),
    }
)


def pointers(w: Writer, side: str, how: dict[str, Any], depth: str, kinds: tuple[str, str]) -> tuple[str, str]:
    """The tile of addresses of operand ``side`` at ``depth``, and its index without wraps along the other dimension."""
    outer_dim = 0 if side == "a" else 1
    start = w.binary("addi", f"%start_{side}", w.number(how["shift"]), "i32")
    plain, used = index(w, start, how["outer"], "%M" if side == "a" else "%N")
    deep, _ = index(w, w.binary("addi", depth, w.number(how["depth_shift"]), "i32"), "plain", "%K")
    whole, kind = f"tensor<{TILE}x{TILE}xi32>", kinds[0]
    rows, columns = across(w, used, outer_dim), across(w, deep, 1 - outer_dim)
    if how["turned"]:
        rows, columns = columns, rows
    scaled = w.binary("muli", rows, w.op(f"tt.splat %stride : i32 -> {whole}"), whole)
    base = w.op(f"tt.splat %{side}_ptr : !tt.ptr<bf16> -> {kind}")
    return w.op(f"tt.addptr {base}, {w.binary('addi', scaled, columns, whole)} : {kind}, {whole}"), plain


def kernel(how: dict[str, Any]) -> str:
    w = Writer()
    kind, whole = f"tensor<{TILE}x{TILE}x!tt.ptr<bf16>>", f"tensor<{TILE}x{TILE}xi32>"
    truth, half, full = (f"tensor<{TILE}x{TILE}x{t}>" for t in ("i1", "bf16", "f32"))
    for axis, side in (("x", "a"), ("y", "b")):
        pid = w.op(f"tt.get_program_id {axis} : i32")
        w.lines.append(f"%start_{side} = arith.muli {pid}, {w.number(TILE)} : i32 loc(unknown)")
    zeros, first = w.op(f"arith.constant dense<0.000000e+00> : {full}"), w.number(how["first"])
    tile, one = w.number(TILE), w.number(1)
    rounded = w.binary("divsi", w.binary("addi", "%K", w.number(TILE - 1), "i32"), tile, "i32")
    lower, upper, step = (w.number(how["first"] // TILE), rounded, one) if how["counted"] else (first, "%K", tile)
    carried = [side for side in "ab" if how[side]["carried"]]
    initial = {side: pointers(w, side, how[side], first, (kind, whole))[0] for side in carried}
    inside = ", ".join(f"%{side}_at = {initial[side]}" for side in carried)
    types = ", ".join([kind] * len(carried) + [full])
    head = f"%out:{len(carried) + 1} = scf.for %i = {lower} to {upper} step {step} iter_args("
    body = Writer()
    body.count = 1000
    depth = body.binary("muli", "%i", tile, "i32") if how["counted"] else "%i"
    loaded, following = {}, {}
    for side in "ab":
        one_way, outer_dim = how[side], 0 if side == "a" else 1
        address, plain = pointers(body, side, one_way, depth, (kind, whole))
        if side in carried:
            address = f"%{side}_at"
            step_by = body.op(f"tt.splat {tile} : i32 -> {whole}")
            # Down the rows where A lies turned, or B as it is.
            if one_way["turned"]:
                step_by = body.binary("muli", step_by, body.op(f"tt.splat %stride : i32 -> {whole}"), whole)
            following[side] = body.op(f"tt.addptr {address}, {step_by} : {kind}, {whole}")
        deep, _ = index(body, body.binary("addi", depth, body.number(one_way["depth_shift"]), "i32"), "plain", "%K")
        parts = []
        for style, tile_index, bound, dim in (
            (one_way["outer_mask"], plain, "%M" if side == "a" else "%N", outer_dim),
            (one_way["depth_mask"], deep, "%K", 1 - outer_dim),
        ):
            if style:
                parts.append(across(body, bounded(body, tile_index, bound, style), dim, "i1"))
        operands = [address]
        if parts:
            operands.append(parts[0] if len(parts) == 1 else body.binary("andi", *parts, truth))
            if one_way["other"]:
                operands.append(body.op(f"arith.constant dense<{one_way['other']}> : {half}"))
        loaded[side] = body.op(f"tt.load {', '.join(operands)} : {kind}")
    total = body.op(f"tt.dot {loaded['a']}, {loaded['b']}, %total, inputPrecision = tf32 : {half} * {half} -> {full}")
    handed = ", ".join([*following.values(), total])
    body.lines.append(f"scf.yield {handed} : {types} loc(unknown)")
    loop = [
        f"{head}{inside}{', ' if inside else ''}%total = {zeros}) -> ({types})  : i32 {{",
        *body.lines,
        "} loc(unknown)",
    ]
    w.lines += loop
    w.count = 5000
    rows, _ = index(w, w.binary("addi", "%start_a", w.number(how["a"]["shift"]), "i32"), "plain", "%M")
    columns, _ = index(w, w.binary("addi", "%start_b", w.number(how["b"]["shift"]), "i32"), "plain", "%N")
    place = w.binary("muli", across(w, rows, 0), w.op(f"tt.splat %stride : i32 -> {whole}"), whole)
    place = w.binary("addi", place, across(w, columns, 1), whole)
    out_kind = f"tensor<{TILE}x{TILE}x!tt.ptr<f32>>"
    out = w.op(f"tt.addptr {w.op(f'tt.splat %c_ptr : !tt.ptr<f32> -> {out_kind}')}, {place} : {out_kind}, {whole}")
    parts = [
        across(w, bounded(w, tile_index, bound, style), dim, "i1")
        for style, tile_index, bound, dim in (
            (how["stored_rows"], rows, "%M", 0), (how["stored_columns"], columns, "%N", 1),
        )
        if style
    ]  # fmt: skip
    mask = "" if not parts else f", {parts[0] if len(parts) == 1 else w.binary('andi', *parts, truth)}"
    result = f"%out#{len(carried)}" if carried else "%out"
    w.lines.append(f"tt.store {out}, {result}{mask} : {out_kind} loc(unknown)")
    text = "\n".join(w.lines).replace("%out:1 =", "%out =")
    aligned = "{tt.divisibility = 16 : i32} loc(unknown)"
    arguments = [f"%{n}_ptr: !tt.ptr<{'f32' if n == 'c' else 'bf16'}> {aligned}" for n in "abc"]
    arguments += [f"%{n}: i32 loc(unknown)" for n in "MNK"] + [f"%stride: i32 {aligned}"]
    head = f"tt.func public @k({', '.join(arguments)}) attributes {{noinline = false}} {{"
    return f"module {{\n{head}\n{text}\ntt.return loc(unknown)\n}} loc(unknown)\n}} loc(unknown)\n"


def stored(text: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    buffers = [draw.integers(-8, 9, 2 * BASE) / 4.0 for _ in range(3)]
    values = {f"{n}_ptr": i * BUFFER + BASE for i, n in enumerate("abc")}
    values |= {"M": ROWS, "N": COLUMNS, "K": DEPTH, "stride": STRIDE}
    return run_together(ReadyCode(parse(text)), values, buffers, [(0, 0, 0), (1, 1, 0)], (2, 2, 1))


def written(text: str, *, stores: bool = False) -> Described:
    return describe(text, nested=True, stores=stores)


@settings(max_examples=100, deadline=None)
@given(products)
def test_what_is_rewritten_stores_what_the_kernel_stores(how: dict[str, Any]) -> None:
    text = kernel(how)
    found = written(text)
    assert len(found.lines) + len(found.unchanged) == 2
    before, after = stored(text), stored(found.text)
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], before[1])
    by_tma = written(text, stores=True)
    if by_tma.text != found.text:
        again = stored(by_tma.text)
        np.testing.assert_array_equal(again[0], before[0])
        np.testing.assert_array_equal(again[1], before[1])


PLAIN = {
    "turned": False, "outer": "plain", "outer_mask": "below", "depth_mask": "below", "shift": 0, "depth_shift": 0,
    "carried": True, "other": "0.000000e+00",
}  # fmt: skip
B = {**PLAIN, "turned": True}
PRODUCT = {"a": PLAIN, "b": B, "stored_rows": "below", "stored_columns": "below", "counted": True, "first": 0}


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("outer", ["plain", "wrapped", "clamped", "least"])
@pytest.mark.parametrize("carried", [False, True])
def test_products_as_people_write_them_are_recognised(turned: tuple[bool, bool], outer: str, carried: bool) -> None:
    changed = {"outer": outer, "outer_mask": "" if outer != "plain" else "below", "carried": carried}
    how = {**PRODUCT, **{side: {**PLAIN, **changed, "turned": t} for side, t in zip("ab", turned, strict=True)}}
    found = written(kernel(how))
    assert len(found.lines) == 2
    assert "tt.load" not in found.text


@pytest.mark.parametrize(
    ("side", "change", "stored_rows"),
    [
        ("a", {"depth_shift": -3, "depth_mask": "below"}, "below"),
        ("a", {"other": "1.000000e+00"}, "below"),
        ("a", {"outer": "wrapped", "outer_mask": ""}, ""),
        ("b", {"shift": -2}, "below"),
    ],
)
def test_a_load_that_cannot_be_rewritten_stays_beside_one_that_can(
    side: str, change: dict[str, Any], stored_rows: str
) -> None:
    how = {**PRODUCT, side: {**PRODUCT[side], **change}, "stored_rows": stored_rows}
    found = written(kernel(how))
    assert len(found.unchanged) == len(found.lines) == 1
    assert found.text.count("tt.load") == found.text.count("tt.descriptor_load") == 1

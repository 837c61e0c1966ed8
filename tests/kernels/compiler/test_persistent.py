"""Programs that walk over a grid, launched by fewer; whole kernels played under every kind of scheme."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import BUFFER
from played import cut, same, tensors, zoo_cut

from warpplan.kernels.compiler.analysis.grid_walk import can_walk_grid
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.hopper import persistent
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir import control, parsing
from warpplan.kernels.compiler.ttgir.functions import arguments
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region

M, N, K = 200, 240, 192


def matrices(*shapes: tuple[int, int], names: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Descriptors of ``shapes``, by the ``names`` of a kernel's arguments."""
    made, data = tensors(*shapes)
    return dict(zip(names.split(), made, strict=True)), data


def tables() -> tuple[dict[str, Any], list[np.ndarray]]:
    """Three groups, one without depth, behind tables of pointers."""
    sizes = [(130, 144, 128), (64, 128, 0), (128, 104, 64)]
    shapes = [shape for m, n, k in sizes for shape in ((m, k), (n, k), (m, n))]
    _, data = tensors(*shapes)
    first = 4  # the tables' own buffers come before
    places = [[float((first + 3 * g + which) * BUFFER) for g in range(3)] for which in range(3)]
    buffers = [*map(np.array, places), np.array(sizes, float).ravel(), *(d if d.size else np.zeros(1) for d in data)]
    names = ("a_ptrs", "b_ptrs", "c_ptrs", "sizes_ptr")
    return {name: i * BUFFER for i, name in enumerate(names)} | {"groups": 3}, buffers


def case(name: str) -> tuple[str, dict[str, Any], list[np.ndarray], tuple[int, int, int]]:
    """A kernel of the zoo at the cut, its arguments and buffers, its grid."""
    sizes = {"M": M, "N": N, "K": K}
    if name == "grouped_tutorial":
        return zoo_cut(name, SMS=2), *tables(), (2, 1, 1)
    if name == "tutorial_causal":
        values, data = matrices(*[(256, 64)] * 4, names="q_desc k_desc v_desc o_desc")
        return zoo_cut(name), {**values, "m_ptr": 4 * BUFFER, "L": 256, "scale": 0.5}, [*data, np.zeros(256)], (2, 1, 1)
    if name == "dual_swiglu":
        values, data = matrices((M, K), (104, K), (104, K), (M, 104), names="x_desc gate_desc up_desc y_desc")
        return zoo_cut(name), {**values, "K": K}, data, (2, 2, 1)
    values, data = matrices((M, K), (N, K), (M, N), names="a_desc b_desc c_desc")
    if name == "int8_weights":
        return zoo_cut(name), {**values, **sizes, "scale_ptr": 3 * BUFFER}, [*data, tensors((1, 256))[1][0]], (2, 2, 1)
    if name == "while_loop":
        return zoo_cut(name), {**values, "K": K}, data, (2, 2, 1)
    if name == "stream_k":
        more = {"c_ptr": 2 * BUFFER, "lock_ptr": 3 * BUFFER}
        return (
            zoo_cut(name, SMS=3),
            {**values, **more, **sizes},
            [*data[:2], np.zeros(256 * 256), np.zeros(8)],
            (3, 1, 1),
        )
    return zoo_cut(name, NUM_SMS=3), {**values, **sizes}, data, (3, 1, 1)


WALK_ALREADY = ("persistent_flattened", "persistent_split_epilogue", "grouped_tutorial")
ANY = ("tutorial_causal", "dual_swiglu", "int8_weights", "while_loop")


@pytest.mark.parametrize(
    "scheme", [HopperStrategy(1, (3,)), HopperStrategy(2, (2,)), HopperStrategy(2, (1,), in_flight=0)], ids=str
)
@pytest.mark.parametrize("name", [*ANY, *WALK_ALREADY])
def test_programs_store_what_the_kernel_stores(name: str, scheme: HopperStrategy) -> None:
    text, values, buffers, grid = case(name)
    same(text, scheme, values, buffers, grid, seeds=1, only=(grid[0] - 1, grid[1] - 1, 0))


@pytest.mark.parametrize(
    ("scheme", "launched"),
    [(HopperStrategy(1, (3,), persistent=1), 1), (HopperStrategy(2, (2,), persistent=1), 3)],
    ids=str,
)
@pytest.mark.parametrize("name", ANY)
def test_few_programs_store_what_the_whole_grid_does(name: str, scheme: HopperStrategy, launched: int) -> None:
    text, values, buffers, grid = case(name)
    same(text, scheme, values, buffers, grid, launched, seeds=1)


def test_a_grid_of_one_is_walked_over() -> None:
    made, buffers = tensors((128, 192), (64, 192), (128, 64))
    values = {"a": made[0], "b": made[1], "c_ptr": 2 * BUFFER, "K": 192}
    same(cut("twice"), HopperStrategy(2, (2,), persistent=1), values, buffers, launched=1)


def test_parts_of_k_that_are_added_up_atomically() -> None:
    text, values, buffers, grid = case("stream_k")
    same(text, HopperStrategy(1, (2,)), values, buffers, grid)
    same(text, HopperStrategy(1, (2,), persistent=1), values, buffers, grid, launched=2)


@pytest.mark.parametrize("name", WALK_ALREADY)
def test_a_kernel_that_walks_is_left_to_itself(name: str) -> None:
    text = case(name)[0]
    assert not can_walk_grid(parsing.parse(text))
    with pytest.raises(CannotPlan, match="by itself already"):
        specialize(text, HopperStrategy(1, (2,), persistent=1))


@pytest.mark.parametrize("name", ["spinning", "swapping", "calling"])
def test_programs_that_wait_for_one_another_cannot_run_one_after_another(name: str) -> None:
    with pytest.raises(CannotPlan, match="cannot run one after another") as refused:
        persistent.walking(parsing.parse(cut(name)))
    assert refused.value.line.startswith("lowered_kernels.py:")


def test_the_walk_takes_the_grid_as_arguments_and_asks_for_one_axis_of_programs_only() -> None:
    text = zoo_cut("dual_swiglu")
    walking = persistent.walking(parsing.parse(text))
    assert list(arguments(walking))[-3:] == list(persistent.GRID)
    asked = [op.tokens[0] for op in walking.walk() if op.name in ("tt.get_program_id", "tt.get_num_programs")]
    assert asked == ["x", "x"]


def test_a_kernel_that_walks_is_launched_on_as_many_programs_as_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent, "_multiprocessors", lambda: 132)
    launches: list[tuple[Any, ...]] = []
    source = SimpleNamespace(signature={"K": "i32"})
    kernel = SimpleNamespace(metadata=SimpleNamespace(warpplan_persistent=True), src=source, module=None)
    kernel._run = lambda *given: launches.append(given)
    kernel._init_handles = lambda: None
    persistent.launched(kernel)
    assert list(kernel.src.signature.values()) == ["i32"] * 4
    assert source.signature == {"K": "i32"}, "the source is shared with kernels that do not walk"
    kernel._init_handles()
    kernel._run(40, 5, 1, "stream", 7)
    kernel._run(3, 1, 2, "stream", 7)
    assert launches == [(132, 1, 1, "stream", 7, 40, 5, 1), (6, 1, 1, "stream", 7, 3, 1, 2)]


def test_other_kernels_are_launched_as_they_are() -> None:
    kernel = SimpleNamespace(metadata=SimpleNamespace(warpplan_persistent=False), src=None)
    assert persistent.launched(kernel) is kernel
    assert kernel.src is None


ARITHMETIC: dict[str, Callable[..., int]] = {
    "arith.addi": operator.add, "arith.subi": operator.sub, "arith.muli": operator.mul, "arith.andi": operator.and_,
    "arith.divsi": operator.floordiv, "arith.remsi": operator.mod, "arith.extui": int,
    "arith.select": lambda condition, then, otherwise: then if condition else otherwise,
}  # fmt: skip


def compute(operations: list[IrOperation], values: dict[str, int]) -> None:
    """Add to ``values`` what ``operations`` on whole numbers give."""
    for op in operations:
        operands = [values[name] for name in op.operands]
        if op.name == "arith.constant":
            values[op.result] = int(op.tokens[0])
        elif op.name == "arith.cmpi":
            values[op.result] = {"slt": operator.lt, "eq": operator.eq}[op.tokens[0].rstrip(",")](*operands)
        elif op.name in ARITHMETIC:
            values[op.result] = ARITHMETIC[op.name](*operands)


def programs_of(first: int, launched: int, grid: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """The programs of ``grid`` that program ``first`` of those ``launched`` walks over, in its order."""
    operations = walked().operations
    values = dict(zip(persistent.GRID, grid, strict=True)) | {"%wp_first": first, "%wp_launched": launched}
    compute([op for op in operations if any("wp_" in name for name in op.defined)], values)
    loop = control.read_loop(next(op for op in operations if op.name == "scf.for"))
    found = []
    for number in range(values[loop.lower], values[loop.upper], values[loop.step]):
        inside = values | {loop.variable: number}
        compute([op for op in loop.body.operations if any("wp_" in name for name in op.defined)], inside)
        found.append(tuple(inside[f"%wp_id_{axis}"] for axis in "xyz"))
    return found


@cache
def walked() -> Region:
    return persistent.walking(parsing.parse(zoo_cut("tutorial_causal"))).regions[0]


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)), st.data())
def test_each_program_of_the_grid_is_walked_over_once(grid: tuple[int, int, int], data: st.DataObject) -> None:
    count = grid[0] * grid[1] * grid[2]
    launched = data.draw(st.integers(1, count), "launched")
    walks = [programs_of(first, launched, grid) for first in range(launched)]
    everywhere = [place[::-1] for place in np.ndindex(*grid[::-1])]
    said = [persistent.walked_over(first, launched, count) for first in range(launched)]
    assert walks == [[everywhere[program] for program in walk] for walk in said]
    found = [program for walk in walks for program in walk]
    assert sorted(found) == sorted(np.ndindex(*grid))


def test_programs_that_take_longer_one_after_the_other_are_dealt_out_evenly() -> None:
    """32 tiles of 128 heads under a causal mask: the busiest of 132 programs works 3 % longer than the mean, not 12."""
    work = [sum(1 + x for x, _, _ in programs_of(first, 132, (32, 128, 1))) for first in range(132)]
    assert max(work) * 132 < 1.04 * sum(work)

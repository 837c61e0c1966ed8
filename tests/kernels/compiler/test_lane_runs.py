"""Runs of consecutive and of equal values, compared with the values themselves, computed in numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from warpplan.kernels.compiler.analysis.copies.lane_runs import LaneRunReader
from warpplan.kernels.compiler.analysis.copies.thread_elements import neighbours
from warpplan.kernels.compiler.ttgir.parsing import parse

SIZE = 32
TILE = f"tensor<{SIZE}xi32, #blocked>"
MODULE = """#blocked = #ttg.blocked<{{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}}>
module attributes {{"ttg.num-warps" = 4 : i32}} {{
  tt.func public @kernel(%n: i32 {{tt.divisibility = 16 : i32}}) attributes {{noinline = false}} {{
{body}
    tt.return loc(unknown)
  }} loc(unknown)
}} loc(unknown)
"""
BINARY = ("addi", "subi", "muli", "remsi", "divsi", "andi", "minsi")


def operations(draws: list[tuple[int, int, int]]) -> list[str]:
    """A tile of positions, tiles of constants, and tiles made of earlier ones as ``draws`` say."""
    lines = [
        f"%v0 = tt.make_range {{end = {SIZE} : i32, start = 0 : i32}} : {TILE}",
        f"%v1 = tt.splat %n : i32 -> {TILE}",
    ]
    for number, (kind, left, right) in enumerate(draws, 2):
        a, b = f"%v{left % number}", f"%v{right % number}"
        if kind == len(BINARY):
            lines.append(f"%v{number} = arith.constant dense<{1 << right % 7}> : {TILE}")
        elif kind == len(BINARY) + 1:
            lines.append(f"%v{number} = arith.constant dense<{3 * (right % 9)}> : {TILE}")
        elif BINARY[kind] in ("remsi", "divsi"):  # by what is not 0
            lines += [
                f"%one{number} = arith.constant dense<{1 << right % 6}> : {TILE}",
                f"%v{number} = arith.{BINARY[kind]} {a}, %one{number} : {TILE}",
            ]
        else:
            lines.append(f"%v{number} = arith.{BINARY[kind]} {a}, {b} : {TILE}")
        lines.append(f"%c{number} = arith.cmpi slt, {a}, {b} : {TILE}")
    return lines


COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "remsi": np.fmod, "andi": np.bitwise_and,
    "minsi": np.minimum, "cmpi": np.less, "divsi": lambda a, b: np.trunc(a / b).astype(np.int64),
}  # fmt: skip
"""By the operation's name behind ``arith.``; division and remainder round towards zero."""


def computed(text: str, n: int) -> tuple[LaneRunReader, dict[str, Any]]:
    module = parse(text)
    values: dict[str, Any] = {"%n": n}
    for operation in module.function.regions[0].operations[:-1]:
        name = operation.name.rpartition(".")[2]
        operands: list[Any] = [values[operand] for operand in operation.operands]
        if name == "make_range":
            made = np.arange(SIZE, dtype=np.int64)
        elif name == "constant":
            tile, number = re.search(r"(dense<)?(-?\d+)", "".join(map(str, operation.parts))).groups()  # type: ignore[union-attr]
            made = np.full(SIZE, int(number), np.int64) if tile else int(number)
        else:
            made = np.full(SIZE, operands[0], np.int64) if name == "splat" else COMPUTED[name](*operands)
        values[operation.result] = made
    return LaneRunReader(module.function), values


@given(
    st.lists(
        st.tuples(st.integers(0, len(BINARY) + 1), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8
    ),
    st.integers(0, 40),
)
def test_every_run_that_is_claimed_is_there(draws: list[tuple[int, int, int]], sixteenths: int) -> None:
    body = "\n".join(f"    {line} loc(unknown)" for line in operations(draws))
    reader, values = computed(MODULE.format(body=body), 16 * sixteenths)
    for made in reader.defined.values():
        if made.operation.name in ("arith.divsi", "arith.remsi"):
            assume((np.asarray(values[made.sources[0]]) >= 0).all())
    for name, value in values.items():
        if np.ndim(value) == 0 or np.abs(value).max() > 1 << 40:
            continue
        run = reader.read(name, 0)
        consecutive = np.asarray(value, np.int64).reshape(-1, run.contiguity)
        assert (np.diff(consecutive, axis=1) == 1).all(), (name, run)
        equal = np.asarray(value).reshape(-1, min(SIZE, run.constancy))
        assert (equal == equal[:, :1]).all(), (name, run)
        if name.startswith("%v"):
            first = np.asarray(value)[:: max(run.contiguity, min(SIZE, run.constancy))]
            assert (first % run.divisor == 0).all(), (name, run)


@pytest.mark.parametrize(
    ("bound", "constancy"), [("%v1", 16), ("%odd", 1)], ids=["divisible by 16", "not known to be divisible"]
)
def test_a_mask_is_alike_for_as_many_as_divide_its_bound(bound: str, constancy: int) -> None:
    body = "\n".join(
        f"    {line} loc(unknown)"
        for line in [
            *operations([])[:2], "%three = arith.constant 3 : i32", "%sum = arith.addi %n, %three : i32",
            f"%odd = tt.splat %sum : i32 -> {TILE}", f"%mask = arith.cmpi slt, %v0, {bound} : {TILE}",
        ]
    )  # fmt: skip
    reader, _ = computed(MODULE.format(body=body), 16)
    assert reader.read("%mask", 0).constancy == constancy


@pytest.mark.parametrize(
    ("layout", "rank", "found"),
    [
        ("#blocked", 2, (1, 8)),
        ("#ttg.slice<{dim = 0, parent = #blocked}>", 1, (0, 8)),
        ("#ttg.slice<{dim = 1, parent = #blocked}>", 1, (0, 1)),
        ("#linear", 2, (1, 2)),
        ("#column", 2, (0, 4)),
        ("#mma", 2, (1, 1)),
    ],
)
def test_a_layout_says_which_elements_a_thread_has_beside_each_other(
    layout: str, rank: int, found: tuple[int, int]
) -> None:
    aliases = [
        "#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], "
        "order = [1, 0]}>",
        "#column = #ttg.blocked<{sizePerThread = [4, 1], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], "
        "order = [0, 1]}>",
        "#linear = #ttg.linear<{register = [[0, 1], [0, 8], [0, 16]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], "
        "warp = [[8, 0], [16, 0]], block = []}>",
        "#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], "
        "instrShape = [16, 128, 16]}>",
    ]
    assert neighbours(layout, aliases, rank) == found

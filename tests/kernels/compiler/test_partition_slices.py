"""What a partition keeps of a kernel: nothing that nobody reads, and layouts of as many warps as it has."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from interpreter import BUFFER, Block

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.slices.dead_values import without_dead_values
from warpplan.kernels.compiler.lowering.slices.early_lookups import with_early_lookups
from warpplan.kernels.compiler.lowering.slices.narrow_layouts import with_warps
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse, parse_operation

ALIASES = [
    "#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [8, 1], order = [1, 0]}>",
    "#linear = #ttg.linear<{register = [[0, 1]], lane = [[0, 2], [0, 4], [0, 8], [1, 0], [2, 0]], "
    "warp = [[4, 0], [8, 0], [16, 0]], block = []}>",
    "#mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 4], instrShape = [16, 8]}>",
    "#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>",
]
TEXT = """module attributes {"ttg.num-warps" = 8 : i32} {
  tt.func public @kernel(%a: !tt.ptr<i32>, %n: i32) attributes {noinline = false} {
    %zero = arith.constant 0 : i32 loc(unknown)
    %one = arith.constant 1 : i32 loc(unknown)
    %unread = arith.addi %n, %one : i32 loc(unknown)
    %sums:3 = scf.for %i = %zero to %n step %one iter_args(%kept = %zero, %alone = %one, %pair = %zero) -> (i32, i32, i32)  : i32 {
      %more = arith.addi %kept, %i : i32 loc(unknown)
      %self = arith.addi %alone, %one : i32 loc(unknown)
      %other = arith.addi %pair, %self : i32 loc(unknown)
      scf.yield %more, %self, %other : i32, i32, i32 loc(unknown)
    } loc(unknown)
    %odd = arith.cmpi eq, %n, %one : i32 loc(unknown)
    %chosen:2 = scf.if %odd -> (i32, i32) {
      scf.yield %sums#0, %one : i32, i32 loc(unknown)
    } else {
      scf.yield %zero, %sums#1 : i32, i32 loc(unknown)
    } loc(unknown)
    tt.store %a, %chosen#READ : !tt.ptr<i32> loc(unknown)
    tt.return loc(unknown)
  } loc(unknown)
} loc(unknown)
"""  # noqa: E501


def swept(read: int) -> str:
    function = unique_names(parse(TEXT.replace("READ", str(read))).function)
    return without_dead_values(function).text()


def test_what_a_loop_carries_for_itself_alone_is_left_out() -> None:
    text = swept(0)
    assert "%unread" not in text
    assert "%self" not in text
    assert "%other" not in text
    assert "iter_args(%kept = %zero) -> (i32)" in text
    assert "%chosen = scf.if %odd -> (i32)" in text
    assert "scf.yield %more : i32" in text


def test_what_is_read_keeps_what_it_is_made_of() -> None:
    text = swept(1)
    assert "%more" not in text
    assert "%other" not in text
    assert "iter_args(%alone = %one) -> (i32)" in text
    assert "tt.store %a, %chosen : !tt.ptr<i32>" in text


def test_a_kernel_without_dead_values_stays_as_it_is() -> None:
    function = unique_names(parse(TEXT.replace("chosen#READ", "sums#2")).function)
    once = without_dead_values(function)
    assert without_dead_values(once).text() == once.text()


def module() -> Module:
    return Module(list(ALIASES), parse(TEXT.replace("READ", "0")).operation, [])


def operation(text: str) -> IrOperation:
    return parse_operation(text)


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        ("#blocked", "warpsPerCTA = [4, 1]"),
        ("#ttg.slice<{dim = 1, parent = #blocked}>", "warpsPerCTA = [4, 1]"),
        ("#mma", "warpsPerCTA = [2, 2]"),
        ("#linear", "warp = [[4, 0], [8, 0]]"),
    ],
)
def test_half_of_the_warps_are_taken_from_a_layout(layout: str, found: str) -> None:
    narrowed = module()
    rank = "64" if "slice" in layout else "64x16"
    (new,) = with_warps(narrowed, [operation(f"%x = arith.addi %y, %y : tensor<{rank}xi32, {layout}>")], 4)
    alias = next(t for t in new.tokens if t.startswith("#") and not t.startswith("#ttg"))
    assert found in next(line for line in narrowed.aliases if line.startswith(f"{alias} = "))
    assert alias not in [line.partition(" = ")[0] for line in ALIASES]


def test_a_narrowed_linear_layout_still_covers_its_tile() -> None:
    """Triton aborts on one that does not, whether an operation has it or not."""
    narrowed = module()
    with_warps(narrowed, [operation("%x = arith.addi %y, %y : tensor<64x16xi32, #linear>")], 4)
    before = next(line for line in ALIASES if line.startswith("#linear"))
    after = next(line for line in narrowed.aliases if "#ttg.linear" in line and line not in ALIASES)

    def bases(text: str) -> list[str]:
        return sorted(re.findall(r"\[\d+, \d+\]", text))

    assert bases(after) == bases(before)


def test_shared_memory_and_as_many_warps_stay_as_they_are() -> None:
    same = [operation("%x = ttg.local_alloc : () -> !ttg.memdesc<64x16xi32, #shared, #smem, mutable>")]
    assert with_warps(module(), same, 4)[0].text() == same[0].text()
    assert with_warps(module(), same, 8) is same


def test_a_reshape_is_not_narrowed() -> None:
    reshape = operation("%x = tt.reshape %y : tensor<64x16xi32, #blocked> -> tensor<1024xi32, #linear>")
    with pytest.raises(CannotPlan, match="its 4 warps"):
        with_warps(module(), [reshape], 4)


ROW = "tensor<4xi32, #blocked>"
LOOKUPS = (
    """module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func public @kernel(%table: !tt.ptr<i32>, %out: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %zero = arith.constant 0 : i32 loc(unknown)
    %one = arith.constant 1 : i32 loc(unknown)
    %tile = tt.make_range {end = 4 : i32, start = 0 : i32} : ROW loc(unknown)
    %done:3 = scf.for %i = %zero to %n step %one iter_args(%at = %table, %sum = %zero, %many = %tile) -> (TYPES) : i32 {
      %page = tt.load %at : !tt.ptr<i32> loc(unknown)
      %first = tt.addptr %table, %page : !tt.ptr<i32>, i32 loc(unknown)
      %rows = tt.splat %first : !tt.ptr<i32> -> PTRS loc(unknown)
      %each = tt.addptr %rows, %tile : PTRS, ROW loc(unknown)
      %bound = tt.splat %page : i32 -> ROW loc(unknown)
      %mask = arith.cmpi slt, %tile, %bound : ROW loc(unknown)
      %read = tt.load %each, %mask : PTRS loc(unknown)
      %total = arith.addi %sum, %page : i32 loc(unknown)
      %both = arith.addi %many, %read : ROW loc(unknown)
      %next = tt.addptr %at, %one : !tt.ptr<i32>, i32 loc(unknown)
      scf.yield %next, %total, %both : !tt.ptr<i32>, i32, ROW loc(unknown)
    } loc(unknown)
    %where = tt.addptr %out, %done#1 : !tt.ptr<f32>, i32 loc(unknown)
    %places = tt.splat %where : !tt.ptr<f32> -> FLOATS loc(unknown)
    %values = arith.sitofp %done#2 : ROW to tensor<4xf32, #blocked> loc(unknown)
    %spread = tt.addptr %places, %done#2 : FLOATS, ROW loc(unknown)
    tt.store %spread, %values : FLOATS loc(unknown)
    tt.return loc(unknown)
  } loc(unknown)
} loc(unknown)
""".replace("TYPES", "!tt.ptr<i32>, i32, ROW")
    .replace("PTRS", "tensor<4x!tt.ptr<i32>, #blocked>")
    .replace("FLOATS", "tensor<4x!tt.ptr<f32>, #blocked>")
    .replace("ROW", ROW)
)


class Watched(Block):
    """Notes what is read, each address in the order of the program."""

    def _load(self, addresses: Any, mask: Any, other: Any) -> np.ndarray:
        self.__dict__.setdefault("seen", []).extend(np.atleast_1d(addresses)[np.atleast_1d(mask)].tolist())
        return super()._load(addresses, mask, other)


@pytest.mark.parametrize("trips", range(4))
def test_lookups_an_iteration_ahead_read_the_same_and_nothing_else(trips: int) -> None:
    table = np.array([3, 1, 2, 4, 1, 0, 2, 5, 3, 1])
    arguments = {"table": 0, "out": BUFFER, "n": trips}
    plain = Watched(parse(LOOKUPS), arguments, [table], (0, 0, 0))
    early = parse(LOOKUPS)
    body = early.function.regions[0]
    body.operations = with_early_lookups(body.operations)
    loop = next(op for op in body.operations if op.name == "scf.for")
    ahead = Watched(parse(str(early)), arguments, [table], (0, 0, 0))
    for found, wanted in zip(ahead.run(), plain.run(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert sorted(ahead.__dict__.get("seen", [])) == sorted(plain.__dict__.get("seen", []))
    names = [op.name for op in loop.regions[0].operations]
    assert "tt.load" in names[: names.index("arith.addi", 3)]  # before what is done with the iteration's own

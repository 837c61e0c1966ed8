"""Loads that stream: every program of the grid reads other memory, so that each byte comes from DRAM, for no other
program brings it into the L2 cache.

Shown where the address depends on all of the program ids that the kernel asks for, and none of them goes through an
operation that gives several programs one value: a division or a remainder, as of heads that share keys, a smaller or
larger of two, a table; and on each loop around the load, for what one of them reads again is in the cache by then.
Decoding attention and norms stream; the operands of a GEMM are shared by a row or a column of its tiles.

A tile is read in runs: what of it lies together is a row's or a column's part, as the order of its layout says, which
Triton's coalescing pass takes from the addresses. A vector in the layout of an accumulator's row or column is loaded an
element at a time where neighbours do not lie together, as scales of blocks do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.operation_kinds import COPY_LOAD, LOOPS, TMA_LOADS
from warpplan.kernels.compiler.analysis.value_flow import VARIABLE, Definition, definitions
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.slice_layouts import elements_of_slice
from warpplan.kernels.compiler.ttgir.types import ShapedType

_MERGES = frozenset({
    "arith.divsi", "arith.divui", "arith.floordivsi", "arith.ceildivsi", "arith.remsi", "arith.remui", "arith.minsi",
    "arith.minui", "arith.maxsi", "arith.maxui", "arith.andi", "arith.shrsi", "arith.shrui", "arith.cmpi", "tt.load",
})  # fmt: skip
"""Operations of which different operands have one result."""
_FASTEST = re.compile(r"(#\w+) = #ttg\.blocked<\{.*\border = \[(\d+)")
"""A layout's alias and the dimension along which its elements follow each other."""
_MIXED = frozenset({"several programs share it"})


def streamed_loads(function: IrOperation) -> frozenset[str]:
    """The results of the loads of ``function``, whose names are unique, that stream."""
    programs = {_axis(operation) for operation in function.walk() if operation.name == "tt.get_program_id"}
    if not programs:
        return frozenset()
    reader = _ProgramReader(definitions(function))
    found: set[str] = set()

    def visit(region: Region, around: frozenset[str]) -> None:
        for operation in region.operations:
            through_pointers = operation.name in ("tt.load", COPY_LOAD)
            if operation.name in TMA_LOADS or through_pointers:
                # A pointer's mask says what is left out, not what is read.
                address = operation.operands[:1] if through_pointers else operation.operands
                if reader.programs(address) == programs | around:
                    found.update(operation.defined)
            inside = around | {_of_loop(operation)} if operation.name in LOOPS else around
            for inner in operation.regions:
                visit(inner, inside)

    visit(function.regions[0], frozenset())
    return frozenset(found)


@dataclass(frozen=True)
class LoadForm:
    """How a tile is loaded: ``run_bytes`` of it lie together; each thread loads ``thread_elements`` of a vector in an
    accumulator's layout. 0 where that is not known."""

    run_bytes: int = 0
    thread_elements: int = 0


def load_forms(
    aliases: Sequence[str], function: IrOperation, types: Mapping[str, ShapedType | None]
) -> dict[str, LoadForm]:
    """By the results of the loads of tiles through pointers."""
    orders = {found[1]: int(found[2]) for line in aliases if (found := _FASTEST.match(line))}
    forms: dict[str, LoadForm] = {}
    for operation in function.walk():
        if operation.name != "tt.load" or len(operation.defined) != 1:
            continue
        tile = types.get(operation.defined[0])
        if tile is None:
            continue
        run = 0
        if len(tile.shape) > 1 and tile.encoding in orders:
            run = tile.shape[orders[tile.encoding]] * tile.element_bits // 8
        forms[operation.defined[0]] = LoadForm(run, elements_of_slice(tile.encoding, tile.shape, aliases))
    return forms


def _of_loop(loop: IrOperation) -> str:
    """What stands for the iterations of ``loop``."""
    return f"loop {id(loop)}"


class _ProgramReader:
    """Which program ids, and which loops' iterations, a value is made of; :data:`_MIXED` where one of them is merged on
    the way."""

    def __init__(self, defined: dict[str, Definition]) -> None:
        self.defined = defined
        self.known: dict[str, frozenset[str]] = {}

    def programs(self, values: tuple[str, ...] | list[str]) -> frozenset[str]:
        empty: frozenset[str] = frozenset()
        found = empty.union(*(self._of(value) for value in values))
        return _MIXED if found & _MIXED else found

    def _of(self, value: str) -> frozenset[str]:
        if value not in self.known:
            self.known[value] = frozenset()  # of itself, in a loop, it takes nothing new
            self.known[value] = self._read(value)
        return self.known[value]

    def _read(self, value: str) -> frozenset[str]:
        made = self.defined.get(value)
        if made is None:
            return frozenset()
        operation = made.operation
        if operation.name == "tt.get_program_id":
            return frozenset((_axis(operation),))
        if made.kind == VARIABLE:
            return self._of(control.read_loop(operation).lower) | {_of_loop(operation)}
        sources = made.sources
        if operation.name in LOOPS:
            return self.programs(sources) | ({_of_loop(operation)} if value not in operation.defined else set())
        if operation.name == "tt.make_tensor_descriptor":
            sources = sources[:1]  # its sizes say what is outside
        elif operation.name == "arith.select":
            sources = sources[1:]
        found = self.programs(sources)
        return _MIXED if found and operation.name in _MERGES else found


def _axis(operation: IrOperation) -> str:
    return next(token for token in operation.tokens if token in ("x", "y", "z"))

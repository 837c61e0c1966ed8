"""Operations of a loop of TTGIR grouped into loads, products, reductions, stores and chains of arithmetic.

Greedy, in program order: an operation of arithmetic lengthens the chain that it reads where both are of one kind, one
branch and tiles of one size, and where no other work stands between them, so that the groups stay a graph without
cycles in one iteration. Views, constants and arithmetic on scalars are transparent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from warpplan.kernels.compiler.analysis.operation_kinds import (
    COPY_LOAD,
    RING_KINDS,
    SELDOM,
    STORES,
    TMA_LOADS,
    TRANSPOSED,
    Classified,
    Part,
    classify,
    elements,
    short_name,
)
from warpplan.kernels.compiler.analysis.row_values import Types
from warpplan.kernels.compiler.analysis.tensor_memory import ACCESSES, Access, TensorMemory, values_read
from warpplan.kernels.compiler.ttgir.control import read_branch, yielded
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.types import ShapedType, parse_type

_CHAINS = frozenset({"elementwise", "sfu"})
_POINTER_STEPS = frozenset(
    {"tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "ttg.convert_layout", "tt.bitcast"}
)


@dataclass
class WorkGroup:
    """Operations of TTGIR that are one operation of a loop's work: ``reads`` and ``results`` are values, ``region`` the
    branch that they stand in (0: none), ``count`` the elements of their tile, ``base`` the pointer or descriptor of a
    load or store, ``buffer`` the bytes of shared memory that they fill; ``seldom``: they mask a tile in few
    iterations."""

    classified: Classified
    operations: list[IrOperation]
    region: int
    rows: bool
    rare: bool
    count: int
    parts: list[Part]
    reads: set[str] = field(default_factory=set)
    results: list[str] = field(default_factory=list)
    base: str = ""
    buffer: int = 0
    accumulator: set[str] = field(default_factory=set)
    accesses: list[Access] = field(default_factory=list)
    seldom: bool = False


class WorkGroupReader:
    """``source`` gives for each value the results behind views and scalars that it was made from; a result belongs to a
    group. A value that the loop carries is its own source until the end."""

    def __init__(
        self, types: Types, rows: frozenset[str], carried: tuple[tuple[str, str], ...], same_size: bool
    ) -> None:
        self.types, self.rows, self.same_size = types, rows, same_size
        self.groups: list[WorkGroup] = []
        self.home: dict[str, int] = {}
        self.back = dict(carried)
        self.source: dict[str, frozenset[str]] = {inside: frozenset((inside,)) for inside in self.back}
        self.pointer: dict[str, str] = {}
        self.memory = TensorMemory(types)
        self.loaded: dict[str, str] = {}
        """A loaded tensor, and the name of the same tensor in registers once somebody has read it."""
        self.spread: set[str] = set()
        """Few values repeated: Triton's passes after the cut repeat them in the layout that is asked for."""
        self.regions = 0
        self.rare = False
        self.position: dict[int, int] = {}

    def sources(self, values: Iterable[str]) -> frozenset[str]:
        empty: frozenset[str] = frozenset()
        return empty.union(*(self.source.get(value, empty) for value in values))

    def visit(self, region: Region, number: int) -> None:
        for operation in region.operations:
            name = short_name(operation)
            if name == "scf.if":
                self._branch(operation)
                continue
            accesses = self.memory.visit(operation)
            if name == "ttg.convert_layout" and self._is_in_slot(operation.operands[0]):
                self._read_slot(operation.operands[0], operation.result, operation, number)
                continue
            for value in operation.operands:
                as_it_lies = name == "ttg.local_alloc" and TRANSPOSED not in operation.attributes
                if value in self.loaded and not as_it_lies and name != "scf.yield":
                    self._into_registers(value, operation, number)
            if name in _POINTER_STEPS and operation.operands:
                for result in operation.defined:
                    self.pointer[result] = self._base(operation.operands[0])
            view = (
                name == "ttg.local_alloc"
                and any(v in self.loaded for v in operation.operands)
                and TRANSPOSED not in operation.attributes
            )
            if name in ("tt.splat", "tt.broadcast"):
                self.spread.update(operation.defined)
            remade = name == "ttg.convert_layout" and self.spread.issuperset(operation.operands)
            classified = None if view or remade else classify(operation, self.types)
            if view:
                self._fill(operation)
            if classified is None:
                for result in operation.defined:
                    self.source[result] = self.sources(operation.operands)
                continue
            self._add(operation, classified, number, accesses)

    def _branch(self, operation: IrOperation) -> None:
        branch = read_branch(operation)
        taken = self.sources((branch.condition,))
        for region in (branch.then, branch.otherwise):
            self.regions += 1
            inside = {short_name(inner) for inner in region.walk()}
            before = self.rare
            loads = inside & TMA_LOADS or any(inner.name == COPY_LOAD for inner in region.walk())
            self.rare |= bool(inside & STORES) and not loads
            self.visit(region, self.regions)
            self.rare = before
            for (_, outside), value in zip(branch.results, yielded(region), strict=False):
                self.source[outside] = self.source.get(outside, taken) | self.sources((value,))

    def _add(self, operation: IrOperation, classified: Classified, number: int, accesses: list[Access]) -> None:
        self.position[id(operation)] = len(self.position)
        made = operation.defined
        if short_name(operation) in ACCESSES and accesses:  # what it writes there is no value, and tokens are none
            made = [r for r in made if self.types.get(r) is not None and not self.memory.holds(r)]
            results = made or [a.buffer for a in accesses if a.written]
        else:
            results = [r for r in made if self.types.get(r) is not None] or made
        tile = next((t for v in (*results, *operation.operands) if (t := self.types.get(v)) is not None), None)
        # A store has no result: it goes with the value that it stores.
        stored = operation.operands[-1:] if classified.kind == "tma_store" else operation.operands[1:2]
        followed = results or stored or operation.operands
        nested = list(operation.walk()) if classified.kind == "loop" else [operation]
        reads = self.sources(v for o in nested for v in values_read(o))
        group = WorkGroup(
            classified, [operation], number, any(v in self.rows for v in followed), self.rare, elements(tile),
            list(classified.parts), set(reads) | {a.read for a in accesses if a.read}, accesses=accesses,
            seldom=SELDOM in operation.attributes,
        )  # fmt: skip
        if operation.operands and classified.kind in ("load", "store", "tma_store", *RING_KINDS):
            group.base = self._base(operation.operands[0])
        if classified.kind == "dot" and len(operation.operands) > 2:
            group.accumulator = set(self.sources(operation.operands[2:3])) | {a.read for a in accesses if a.adds}
        at = self._chain(group)
        if at is None:
            at = len(self.groups)
            self.groups.append(group)
        else:
            into = self.groups[at]
            into.operations.append(operation)
            into.parts += group.parts
            into.reads |= {r for r in reads if self.home.get(r) != at}
        made = [*made, *(a.written for a in accesses if a.written)]
        self.groups[at].results += made
        for result in made:
            self.home[result] = at
            self.source[result] = frozenset((result,))
        if classified.kind in ("load", *RING_KINDS):
            self.loaded.update({r: "" for r in results if self.types.get(r) is not None})
        if classified.kind in RING_KINDS:
            self.groups[at].buffer = tile_bytes(self.types, results)

    def _chain(self, group: WorkGroup) -> int | None:
        """The group that ``group`` can lengthen: alike, read by it, and no other work between the two."""
        if group.classified.kind not in _CHAINS:
            return None
        homes = {self.home[r] for r in group.reads if r in self.home}
        for at in sorted(homes, reverse=True):
            other = self.groups[at]
            alike = (
                other.classified.kind == group.classified.kind
                and other.region == group.region
                and other.rows == group.rows
                and other.seldom == group.seldom
                and (not self.same_size or other.count == group.count)
            )
            if alike and not any(self._reaches(at, home) for home in homes - {at}):
                return at
        return None

    def _reaches(self, start: int, end: int) -> bool:
        """Whether group ``end`` needs something of group ``start`` within one iteration."""
        seen, waiting = set(), [end]
        while waiting:
            at = waiting.pop()
            if at == start:
                return True
            if at not in seen:
                seen.add(at)
                waiting += [self.home[r] for r in self.groups[at].reads if r in self.home]
        return False

    def _base(self, value: str) -> str:
        return self.pointer.get(value, value)

    def _fill(self, operation: IrOperation) -> None:
        """A loaded tensor that is wanted in shared memory: the load writes there itself."""
        for value in operation.operands:
            home = self.home.get(value)
            if value in self.loaded and home is not None:
                self.groups[home].buffer = tile_bytes(self.types, [value])

    def _into_registers(self, value: str, reader: IrOperation, number: int) -> None:
        """A tile in a slot is read from shared memory once by the operations that want it in registers."""
        if self.loaded[value] or not self._is_in_slot(value):
            return
        name = self.loaded[value] = f"{value}.registers"
        self._read_slot(value, name, self.groups[self.home[value]].operations[-1], number)
        self.types[name] = self.types[value]
        self.source[value] = frozenset((name,))

    def _is_in_slot(self, value: str) -> bool:
        home = self.home.get(value)
        return value in self.loaded and home is not None and self.groups[home].classified.kind in RING_KINDS

    def _read_slot(self, value: str, name: str, reader: IrOperation, number: int) -> None:
        """A tile in a slot, read from shared memory as ``name``. In another layout than the load's own as well:
        Triton folds a change of layout into the read (its canonical form of ``ttg.convert_layout``)."""
        tile = self.types[value]
        assert tile is not None
        part = Part("shared_load", tile.bytes)
        group = WorkGroup(
            Classified("shared_load", (part,)), [reader], number, value in self.rows, self.rare, elements(tile), [part],
            {value}, [name],
        )  # fmt: skip
        self.position.setdefault(id(reader), len(self.position))
        self.home[name] = len(self.groups)
        self.groups.append(group)
        self.source[name] = frozenset((name,))


def register_bits(tile: ShapedType | None) -> int:
    """Bits of registers that a tile takes. Of pointers one stands for each 16 bytes that are accessed at once."""
    if tile is None or tile.kind != "tensor":
        return 0
    pointee = tile.element.partition("!tt.ptr<")[2].rpartition(">")[0]
    if not pointee:
        return elements(tile) * tile.element_bits
    pointed = parse_type(f"tensor<1x{pointee}>")
    vector = 128 // max(8, pointed.element_bits) if pointed is not None else 1
    return elements(tile) * tile.element_bits // vector


def tile_bytes(types: Types, values: Iterable[str]) -> int:
    return sum(t.bytes for v in values if (t := types.get(v)) is not None)

"""A loop of TTGIR as a list of work and what flows between it.

An operation of the list is a load, a product, a reduction, a store, or a chain of arithmetic on tiles of one size;
views, constants and arithmetic on scalars are transparent: who reads one reads what it was made from. Chains are grown in program order, and only where no
other work stands between their ends, so that the list stays a graph without cycles in one iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from warpplan.kernels.compiler.analysis.operation_kinds import (
    STORES,
    TMA_LOADS,
    Classified,
    Kind,
    Part,
    Product,
    classify,
    elements,
    short_name,
)
from warpplan.kernels.compiler.analysis.row_values import Types
from warpplan.kernels.compiler.analysis.tensor_memory import ACCESSES, Access, TensorBuffer, TensorMemory, values_read
from warpplan.kernels.compiler.ttgir.control import read_branch, yielded
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations
from warpplan.kernels.compiler.ttgir.types import ShapedType

MOST_WORK = 40
"""Operations of a loop beyond which chains are also grown across tiles of different sizes, so that the planner gets
fewer operations. Chosen by hand."""
_CHAINS = frozenset({"elementwise", "sfu"})
_NAMED_FIRST = frozenset({"tma_load", "tma_store", "load", "store", "loop"})
_POINTER_STEPS = frozenset(
    {"tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "ttg.convert_layout", "tt.bitcast"}
)


@dataclass(frozen=True)
class LoopWork:
    """One operation of a loop: ``id`` is ``name@file:line``; ``names`` are the operations of TTGIR in it, ``lines``
    their locations in the source.

    ``register_bits`` are those of the whole tile that it leaves for others, ``buffer_bytes`` those of the shared memory
    that it fills, ``tensor`` the tensor memory that it writes. ``rows``: its tile follows the rows of a product, so
    data partitions share it out. ``rare``: it stands in a branch that stores and does not load, the end of a tile in a
    loop over several.
    """

    id: str
    kind: Kind
    names: tuple[str, ...]
    line: str
    lines: tuple[str, ...]
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    product: Product | None = None
    register_bits: int = 0
    buffer_bytes: int = 0
    rows: bool = False
    conditional: bool = False
    rare: bool = False
    tensor: TensorBuffer | None = None


@dataclass(frozen=True)
class Flow:
    """``dst`` needs ``src`` of ``distance`` iterations before; ``kind`` "token" orders accesses to the same memory.
    ``accumulates``: the value is the accumulator that ``dst`` adds to."""

    src: str
    dst: str
    distance: int = 0
    kind: str = "data"
    accumulates: bool = False


@dataclass
class _Group:
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


def read_work(
    region: Region, carried: Iterable[tuple[str, str]], types: Types, rows: frozenset[str], locations: SourceLocations
) -> tuple[tuple[LoopWork, ...], tuple[Flow, ...]]:
    """The work of ``region`` and its flows; ``carried`` are the loop's (value inside, value that ends an iteration).

    A loop inside is one operation, a branch's operations count as if it were always taken.
    """
    pairs = tuple(carried)
    reader = _WorkReader(types, rows, pairs, same_size=True)
    reader.visit(region, 0)
    if len(reader.groups) > MOST_WORK:
        reader = _WorkReader(types, rows, pairs, same_size=False)
        reader.visit(region, 0)
    return reader.finish(locations)


class _WorkReader:
    """``source`` gives for each value the results behind views and scalars that it was made from; a result belongs to a group. A value that
    the loop carries is its own source until the end."""

    def __init__(
        self, types: Types, rows: frozenset[str], carried: tuple[tuple[str, str], ...], same_size: bool
    ) -> None:
        self.types, self.rows, self.same_size = types, rows, same_size
        self.groups: list[_Group] = []
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

    # Reading

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
            for value in operation.operands:
                if value in self.loaded and name not in ("ttg.local_alloc", "scf.yield"):
                    self._into_registers(value, operation, number)
            if name in _POINTER_STEPS and operation.operands:
                for result in operation.defined:
                    self.pointer[result] = self._base(operation.operands[0])
            view = name == "ttg.local_alloc" and any(v in self.loaded for v in operation.operands)
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
            self.rare |= bool(inside & STORES) and not inside & TMA_LOADS
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
        group = _Group(
            classified, [operation], number, any(v in self.rows for v in followed), self.rare, elements(tile),
            list(classified.parts), set(reads) | {a.read for a in accesses if a.read}, accesses=accesses,
        )  # fmt: skip
        if operation.operands and classified.kind in ("load", "store", "tma_load", "tma_store"):
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
        if classified.kind in ("tma_load", "load"):
            self.loaded.update({r: "" for r in results if self.types.get(r) is not None})
        if classified.kind == "tma_load":
            self.groups[at].buffer = tile_bytes(self.types, results)

    def _chain(self, group: _Group) -> int | None:
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
            for result in self.source.get(value, ()):
                if value in self.loaded and result in self.home:
                    self.groups[self.home[result]].buffer = tile_bytes(self.types, [value])

    def _into_registers(self, value: str, reader: IrOperation, number: int) -> None:
        """A tile that TMA brought is read from shared memory once by the operations that want it in registers."""
        home = self.home.get(value)
        if self.loaded[value] or home is None or self.groups[home].classified.kind != "tma_load":
            return
        tile = self.types[value]
        assert tile is not None
        name = f"{value}.registers"
        self.loaded[value] = name
        part = Part("shared_load", tile.bytes)
        group = _Group(
            Classified("shared_load", (part,)), [self.groups[home].operations[-1]], number, value in self.rows,
            self.rare, elements(tile), [part], {value}, [name],
        )  # fmt: skip
        self.home[name] = len(self.groups)
        self.groups.append(group)
        self.types[name] = tile
        self.source[value] = frozenset((name,))

    # Writing

    def finish(self, locations: SourceLocations) -> tuple[tuple[LoopWork, ...], tuple[Flow, ...]]:
        self.back |= self.memory.around()
        self._sort()
        flows: dict[tuple[str, str, int, str], Flow] = {}
        read_elsewhere: set[str] = {r for back in self.back.values() for r in self.source.get(back, ())}
        names = self._names(locations)
        for at, group in enumerate(self.groups):
            for read in sorted(group.reads | group.accumulator):
                for result, distance in sorted(self._roots(read)):
                    home = self.home[result]
                    if home == at and distance == 0:
                        continue
                    read_elsewhere.add(result)
                    flow = Flow(names[home], names[at], distance, "data", read in group.accumulator)
                    flows.setdefault((flow.src, flow.dst, distance, flow.kind), flow)
        for flow in [*self._memory_order(names), *self._tensor_memory_order(names)]:
            flows.setdefault((flow.src, flow.dst, flow.distance, flow.kind), flow)
        work = tuple(
            self._work(names[at], group, locations, read_elsewhere) for at, group in enumerate(self.groups)
        )  # fmt: skip
        return work, tuple(flows.values())

    def _sort(self) -> None:
        """Put the groups into an order in which one thread can run them, as close to the program's as chains allow."""
        last = [self.position[id(group.operations[-1])] for group in self.groups]
        needs = [{self.home[r] for r in g.reads if r in self.home} - {at} for at, g in enumerate(self.groups)]
        order: list[int] = []
        while len(order) < len(self.groups):
            ready = [at for at in range(len(self.groups)) if at not in order and needs[at] <= set(order)]
            order.append(min(ready, key=lambda at: (last[at], at)))
        new = {at: i for i, at in enumerate(order)}
        self.groups = [self.groups[at] for at in order]
        self.home = {result: new[at] for result, at in self.home.items()}

    def _roots(self, read: str, seen: frozenset[str] = frozenset()) -> set[tuple[str, int]]:
        """The results behind ``read``, with how many iterations ago each was made."""
        if read not in self.back:
            return {(read, 0)} if read in self.home else set()
        if read in seen:
            return set()
        found: set[tuple[str, int]] = set()
        for result in self.sources((self.back[read],)):
            found |= {(root, distance + 1) for root, distance in self._roots(result, seen | {read})}
        return found

    def _memory_order(self, names: list[str]) -> list[Flow]:
        """Accesses to one array stay in order where one of them writes."""
        flows: list[Flow] = []
        touching: dict[str, list[int]] = {}
        for at, group in enumerate(self.groups):
            if group.base:
                touching.setdefault(group.base, []).append(at)
        for users in touching.values():
            writes = [at for at in users if self.groups[at].classified.kind in ("store", "tma_store")]
            if not writes or len(users) < 2:
                continue
            for a, b in pairwise(users):
                flows.append(Flow(names[a], names[b], 0, "token"))
            flows.append(Flow(names[users[-1]], names[users[0]], 1, "token"))
        return flows

    def _tensor_memory_order(self, names: list[str]) -> list[Flow]:
        home = {access.number: names[at] for at, group in enumerate(self.groups) for access in group.accesses}
        return [
            Flow(home[earlier.number], home[later.number], distance, "token")
            for earlier, later, distance in self.memory.order()
            if earlier.number in home and later.number in home and home[earlier.number] != home[later.number]
        ]

    def _names(self, locations: SourceLocations) -> list[str]:
        """``acc@matmul.py:12``; of several from one line and name, products have the first claim, then loads and
        stores, and the others add what they do: ``acc.truncf@matmul.py:12``."""
        names = [""] * len(self.groups)
        taken: set[str] = set()
        for at in sorted(range(len(names)), key=self._claim):
            group = self.groups[at]
            last = group.operations[-1]
            location, does = locations.of(last), short_name(last).rpartition(".")[2]
            if group.classified.kind == "shared_load":
                does = "local_load"
            where = f"@{location}" if location.file else ""
            stem = location.name or does
            tries = (f"{stem}{n}{where}" for n in ("", f".{does}", *(f".{does}{i}" for i in range(2, len(names) + 2))))
            names[at] = next(name for name in tries if name not in taken)
            taken.add(names[at])
        return names

    def _claim(self, at: int) -> int:
        """Rank in the claim for a bare name: products, then what moves tiles, then the rest."""
        kind = self.groups[at].classified.kind
        return 0 if kind == "dot" else 1 if kind in _NAMED_FIRST else 2

    def _work(self, name: str, group: _Group, locations: SourceLocations, read_elsewhere: set[str]) -> LoopWork:
        tile = next(
            (t for o in group.operations for v in (*o.defined, *o.operands[1:], *o.operands[:1])
             if (t := self.types.get(v)) is not None), None,
        )  # fmt: skip
        product = group.classified.product
        kept = [t for r in group.results if r in read_elsewhere and (t := self.types.get(r)) is not None]
        bits = sum(elements(t) * t.element_bits for t in kept if t.kind == "tensor")
        lines = tuple(dict.fromkeys(str(locations.of(o)) for o in group.operations if locations.of(o).file))
        return LoopWork(
            name, group.classified.kind, tuple(short_name(o) for o in group.operations),
            str(locations.of(group.operations[-1])), lines, _shape(tile, product), tuple(group.parts),
            product, 0 if group.buffer else bits, group.buffer, group.rows, group.region > 0,
            group.rare, self.memory.written(group.accesses),
        )  # fmt: skip


def _shape(tile: ShapedType | None, product: Product | None) -> tuple[int, ...]:
    if product is not None:
        return product.m, product.n
    return tile.shape if tile is not None else ()


def tile_bytes(types: Types, values: Iterable[str]) -> int:
    return sum(t.bytes for v in values if (t := types.get(v)) is not None)

"""A loop of TTGIR as a list of work and what flows between it.

An operation of the list is a group of :mod:`~warpplan.kernels.compiler.analysis.work_groups`: a load, a product, a
reduction, a store, or a chain of arithmetic on tiles of one size. Here the groups are ordered and named, and the flows
between them found: values, within an iteration and from one to a later one, and the order of accesses to memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from warpplan.kernels.compiler.analysis.copies.slot_layouts import passes_of
from warpplan.kernels.compiler.analysis.operation_kinds import RING_KINDS, Kind, Part, Product, short_name
from warpplan.kernels.compiler.analysis.row_values import Types
from warpplan.kernels.compiler.analysis.streams import LoadForm
from warpplan.kernels.compiler.analysis.tensor_memory import TensorBuffer
from warpplan.kernels.compiler.analysis.work_groups import WorkGroup, WorkGroupReader, register_bits
from warpplan.kernels.compiler.ttgir.ir import Region
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations
from warpplan.kernels.compiler.ttgir.types import ShapedType

MOST_WORK = 40
"""Operations of a loop beyond which chains are also grown across tiles of different sizes, so that the planner gets
fewer operations. Chosen by hand."""
_NAMED_FIRST = frozenset({"tma_load", "copy_load", "tma_store", "load", "store", "loop"})


@dataclass(frozen=True)
class LoopWork:
    """One operation of a loop: ``id`` is ``name@file:line``; ``names`` are the operations of TTGIR in it, ``lines``
    their locations in the source.

    ``register_bits`` are those of the whole tile that it leaves for others, ``buffer_bytes`` those of the shared memory
    that it fills, ``tensor`` the tensor memory that it writes. ``rows``: its tile follows the rows of a product, so
    data partitions share it out. ``rare``: it stands in a branch that stores and does not load, the end of a tile in a
    loop over several. ``seldom``: it masks a tile in few iterations of the loop. ``results`` are the values that
    ``register_bits`` counts, each with its bits. ``streamed``: a load of which every program reads other memory, so
    that it comes from DRAM; ``run_bytes`` of a loaded tile lie together, each thread loads ``thread_elements`` of it, 0
    where that is not known. ``partition`` is its number under an assignment (:mod:`~...lowering.assigned.anchors`).
    ``passes``: through the banks of shared memory for every 128 bytes that a copy writes or a read brings, under our
    lowering and where Triton pipelines the loop itself. ``scratch_bytes``: shared memory that a change of layout takes
    for the whole tile, 0 where that was not asked.
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
    streamed: bool = False
    results: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    partition: int = 0
    passes: tuple[float, float] = (1.0, 1.0)
    seldom: bool = False
    run_bytes: int = 0
    thread_elements: int = 0
    scratch_bytes: int = 0


@dataclass(frozen=True)
class Flow:
    """``dst`` needs ``src`` of ``distance`` iterations before; ``kind`` "token" orders accesses to the same memory.
    ``accumulates``: the value is the accumulator that ``dst`` adds to. ``values`` are the results of ``src`` that it
    carries."""

    src: str
    dst: str
    distance: int = 0
    kind: str = "data"
    accumulates: bool = False
    values: tuple[str, ...] = field(default=(), compare=False)


def read_work(
    region: Region, carried: Iterable[tuple[str, str]], types: Types, rows: frozenset[str], locations: SourceLocations,
    streamed: frozenset[str] = frozenset(), forms: Mapping[str, LoadForm] = MappingProxyType({}),
    scratch: Mapping[str, int] = MappingProxyType({}),
) -> tuple[tuple[LoopWork, ...], tuple[Flow, ...]]:  # fmt: skip
    """The work of ``region`` and its flows; ``carried`` are the loop's (value inside, value that ends an iteration),
    ``streamed`` the loads that stream, ``forms`` how they are loaded (:mod:`~.streams`) and ``scratch`` the shared
    memory of changes of layout, by their results.

    A loop inside is one operation, a branch's operations count as if it were always taken.
    """
    pairs = tuple(carried)
    reader = WorkGroupReader(types, rows, pairs, same_size=True)
    reader.visit(region, 0)
    if len(reader.groups) > MOST_WORK:
        reader = WorkGroupReader(types, rows, pairs, same_size=False)
        reader.visit(region, 0)
    return _WorkWriter(reader, streamed, forms, scratch).work_and_flows(locations)


class _WorkWriter:
    """The groups of ``reader`` as work and flows, in an order in which one thread can run them."""

    def __init__(
        self, reader: WorkGroupReader, streamed: frozenset[str], forms: Mapping[str, LoadForm],
        scratch: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.streamed, self.forms, self.scratch = streamed, forms, scratch
        self.reader, self.groups, self.home = reader, reader.groups, reader.home
        self.back = reader.back | reader.memory.around()
        self._sort()

    def work_and_flows(self, locations: SourceLocations) -> tuple[tuple[LoopWork, ...], tuple[Flow, ...]]:
        flows: dict[tuple[str, str, int, str], Flow] = {}
        read_elsewhere: set[str] = {r for back in self.back.values() for r in self.reader.source.get(back, ())}
        names = self._names(locations)
        for at, group in enumerate(self.groups):
            for read in sorted(group.reads | group.accumulator):
                for result, distance in sorted(self._roots(read)):
                    home = self.home[result]
                    if home == at and distance == 0:
                        continue
                    read_elsewhere.add(result)
                    key = names[home], names[at], distance, "data"
                    new = Flow(names[home], names[at], distance, "data", read in group.accumulator)
                    flow = flows.get(key, new)
                    flows[key] = replace(flow, values=(*flow.values, result))
        for flow in [*self._memory_order(names), *self._tensor_memory_order(names)]:
            flows.setdefault((flow.src, flow.dst, flow.distance, flow.kind), flow)
        work = tuple(
            self._work(names[at], group, locations, read_elsewhere) for at, group in enumerate(self.groups)
        )  # fmt: skip
        return work, tuple(flows.values())

    def _sort(self) -> None:
        """Put the groups into an order in which one thread can run them, as close to the program's as chains allow."""
        position = self.reader.position
        last = [position[id(group.operations[-1])] for group in self.groups]
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
        for result in self.reader.sources((self.back[read],)):
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
            for earlier, later, distance in self.reader.memory.order()
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

    def _work(self, name: str, group: WorkGroup, locations: SourceLocations, read_elsewhere: set[str]) -> LoopWork:
        tile = next(
            (t for o in group.operations for v in (*o.defined, *o.operands[1:], *o.operands[:1])
             if (t := self.reader.types.get(v)) is not None), None,
        )  # fmt: skip
        product = group.classified.product
        kept = {r: register_bits(self.reader.types.get(r)) for r in group.results if r in read_elsewhere}
        lines = tuple(dict.fromkeys(str(locations.of(o)) for o in group.operations if locations.of(o).file))
        form = next((self.forms[r] for r in group.results if r in self.forms), LoadForm())
        return LoopWork(
            name, group.classified.kind, tuple(short_name(o) for o in group.operations),
            str(locations.of(group.operations[-1])), lines, _shape(tile, product), tuple(group.parts),
            product, 0 if group.buffer else sum(kept.values()), group.buffer, group.rows, group.region > 0,
            group.rare, self.reader.memory.written(group.accesses),
            group.classified.kind in (*RING_KINDS, "load") and self.streamed.issuperset(group.results),
            () if group.buffer else tuple(kept.items()), passes=self._passes(group), seldom=group.seldom,
            run_bytes=form.run_bytes, thread_elements=form.thread_elements,
            scratch_bytes=max((self.scratch.get(r, 0) for r in group.results), default=0),
        )  # fmt: skip

    def _passes(self, group: WorkGroup) -> tuple[float, float]:
        if group.classified.kind == "copy_load":
            found = passes_of(group.operations[0])
            return found.copied, found.own_copied
        if group.classified.kind != "shared_load":
            return 1.0, 1.0
        homes = {self.home[read] for read in group.reads if read in self.home}
        slots = [passes_of(self.groups[at].operations[0]) for at in homes]
        return max((s.read for s in slots), default=1.0), max((s.own_read for s in slots), default=1.0)


def _shape(tile: ShapedType | None, product: Product | None) -> tuple[int, ...]:
    if product is not None:
        return product.m, product.n
    return tile.shape if tile is not None else ()

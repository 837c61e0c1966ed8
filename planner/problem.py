"""A graph and its options in the solver's own terms: indices, arcs, clusters.

An :class:`Arc` is the one kind of inequality between two start times; dependences and rings of known depth both become
arcs, so that one longest-path routine bounds both. A *cluster* is a set of operations that must share a partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from warpplan.planner.errors import Infeasible, InvalidGraph, InvalidInput
from warpplan.planner.graph import DependenceGraph

WARP_COUNTS = (1, 2, 4, 8)
REGISTER_COUNTS = tuple(range(24, 241, 8))
"""What ``setmaxnreg`` takes (PTX ISA, "setmaxnreg"), within what the compiler hands out."""
BASE_REGISTERS = 24
"""Registers a thread that no value of the graph owns: addresses, phases, loop counters."""
MAX_OPERATIONS = 2_000
MAX_CYCLES = 10**9
"""Half a second on one operation: beyond it, something else is meant, and sums would leave 64 bits."""
MAX_DISTANCE = 1_000


@dataclass(frozen=True)
class PartitionSpec:
    """A partition that the caller has already dimensioned; ``registers`` per thread."""

    name: str
    warps: int
    registers: int


@dataclass(frozen=True)
class ExtraBuffer:
    """Shared memory beside the rings (barriers, epilogue staging), live all the time.

    ``shares_with`` names the operation whose ring it reuses, from slot ``slot`` on.
    """

    name: str
    size: int
    alignment: int = 8
    shares_with: str | None = None
    slot: int = 0


@dataclass(frozen=True)
class Spill:
    """What ptxas reported: a partition that runs all of ``ops`` needs more than ``registers`` a thread."""

    ops: tuple[str, ...]
    registers: int


@dataclass(frozen=True)
class SolveOptions:
    """``pinned`` puts operations into partitions by index and ``partitions`` dimensions them; ``depth`` fixes every
    ring's slots (``None``: as few as the live ranges need). ``slack_cycles`` is added to every live range.
    ``time_limit_s`` is kept in CP-SAT's deterministic time, so that a slow machine gives the same plan."""

    time_limit_s: float = 10.0
    depth: int | None = None
    slack_cycles: int = 0
    pinned: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[PartitionSpec, ...] = ()
    extra_buffers: tuple[ExtraBuffer, ...] = ()
    spills: tuple[Spill, ...] = ()


@dataclass(frozen=True)
class Arc:
    """start[``dst``] ≥ start[``src``] + ``cycles`` − II · ``distance``, plus ``handoff`` where partitions differ."""

    src: int
    dst: int
    cycles: int
    handoff: int
    distance: int


@dataclass(frozen=True)
class Use:
    """``consumer`` has left the slot of an operation's ring ``cycles`` after its own start, ``distance`` iterations
    later (plus ``handoff`` when it must tell another partition)."""

    consumer: int
    cycles: int
    handoff: int
    distance: int


@dataclass(frozen=True)
class Problem:
    """Everything the solver derives from a graph before it searches."""

    graph: DependenceGraph
    options: SolveOptions

    def __post_init__(self) -> None:
        _validate(self.graph, self.options)

    @cached_property
    def dependences(self) -> tuple[Arc, ...]:
        index, h = self.graph.index, self.graph.limits.handoff_cycles
        return tuple(
            Arc(index[e.src], index[e.dst], self.graph.edge_latency(e), h if e.src != e.dst else 0, e.distance)
            for e in self.graph.edges
        )

    @cached_property
    def rings(self) -> dict[int, tuple[Use, ...]]:
        """Per operation that writes a buffer: who frees its slot, and when. With no consumer it frees it itself."""
        graph, index = self.graph, self.graph.index
        uses: dict[int, list[Use]] = {index[op.id]: [] for op in graph.ops if op.buffer_bytes}
        for edge in graph.edges:
            producer = index[edge.src]
            if edge.kind == "data" and producer in uses:
                consumer = graph.by_id[edge.dst]
                uses[producer].append(
                    Use(index[edge.dst], consumer.latency, graph.limits.handoff_cycles, edge.distance)
                )
        return {i: tuple(found) or (Use(i, graph.ops[i].latency, 0, 0),) for i, found in uses.items()}

    def ring_arcs(self, depth: int, only: int | None = None) -> tuple[Arc, ...]:
        """Rings (or ``only`` that operation's) of ``depth`` slots as arcs: iteration i refills what i − depth freed."""
        slack = self.options.slack_cycles
        return tuple(
            Arc(use.consumer, producer, use.cycles + slack, use.handoff if use.consumer != producer else 0,
                depth - use.distance)
            for producer, uses in self.rings.items()
            if only in (None, producer)
            for use in uses
        )  # fmt: skip

    def slot_bytes(self, op: int) -> int:
        """Bytes from one slot of the operation's ring to the next."""
        return whole_multiple(self.graph.ops[op].buffer_bytes, self.graph.ops[op].alignment)

    def least_bytes(self) -> int:
        """Shared memory that every plan takes: each ring at its given depth, or one slot, and the extra buffers."""
        rings = [self.slot_bytes(i) for i in self.rings if self.graph.ops[i].memory == "smem"]
        return (self.options.depth or 1) * sum(rings) + self.extra_bytes

    @cached_property
    def extra_bytes(self) -> int:
        extras = [e for e in self.options.extra_buffers if e.shares_with is None]
        return sum(whole_multiple(e.size, e.alignment) for e in extras)

    @cached_property
    def arcs(self) -> tuple[Arc, ...]:
        """Dependences, and rings too where their depth is given."""
        depth = self.options.depth
        return self.dependences + (self.ring_arcs(depth) if depth is not None else ())

    @cached_property
    def cluster(self) -> tuple[int, ...]:
        """Per operation, the smallest index of the operations that must share its partition.

        A value in registers (no buffer) stays where it is when it is carried to a later iteration, or when the graph
        says how many registers it takes: other warps cannot see it.
        """
        root = list(range(len(self.graph.ops)))

        def find(i: int) -> int:
            while root[i] != i:
                root[i] = root[root[i]]
                i = root[i]
            return i

        for edge in self.graph.edges:
            source = self.graph.by_id[edge.src]
            if edge.kind == "data" and source.buffer_bytes == 0 and (edge.distance > 0 or source.registers > 0):
                a, b = find(self.graph.index[edge.src]), find(self.graph.index[edge.dst])
                root[max(a, b)] = min(a, b)
        return tuple(find(i) for i in range(len(root)))

    @cached_property
    def clusters(self) -> tuple[int, ...]:
        """The clusters' names, ascending."""
        return tuple(sorted(set(self.cluster)))

    @cached_property
    def pins(self) -> dict[int, int]:
        """Cluster → partition, where the caller (or a single partition) decides it."""
        if self.graph.limits.max_partitions == 1:
            return dict.fromkeys(self.clusters, 0)
        pins: dict[int, int] = {}
        for op, partition in sorted(self.options.pinned.items()):
            cluster = self.cluster[self.graph.index[op]]
            if pins.setdefault(cluster, partition) != partition:
                raise Infeasible(
                    f"operation {op!r} is pinned to partition {partition}, but a register value ties it to operations "
                    f"pinned to {pins[cluster]}: pin them alike",
                    field="pinned", value=op, limit="assignment",
                )  # fmt: skip
        return pins

    def partition_of(self, op: int) -> int | None:
        return self.pins.get(self.cluster[op])

    def surely_cross(self, arc: Arc) -> bool:
        """Whether both ends are pinned, apart."""
        a, b = self.partition_of(arc.src), self.partition_of(arc.dst)
        return a is not None and b is not None and a != b


def whole_multiple(size: int, alignment: int) -> int:
    """``size`` rounded up to ``alignment``."""
    return -(-size // alignment) * alignment


def _validate(graph: DependenceGraph, options: SolveOptions) -> None:
    if not graph.ops:
        raise InvalidGraph(f"graph {graph.name!r} has no operations", field="ops")
    if len(graph.ops) > MAX_OPERATIONS:
        raise InvalidGraph(
            f"graph {graph.name!r} has {len(graph.ops)} operations: at most {MAX_OPERATIONS} can be scheduled",
            field="ops", value=len(graph.ops), limit=MAX_OPERATIONS,
        )  # fmt: skip
    limits = graph.limits
    for name, least in (("max_partitions", 1), ("smem_bytes", 0), ("registers", 0), ("handoff_cycles", 0)):
        if getattr(limits, name) < least:
            raise InvalidGraph(
                f"limits.{name} is {getattr(limits, name)}: expected {least} or more",
                field=f"limits.{name}", value=getattr(limits, name), limit=least,
            )  # fmt: skip
    for op in graph.ops:
        if not 1 <= op.min_warps <= WARP_COUNTS[-1]:
            raise InvalidGraph(
                f"operation {op.id!r} has min_warps {op.min_warps}: expected 1 to {WARP_COUNTS[-1]}",
                field="ops.min_warps", value=op.min_warps, limit=WARP_COUNTS[-1],
            )  # fmt: skip
        for name in ("latency", "occupancy", "issue"):
            if getattr(op, name) > MAX_CYCLES:
                raise InvalidGraph(
                    f"operation {op.id!r} has {name} {getattr(op, name)}: expected at most {MAX_CYCLES} cycles",
                    field=f"ops.{name}", value=getattr(op, name), limit=MAX_CYCLES,
                )  # fmt: skip
        if op.alignment < 1 or op.alignment & (op.alignment - 1):
            raise InvalidGraph(
                f"operation {op.id!r} has alignment {op.alignment}: expected a power of two",
                field="ops.alignment", value=op.alignment,
            )  # fmt: skip
    for edge in graph.edges:
        if edge.latency is not None and not 0 <= edge.latency <= MAX_CYCLES:
            raise InvalidGraph(
                f"edge {edge.src} -> {edge.dst} has latency {edge.latency}: expected 0 to {MAX_CYCLES} cycles",
                field="edges.latency", value=edge.latency, limit=MAX_CYCLES,
            )  # fmt: skip
        if edge.distance > MAX_DISTANCE:
            raise InvalidGraph(
                f"edge {edge.src} -> {edge.dst} has distance {edge.distance}: expected at most {MAX_DISTANCE}",
                field="edges.distance", value=edge.distance, limit=MAX_DISTANCE,
            )  # fmt: skip
    if options.depth is not None and options.depth < 1:
        raise InvalidInput(f"depth is {options.depth}: expected 1 or more", field="depth", value=options.depth, limit=1)
    if not options.time_limit_s > 0:
        raise InvalidInput(
            f"time limit is {options.time_limit_s} s: expected more than 0", field="time_limit_s",
            value=options.time_limit_s, limit=0,
        )  # fmt: skip
    for op_id, partition in options.pinned.items():
        if op_id not in graph.index:
            raise InvalidInput(f"pinned operation {op_id!r} is not in the graph", field="pinned", value=op_id)
        if not 0 <= partition < limits.max_partitions:
            raise InvalidInput(
                f"operation {op_id!r} is pinned to partition {partition}: expected 0 to {limits.max_partitions - 1}",
                field="pinned", value=partition, limit=limits.max_partitions - 1,
            )  # fmt: skip
    rings = {op.id for op in graph.ops if op.buffer_bytes}
    for extra in options.extra_buffers:
        if extra.shares_with is not None and extra.shares_with not in rings:
            raise InvalidInput(
                f"buffer {extra.name!r} shares with {extra.shares_with!r}, which has no ring",
                field="extra_buffers", value=extra.shares_with, limit=sorted(rings),
            )  # fmt: skip

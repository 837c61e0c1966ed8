"""A graph and its options in the solver's own terms: indices, arcs, uses, clusters.

An :class:`Arc` is the one kind of inequality between two start times; dependences and rings of known depth both become
arcs, so that one longest-path routine bounds both. A *cluster* is a set of operations that must share a partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from warpplan.planner.errors import Infeasible
from warpplan.planner.problem.validate import validate
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Memory, Operation

WARP_COUNTS = (1, 2, 4, 8)
WARP_GROUP = 4
"""Warps that registers are allotted to, and that reach all four sub-partitions of an SM."""
REGISTER_COUNTS = tuple(range(24, 241, 8))
"""What ``setmaxnreg`` takes (PTX ISA, "setmaxnreg"), within what the compiler hands out."""


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
    later (plus ``handoff`` when it must tell another partition); ``margin`` is kept beyond it for late arrivals."""

    consumer: int
    cycles: int
    handoff: int
    distance: int
    margin: int


@dataclass(frozen=True)
class Problem:
    """Everything the solver derives from a graph before it searches. RULES.md numbers the rules it speaks of."""

    graph: DependenceGraph
    options: SolveOptions

    def __post_init__(self) -> None:
        validate(self.graph, self.options)

    # Costs

    @cached_property
    def ops(self) -> tuple[Operation, ...]:
        """The operations with the costs they have in the partitions that the caller dimensioned (rule 0)."""
        if not self.options.partitions or not any(map(self._is_slow, range(len(self.graph.ops)))):
            return self.graph.ops
        return tuple(
            replace(
                op,
                latency=op.latency + self._delay[i],
                occupancy=op.occupancy + self._delay[i],
                issue=op.issue * (WARP_GROUP // self._given_warps(i)),
            )
            if self._is_slow(i)
            else op
            for i, op in enumerate(self.graph.ops)
        )

    @cached_property
    def _delay(self) -> tuple[int, ...]:
        """Cycles that too few warps add to an operation's occupancy, and so to its latency."""
        return tuple(
            (WARP_GROUP // self._given_warps(i) - 1) * op.occupancy if self._is_slow(i) else 0
            for i, op in enumerate(self.graph.ops)
        )

    def _is_slow(self, op: int) -> bool:
        return self.graph.ops[op].unit in ("ALU", "SFU") and self._given_warps(op) < WARP_GROUP

    def _given_warps(self, op: int) -> int:
        """Warps of the partition that the caller dimensioned and pinned ``op`` to; enough where there is none."""
        at = self.options.pinned.get(self.graph.ops[op].id, 0 if self.graph.limits.max_partitions == 1 else None)
        specs = self.options.partitions
        return specs[at].warps if at is not None and at < len(specs) else WARP_COUNTS[-1]

    def latency(self, edge: Dependence) -> int:
        """Cycles from the source's issue to the destination's, hand-off not counted."""
        return self.graph.edge_latency(edge) + self._delay[self.graph.index[edge.src]]

    @cached_property
    def warps(self) -> tuple[int, ...]:
        """Per operation, the warps that its partition needs at least (rules 0 and 4)."""
        graph, architecture = self.graph, self.graph.limits.architecture
        least = [op.min_warps for op in graph.ops]
        for i, op in enumerate(graph.ops):
            dimensioned = bool(self.options.partitions)
            if (op.unit in ("ALU", "SFU") and not dimensioned) or (op.unit == "TENSOR" and architecture == "hopper"):
                least[i] = max(least[i], WARP_GROUP)
        if architecture == "blackwell":
            held = {op.id for op in graph.ops if op.memory == "tmem" and op.buffer_bytes}
            touching = held | {e.dst for e in graph.edges if e.kind == "data" and e.src in held}
            for i, op in enumerate(graph.ops):
                if op.id in touching and op.unit not in ("TENSOR", "TMA"):
                    least[i] = max(least[i], WARP_GROUP)
        return tuple(least)

    # Dependences and rings

    @cached_property
    def dependences(self) -> tuple[Arc, ...]:
        index = self.graph.index
        return tuple(
            Arc(
                index[e.src], index[e.dst], self.latency(e), self.graph.edge_handoff(e) if e.src != e.dst else 0,
                e.distance,
            )
            for e in self.graph.edges
        )  # fmt: skip

    @cached_property
    def readers(self) -> dict[int, tuple[tuple[int, Dependence], ...]]:
        """Per operation, who reads its value, and along which edge."""
        index = self.graph.index
        found: dict[int, list[tuple[int, Dependence]]] = {i: [] for i in range(len(self.graph.ops))}
        for edge in self.graph.edges:
            if edge.kind == "data":
                found[index[edge.src]].append((index[edge.dst], edge))
        return {i: tuple(edges) for i, edges in found.items()}

    def has_value(self, op: int) -> bool:
        """Whether the operation writes something that a reader in another partition must be handed."""
        return self.graph.ops[op].buffer_bytes > 0 or self.graph.ops[op].registers > 0

    @cached_property
    def retirements(self) -> tuple[tuple[int, int, tuple[tuple[int, Dependence], ...]], ...]:
        """(i, k, edges k → j): Hopper's wgmma pairs of which k, issued later, may retire late because of i (rule 3).

        On a unit of capacity 1, k starts no earlier than i's occupancy after i: where that makes up for a longer
        latency of i, waiting for k says all.
        """
        if self.graph.limits.architecture != "hopper":
            return ()
        single = dict(self.graph.units).get("TENSOR", 1) == 1
        groups = [i for i, op in enumerate(self.ops) if op.unit == "TENSOR"]
        waiting = {
            k: tuple(
                (self.graph.index[e.dst], e)
                for e in self.graph.edges
                if e.src == self.ops[k].id and e.kind != "anti" and e.latency is None
            )
            for k in groups
        }
        return tuple(
            (i, k, waiting[k])
            for k in groups
            for i in groups
            if i != k and waiting[k] and not self.surely_cross(i, k)
            if self.ops[k].latency
            < self.ops[i].latency - (self.ops[i].occupancy if single and self.ops[k].occupancy else 0)
        )

    def _uses(self, producer: int) -> tuple[Use, ...]:
        limits, slack = self.graph.limits, self.options.slack_cycles
        late = self.ops[producer].spread
        return tuple(
            Use(
                reader,
                max(1, self.ops[reader].latency),
                limits.handoff_cycles if edge.handoff is None else edge.handoff,
                edge.distance,
                late + (self.ops[reader].spread if reader != producer else 0) + slack,
            )
            for reader, edge in self.readers[producer]
        )

    @cached_property
    def rings(self) -> dict[int, tuple[Use, ...]]:
        """Per operation that writes a buffer: who frees its slot, and when. With no reader it frees it itself."""
        slack = self.options.slack_cycles
        return {
            i: self._uses(i) or (Use(i, op.latency, self.graph.limits.handoff_cycles, 0, op.spread + slack),)
            for i, op in enumerate(self.ops)
            if op.buffer_bytes
        }

    @cached_property
    def crossings(self) -> dict[int, tuple[Use, ...]]:
        """Per value in registers that may leave its partition: the readers for which it would, and need a ring."""
        return {
            i: uses
            for i, op in enumerate(self.ops)
            if op.registers and not op.buffer_bytes
            if (uses := tuple(u for u in self._uses(i) if self.may_cross(i, u.consumer)))
        }

    def ring_arcs(self, depth: int, only: int | None = None) -> tuple[Arc, ...]:
        """Rings (or ``only`` that operation's) of ``depth`` slots as arcs: iteration i refills what i − depth freed.

        Of the values that may cross only those that surely do, unless it is asked for one by name.
        """
        rings = self.rings if only is None or only in self.rings else self.crossings
        found = {p: uses for p, uses in rings.items() if only in (None, p)}
        if only is None:
            for p, uses in self.crossings.items():
                found[p] = tuple(u for u in uses if self.surely_cross(p, u.consumer))
        return tuple(
            Arc(use.consumer, producer, use.cycles + use.margin, use.handoff if use.consumer != producer else 0,
                depth - use.distance)
            for producer, uses in found.items()
            for use in uses
        )  # fmt: skip

    @cached_property
    def arcs(self) -> tuple[Arc, ...]:
        """Dependences, and rings too where their depth is given."""
        depth = self.options.depth
        return self.dependences + (self.ring_arcs(depth) if depth is not None else ())

    # Memory

    def slot_bytes(self, op: int) -> int:
        """Bytes from one slot of the operation's ring to the next."""
        value = self.graph.ops[op]
        return whole_multiple(value.buffer_bytes or value.register_bytes, value.alignment)

    def slot_columns(self, op: int) -> int:
        """Columns of tensor memory that one slot takes, 4 bytes a lane each."""
        return -(-self.graph.ops[op].buffer_bytes // (4 * self.graph.ops[op].lanes))

    def slot_area(self, op: int) -> int:
        """Lanes × columns of one slot in tensor memory."""
        return self.graph.ops[op].lanes * self.slot_columns(op)

    def memory(self, op: int) -> Memory:
        """Where the operation's ring lies; a value that has to leave registers does so through shared memory."""
        return self.graph.ops[op].memory if self.graph.ops[op].buffer_bytes else "smem"

    @cached_property
    def extra_bytes(self) -> int:
        extras = [e for e in self.options.extra_buffers if e.shares_with is None]
        return sum(whole_multiple(e.size, e.alignment) for e in extras)

    def least_slots(self, op: int) -> int:
        """Slots without which an extra buffer that lies in the operation's ring would reach beyond it."""
        inside = [e for e in self.options.extra_buffers if e.shares_with == self.graph.ops[op].id]
        return max((-(-e.size // self.slot_bytes(op)) + e.slot for e in inside), default=1)

    def ring_alignment(self, op: int) -> int:
        """The alignment of a ring and of the extra buffers in it."""
        inside = [e.alignment for e in self.options.extra_buffers if e.shares_with == self.graph.ops[op].id]
        return max([self.graph.ops[op].alignment, *inside])

    def most_slots(self, op: int) -> int:
        """Slots beyond which the operation's ring leaves no room, or none for the largest other one. Only rings of one
        slot can lie where another lies."""
        if self.memory(op) == "tmem":
            room, taken = self.graph.limits.tmem_columns, self.slot_columns
        else:
            room, taken = self.graph.limits.smem_bytes - self.extra_bytes, self.slot_bytes
        others = [taken(i) for i in self.rings if i != op and self.memory(i) == self.memory(op)]
        beside = max(others, default=0) if self.memory(op) == "smem" else 0
        return max(1, (room - beside) // max(1, taken(op)))

    def most_copies(self, op: int, *, crossing: bool) -> int | None:
        """Copies of the operation's value that can be live at once: the ring's slots, or what registers have room for
        (where it may leave them, whichever is more). None where nothing limits them."""
        value = self.graph.ops[op]
        if value.buffer_bytes:
            return self.options.depth or max(self.most_slots(op), self.least_slots(op))
        if not value.registers:
            return None
        limits = self.graph.limits
        most = max([REGISTER_COUNTS[-1], *(spec.registers for spec in self.options.partitions)])
        copies = max(1, (most - limits.base_registers) // value.registers)
        # In another partition it is in a slot: from its start until its reader is done.
        return max(copies, self.options.depth or self.most_slots(op)) if crossing else copies

    # Partitions

    @cached_property
    def cluster(self) -> tuple[int, ...]:
        """Per operation, the smallest index of the operations that must share its partition (rule 4).

        A value without a buffer stays in its partition where it is carried to a later iteration; a wgmma accumulator
        stays with all its readers.
        """
        root = list(range(len(self.graph.ops)))

        def find(i: int) -> int:
            while root[i] != i:
                root[i] = root[root[i]]
                i = root[i]
            return i

        hopper = self.graph.limits.architecture == "hopper"
        for source, edges in self.readers.items():
            op = self.graph.ops[source]
            for reader, edge in edges:
                if op.buffer_bytes == 0 and (edge.distance > 0 or (hopper and op.unit == "TENSOR")):
                    a, b = find(source), find(reader)
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

    @cached_property
    def most_partitions(self) -> int:
        """As many as there may be, and as there is something to put into."""
        pinned = max(1 + max(self.pins.values(), default=-1), len(self.options.partitions))
        if len(self.pins) == len(self.clusters):
            return pinned
        return max(min(self.graph.limits.max_partitions, len(self.clusters)), pinned)

    @cached_property
    def told(self) -> frozenset[str]:
        """Operations that the options name, and so tell from others."""
        options = self.options
        spilled = {name for spill in options.spills for name in spill.ops}
        sharing = {extra.shares_with for extra in options.extra_buffers if extra.shares_with is not None}
        return frozenset({*options.pinned, *spilled, *sharing})

    @cached_property
    def clone_order(self) -> tuple[tuple[int, int], ...]:
        """Pairs of operations of which the first may be taken to start no later: clones have no order of their own,
        unless the options tell one from another."""
        index = self.graph.index
        alike = [clone for clone in self.graph.clones if clone and not self.told.intersection(clone)]
        return tuple((index[a[0]], index[b[0]]) for a, b in pairwise(alike))

    @cached_property
    def twin_order(self) -> tuple[tuple[int, int], ...]:
        """Likewise for operations that differ in nothing but their names: same costs, same neighbours."""
        if self.clone_order:
            # Both orders at once could exclude every schedule.
            return ()
        ends: dict[str, list[tuple[str, bool, Dependence]]] = {op.id: [] for op in self.graph.ops}
        for e in self.graph.edges:
            ends[e.src].append((e.dst, True, replace(e, src="", dst="")))
            ends[e.dst].append((e.src, False, replace(e, src="", dst="")))
        alike: dict[tuple[Operation, str], list[int]] = {}
        for i, op in enumerate(self.graph.ops):
            if op.id not in self.told:
                alike.setdefault((replace(op, id=""), repr(sorted(ends[op.id], key=repr))), []).append(i)
        return tuple(pair for group in alike.values() for pair in pairwise(group))

    def partition_of(self, op: int) -> int | None:
        return self.pins.get(self.cluster[op])

    def surely_cross(self, a: int, b: int) -> bool:
        """Whether both operations are pinned, apart."""
        here, there = self.partition_of(a), self.partition_of(b)
        return here is not None and there is not None and here != there

    def may_cross(self, a: int, b: int) -> bool:
        """Whether some assignment has them in different partitions."""
        here, there = self.partition_of(a), self.partition_of(b)
        return self.cluster[a] != self.cluster[b] and (here is None or there is None or here != there)


def whole_multiple(size: int, alignment: int) -> int:
    """``size`` rounded up to ``alignment``."""
    return -(-size // alignment) * alignment

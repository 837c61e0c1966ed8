"""A graph and its options in the solver's own terms: costs, dependences, rings, memory, on top of the clusters.

See :mod:`~warpplan.planner.problem.terms` for arcs and uses, :mod:`~warpplan.planner.problem.clustering` for what must
share a partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from warpplan.planner.problem.clustering import Clustering
from warpplan.planner.problem.terms import REGISTER_COUNTS, WARP_COUNTS, WARP_GROUP, Arc, Use, whole_multiple
from warpplan.planner.problem.validate import validate
from warpplan.planner.values.dependence_graph import Dependence, Memory, Operation


@dataclass(frozen=True)
class SharedResource:
    """``users`` are (operation, cycles that it holds its amount, amount); those that hold nothing are left out."""

    name: str
    capacity: int
    users: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Problem(Clustering):
    """Everything the solver derives from a graph before it searches. RULES.md numbers the rules it speaks of."""

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

    @cached_property
    def shared(self) -> tuple[SharedResource, ...]:
        """The resources that operations demand amounts of (rule 2)."""
        return tuple(
            SharedResource(
                name,
                capacity,
                tuple(
                    (i, op.occupancy, amount)
                    for i, op in enumerate(self.ops)
                    for demanded, amount in op.demands
                    if demanded == name and op.occupancy
                ),
            )
            for name, capacity in self.graph.limits.capacities
        )

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
        """Bytes of the extra buffers outside rings, at the least: what follows one may begin at a smaller alignment."""
        return sum(e.size for e in self.options.extra_buffers if e.shares_with is None)

    def least_slots(self, op: int) -> int:
        """Slots without which an extra buffer that lies in the operation's ring would reach beyond it."""
        inside = [e for e in self.options.extra_buffers if e.shares_with == self.graph.ops[op].id]
        return max((-(-e.size // self.slot_bytes(op)) + e.slot for e in inside), default=1)

    def ring_alignment(self, op: int) -> int:
        """The alignment of a ring and of the extra buffers in it."""
        inside = [e.alignment for e in self.options.extra_buffers if e.shares_with == self.graph.ops[op].id]
        return max([self.graph.ops[op].alignment, *inside])

    def most_slots(self, op: int) -> int:
        """Slots beyond which the operation's ring exceeds its memory, or leaves too little for the largest other one.
        Only rings of one slot can lie where another lies."""
        if self.memory(op) == "tmem":
            capacity, taken = self.graph.limits.tmem_columns, self.slot_columns
        else:
            capacity, taken = self.graph.limits.smem_bytes - self.extra_bytes, self.slot_bytes
        others = [taken(i) for i in self.rings if i != op and self.memory(i) == self.memory(op)]
        largest_other = max(others, default=0) if self.memory(op) == "smem" else 0
        return max(1, (capacity - largest_other) // max(1, taken(op)))

    def most_copies(self, op: int, *, crossing: bool) -> int | None:
        """Copies of the operation's value that can be live at once: the ring's slots, or what registers can hold
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

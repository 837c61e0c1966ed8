"""From a plan to its program: in which order partitions issue, which barriers each operation waits for.

Barriers come from the plan (channels, depths, reuses), readers from the graph: where the two disagree a wait is
missing here as it would be in the kernel, and the simulation shows what comes of it.

    full[s]     of a ring's slot: its producer arrives when the value is there; readers elsewhere wait
    empty[s]    every reader elsewhere arrives when it has left the slot; the producer waits before it refills it
    reuse       rings on the same bytes: the readers of the one arrive, the producer of the other waits; a barrier for
                each direction, whose phases count the iterations that have a partner in the other ring
    token       any other edge between partitions: counted, since the plan gives it no slots

Within a partition there is no barrier: warps wait for what they have issued, and cannot for what they have not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from warpplan.planner.errors import InvalidInput
from warpplan.planner.simulate.program import Program, ProgramRing, ProgramStep, Release, Wait
from warpplan.planner.values.dependence_graph import DependenceGraph, Operation
from warpplan.planner.values.plan import Channel, Plan

WARP_GROUP = 4
"""Warps. Stated here again, as in the checker: the simulator shares nothing with the solver but values."""


def program(plan: Plan, graph: DependenceGraph) -> Program:
    """The program of ``plan``. Raises :class:`InvalidInput` where it does not place the graph's operations once each,
    or a ring has no slot."""
    _check_shape(plan, graph)
    return _Builder(plan, graph).program()


def _check_shape(plan: Plan, graph: DependenceGraph) -> None:
    placed = [p.op for p in plan.schedule.placements]
    if sorted(placed) != sorted(graph.by_id):
        odd = sorted(set(placed) ^ set(graph.by_id)) or sorted({op for op in placed if placed.count(op) > 1})
        raise InvalidInput(
            f"operation {odd[0]!r} is placed {placed.count(odd[0])} times by the plan of {plan.graph!r} and is "
            f"{'' if odd[0] in graph.by_id else 'not '}in graph {graph.name!r}: expected a plan of this graph",
            field="plan", value=odd[0],
        )  # fmt: skip
    if plan.schedule.ii_cycles < 1:
        raise InvalidInput(
            f"initiation interval is {plan.schedule.ii_cycles}: expected 1 or more", field="ii_cycles",
            value=plan.schedule.ii_cycles, limit=1,
        )  # fmt: skip
    for p in plan.schedule.placements:
        if not 0 <= p.partition < len(plan.partitions):
            raise InvalidInput(
                f"operation {p.op!r} is in partition {p.partition} of {len(plan.partitions)}", field="partition",
                value=p.partition, limit=len(plan.partitions) - 1,
            )  # fmt: skip
    for channel in plan.channels:
        if channel.depth < 1:
            raise InvalidInput(
                f"ring {channel.name!r} has depth {channel.depth}: expected 1 or more", field="channels",
                value=channel.depth, limit=1,
            )  # fmt: skip


class _Builder:
    def __init__(self, plan: Plan, graph: DependenceGraph) -> None:
        self.plan, self.graph = plan, graph
        at = {p.op: p for p in plan.schedule.placements}
        self.cycle = [at[op.id].cycle for op in graph.ops]
        self.home = [at[op.id].partition for op in graph.ops]
        self.delay = [self._delay(op, self.home[i]) for i, op in enumerate(graph.ops)]
        self.latency = [op.latency + d for op, d in zip(graph.ops, self.delay, strict=True)]
        index = graph.index
        self.edges = [(index[e.src], index[e.dst], e) for e in graph.edges]
        self.channels = {index[c.name]: c for c in plan.channels if c.name in index}
        self.rings = {i: self._ring(i, c) for i, c in self.channels.items()}
        self.barriers = self._barriers()
        self.reuses = tuple(
            (self.rings[index[r.before]], self.rings[index[r.after]], r.distance)
            for r in plan.reuses
            if {index.get(r.before), index.get(r.after)} <= self.rings.keys()
        )

    def _delay(self, op: Operation, home: int) -> int:
        """Cycles that too few warps add to occupancy and latency (rule 0)."""
        return (self._slowdown(op, home) - 1) * op.occupancy

    def _slowdown(self, op: Operation, home: int) -> int:
        warps = self.plan.partitions[home].warps
        return WARP_GROUP // warps if op.unit in ("ALU", "SFU") and 1 <= warps < WARP_GROUP else 1

    def program(self) -> Program:
        graph = self.graph
        waits: list[list[Wait]] = [[] for _ in graph.ops]
        for wait, waiter in (*self._dependence_waits(), *self._slot_waits(), *self._reuse_waits()):
            waits[waiter].append(wait)
        rank = self._ranks(waits)
        steps = tuple(self._step(i, rank[i], tuple(waits[i])) for i in range(len(graph.ops)))
        dependences = tuple((i, j, e.distance, self._beyond(i, e.latency)) for i, j, e in self.edges)
        return Program(
            self.plan, graph, steps, graph.units + graph.limits.capacities, tuple(self.rings.values()), dependences,
            self.reuses, tuple(self._unguarded()),
        )  # fmt: skip

    def _step(self, i: int, rank: int, waits: tuple[Wait, ...]) -> ProgramStep:
        graph, op = self.graph, self.graph.ops[i]
        before, after = (count * graph.limits.barrier_cycles for count in self.barriers[i])
        issue = op.issue * self._slowdown(op, self.home[i])
        return ProgramStep(
            op.id, self.home[i], self._holds(op), self.cycle[i], rank, self.latency[i], op.occupancy + self.delay[i],
            issue, before, after, waits, self._in_order(op), before + issue + after == 0,
        )  # fmt: skip

    def _holds(self, op: Operation) -> tuple[tuple[int, int], ...]:
        """Its unit, and its amounts of shared resources, which are counted behind the units."""
        if not op.occupancy:
            return ()
        graph = self.graph
        unit = tuple((k, 1) for k, (name, _) in enumerate(graph.units) if name == op.unit)
        return unit + tuple(
            (len(graph.units) + k, amount)
            for k, (name, _) in enumerate(graph.limits.capacities)
            for demanded, amount in op.demands
            if demanded == name
        )

    def _in_order(self, op: Operation) -> bool:
        """Hopper's wgmma groups retire in order."""
        return op.unit == "TENSOR" and self.graph.limits.architecture == "hopper"

    def _beyond(self, source: int, latency: int | None) -> int:
        """Cycles from the source's completion at which an edge with its own latency lets its destination start."""
        return 0 if latency is None else latency - self.graph.ops[source].latency

    # Waits, as (wait, waiter)

    def _dependence_waits(self) -> Iterator[tuple[Wait, int]]:
        for i, j, e in self.edges:
            apart = self.home[i] != self.home[j]
            if apart and e.kind == "data" and self._has_value(i) and not self._wired(i, self.home[j]):
                continue  # No barrier tells this reader.
            retired = self._in_order(self.graph.ops[i]) and e.kind != "anti" and e.latency is None
            offset = self._beyond(i, e.latency) + (self.graph.edge_handoff(e) if apart else 0)
            yield Wait(i, e.distance, e.distance, offset, apart, retired, f"data {e.src}"), j

    def _slot_waits(self) -> Iterator[tuple[Wait, int]]:
        """Rings on the same bytes wait for their own release too: the reuses say nothing of the first and the last
        iterations, whose partners in the other ring do not exist."""
        for p, ring in self.rings.items():
            for wait in self._releases(ring, p, ring.depth):
                if not wait.barrier or self._wired(p, self.home[wait.source]):
                    yield wait, p

    def _reuse_waits(self) -> Iterator[tuple[Wait, int]]:
        for before, after, distance in self.reuses:
            for wait in self._releases(before, after.producer, distance):
                yield wait, after.producer

    def _releases(self, ring: ProgramRing, waiter: int, distance: int) -> Iterator[Wait]:
        """``waiter`` of iteration n waits for the release of ``ring`` of iteration n − ``distance``."""
        nobody = ((ring.producer, 0, self.graph.limits.handoff_cycles, 0),)
        for reader, delta, handoff, written in ring.readers or nobody:
            apart = self.home[reader] != self.home[waiter]
            release = Release(ring.producer, distance, written)
            offset = handoff if apart else 0
            yield Wait(reader, distance - delta, max(distance, 0), offset, apart, False, "slot", release)

    def _wired(self, producer: int, home: int) -> bool:
        """Whether the plan's channel joins the producer to partition ``home``."""
        channel = self.channels.get(producer)
        return channel is not None and channel.producer == self.home[producer] and home in channel.consumers

    def _unguarded(self) -> Iterator[tuple[int, str]]:
        readers: list[set[int]] = [set() for _ in self.graph.ops]
        for source, j, e in self.edges:
            if e.kind == "data":
                readers[source].add(j)
        for i, op in enumerate(self.graph.ops):
            elsewhere = {j for j in readers[i] if self.home[j] != self.home[i]}
            if i not in self.channels and (op.buffer_bytes or (op.registers and elsewhere)):
                yield i, "writes a value for which the plan has no ring"
            elif self._has_value(i):
                for j in sorted(elsewhere):
                    if not self._wired(i, self.home[j]):
                        yield j, f"reads {op.id}, of which no barrier tells its partition"

    # Rings

    def _has_value(self, op: int) -> bool:
        """Whether it writes something that a reader elsewhere must be handed; else its data edges are tokens."""
        return self.graph.ops[op].buffer_bytes > 0 or self.graph.ops[op].registers > 0

    def _ring(self, producer: int, channel: Channel) -> ProgramRing:
        """A register value's ring is read by other partitions only: its own has the registers."""
        op, fixed = self.graph.ops[producer], self.graph.limits.handoff_cycles
        readers = tuple(
            (j, e.distance, fixed if e.handoff is None else e.handoff, self._beyond(i, e.latency))
            for i, j, e in self.edges
            if i == producer and e.kind == "data" and (op.buffer_bytes or self.home[j] != self.home[i])
        )
        place = next((b for b in self.plan.buffers if b.name == channel.name), None)
        if place is None:  # A place of its own: nothing can share it.
            return ProgramRing(producer, channel.depth, readers, f"ring {channel.name}", 0, 1, 0, 1)
        if place.memory == "tmem":
            return ProgramRing(producer, channel.depth, readers, "tmem", place.offset, place.size // channel.depth,
                        place.lane, place.lanes)  # fmt: skip
        return ProgramRing(producer, channel.depth, readers, "smem", place.offset, channel.slot_bytes, 0, 1)

    def _barriers(self) -> list[tuple[int, int]]:
        """Per operation, the barriers it waits for and those it arrives at (rule 3)."""
        heard: list[set[int]] = [set() for _ in self.graph.ops]
        freed: list[set[int]] = [set() for _ in self.graph.ops]
        told, handed = set(), set()
        for i, j, e in self.edges:
            if self.home[i] != self.home[j]:
                heard[j].add(i)
                told.add(i)
                if e.kind == "data" and self._has_value(i):
                    freed[j].add(i)
                    handed.add(i)
        return [(len(heard[i]) + (i in handed), (i in told) + len(freed[i])) for i in range(len(heard))]

    # Order of operations that start in the same cycle

    def _ranks(self, waits: Sequence[Sequence[Wait]]) -> list[int]:
        """Distance-0 topological order; but first whoever is waited for in the very cycle in which the waiter starts (a
        slot, or with a latency of 0 another iteration), and who has issued by then."""
        ops = range(len(self.graph.ops))
        rank = _topological(len(ops), [(i, j) for i, j, e in self.edges if e.distance == 0], list(ops))
        ii = self.plan.schedule.ii_cycles
        tied = [(w.source, j) for j in ops for w in waits[j] if self.cycle[w.source] == self.cycle[j] + ii * w.back]
        if self.graph.limits.barrier_cycles:
            tied += self._barriers_first()
        if any(rank[i] > rank[j] for i, j in tied):
            rank = _topological(len(ops), tied, rank)
        return rank

    def _barriers_first(self) -> list[tuple[int, int]]:
        """Of two operations that a partition starts in the same cycle, one may be done issuing by then, with nothing
        but barriers to wait for, while the other begins."""
        ii = self.plan.schedule.ii_cycles
        issues = [op.issue > 0 or after > 0 for op, (_, after) in zip(self.graph.ops, self.barriers, strict=True)]
        at = [(g, cycle % ii) for g, cycle in zip(self.home, self.cycle, strict=True)]
        early = [i for i, (before, _) in enumerate(self.barriers) if before and not issues[i]]
        return [(i, j) for i in early for j in range(len(at)) if issues[j] and at[i] == at[j]]


def _topological(count: int, arcs: Sequence[tuple[int, int]], priority: Sequence[int]) -> list[int]:
    """Each node's position in the topological order that is least by ``priority``; nodes on cycles come last."""
    after: list[list[int]] = [[] for _ in range(count)]
    blocked = [0] * count
    for i, j in arcs:
        if i != j:
            after[i].append(j)
            blocked[j] += 1
    ready = [(priority[i], i) for i in range(count) if not blocked[i]]
    heapify(ready)
    rank = [count + p for p in priority]
    position = 0
    while ready:
        _, i = heappop(ready)
        rank[i] = position
        position += 1
        for j in after[i]:
            blocked[j] -= 1
            if not blocked[j]:
                heappush(ready, (priority[j], j))
    return rank

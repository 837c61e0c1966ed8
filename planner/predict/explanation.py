"""Why a plan's interval is what it is: everything that the plan fills, and how full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpplan.planner.bounds.min_ii import WeightedArc, recurrence
from warpplan.planner.errors import InvalidPlan
from warpplan.planner.problem.terms import WARP, WARP_GROUP
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Operation
from warpplan.planner.values.plan import Plan


@dataclass(frozen=True)
class Demand:
    """``used`` of ``limit``, in ``unit``: cycles of the interval, bytes, registers or columns. A demand of cycles that
    reaches its limit is why the interval cannot be shorter with these partitions and ring depths."""

    name: str
    used: int
    limit: int
    unit: str
    detail: str = ""

    @property
    def slack(self) -> int:
        return self.limit - self.used

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 0.0


def demands(graph: DependenceGraph, plan: Plan, *, slack_cycles: int = 0) -> tuple[Demand, ...]:
    """Everything that the plan fills, fullest first: units, issue slots, recurrences, rings, registers, memory.

    ``slack_cycles`` is the margin that its rings were asked to keep. Rules 0 to 7 of RULES.md.
    """
    found = _FilledPlan(graph, plan, slack_cycles).demands()
    return tuple(sorted(found, key=lambda d: (-d.share, d.unit != "cycles", d.name)))


class _FilledPlan:
    """A plan's operations with the costs and barriers that they have where they are."""

    def __init__(self, graph: DependenceGraph, plan: Plan, slack_cycles: int) -> None:
        self.graph, self.plan, self.slack = graph, plan, slack_cycles
        self.home = {p.op: p.partition for p in plan.schedule.placements}
        self.slow = {op.id: self._slow(op) for op in graph.ops}

    def demands(self) -> Iterator[Demand]:
        yield from self._units()
        yield from self._shared()
        yield from self._issue()
        yield from self._recurrences()
        limits, plan = self.graph.limits, self.plan
        registers = sum(WARP * p.registers * -(-p.warps // WARP_GROUP) * WARP_GROUP for p in plan.partitions)
        yield Demand("registers", registers, limits.registers, "registers")
        if plan.smem_bytes:
            yield Demand("shared memory", plan.smem_bytes, limits.smem_bytes, "bytes")
        columns = max((b.offset + b.size for b in plan.buffers if b.memory == "tmem"), default=0)
        if columns:
            yield Demand("tensor memory", columns, limits.tmem_columns, "columns")

    def _slow(self, op: Operation) -> int:
        """Rule 0: how many times longer the unit is held."""
        warps = self.plan.partitions[self.home[op.id]].warps
        return max(1, WARP_GROUP // warps) if op.unit in ("ALU", "SFU") else 1

    def _late(self, op: str) -> int:
        return (self.slow[op] - 1) * self.graph.by_id[op].occupancy

    def _units(self) -> Iterator[Demand]:
        for unit, capacity in self.graph.units:
            users = [op for op in self.graph.ops if op.unit == unit and op.occupancy]
            busy = sum(self.slow[op.id] * op.occupancy for op in users)
            if busy:
                detail = ", ".join(f"{op.id} {self.slow[op.id] * op.occupancy}" for op in users)
                yield Demand(f"unit {unit}", -(-busy // capacity), self.plan.schedule.ii_cycles, "cycles", detail)

    def _shared(self) -> Iterator[Demand]:
        """Resources by amount times cycles, in cycles of all of the resource."""
        for name, capacity in self.graph.limits.capacities:
            held = {op.id: self.slow[op.id] * op.occupancy * dict(op.demands).get(name, 0) for op in self.graph.ops}
            if energy := sum(held.values()):
                detail = ", ".join(f"{op} {cycles}" for op, cycles in held.items() if cycles)
                yield Demand(f"resource {name}", -(-energy // capacity), self.plan.schedule.ii_cycles, "cycles", detail)

    def _issue(self) -> Iterator[Demand]:
        b = self.graph.limits.barrier_cycles
        waits, arrives = self._barriers() if b else ({}, {})
        for partition in self.plan.partitions:
            count = sum(waits.get(op, 0) + arrives.get(op, 0) for op in partition.ops)
            issue = sum(self.slow[op] * self.graph.by_id[op].issue for op in partition.ops)
            if issue + count:
                detail = f"{issue} of operations and {count} barriers of {b}" if count else ""
                name = f"issue of {partition.name}"
                yield Demand(name, issue + b * count, self.plan.schedule.ii_cycles, "cycles", detail)

    def _barriers(self) -> tuple[dict[str, int], dict[str, int]]:
        """Rule 3: the barriers that each operation waits for and arrives at."""
        graph, home = self.graph, self.home
        crossing = [e for e in graph.edges if home[e.src] != home[e.dst]]
        values = [e for e in crossing if e.kind == "data" and (op := graph.by_id[e.src]).buffer_bytes + op.registers]
        waits = {
            op.id: len({e.src for e in crossing if e.dst == op.id}) + any(e.src == op.id for e in values)
            for op in graph.ops
        }
        arrives = {
            op.id: any(e.src == op.id for e in crossing) + len({e.src for e in values if e.dst == op.id})
            for op in graph.ops
        }
        return waits, arrives

    def _recurrences(self) -> Iterator[Demand]:
        arcs = [self._arc(edge) for edge in self.graph.edges]
        plain = self._recurrence("recurrence", arcs)
        if plain is not None:
            yield plain
        rings = [arc for channel in self.plan.channels for arc in self._ring(channel.name, channel.depth)]
        turned = self._recurrence("rings of the plan's depths", [*arcs, *rings])
        if turned is not None and (plain is None or turned.used > plain.used):
            yield turned

    def _arc(self, edge: Dependence) -> WeightedArc:
        """Rule 1."""
        graph, index = self.graph, self.graph.index
        handoff = graph.edge_handoff(edge) if self.home[edge.src] != self.home[edge.dst] else 0
        cycles = graph.edge_latency(edge) + self._late(edge.src) + handoff
        return index[edge.src], index[edge.dst], cycles, edge.distance

    def _ring(self, producer: str, depth: int) -> Iterator[WeightedArc]:
        """Rule 6: iteration i refills the slot that i − depth has freed."""
        graph, index = self.graph, self.graph.index
        writer, reads = graph.by_id[producer], [e for e in graph.edges if e.src == producer and e.kind == "data"]
        if not writer.buffer_bytes:  # in its own partition the value stays in registers
            reads = [e for e in reads if self.home[e.dst] != self.home[producer]]
        for edge in reads:
            reader = graph.by_id[edge.dst]
            handoff = graph.limits.handoff_cycles if edge.handoff is None else edge.handoff
            crossing = handoff if self.home[reader.id] != self.home[producer] else 0
            margin = self.slack + writer.spread + (reader.spread if reader is not writer else 0)
            hold = reader.latency + self._late(reader.id) + crossing + margin
            yield index[reader.id], index[producer], hold, depth - edge.distance
        if not reads:
            hold = writer.latency + self._late(producer) + writer.spread + self.slack
            yield index[producer], index[producer], hold, depth

    def _recurrence(self, name: str, arcs: list[WeightedArc]) -> Demand | None:
        ii, cycle = recurrence(len(self.graph.ops), arcs)
        if ii is None:
            raise InvalidPlan(f"the plan of graph {self.plan.graph!r} asks its rings for more slots than they have")
        if not cycle:
            return None
        path = " -> ".join(self.graph.ops[i].id for i in cycle)
        return Demand(name, ii, self.plan.schedule.ii_cycles, "cycles", path)

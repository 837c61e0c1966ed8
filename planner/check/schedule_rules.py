"""Rules 0 to 5 of RULES.md, verified from a plan whose shape is right: time, units, issue, partitions, registers.

The obvious method: usage that repeats every II cycles is largest where something starts, so it is counted there, copy
by copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Operation
from warpplan.planner.values.plan import Partition, Plan

LEAST_REGISTERS, SETMAXNREG_REGISTERS = 24, 240
"""Registers a thread, from the least to the most that ``setmaxnreg`` is used with (RULES.md, rule 5). Stated here
again: the checker shares nothing with the solver but values."""


class Spilled(Protocol):
    """A partition with all of ``ops`` has to have more than ``registers`` a thread."""

    @property
    def ops(self) -> Sequence[str]: ...
    @property
    def registers(self) -> int: ...


class Steady:
    """The steady state of a plan: where and when each operation runs, and what it costs there in cycles (rule 0)."""

    def __init__(self, plan: Plan, graph: DependenceGraph) -> None:
        self.plan, self.graph, self.limits = plan, graph, graph.limits
        self.ii = plan.schedule.ii_cycles
        self.op = {op.id: op for op in graph.ops}
        self.at = {p.op: p.cycle for p in plan.schedule.placements}
        self.home = {p.op: p.partition for p in plan.schedule.placements}
        self.latency: dict[str, int] = {}
        self.occupancy: dict[str, int] = {}
        self.issue: dict[str, int] = {}
        for op in graph.ops:
            warps = plan.partitions[self.home[op.id]].warps
            slow = 4 // warps if op.unit in ("ALU", "SFU") and warps < 4 else 1
            self.latency[op.id] = op.latency + (slow - 1) * op.occupancy
            self.occupancy[op.id] = slow * op.occupancy
            self.issue[op.id] = slow * op.issue
        self.edges_from: dict[str, list[Dependence]] = {op.id: [] for op in graph.ops}
        self.edges_to: dict[str, list[Dependence]] = {op.id: [] for op in graph.ops}
        for e in graph.edges:
            self.edges_from[e.src].append(e)
            self.edges_to[e.dst].append(e)

    def crosses(self, e: Dependence) -> bool:
        return self.home[e.src] != self.home[e.dst]

    def edge_latency(self, e: Dependence) -> int:
        source = self.op[e.src]
        return self.latency[e.src] if e.latency is None else e.latency + self.latency[e.src] - source.latency

    def signal_cycles(self, e: Dependence) -> int:
        """One barrier's hand-off between the two ends' partitions, without the value itself."""
        return self.limits.handoff_cycles if e.handoff is None else e.handoff

    def handoff(self, e: Dependence) -> int:
        """Rule 1's h: the hand-off, and per KB for a value that has to leave registers."""
        source = self.op[e.src]
        in_registers = 0 if source.buffer_bytes or e.kind != "data" else 128 * source.registers * source.min_warps
        return self.signal_cycles(e) + (in_registers + 1023) // 1024 * self.limits.handoff_cycles_per_kb

    def arrival(self, e: Dependence) -> int:
        """When what ``e`` carries is there."""
        return self.at[e.src] + self.edge_latency(e) + (self.handoff(e) if self.crosses(e) else 0)

    def start(self, e: Dependence) -> int:
        """When the reader of what ``e`` carries starts."""
        return self.at[e.dst] + self.ii * e.distance

    def readers(self, name: str) -> list[Dependence]:
        return [e for e in self.edges_from[name] if e.kind == "data"]

    def ring_readers(self, name: str) -> list[Dependence]:
        """Who reads the operation's ring: everyone if it is a buffer, the other partitions if it is registers."""
        op = self.op[name]
        if op.buffer_bytes:
            return self.readers(name)
        return [e for e in self.readers(name) if self.crosses(e)] if op.registers else []


def copies(start: int, end: int, phase: int, ii: int) -> int:
    """How many iterations have a time ≡ ``phase`` (mod ``ii``) in their [``start``, ``end``)."""
    first = start + (phase - start) % ii
    return 0 if first >= end else 1 + (end - 1 - first) // ii


def dependences(s: Steady) -> Iterator[str]:
    for e in s.graph.edges:
        if s.start(e) < s.arrival(e):
            yield f"edge {e.src} -> {e.dst}: starts at cycle {s.start(e)}, before {s.arrival(e)}"


def units(s: Steady) -> Iterator[str]:
    for unit, capacity in s.graph.units:
        users = [op.id for op in s.graph.ops if op.unit == unit]
        spans = [(name, s.at[name], s.at[name] + s.occupancy[name]) for name in users]
        yield from _crowded(f"unit {unit}", spans, capacity, s.ii)


def shared_resources(s: Steady) -> Iterator[str]:
    """What the operations that are under way demand together, where any of them starts."""
    for name, capacity in s.graph.limits.capacities:
        users = [(op, dict(op.demands)[name]) for op in s.graph.ops if name in dict(op.demands)]
        for phase in sorted({s.at[op.id] % s.ii for op, _ in users if s.occupancy[op.id]}):
            taken = {
                op.id: amount * copies(s.at[op.id], s.at[op.id] + s.occupancy[op.id], phase, s.ii)
                for op, amount in users
            }
            if sum(taken.values()) > capacity:
                names = ", ".join(op for op, amount in taken.items() if amount)
                yield f"resource {name}: {names} hold {sum(taken.values())} of {capacity} at phase {phase}"


def issue(s: Steady) -> Iterator[str]:
    """One at a time in each partition, the barriers of :func:`barriers` included."""
    for partition in s.plan.partitions:
        spans = []
        for name in partition.ops:
            before, after = barriers(s, name)
            begin = s.at[name] - s.limits.barrier_cycles * before
            spans.append((name, begin, s.at[name] + s.issue[name] + s.limits.barrier_cycles * after))
        yield from _crowded(f"issue of partition {partition.name}", spans, 1, s.ii)


def _crowded(what: str, spans: Sequence[tuple[str, int, int]], capacity: int, ii: int) -> Iterator[str]:
    """Where any span starts, those that hold together more than ``capacity``; each repeats every ``ii`` cycles."""
    begins = {start % ii for _, start, end in spans if start < end}
    # Turns that a span holds throughout, and by phase how many more or fewer hold from there on.
    held = sum((end - start) // ii for _, start, end in spans)
    changes = dict.fromkeys(begins, 0)
    for _, start, end in spans:
        first, last = start % ii, start % ii + (end - start) % ii
        for phase, change in ((first, 1), (last % ii, -1)):
            changes[phase] = changes.get(phase, 0) + change
        held += last >= ii
    for phase in sorted(changes):
        held += changes[phase]
        if held > capacity and phase in begins:
            busy = ", ".join(name for name, start, end in spans if copies(start, end, phase, ii))
            yield f"{what}: {busy} hold {held} of {capacity} at phase {phase}"


def barriers(s: Steady, name: str) -> tuple[int, int]:
    """How many barriers the operation waits for before it issues, and how many it arrives at after."""
    full = {e.src for e in s.edges_to[name] if s.crosses(e)}
    empty = any(s.crosses(e) for e in s.ring_readers(name))
    filled = any(s.crosses(e) for e in s.edges_from[name])
    released = {e.src for e in s.edges_to[name] if s.crosses(e) and e in s.ring_readers(e.src)}
    return len(full) + empty, filled + len(released)


def retirement(s: Steady) -> Iterator[str]:
    """wgmma groups retire in order: who waits for one waits for those that its partition has issued before."""
    if s.limits.architecture != "hopper":
        return
    groups = [op.id for op in s.graph.ops if op.unit == "TENSOR"]
    for k in groups:
        waiting = [e for e in s.edges_from[k] if e.kind in ("data", "token") and e.latency is None]
        for i in groups:
            if i == k or s.home[i] != s.home[k]:
                continue
            latest = s.at[i] + s.ii * ((s.at[k] - s.at[i]) // s.ii)
            for e in waiting:
                retired = latest + s.latency[i] + (s.handoff(e) if s.crosses(e) else 0)
                if s.start(e) < retired:
                    yield f"edge {k} -> {e.dst}: starts at cycle {s.start(e)}, before {i} retires at {retired}"


def assignment(s: Steady) -> Iterator[str]:
    architecture = s.limits.architecture
    for e in s.graph.edges:
        source = s.op[e.src]
        if e.kind != "data" or source.buffer_bytes or not s.crosses(e):
            continue
        if e.distance > 0:
            yield f"edge {e.src} -> {e.dst}: a value without a buffer leaves its partition over {e.distance} iterations"
        if architecture == "hopper" and source.unit == "TENSOR":
            yield f"edge {e.src} -> {e.dst}: an accumulator in registers leaves its partition"
    for op in s.graph.ops:
        partition = s.plan.partitions[s.home[op.id]]
        least, reason = _least_warps(s, op)
        if partition.warps < least:
            yield f"partition {partition.name}: {partition.warps} warps, operation {op.id} needs {least}{reason}"
        if architecture == "blackwell" and op.unit == "TENSOR" and op.registers:
            yield f"operation {op.id}: {op.registers} registers, a TENSOR operation has none on Blackwell"


def _least_warps(s: Steady, op: Operation) -> tuple[int, str]:
    if s.limits.architecture == "hopper" and op.unit == "TENSOR":
        return max(4, op.min_warps), " (wgmma)"
    touched = [op, *(s.op[e.src] for e in s.edges_to[op.id] if e.kind == "data")]
    in_tmem = any(o.memory == "tmem" and o.buffer_bytes for o in touched)
    if s.limits.architecture == "blackwell" and in_tmem and op.unit not in ("TENSOR", "TMA"):
        return max(4, op.min_warps), " (tensor memory)"
    return op.min_warps, ""


def registers(s: Steady, spills: Iterable[Spilled], most_registers: int) -> Iterator[str]:
    taken = 0
    for p in s.plan.partitions:
        taken += 32 * ((p.warps + 3) // 4 * 4) * p.registers
        odd = p.registers <= SETMAXNREG_REGISTERS and p.registers % 8 != 0
        if odd or not LEAST_REGISTERS <= p.registers <= most_registers:
            yield (
                f"partition {p.name}: {p.registers} registers, expected a multiple of 8 from {LEAST_REGISTERS} on and "
                f"at most {most_registers}"
            )
        live, phase = live_registers(s, p)
        if s.limits.base_registers + live > p.registers:
            yield (
                f"partition {p.name}: {live} registers live at phase {phase} and {s.limits.base_registers} for the "
                f"rest, {p.registers} given"
            )
        for spill in spills:
            if set(spill.ops) <= set(p.ops) and p.registers <= spill.registers:
                yield f"partition {p.name}: {p.registers} registers, {', '.join(spill.ops)} spilled {spill.registers}"
    if taken > s.limits.registers:
        yield f"registers: the partitions take {taken} of {s.limits.registers}"


def live_registers(s: Steady, partition: Partition) -> tuple[int, int]:
    """The most registers live at once in the partition, and at which phase."""
    spans = []
    for name in partition.ops:
        count, readers = s.op[name].registers, s.readers(name)
        if s.op[name].buffer_bytes or not readers:
            end = s.at[name] + s.latency[name]
        else:
            end = max(s.arrival(e) if s.crosses(e) else s.start(e) for e in readers)
        if count:
            spans.append((s.at[name], end, count))
    totals = [
        (sum(count * copies(start, end, phase, s.ii) for start, end, count in spans), phase)
        for phase in sorted({start % s.ii for start, _, _ in spans})
    ]
    return max(totals, default=(0, 0))

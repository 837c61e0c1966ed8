"""Is a plan right? Every rule re-verified from the plan and the graph by the obvious method.

Shares no code with the solver: a mistake in one must not hide in the other. Cycle by cycle where that is simplest.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpplan.planner.graph import DependenceGraph, Operation
from warpplan.planner.plan import Buffer, Plan

MAX_THREAD_REGISTERS = 255


def check(plan: Plan, graph: DependenceGraph, *, slack_cycles: int = 0) -> tuple[str, ...]:
    """Every rule that ``plan`` breaks, naming the element; empty for a valid plan.

    ``slack_cycles`` is the margin each ring must keep beyond its live range.
    """
    broken = tuple(_shape(plan, graph))
    if broken:
        return broken  # The other rules speak of placements that must exist first.
    rules = (_dependences, _units, _issue, _assignment, _warps_and_registers, _memory)
    return (*(v for rule in rules for v in rule(plan, graph)), *_rings(plan, graph, slack_cycles))


def _shape(plan: Plan, graph: DependenceGraph) -> Iterator[str]:
    ii = plan.schedule.ii_cycles
    if ii < 1:
        yield f"initiation interval {ii}: expected 1 or more"
        return
    placed = [p.op for p in plan.schedule.placements]
    for op in graph.ops:
        if placed.count(op.id) != 1:
            yield f"operation {op.id}: placed {placed.count(op.id)} times, expected once"
    for p in plan.schedule.placements:
        if p.op not in graph.by_id:
            yield f"operation {p.op}: placed, but not in the graph"
        if p.cycle < 0 or p.cycle != p.phase + ii * p.stage or not 0 <= p.phase < ii:
            yield f"operation {p.op}: cycle {p.cycle} is not phase {p.phase} + {ii} x stage {p.stage}"
        if not 0 <= p.partition < len(plan.partitions):
            yield f"operation {p.op}: partition {p.partition} of {len(plan.partitions)}"
        elif p.op not in plan.partitions[p.partition].ops:
            yield f"operation {p.op}: missing from the list of partition {plan.partitions[p.partition].name}"
    listed = [op for partition in plan.partitions for op in partition.ops]
    for op_id in listed:
        if listed.count(op_id) != 1:
            yield f"operation {op_id}: listed by {listed.count(op_id)} partitions"
    if len(plan.partitions) > graph.limits.max_partitions:
        yield f"partitions: {len(plan.partitions)} of at most {graph.limits.max_partitions}"
    if plan.graph != graph.name:
        yield f"plan of graph {plan.graph!r}, checked against {graph.name!r}"


def _dependences(plan: Plan, graph: DependenceGraph) -> Iterator[str]:
    at, where = _cycles(plan), _homes(plan)
    for e in graph.edges:
        latency = graph.by_id[e.src].latency if e.latency is None else e.latency
        handoff = graph.limits.handoff_cycles if where[e.src] != where[e.dst] else 0
        arrives = at[e.src] + latency + handoff
        starts = at[e.dst] + plan.schedule.ii_cycles * e.distance
        if starts < arrives:
            yield f"edge {e.src} -> {e.dst}: starts at cycle {starts}, before {arrives}"


def _units(plan: Plan, graph: DependenceGraph) -> Iterator[str]:
    ii = plan.schedule.ii_cycles
    for unit, capacity in graph.units:
        users = [(op.id, _cycles(plan)[op.id], op.occupancy) for op in graph.ops if op.unit == unit]
        for phase in {start % ii for _, start, _ in users}:
            busy = [(name, _copies(start, start + length, phase, ii)) for name, start, length in users]
            if sum(n for _, n in busy) > capacity:
                names = ", ".join(name for name, n in busy if n)
                yield f"unit {unit}: {names} hold {sum(n for _, n in busy)} of {capacity} at phase {phase}"


def _issue(plan: Plan, graph: DependenceGraph) -> Iterator[str]:
    ii, at = plan.schedule.ii_cycles, _cycles(plan)
    for partition in plan.partitions:
        for phase in {at[name] % ii for name in partition.ops}:
            busy = [(n, _copies(at[n], at[n] + graph.by_id[n].issue, phase, ii)) for n in partition.ops]
            if sum(count for _, count in busy) > 1:
                names = ", ".join(name for name, count in busy if count)
                yield f"issue of partition {partition.name}: {names} together at phase {phase}"


def _assignment(plan: Plan, graph: DependenceGraph) -> Iterator[str]:
    where = _homes(plan)
    for e in graph.edges:
        source = graph.by_id[e.src]
        in_registers = e.kind == "data" and source.buffer_bytes == 0
        if where[e.src] != where[e.dst] and in_registers and (e.distance > 0 or source.registers > 0):
            yield f"edge {e.src} -> {e.dst}: a register value leaves its partition"


def _warps_and_registers(plan: Plan, graph: DependenceGraph) -> Iterator[str]:
    taken = 0
    for partition in plan.partitions:
        if partition.warps not in (1, 2, 4, 8):
            yield f"partition {partition.name}: {partition.warps} warps, expected 1, 2, 4 or 8"
        if not 24 <= partition.registers <= MAX_THREAD_REGISTERS:
            yield f"partition {partition.name}: {partition.registers} registers, expected 24 to {MAX_THREAD_REGISTERS}"
        for name in partition.ops:
            if partition.warps < graph.by_id[name].min_warps:
                least = graph.by_id[name].min_warps
                yield f"partition {partition.name}: {partition.warps} warps, operation {name} needs {least}"
        taken += 32 * ((partition.warps + 3) // 4 * 4) * partition.registers
        live, phase = _live_registers(plan, graph, partition.ops)
        if live > partition.registers:
            yield f"partition {partition.name}: {live} registers live at phase {phase}, {partition.registers} given"
    if taken > graph.limits.registers:
        yield f"registers: the partitions take {taken} of {graph.limits.registers}"


def _live_registers(plan: Plan, graph: DependenceGraph, names: tuple[str, ...]) -> tuple[int, int]:
    ii, at = plan.schedule.ii_cycles, _cycles(plan)
    spans = []
    for name in names:
        op = graph.by_id[name]
        if op.registers:
            reads = [at[e.dst] + ii * e.distance for e in graph.edges if e.src == name and e.kind == "data"]
            end = max(reads) if reads and op.buffer_bytes == 0 else at[name] + op.latency
            spans.append((at[name], end, op.registers))
    totals = [
        (sum(count * _copies(start, end, phase, ii) for start, end, count in spans), phase)
        for phase in sorted({start % ii for start, _, _ in spans})
    ]
    return max(totals, default=(0, 0))


def _rings(plan: Plan, graph: DependenceGraph, slack_cycles: int) -> Iterator[str]:
    ii, at, where = plan.schedule.ii_cycles, _cycles(plan), _homes(plan)
    channels = {c.name: c for c in plan.channels}
    for name in channels:
        if name not in graph.by_id or not graph.by_id[name].buffer_bytes:
            yield f"channel {name}: no operation of the graph writes such a buffer"
    for op in graph.ops:
        if not op.buffer_bytes:
            continue
        channel = channels.get(op.id)
        if channel is None:
            yield f"operation {op.id}: its value has no channel"
            continue
        readers = [e for e in graph.edges if e.src == op.id and e.kind == "data"]
        released = [at[op.id] + op.latency] if not readers else []
        for e in readers:
            back = graph.limits.handoff_cycles if where[e.dst] != where[op.id] else 0
            released.append(at[e.dst] + ii * e.distance + graph.by_id[e.dst].latency + back)
        live = max(released) - at[op.id]
        homes = tuple(sorted({where[e.dst] for e in readers})) or (where[op.id],)
        if channel.live_cycles != live:
            yield f"channel {op.id}: live for {live} cycles, the plan says {channel.live_cycles}"
        if channel.depth * ii < live + slack_cycles:
            yield f"channel {op.id}: depth {channel.depth} x {ii} cycles, {live + slack_cycles} are needed"
        if (channel.producer, channel.consumers) != (where[op.id], homes):
            yield f"channel {op.id}: joins partitions {channel.producer} -> {channel.consumers}, not those of its users"
        if channel.slot_bytes < op.buffer_bytes or channel.slot_bytes % op.alignment:
            yield f"channel {op.id}: slots of {channel.slot_bytes} bytes for {op.buffer_bytes} at {op.alignment}"


def _memory(plan: Plan, graph: DependenceGraph) -> Iterator[str]:
    named = {b.name: b for b in plan.buffers}
    if len(named) != len(plan.buffers):
        yield "buffers: a name appears twice"
    for channel in plan.channels:
        op = graph.by_id.get(channel.name)
        if op is not None and op.memory == "smem":
            yield from _ring_bytes(op, channel.slot_bytes * channel.depth, named)
    for b in plan.buffers:
        if b.alignment < 1 or b.offset % b.alignment:
            yield f"buffer {b.name}: offset {b.offset} is no multiple of {b.alignment}"
        if b.offset < 0 or b.offset + b.size > graph.limits.smem_bytes:
            yield f"buffer {b.name}: ends at byte {b.offset + b.size} of {graph.limits.smem_bytes}"
        if b.offset + b.size > plan.smem_bytes:
            yield f"buffer {b.name}: ends at byte {b.offset + b.size}, the plan says {plan.smem_bytes} in all"
        if b.shares_with is not None:
            ring = named.get(b.shares_with)
            if ring is None or b.offset < ring.offset or b.offset + b.size > ring.offset + ring.size:
                yield f"buffer {b.name}: lies outside the ring of {b.shares_with} that it shares"
    for i, a in enumerate(plan.buffers):
        for b in plan.buffers[i + 1 :]:
            if a.offset < b.offset + b.size and b.offset < a.offset + a.size and not _may_share(a, b):
                yield f"buffers {a.name} and {b.name}: overlap at byte {max(a.offset, b.offset)}"


def _ring_bytes(op: Operation, needed: int, named: dict[str, Buffer]) -> Iterator[str]:
    ring = named.get(op.id)
    if ring is None:
        yield f"channel {op.id}: has no buffer"
    elif ring.size < needed:
        yield f"buffer {op.id}: {ring.size} bytes for a ring of {needed}"
    elif ring.alignment % op.alignment:
        yield f"buffer {op.id}: alignment {ring.alignment}, the operation needs {op.alignment}"


def _may_share(a: Buffer, b: Buffer) -> bool:
    return a.shares_with == b.name or b.shares_with == a.name


def _copies(start: int, end: int, phase: int, ii: int) -> int:
    """How many iterations have a time ≡ ``phase`` (mod ``ii``) in their [``start``, ``end``)."""
    first = start + (phase - start) % ii
    return 0 if first >= end else 1 + (end - 1 - first) // ii


def _cycles(plan: Plan) -> dict[str, int]:
    return {p.op: p.cycle for p in plan.schedule.placements}


def _homes(plan: Plan) -> dict[str, int]:
    return {p.op: p.partition for p in plan.schedule.placements}

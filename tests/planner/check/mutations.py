"""Ways to break a plan, one for each clause of each rule, with the words by which the checker has to name it.

A way yields (broken plan, graph, start of the message) wherever it applies; where a limit is crossed by one, the plan
and graph at the limit itself come as a second yield with ``None``: the same words must not appear there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations

from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Buffer, Channel, Partition, Placement, Plan, Reuse

Broken = tuple[Plan, DependenceGraph, str, bool]
"""Plan, graph, the message's start (a ``*`` stands for anything), whether it must be there."""
RunSettings = Callable[[Plan, DependenceGraph], Iterator[Broken]]

WAYS: dict[str, RunSettings] = {}


def way(function: RunSettings) -> RunSettings:
    WAYS[function.__name__] = function
    return function


def place(plan: Plan, op: str, **changes: int) -> Plan:
    """Move one operation, keeping cycle, stage and phase consistent."""
    ii = plan.schedule.ii_cycles
    moved = [replace(p, **changes) if p.op == op else p for p in plan.schedule.placements]
    moved = [replace(p, stage=p.cycle // ii, phase=p.cycle % ii) if p.op == op else p for p in moved]
    return placements(plan, *moved)


def move(plan: Plan, op: str, partition: int) -> Plan:
    """Put an operation into another partition (or one more), in the placement and in both lists."""
    partitions = [replace(p, ops=tuple(o for o in p.ops if o != op)) for p in plan.partitions]
    if partition == len(partitions):
        partitions.append(Partition("one more", 4, 24, ()))
    partitions[partition] = replace(partitions[partition], ops=(*partitions[partition].ops, op))
    return replace(place(plan, op, partition=partition), partitions=tuple(partitions))


def placements(plan: Plan, *changed: Placement) -> Plan:
    return replace(plan, schedule=replace(plan.schedule, placements=changed))


def entry(plan: Plan, field: str, index: int, **changes: object) -> Plan:
    """Change one partition, channel, buffer or reuse."""
    items = list(getattr(plan, field))
    items[index] = replace(items[index], **changes)
    return replace(plan, **{field: tuple(items)})


def operation(graph: DependenceGraph, name: str, **changes: object) -> DependenceGraph:
    return replace(graph, ops=tuple(replace(op, **changes) if op.id == name else op for op in graph.ops), clones=())


def limits(graph: DependenceGraph, **changes: object) -> DependenceGraph:
    return replace(graph, limits=replace(graph.limits, **changes))


def at(plan: Plan, op: str) -> Placement:
    return next(p for p in plan.schedule.placements if p.op == op)


# Shape


@way
def placed_never_or_twice(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for i, p in enumerate(plan.schedule.placements):
        others = plan.schedule.placements[:i] + plan.schedule.placements[i + 1 :]
        yield placements(plan, *others), graph, f"operation {p.op}: placed 0 times", True
        yield placements(plan, p, *plan.schedule.placements), graph, f"operation {p.op}: placed 2 times", True
        stranger = replace(p, op="nobody")
        yield placements(plan, *plan.schedule.placements, stranger), graph, "operation nobody: placed, but", True


@way
def cycles_that_disagree(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    ii = plan.schedule.ii_cycles
    for i, p in enumerate(plan.schedule.placements):
        for odd in (
            replace(p, phase=p.phase + 1),
            replace(p, stage=p.stage + 1),
            replace(p, cycle=p.cycle + 1),
            replace(p, phase=p.phase + ii, stage=p.stage - 1),
            replace(p, cycle=p.phase - ii, stage=-1),
        ):
            yield (
                placements(plan, *plan.schedule.placements[:i], odd, *plan.schedule.placements[i + 1 :]),
                graph, f"operation {p.op}: cycle", True,
            )  # fmt: skip
    yield replace(plan, schedule=replace(plan.schedule, ii_cycles=0)), graph, "initiation interval 0", True


@way
def lists_that_disagree(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for p in plan.schedule.placements:
        ops = plan.partitions[p.partition].ops
        yield place(plan, p.op, partition=9), graph, f"operation {p.op}: partition 9 of", True
        less = entry(plan, "partitions", p.partition, ops=tuple(o for o in ops if o != p.op))
        yield less, graph, f"operation {p.op}: not once in the list", True
        more = entry(plan, "partitions", p.partition, ops=(*ops, p.op))
        yield more, graph, f"operation {p.op}: not once in the list", True
        for g, partition in enumerate(plan.partitions):
            if g != p.partition:
                both = entry(plan, "partitions", g, ops=(*partition.ops, p.op))
                yield both, graph, f"operation {p.op}: listed by partition {partition.name}", True
    odd = entry(plan, "partitions", 0, ops=(*plan.partitions[0].ops, "nobody"))
    yield odd, graph, "operation nobody: listed by partition", True


@way
def names_and_order(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    yield replace(plan, graph="other"), graph, "plan of graph 'other'", True
    if len(graph.ops) > 1:
        yield placements(plan, *reversed(plan.schedule.placements)), graph, "placements: expected", True
    if len(plan.partitions) > 1:
        name = plan.partitions[0].name
        yield entry(plan, "partitions", 1, name=name), graph, f"partition {name}: 2 of one name", True


@way
def too_many_partitions(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    count = len(plan.partitions)
    yield plan, limits(graph, max_partitions=count - 1), f"partitions: {count} of at most {count - 1}", True
    yield plan, limits(graph, max_partitions=count), "partitions:", False


# Rules 1 and 2


@way
def a_start_one_cycle_too_early(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    """The binding cycle is where the edge's latency and hand-off end; the partitions have four warps."""
    ii = plan.schedule.ii_cycles
    for e in graph.edges:
        source, reader = at(plan, e.src), at(plan, e.dst)
        arrival = source.cycle + graph.edge_latency(e)
        if source.partition != reader.partition:
            arrival += graph.edge_handoff(e)
        exact = arrival - ii * e.distance
        if e.src == e.dst or exact <= 0 or [(o.src, o.dst) for o in graph.edges].count((e.src, e.dst)) > 1:
            continue
        for start, limit, broken in ((exact - 1, arrival, True), (exact, arrival + 1, False)):
            said = f"edge {e.src} -> {e.dst}: starts at cycle {limit - 1}, before {limit}"
            yield place(plan, e.dst, cycle=start), graph, said, broken


@way
def a_latency_one_cycle_longer_than_there_is_time(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    ii = plan.schedule.ii_cycles
    for n, e in enumerate(graph.edges):
        source, reader = at(plan, e.src), at(plan, e.dst)
        start = reader.cycle + ii * e.distance
        time = start - source.cycle - (graph.edge_handoff(e) if source.partition != reader.partition else 0)
        for latency, broken in ((time + 1, True), (time, False)):
            edges = (*graph.edges[:n], replace(e, latency=latency), *graph.edges[n + 1 :])
            said = f"edge {e.src} -> {e.dst}: starts at cycle {start}, before {start + 1}"
            yield plan, replace(graph, edges=edges, clones=()), said, broken


@way
def a_handoff_one_cycle_longer_than_there_is_time(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    ii = plan.schedule.ii_cycles
    for n, e in enumerate(graph.edges):
        source, reader = at(plan, e.src), at(plan, e.dst)
        start = reader.cycle + ii * e.distance
        whole = start - source.cycle - graph.edge_latency(e)
        per_kb = graph.edge_handoff(replace(e, handoff=0))
        for handoff, broken in ((whole - per_kb + 1, True), (whole - per_kb, False)):
            edges = (*graph.edges[:n], replace(e, handoff=handoff), *graph.edges[n + 1 :])
            said = f"edge {e.src} -> {e.dst}: starts at cycle {start}, before {start + 1}"
            if source.partition != reader.partition:
                yield plan, replace(graph, edges=edges, clones=()), said, broken


@way
def a_unit_held_twice(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for unit, capacity in graph.units:
        users = [op for op in graph.ops if op.unit == unit and op.occupancy]
        for a, b in permutations(users, 2):
            if capacity == 1:
                yield place(plan, b.id, cycle=at(plan, a.id).cycle), graph, f"unit {unit}:", True


@way
def a_unit_held_one_cycle_too_long(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    ii = plan.schedule.ii_cycles
    for unit, capacity in graph.units:
        users = [op for op in graph.ops if op.unit == unit and op.occupancy]
        for op in users:
            gaps = [(at(plan, o.id).cycle - at(plan, op.id).cycle) % ii or ii for o in users]
            if capacity == 1:
                yield plan, operation(graph, op.id, occupancy=min(gaps) + 1), f"unit {unit}:", True
                yield plan, operation(graph, op.id, occupancy=min(gaps)), f"unit {unit}:", False


# Rules 3 and 4


@way
def two_issues_at_once(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for partition in plan.partitions:
        users = [name for name in partition.ops if graph.by_id[name].issue]
        for a, b in permutations(users, 2):
            said = f"issue of partition {partition.name}:"
            yield place(plan, b, cycle=at(plan, a).cycle), graph, said, True


@way
def barriers_that_take_too_long(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    """Who crosses waits or arrives at one barrier at least, which then takes longer than the whole interval."""
    for e in graph.edges:
        here, there = (plan.partitions[at(plan, name).partition] for name in (e.src, e.dst))
        if here is not there:
            long = limits(graph, barrier_cycles=plan.schedule.ii_cycles + 1)
            yield plan, long, f"issue of partition {here.name}:", True
            yield plan, long, f"issue of partition {there.name}:", True


@way
def a_value_that_leaves_its_partition(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    home = {p.op: p.partition for p in plan.schedule.placements}
    more = limits(graph, max_partitions=len(plan.partitions) + 1)
    for e in graph.edges:
        source = graph.by_id[e.src]
        if e.kind == "data" and e.src != e.dst and not source.buffer_bytes and home[e.src] == home[e.dst]:
            moved = move(plan, e.dst, len(plan.partitions))
            said = f"edge {e.src} -> {e.dst}: a value without a buffer leaves"
            # The message names the two operations: of parallel edges, one that is loop-carried is enough.
            parallel = [o for o in graph.edges if (o.src, o.dst, o.kind) == (e.src, e.dst, "data")]
            yield moved, more, said, any(o.distance > 0 for o in parallel)
            if source.unit == "TENSOR":
                said = f"edge {e.src} -> {e.dst}: an accumulator in registers leaves"
                yield moved, limits(more, architecture="hopper"), said, True
                yield moved, limits(more, architecture="any"), said, False


@way
def too_few_warps(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for g, partition in enumerate(plan.partitions):
        yield entry(plan, "partitions", g, warps=3), graph, f"partition {partition.name}: 3 warps, expected", True
        for name in partition.ops:
            op, said = graph.by_id[name], f"partition {partition.name}: * warps, operation {name} needs"
            if op.min_warps > 1:
                fewer = max(n for n in (1, 2, 4) if n < op.min_warps)
                yield entry(plan, "partitions", g, warps=fewer), graph, said, True
            two = entry(plan, "partitions", g, warps=2)
            yield two, limits(operation(graph, name, min_warps=2), architecture="any"), said, False
            if op.unit == "TENSOR":
                yield two, limits(graph, architecture="hopper"), said + " * (wgmma)", True
            else:
                in_tmem = operation(graph, name, buffer_bytes=8, memory="tmem")
                said += " * (tensor memory)"
                yield two, limits(in_tmem, architecture="blackwell"), said, op.unit != "TMA"
                yield two, limits(in_tmem, architecture="hopper"), said, False


@way
def registers_of_a_tensor_operation(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for op in graph.ops:
        if op.unit == "TENSOR":
            held, said = operation(graph, op.id, registers=8), f"operation {op.id}: 8 registers, a TENSOR"
            yield plan, limits(held, architecture="blackwell"), said, True
            yield plan, limits(held, architecture="hopper"), said, False


# Rule 5


@way
def a_register_count_that_nobody_has(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for g, partition in enumerate(plan.partitions):
        for count, broken in ((partition.registers - 1, True), (16, True), (256, True), (240, False)):
            said = f"partition {partition.name}: {count} registers, expected"
            yield entry(plan, "partitions", g, registers=count), graph, said, broken


@way
def one_register_too_few(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    """Partitions have as few as hold their values, so eight fewer are too few, as is one more besides the values."""
    for g, partition in enumerate(plan.partitions):
        fewer = partition.registers - 8
        said = f"partition {partition.name}: *registers*, {'expected' if fewer < 24 else f'{fewer} given'}"
        yield entry(plan, "partitions", g, registers=fewer), graph, said, True
        said = f"partition {partition.name}: * registers live at phase * for the rest, {partition.registers} given"
        yield plan, limits(graph, base_registers=partition.registers + 1), said, True


@way
def registers_beyond_the_limit(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    taken = sum(32 * -(-p.warps // 4) * 4 * p.registers for p in plan.partitions)
    yield plan, limits(graph, registers=taken - 1), f"registers: the partitions take {taken} of {taken - 1}", True
    yield plan, limits(graph, registers=taken), "registers:", False


# Rule 6


@way
def a_ring_too_shallow(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    ii = plan.schedule.ii_cycles
    for n, c in enumerate(plan.channels):
        shallow = -(-c.live_cycles // ii) - 1
        yield entry(plan, "channels", n, depth=shallow), graph, f"channel {c.name}: depth {shallow} x", True
        yield entry(plan, "channels", n, depth=0), graph, f"channel {c.name}: depth 0 x", True
        late = operation(graph, c.name, spread=c.depth * ii - c.live_cycles + 1)
        yield plan, late, f"channel {c.name}: depth {c.depth} x", True


@way
def a_channel_that_says_otherwise(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for n, c in enumerate(plan.channels):
        for live in (c.live_cycles - 1, c.live_cycles + 1):
            yield entry(plan, "channels", n, live_cycles=live), graph, f"channel {c.name}: live for", True
        joins = f"channel {c.name}: joins partitions"
        yield entry(plan, "channels", n, producer=c.producer + 1), graph, joins, True
        yield entry(plan, "channels", n, consumers=()), graph, joins, True
        yield entry(plan, "channels", n, consumers=(*c.consumers, 9)), graph, joins, True
        yield entry(plan, "channels", n, consumers=(*c.consumers, c.consumers[0])), graph, joins, True
        for size in (c.slot_bytes - 1, c.slot_bytes + 1):
            yield entry(plan, "channels", n, slot_bytes=size), graph, f"channel {c.name}: slots of {size} bytes", True


@way
def a_channel_missing_or_too_many(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for n, c in enumerate(plan.channels):
        rest = plan.channels[:n] + plan.channels[n + 1 :]
        yield replace(plan, channels=rest), graph, f"operation {c.name}: its value has no channel", True
        yield replace(plan, channels=(*plan.channels, c)), graph, f"channel {c.name}: 2 of one name", True
    rings = {c.name for c in plan.channels}
    for name in ["nobody", *(op.id for op in graph.ops if op.id not in rings)]:
        odd = replace(plan, channels=(*plan.channels, Channel(name, 0, (0,), 8, 1, 1)))
        yield odd, graph, f"channel {name}: no operation of the graph writes", True


# Rule 7


@way
def a_ring_without_its_place(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for n, b in enumerate(plan.buffers):
        rest = plan.buffers[:n] + plan.buffers[n + 1 :]
        yield replace(plan, buffers=rest), graph, f"channel {b.name}: has no buffer", _is_ring(plan, b)
        yield replace(plan, buffers=(*plan.buffers, b)), graph, f"buffer {b.name}: 2 of one name", True
        if _is_ring(plan, b):
            other = "smem" if b.memory == "tmem" else "tmem"
            yield entry(plan, "buffers", n, memory=other), graph, f"buffer {b.name}: lies in {other}", True
            for size in (b.size - 1, b.size + 1):
                yield entry(plan, "buffers", n, size=size), graph, f"buffer {b.name}: {size} ", True
            hosted = entry(plan, "buffers", n, shares_with=plan.buffers[0].name)
            yield hosted, graph, f"buffer {b.name}: a ring of its own", True


@way
def a_place_outside_memory(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for n, b in enumerate(plan.buffers):
        end, field = b.offset + b.size, "smem_bytes" if b.memory == "smem" else "tmem_columns"
        said = f"buffer {b.name}: from {'byte' if b.memory == 'smem' else 'column'}"
        yield plan, limits(graph, **{field: end - 1}), f"{said} {b.offset} to {end} of {end - 1}", True
        yield plan, limits(graph, **{field: end}), said + f" {b.offset} to", False
        yield entry(plan, "buffers", n, offset=-64), graph, said + " -64", True
    for total in (plan.smem_bytes - 1, plan.smem_bytes + 1):
        yield replace(plan, smem_bytes=total), graph, f"shared memory: the plan says {total} bytes", True


@way
def a_misplaced_ring(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for n, b in enumerate(plan.buffers):
        if b.memory == "smem":
            if b.alignment > 1:
                moved = entry(plan, "buffers", n, offset=b.offset + b.alignment // 2)
                yield moved, graph, f"buffer {b.name}: offset {b.offset + b.alignment // 2} is no multiple", True
            if _is_ring(plan, b) and graph.by_id[b.name].alignment > 1:
                lax = entry(plan, "buffers", n, alignment=1)
                yield lax, graph, f"buffer {b.name}: alignment 1, the operation needs", True
        else:
            yield entry(plan, "buffers", n, lane=32), graph, f"buffer {b.name}: * lanes from lane 32", True
            yield entry(plan, "buffers", n, lanes=192 - b.lanes), graph, f"buffer {b.name}: {192 - b.lanes} lanes", True


@way
def two_rings_in_one_place(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    """More than a slot each: they can never alternate."""
    depth = {c.name: c.depth for c in plan.channels}
    for n, a in enumerate(plan.buffers):
        for m, b in enumerate(plan.buffers):
            if m <= n or a.memory != b.memory or not a.size or not b.size or a.shares_with or b.shares_with:
                continue
            where = {"offset": a.offset} | ({"lane": 0, "lanes": 128} if b.memory == "tmem" else {})
            said = f"buffers {a.name} and {b.name}: overlap at {a.offset}"
            if (depth.get(a.name), depth.get(b.name)) != (1, 1):
                yield entry(plan, "buffers", m, **where), graph, said, True
            last = entry(plan, "buffers", m, **where | {"offset": a.offset + a.size - 1})
            after = entry(plan, "buffers", m, **where | {"offset": a.offset + a.size})
            if (depth.get(a.name), depth.get(b.name)) != (1, 1):
                yield last, graph, said.replace(f"at {a.offset}", f"at {a.offset + a.size - 1}"), True
            yield after, graph, f"buffers {a.name} and {b.name}: overlap", False


@way
def a_reuse_that_is_not_so(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    for n, r in enumerate(plan.reuses):
        rest = plan.reuses[:n] + plan.reuses[n + 1 :]
        said = f"reuse {r.before} -> {r.after}:"
        yield replace(plan, reuses=rest), graph, f"{said} missing", True
        yield replace(plan, reuses=(*plan.reuses, r)), graph, f"{said} listed 2 times", True
        for distance in (r.distance - 1, r.distance + 1):
            yield entry(plan, "reuses", n, distance=distance), graph, "reuse *: distance", True
        depth = next(i for i, c in enumerate(plan.channels) if c.name == r.before)
        deep = entry(plan, "channels", depth, depth=2)
        yield deep, graph, f"buffers *{r.before}*: overlap at * slots", True
    stranger = replace(plan, reuses=(*plan.reuses, Reuse("nobody", graph.ops[0].id, 0)))
    yield stranger, graph, "reuse nobody -> ", True
    meeting = {(r.before, r.after) for r in plan.reuses}
    for a, b in permutations([c.name for c in plan.channels], 2):
        if (a, b) not in meeting:
            odd = replace(plan, reuses=(*plan.reuses, Reuse(a, b, 0)))
            yield odd, graph, f"reuse {a} -> {b}: their places do not meet", True


@way
def lives_that_meet_by_one_cycle(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    """The ring's producer is as late as it may be, and one cycle later: its life grows, the other's start stays."""
    at_ = {p.op: p.cycle for p in plan.schedule.placements}
    ii = plan.schedule.ii_cycles
    for r in plan.reuses:
        a = graph.by_id[r.before]
        readers = [e for e in graph.edges if e.src == a.id and e.kind == "data"]
        if len({p.partition for p in plan.schedule.placements}) > 1 or a.spread or (not readers and a.latency == 0):
            continue
        uses = [(at_[e.dst] + ii * e.distance + graph.by_id[e.dst].latency, graph.by_id[e.dst].spread) for e in readers]
        if any(spread for _, spread in uses):
            continue
        held = max((end for end, _ in uses), default=at_[a.id] + a.latency) - at_[a.id]
        room = (at_[r.after] - at_[a.id]) % ii
        said = f"buffers *{a.id}*: overlap at * while both live"
        if room == 0:
            continue
        yield plan, operation(graph, a.id, spread=room - held + 1), said, True
        yield plan, operation(graph, a.id, spread=room - held), said, False


@way
def an_extra_buffer_outside_its_ring(plan: Plan, graph: DependenceGraph) -> Iterator[Broken]:
    home = {b.name: b for b in plan.buffers}
    for n, b in enumerate(plan.buffers):
        if b.shares_with is not None:
            ring, said = home[b.shares_with], f"buffer {b.name}: lies outside the ring"
            for offset in (ring.offset - 1, ring.offset + ring.size - b.size + 1):
                yield entry(plan, "buffers", n, offset=offset, alignment=1), graph, said, True
            last = entry(plan, "buffers", n, offset=ring.offset + ring.size - b.size, alignment=1)
            yield last, graph, said, False
            yield entry(plan, "buffers", n, shares_with="nobody"), graph, said, True
            twin = replace(plan, buffers=(*plan.buffers, replace(b, name="twin")))
            yield twin, graph, f"buffers {b.name} and twin: overlap", True
        elif not _is_ring(plan, b):
            yield entry(plan, "buffers", n, memory="tmem"), graph, f"buffer {b.name}: lies in tmem", True


def _is_ring(plan: Plan, b: Buffer) -> bool:
    return any(c.name == b.name for c in plan.channels)

"""Plans played: what a good one keeps at every trip count, and what each kind of bad one runs into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import InvalidInput, SimulationFault
from warpplan.planner.simulate import simulation
from warpplan.planner.simulate.simulation import Draws, simulate, steady_ii, verify, waits
from warpplan.planner.simulate.steady_state import steady_state
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Buffer, Channel, Partition, Placement, Plan, Reuse, Schedule
from warpplan.planner.values.timeline import Span, Timeline

from .. import strategies as given_


def plan_of(
    graph: DependenceGraph,
    ii: int,
    places: Mapping[str, tuple[int, int]],
    depth: Mapping[str, int] | None = None,
    offsets: Mapping[str, int] | None = None,
    reuses: tuple[Reuse, ...] = (),
    warps: int = 4,
) -> Plan:
    """By hand: (cycle, partition) and a ring's slots per operation, buffers one after another unless placed."""
    home = {op: partition for op, (_, partition) in places.items()}
    channels, buffers, top = [], [], 0
    for op in graph.ops:
        readers = {home[e.dst] for e in graph.edges if e.src == op.id and e.kind == "data"}
        elsewhere = readers - {home[op.id]}
        if op.buffer_bytes or (op.registers and elsewhere):
            consumers = tuple(sorted((readers if op.buffer_bytes else elsewhere) or {home[op.id]}))
            slots, size = (depth or {}).get(op.id, 1), op.buffer_bytes or op.register_bytes
            channels.append(Channel(op.id, home[op.id], consumers, size, slots, 0))
            offset = (offsets or {}).get(op.id, top)
            top = max(top, offset + size * slots)
            if op.memory == "smem":
                buffers.append(Buffer(op.id, offset, size * slots, op.alignment))
            else:
                columns = slots * -(-op.buffer_bytes // (4 * op.lanes))
                buffers.append(Buffer(op.id, offset, columns, 1, None, "tmem", 0, op.lanes))
    count = 1 + max(home.values())
    return Plan(
        graph.name,
        Schedule(ii, tuple(Placement(op.id, t, t // ii, t % ii, g) for op in graph.ops for t, g in [places[op.id]])),
        tuple(Partition(f"p{g}", warps, 64, tuple(op for op in home if home[op] == g)) for g in range(count)),
        tuple(channels),
        tuple(buffers),
        top,
        reuses,
    )


def starts(timeline: Timeline) -> dict[str, list[int]]:
    return {op: [s.start for s in timeline.of(op)] for op in dict.fromkeys(s.op for s in timeline.spans)}


def without(plan: Plan, channel: str) -> Plan:
    return replace(plan, channels=tuple(c for c in plan.channels if c.name != channel))


# Properties of plans from the solver


@st.composite
def solved(draw: st.DrawFn) -> tuple[DependenceGraph, Plan]:
    """A slot that is read and filled again in the same cycle is nothing that could run: latencies are 1 and up."""
    graph = draw(given_.graphs(most_ops=5))
    graph = replace(graph, ops=tuple(replace(op, latency=max(op.latency, 1)) for op in graph.ops))
    plan = solve(graph, SolveOptions(1.0, draw(st.sampled_from([None, None, 1, 2, 3])))).plan
    assume(plan is not None)
    return graph, plan


@given(solved(), st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_a_solved_plan_keeps_its_own_cycles_at_every_trip_count(case, trip_count):
    graph, plan = case
    timeline = simulate(plan, graph, trip_count)
    ii, at = plan.schedule.ii_cycles, {p.op: p.cycle for p in plan.schedule.placements}
    offset = max(0, *(issue_cycles(plan, graph, op)[0] - at[op] for op in at))
    assert len(timeline.spans) == trip_count * len(graph.ops)
    for span in timeline.spans:
        assert span.start <= at[span.op] + ii * span.iteration + offset
    makespan = max(at[op.id] + latency(plan, graph, op.id) for op in graph.ops)
    assert timeline.cycles <= max(0, makespan + ii * (trip_count - 1) + offset) * (trip_count > 0)
    assert verify(plan, graph) == ()


@given(solved(), st.integers(0, 9), st.sampled_from(["planned", "arrival"]), st.none() | st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_dependences_slots_units_and_issue_hold_by_inspection(case, trip_count, order, seed):
    graph, plan = case
    timeline = simulate(plan, graph, trip_count, order=order, draws=None if seed is None else Draws(seed))
    home = {p.op: p.partition for p in plan.schedule.placements}
    at = {(s.op, s.iteration): s for s in timeline.spans}
    assert len(at) == len(timeline.spans)
    for edge in graph.edges:
        own = graph.by_id[edge.src].latency if edge.latency is None else edge.latency
        after = latency(plan, graph, edge.src) + own - graph.by_id[edge.src].latency
        handoff = graph.edge_handoff(edge) if home[edge.src] != home[edge.dst] else 0
        for n in range(edge.distance, trip_count):
            source = at[edge.src, n - edge.distance]
            usable = source.done if edge.latency is None and edge.kind != "anti" else source.start + after
            assert at[edge.dst, n].start >= usable + handoff
    for channel in plan.channels:
        readers = [e for e in graph.edges if e.src == channel.name and e.kind == "data"]
        if not graph.by_id[channel.name].buffer_bytes:
            readers = [e for e in readers if home[e.dst] != channel.producer]
        for n in range(trip_count - channel.depth):
            refill = at[channel.name, n + channel.depth].start
            assert readers or refill >= at[channel.name, n].start + latency(plan, graph, channel.name)
            for edge in readers:
                fixed = graph.limits.handoff_cycles if edge.handoff is None else edge.handoff
                handoff = fixed if home[edge.dst] != home[edge.src] else 0
                if n + edge.distance < trip_count:
                    read = at[edge.dst, n + edge.distance].start + latency(plan, graph, edge.dst)
                    assert refill >= read + handoff
    for unit, capacity in graph.units:
        held = [s for s in timeline.spans if s.unit == unit and s.released > s.start]
        assert all(sum(s.start <= t.start < s.released for s in held) <= capacity for t in held)
    for g in range(len(plan.partitions)):
        inside = sorted((s for s in timeline.spans if s.partition == g and home[s.op] == g), key=planned_key(plan))
        assert all(a.start <= b.start for a, b in pairwise(inside))
        before = {s.op: issue_cycles(plan, graph, s.op)[0] for s in inside}
        issuing = [s for s in inside if s.issued > s.start - before[s.op]]
        assert all(a.issued <= b.start - before[b.op] for a, b in pairwise(issuing))
        assert all(s.ready <= s.start <= s.issued for s in inside)


@given(solved(), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_late_results_never_make_anything_earlier(case, trip_count, seed):
    """Max-plus monotonicity: each start is a maximum of sums of latencies as long as units keep the plan's order."""
    graph, plan = case
    late = replace(graph, ops=tuple(replace(op, spread=3 * (i % 3)) for i, op in enumerate(graph.ops)), clones=())
    # The rings were sized without these spreads: an operation that reads the slot that it fills may be too slow now.
    assume(not any(e.src == e.dst and late.by_id[e.src].spread for e in graph.edges))
    drawn = simulate(plan, late, trip_count, draws=Draws(seed), order="planned")
    for nominal, later in zip(by_instance(simulate(plan, graph, trip_count)), by_instance(drawn), strict=True):
        assert nominal.start <= later.start


@given(solved(), st.integers(0, 9), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_the_same_input_gives_the_same_timeline(case, trip_count, seed):
    graph, plan = case
    assert simulate(plan, graph, trip_count, draws=Draws(seed)) == simulate(plan, graph, trip_count, draws=Draws(seed))


def by_instance(timeline: Timeline) -> list[Span]:
    return sorted(timeline.spans, key=lambda s: (s.op, s.iteration))


def planned_key(plan: Plan):
    at = {p.op: p.cycle for p in plan.schedule.placements}
    return lambda s: (at[s.op] + plan.schedule.ii_cycles * s.iteration, s.start)


def latency(plan: Plan, graph: DependenceGraph, op: str) -> int:
    """As rule 0 has it."""
    value = graph.by_id[op]
    warps = next(p.warps for p in plan.partitions if op in p.ops)
    slow = 4 // warps if value.unit in ("ALU", "SFU") and warps < 4 else 1
    return value.latency + (slow - 1) * value.occupancy


def issue_cycles(plan: Plan, graph: DependenceGraph, op: str) -> tuple[int, int]:
    """Cycles of the barriers before and after an operation, as rule 3 counts them."""
    home = {p.op: p.partition for p in plan.schedule.placements}
    b = graph.limits.barrier_cycles
    values = {o.id for o in graph.ops if o.buffer_bytes or o.registers}
    crossing = [e for e in graph.edges if home[e.src] != home[e.dst]]
    handed = {(e.src, e.dst) for e in crossing if e.kind == "data" and e.src in values}
    before = len({e.src for e in crossing if e.dst == op}) + any(src == op for src, _ in handed)
    after = any(e.src == op for e in crossing) + len({src for src, dst in handed if dst == op})
    return b * before, b * after


# Worked examples


def loop(spread: int = 0, **limits: int) -> DependenceGraph:
    """A load in one partition, the multiply that reads it in another."""
    ops = (
        Operation("load", "TMA", 100, 20, 5, buffer_bytes=1024, alignment=1024, spread=spread),
        Operation("mma", "TENSOR", 80, 60, 10, min_warps=4),
    )
    edges = (Dependence("load", "mma"), Dependence("mma", "mma", 1, latency=60))
    return DependenceGraph("loop", ops, edges, Limits(**({"max_partitions": 2, "handoff_cycles": 10} | limits)))


def looped(depth: int, ii: int = 60) -> Plan:
    return plan_of(loop(), ii, {"load": (0, 1), "mma": (110, 0)}, {"load": depth})


def test_two_partitions_and_a_ring_of_four():
    timeline = simulate(looped(4), loop(), 6)
    # The load runs ahead as far as its unit and its ring let it: the multiply gives a slot back at 80 + 10 cycles.
    assert starts(timeline) == {
        "load": [0, 20, 40, 60, 200, 260],
        "mma": [110, 170, 230, 290, 350, 410],
    }
    assert timeline.cycles == 490
    assert timeline.of("load")[4] == Span("load", 4, 1, "TMA", 65, 200, 205, 220, 300, "slot")
    assert timeline.of("mma")[0] == Span("mma", 0, 0, "TENSOR", 0, 110, 120, 170, 190, "data load")
    assert timeline.partitions == ("p0", "p1")
    assert verify(looped(4), loop()) == ()


def test_no_iterations_and_one():
    assert simulate(looped(4), loop(), 0) == Timeline("loop", 0, ("p0", "p1"), (), 0)
    assert starts(simulate(looped(4), loop(), 1)) == {"load": [0], "mma": [110]}


def test_a_ring_that_is_too_short_for_the_interval_is_late():
    timeline = simulate(looped(3), loop(), 30)
    assert steady_ii(timeline) == 200 / 3
    assert verify(looped(3), loop()) == ("operation load, iteration 3, cycle 200: planned for cycle 180",)
    assert verify(looped(3, ii=67), loop()) == ()


def test_slots_beyond_the_live_range_change_nothing_until_latencies_vary():
    nominal = [simulate(looped(depth), loop(), 100).cycles for depth in (4, 6, 12)]
    assert nominal == [6130, 6130, 6130]
    drawn = [simulate(looped(depth), loop(spread=60), 100, draws=Draws(1)).cycles for depth in (4, 6, 12)]
    assert drawn == sorted(drawn, reverse=True)
    assert drawn[0] > drawn[1] > drawn[2] >= 6130


def test_barriers_take_issue_cycles_before_and_after():
    graph = loop(barrier_cycles=7)
    timeline = simulate(plan_of(graph, 60, {"load": (7, 1), "mma": (117, 0)}, {"load": 4}), graph, 2)
    # The load waits for a free slot and arrives; the multiply waits for the load and gives the slot back.
    assert starts(timeline) == {"load": [7, 27], "mma": [117, 177]}
    busy = replace(graph, ops=(replace(graph.ops[0], issue=30), graph.ops[1]))
    timeline = simulate(plan_of(busy, 60, {"load": (7, 1), "mma": (117, 0)}, {"load": 4}), busy, 2)
    assert starts(timeline)["load"] == [7, 7 + 30 + 7 + 7]
    assert (timeline.of("load")[1].ready, timeline.of("load")[1].waited_for) == (44, "")


def test_few_warps_are_slow_on_alu_and_sfu_only():
    ops = (Operation("add", "ALU", 30, 16, 8), Operation("copy", "TMA", 30, 16, 8))
    graph = DependenceGraph("few", (*ops, Operation("end", None, 0, 0, 0)), (Dependence("add", "end"),))
    timeline = simulate(plan_of(graph, 64, {"add": (0, 0), "copy": (32, 0), "end": (78, 0)}, warps=1), graph, 1)
    assert timeline.of("add")[0] == Span("add", 0, 0, "ALU", 0, 0, 32, 64, 78)
    assert timeline.of("copy")[0] == Span("copy", 0, 0, "TMA", 32, 32, 40, 48, 62)
    assert timeline.of("end")[0].start == 78


def test_registers_that_cross_pay_for_their_kilobytes_and_have_a_ring():
    ops = (Operation("a", "ALU", 20, 4, 4, 4, registers=9), Operation("b", "SFU", 20, 4, 4, 4))
    edges = (Dependence("a", "b", handoff=3),)
    graph = DependenceGraph("cross", ops, edges, Limits(2, handoff_cycles=50, handoff_cycles_per_kb=100))
    plan = plan_of(graph, 60, {"a": (0, 0), "b": (20 + 3 + 500, 1)}, {"a": 10})
    # 9 registers of 128 threads are 4,608 bytes: five KB begun. The release costs the hand-off alone.
    assert starts(simulate(plan, graph, 3))["b"][0] == 523
    shallow = plan_of(graph, 60, {"a": (0, 0), "b": (523, 1)}, {"a": 1})
    assert starts(simulate(shallow, graph, 2))["a"] == [0, 523 + 20 + 3]


def test_wgmma_groups_retire_in_order():
    """The short multiply is issued after the long one: whoever reads it waits for both."""
    ops = (
        Operation("long", "TENSOR", 200, 10, 10, 4),
        Operation("short", "TENSOR", 50, 10, 10, 4),
        Operation("use", "ALU", 10, 10, 10, 4),
        Operation("peek", "LSU", 10, 10, 10, 4),
    )
    edges = (Dependence("short", "use"), Dependence("short", "peek", latency=20))
    places = {"long": (0, 0), "short": (10, 0), "peek": (30, 0), "use": (200, 0)}
    for architecture, use in (("hopper", 200), ("any", 60)):
        graph = DependenceGraph("wgmma", ops, edges, Limits(1, architecture=architecture))
        assert starts(simulate(plan_of(graph, 300, places), graph, 1)) == {
            "long": [0], "short": [10], "peek": [30], "use": [use],
        }  # fmt: skip


def test_a_unit_serves_in_the_plans_order_or_as_requests_arrive():
    ops = (Operation("slow", None, 50, 0, 1), Operation("a", "ALU", 5, 10, 1, 4), Operation("b", "ALU", 5, 10, 1, 4))
    graph = DependenceGraph("unit", ops, (Dependence("slow", "a"),), Limits(2))
    plan = plan_of(graph, 100, {"slow": (0, 0), "a": (50, 0), "b": (60, 1)})
    assert starts(simulate(plan, graph, 1)) == {"slow": [0], "a": [50], "b": [60]}
    assert starts(simulate(plan, graph, 1, order="arrival")) == {"b": [0], "slow": [0], "a": [50]}
    two = replace(graph, units=(("ALU", 2),))
    assert starts(simulate(plan, two, 1)) == {"slow": [0], "a": [50], "b": [0]}


# Bad plans


def exchange(first: int, second: int) -> tuple[DependenceGraph, Plan]:
    """Two partitions that give each other a value; ``first`` and ``second`` are when each reads the other's."""
    ops = tuple(
        Operation(name, unit, 10, 5, 5, buffer_bytes=bytes_)
        for name, unit, bytes_ in (("x", "TMA", 128), ("y", "LSU", 128), ("use_y", "ALU", 0), ("use_x", "SFU", 0))
    )
    graph = DependenceGraph("exchange", ops, (Dependence("x", "use_x"), Dependence("y", "use_y")), Limits(2))
    return graph, plan_of(graph, 100, {"x": (50, 0), "use_y": (first, 0), "y": (50, 1), "use_x": (second, 1)})


def test_an_exchange_in_opposite_orders_deadlocks():
    graph, good = exchange(60, 60)
    assert verify(good, graph) == ()
    graph, bad = exchange(0, 0)
    with pytest.raises(SimulationFault) as caught:
        simulate(bad, graph, 3)
    assert str(caught.value) == (
        "deadlock at cycle 0: p0 waits with use_y of iteration 0 for y of iteration 0; "
        "p1 waits with use_x of iteration 0 for x of iteration 0"
    )
    assert (caught.value.op, caught.value.iteration, caught.value.cycle) == ("use_y", 0, 0)
    # One reading late is enough: the other's value is on its way.
    graph, odd = exchange(0, 60)
    assert simulate(odd, graph, 3)


def test_a_unit_that_waits_for_its_turn_can_deadlock():
    graph, _ = exchange(0, 0)
    graph = replace(graph, ops=tuple(replace(op, unit="ALU") for op in graph.ops))
    plan = plan_of(graph, 100, {"x": (50, 0), "use_y": (60, 0), "y": (80, 1), "use_x": (90, 1)})
    with pytest.raises(SimulationFault, match="its turn on unit ALU after"):
        simulate(plan, graph, 1)


def held(home: int, depth: int) -> tuple[DependenceGraph, Plan]:
    """The multiply reads this iteration's load and the last but one's: three slots."""
    graph = loop()
    graph = replace(graph, edges=(*graph.edges, Dependence("load", "mma", 2)))
    return graph, plan_of(graph, 120, {"load": (0, 1), "mma": (110, home)}, {"load": depth})


def test_a_value_held_across_iterations_needs_its_slots():
    for home in (0, 1):
        graph, plan = held(home, 4)
        assert verify(plan, graph) == ()
    graph, plan = held(0, 2)
    with pytest.raises(SimulationFault) as caught:
        simulate(plan, graph, 9)
    assert str(caught.value) == (
        "deadlock at cycle 180: p0 waits with mma of iteration 2 for load of iteration 2; "
        "p1 waits with load of iteration 2 for a free slot, to be released by mma of iteration 2"
    )
    assert simulate(plan, graph, 2)
    # In one partition no barrier holds it back: it overwrites what it will read.
    graph, plan = held(1, 2)
    with pytest.raises(SimulationFault) as caught:
        simulate(plan, graph, 9)
    assert str(caught.value) == (
        "operation load, iteration 2, cycle 220: overwrites slot 0 of ring load, whose iteration 0 is in use until "
        "cycle 400"
    )
    fault = caught.value
    assert (fault.op, fault.iteration, fault.cycle, fault.slot, fault.field) == ("load", 2, 220, 0, "plan")


def test_a_missing_channel_is_caught():
    with pytest.raises(
        SimulationFault, match="operation load, iteration 0, cycle 0: writes a value for which the plan"
    ):
        simulate(without(looped(4), "load"), loop(), 1)
    deaf = replace(looped(4), channels=(replace(looped(4).channels[0], consumers=(1,)),))
    with pytest.raises(SimulationFault) as caught:
        simulate(deaf, loop(), 1)
    assert "operation mma, iteration 0, cycle 0: " in str(caught.value)
    # Even where it goes well: here another barrier happens to make the reader late enough.
    ops = (*loop().ops, Operation("tick", None, 0, 0, 1))
    late = replace(loop(), ops=ops, edges=(*loop().edges, Dependence("load", "tick"), Dependence("tick", "mma")))
    plan = plan_of(late, 200, {"load": (0, 1), "tick": (100, 1), "mma": (110, 0)})
    assert verify(plan, late) == ()
    deaf = replace(plan, channels=(replace(plan.channels[0], consumers=(1,)),))
    assert verify(deaf, late) == (
        "operation mma, iteration 0, cycle 110: reads load, of which no barrier tells its partition",
    )


def test_program_order_against_a_dependence_is_caught():
    ops = (Operation("a", None, 10, 0, 5), Operation("b", None, 10, 0, 5))
    graph = DependenceGraph("order", ops, (Dependence("a", "b"),), Limits(2))
    with pytest.raises(SimulationFault) as caught:
        simulate(plan_of(graph, 50, {"a": (20, 0), "b": (0, 0)}), graph, 2)
    assert (
        str(caught.value)
        == "operation b, iteration 0, cycle 0: runs before a of iteration 0 is done (done at cycle 15)"
    )
    assert simulate(plan_of(graph, 50, {"a": (20, 0), "b": (0, 1)}), graph, 2)


def sharing(*reuses: Reuse, memory: str = "smem", lanes: int = 128) -> tuple[DependenceGraph, Plan]:
    """Two loads alternate in the same bytes; each is read in another partition before the other comes."""
    loads = tuple(
        Operation(name, "TMA", 40, 10, 5, buffer_bytes=1024, memory=memory, lanes=lanes) for name in ("a", "b")
    )
    uses = tuple(Operation(f"use_{name}", "TENSOR", 20, 20, 5, 4) for name in ("a", "b"))
    edges = (Dependence("a", "use_a"), Dependence("b", "use_b"))
    graph = DependenceGraph("sharing", (*loads, *uses), edges, Limits(2, handoff_cycles=5))
    places = {"a": (0, 0), "use_a": (45, 1), "b": (70, 0), "use_b": (115, 1)}
    return graph, plan_of(graph, 140, places, offsets={"a": 0, "b": 0}, reuses=reuses)


def test_two_rings_alternate_in_the_same_bytes():
    graph, plan = sharing(Reuse("a", "b", 0), Reuse("b", "a", 1))
    alternating = {"a": [0, 140], "use_a": [45, 185], "b": [70, 210], "use_b": [115, 255]}
    assert starts(simulate(plan, graph, 2)) == alternating
    assert verify(plan, graph) == ()
    late = replace(graph, ops=tuple(replace(op, spread=30) for op in graph.ops))
    drawn = [simulate(plan, late, 20, draws=Draws(seed)).cycles for seed in range(10)]
    assert min(drawn) > simulate(plan, graph, 20).cycles
    # The same turns, with the second ring's operations planned a whole interval later.
    places = {"a": (0, 0), "use_a": (45, 1), "b": (210, 0), "use_b": (255, 1)}
    staged = plan_of(graph, 140, places, offsets={"a": 0, "b": 0}, reuses=(Reuse("a", "b", -1), Reuse("b", "a", 2)))
    assert starts(simulate(staged, graph, 3))["b"] == [140, 280, 350]
    assert verify(staged, graph) == ()


@st.composite
def alternating_rings(draw: st.DrawFn) -> tuple[DependenceGraph, Plan]:
    """:func:`sharing` with any cycles, partitions and distances, as the checker accepts it: half of the loops have one
    ring's use an iteration later than its load, or the second ring some intervals behind the first."""
    graph, plan = sharing()
    handoff, ii = graph.limits.handoff_cycles, draw(st.sampled_from([140, 150, 200]))
    places, held = {}, {}
    edges = tuple(replace(e, distance=draw(st.sampled_from([0, 0, 1]))) for e in graph.edges)
    base = {"a": draw(st.integers(15, 40)) * 10, "b": draw(st.integers(15, 80)) * 10}
    for e in edges:
        home, there = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        use = base[e.src] + 45 + draw(st.sampled_from([0, 5])) - ii * e.distance
        places |= {e.src: (base[e.src], home), e.dst: (use, there)}
        held[e.src] = use + ii * e.distance + 20 - base[e.src]
    assume({g for _, g in places.values()} != {1})
    graph = replace(graph, edges=edges)
    release = {(a, b): held[a] + handoff * (places[f"use_{a}"][1] != places[b][1]) for a in held for b in held}
    turns = -((base["b"] - base["a"] - release["a", "b"]) // ii)
    plan = plan_of(
        graph, ii, places, offsets={"a": 0, "b": 0}, reuses=(Reuse("a", "b", turns), Reuse("b", "a", 1 - turns))
    )
    live = tuple(replace(c, live_cycles=release[c.name, c.name]) for c in plan.channels)
    plan = replace(plan, channels=live)
    assume(check(plan, graph) == ())
    return graph, plan


@given(alternating_rings(), st.integers(0, 8), st.integers(0, 99))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_whatever_shares_by_the_rules_runs_at_every_trip_count(case, trip_count, seed):
    """The first and the last iterations are those whose partners in the other ring do not exist."""
    graph, plan = case
    assert verify(plan, graph) == ()
    late = replace(graph, ops=tuple(replace(op, spread=40) for op in graph.ops))
    for draws in (None, Draws(seed)):
        assert len(simulate(plan, late, trip_count, draws=draws).spans) == 4 * trip_count


@pytest.mark.parametrize("reuses", [(), (Reuse("a", "b", 0),), (Reuse("b", "a", 1),), (Reuse("a", "b", 1),)])
def test_without_both_reuses_one_overwrites_the_other(reuses):
    graph, plan = sharing(*reuses)
    with pytest.raises(SimulationFault, match=r"overwrites slot 0 of ring [ab], whose iteration [01] is in use until"):
        simulate(plan, graph, 9)
    assert verify(plan, graph) != ()
    apart = replace(plan, buffers=(plan.buffers[0], replace(plan.buffers[1], offset=1024)), reuses=())
    assert verify(apart, graph) == ()


def test_wrong_reuse_distances_deadlock():
    graph, plan = sharing(Reuse("a", "b", 0), Reuse("b", "a", 0))
    with pytest.raises(SimulationFault, match=r"deadlock .* a free slot, to be released by use_"):
        simulate(plan, graph, 2)


def test_tensor_memory_is_shared_by_lanes_too():
    graph, plan = sharing(memory="tmem", lanes=64)
    with pytest.raises(SimulationFault, match="overwrites slot 0 of ring"):
        simulate(plan, graph, 2)
    upper = replace(plan, buffers=(plan.buffers[0], replace(plan.buffers[1], lane=64)))
    assert simulate(upper, graph, 9)


def test_a_reuse_barrier_that_turns_twice_is_missed():
    """The first ring is filled and read twice before the second one asks once: it sees the parity of the phase before
    and hangs, though no byte is overwritten."""
    graph, plan = sharing(Reuse("a", "b", 0))
    ops = tuple(replace(op, unit=unit) for op, unit in zip(graph.ops, ("TMA", "LSU", "TENSOR", "ALU"), strict=True))
    ops = (*ops, Operation("slow", None, 500, 0, 1))
    edges = (*graph.edges, Dependence("slow", "b"), Dependence("use_a", "a", 1, "token"))
    late = DependenceGraph("sharing", ops, edges, Limits(4))
    places = {"a": (0, 0), "use_a": (45, 1), "slow": (0, 2), "b": (505, 2), "use_b": (560, 3)}
    bad = plan_of(late, 600, places, offsets={"a": 0, "b": 0}, reuses=plan.reuses)
    assert simulate(bad, late, 1)
    with pytest.raises(SimulationFault) as caught:
        simulate(bad, late, 2)
    assert "the parity of their barrier has turned back" in str(caught.value)


@st.composite
def crossing(draw: st.DrawFn) -> tuple[DependenceGraph, Plan]:
    """A solved plan in which the ring of op0 is read in another partition."""
    graph = draw(given_.graphs(most_ops=4))
    ops = tuple(replace(op, latency=max(op.latency, 1)) for op in graph.ops)
    ops = (replace(ops[0], buffer_bytes=96), *ops[1:], Operation("reader", "LSU", draw(st.integers(1, 40)), 1, 1))
    edges = (*graph.edges, Dependence("op0", "reader", draw(st.integers(0, 2))))
    graph = replace(graph, ops=ops, edges=edges, limits=Limits(3, handoff_cycles=draw(st.integers(0, 5))),
                    units=(*graph.units, ("LSU", 1)), clones=())  # fmt: skip
    plan = solve(graph, SolveOptions(pinned={"op0": 0, "reader": 1})).plan
    assume(plan is not None)
    return graph, plan


@given(crossing())
@settings(max_examples=40, deadline=None)
def test_what_a_solved_plan_lacks_is_missed(case):
    """A ring, a barrier towards a reader, or a slot less than the live range needs."""
    graph, plan = case
    ring = next(c for c in plan.channels if c.name == "op0")
    rest = tuple(c for c in plan.channels if c is not ring)
    assert verify(plan, graph) == ()
    assert verify(replace(plan, channels=rest), graph)
    deaf = tuple(c for c in ring.consumers if c != 1) or (0,)
    assert verify(replace(plan, channels=(*rest, replace(ring, consumers=deaf))), graph)
    shallow = -(-ring.live_cycles // plan.schedule.ii_cycles) - 1
    if shallow:
        assert verify(replace(plan, channels=(*rest, replace(ring, depth=shallow))), graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: replace(p, schedule=replace(p.schedule, placements=p.schedule.placements[1:])),
            "'load' is placed 0",
        ),
        (lambda p: replace(p, schedule=replace(p.schedule, ii_cycles=0)), "initiation interval is 0"),
        (lambda p: replace(p, partitions=p.partitions[:1]), "'load' is in partition 1 of 1"),
        (lambda p: replace(p, channels=(replace(p.channels[0], depth=0),)), "ring 'load' has depth 0"),
    ],
)
def test_what_is_no_plan_of_the_graph_is_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        simulate(change(looped(4)), loop(), 1)
    assert message in verify(change(looped(4)), loop())[0]


@pytest.mark.parametrize("trip_count", [-1, True])
def test_a_trip_count_that_is_none(trip_count):
    with pytest.raises(InvalidInput, match="trip count is"):
        simulate(looped(4), loop(), trip_count)


# Plans of hundreds of stages


LINKS = 400


def long_chain(depth: int = 4, cycles: Mapping[str, int] | None = None) -> tuple[DependenceGraph, Plan]:
    """:func:`loop` beside a chain of 400 operations in as many stages; ``cycles`` where some are elsewhere."""
    links = [
        Operation(f"link{i}", "ALU" if i in (3, 303) else None, 60, 20 if i in (3, 303) else 0, 0) for i in range(LINKS)
    ]
    ops = (*loop().ops, *links)
    chain = tuple(Dependence(f"link{i}", f"link{i + 1}") for i in range(LINKS - 1))
    graph = replace(loop(), ops=ops, edges=(*loop().edges, *chain))
    places = {"load": (0, 1), "mma": (110, 0)} | {f"link{i}": (60 * i + 30 * (i > 200), 0) for i in range(LINKS)}
    places |= {op: (cycle, 0) for op, cycle in (cycles or {}).items()}
    return graph, plan_of(graph, 60, places, {"load": depth})


@pytest.fixture
def played(monkeypatch) -> list[int]:
    """How many operations each play issues."""
    counts: list[int] = []
    play = simulation.Play

    def counted(compiled, trip_count, *rest):
        counts.append(trip_count * len(compiled.steps))
        return play(compiled, trip_count, *rest)

    monkeypatch.setattr(simulation, "Play", counted)
    return counts


def test_a_long_plan_is_played_in_its_steady_state(played):
    graph, plan = long_chain()
    assert plan.schedule.stages * len(graph.ops) > simulation.MOST_IN_FULL
    assert verify(plan, graph) == ()
    assert len(played) == 5
    assert max(played) <= 10 * len(graph.ops)


def test_a_plan_of_few_operations_is_played_in_full(played):
    assert verify(looped(4), loop()) == ()
    stages = looped(4).schedule.stages
    assert played == [2 * trip_count for trip_count in (1, stages, stages + 6, stages + 6, stages + 6)]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"depth": 3}, "operation load, iteration 3, cycle 200: planned for cycle 180"),
        # In a stage of its own before link99's end: its warps wait for that, and it is late.
        ({"cycles": {"link100": 5999}}, "operation link100, iteration 0, cycle 60: planned for cycle 59"),
        ({"cycles": {"link100": 0}}, "operation link100, iteration 0, cycle 0: runs before link99 of iteration 0"),
        # The unit's two users are 300 stages apart.
        ({"cycles": {"link303": 60 * 303 + 39}}, ""),
        ({"cycles": {"link303": 60 * 304 + 10}}, "planned for cycle 10"),
    ],
)
def test_a_long_plan_that_breaks_a_rule_is_found_without_filling_its_stages(change, fault, played):
    graph, plan = long_chain(**change)
    if "link303" in change.get("cycles", {}):
        graph = replace(graph, edges=tuple(e for e in graph.edges if e.src != "link303"))
    (found,) = verify(plan, graph) or ("",)
    assert fault in found
    assert bool(found) == bool(fault)
    assert max(played) <= 10 * len(graph.ops)


def test_an_operation_planned_intervals_before_what_it_needs_has_no_steady_state():
    graph, plan = long_chain(cycles={"link100": 0})
    with pytest.raises(
        SimulationFault, match=r"link100, iteration 0, cycle 0: planned before link99 of iteration 0, .* 5940"
    ):
        steady_state(plan, graph)


@given(solved(), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_steady_state_is_a_plan_of_one_stage_that_runs_at_every_trip_count(case, trip_count):
    graph, plan = case
    retimed, loop_ = steady_state(plan, graph)
    assert retimed.schedule.stages == 1
    assert {p.op: p.cycle for p in retimed.schedule.placements} == {p.op: p.phase for p in plan.schedule.placements}
    assert verify(retimed, loop_) == ()
    assert len(simulate(retimed, loop_, trip_count).spans) == trip_count * len(graph.ops)


@given(alternating_rings())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_rings_that_share_bytes_do_so_in_the_steady_state(case):
    graph, plan = case
    retimed, loop_ = steady_state(plan, graph)
    assert check(retimed, loop_) == ()
    assert verify(retimed, loop_) == ()
    assert verify(replace(retimed, reuses=()), loop_) != ()


# Draws and readings


def test_draws_have_the_measured_quantiles():
    (late,) = Draws(5).late_cycles([1000], 100_000)
    assert min(late) == np.quantile(late, 0.49) == 0
    assert np.quantile(late, [0.75, 0.9]) == pytest.approx([1000 * np.log(2) / np.log(5), 1000], rel=0.02)


def test_draws_of_a_short_run_begin_those_of_a_long_one():
    short, long = Draws(7).late_cycles([10, 0, 50], 5), Draws(7).late_cycles([10, 0, 50], 50)
    assert [column[:5] for column in long] == short
    assert long[1] == [0] * 50
    assert Draws(8).late_cycles([10, 0, 50], 5) != short


def test_the_steady_interval_is_read_from_the_middle():
    assert steady_ii(simulate(looped(4), loop(), 40)) == 60
    assert steady_ii(simulate(looped(4), loop(), 1)) is None
    assert steady_ii(simulate(looped(4), loop(), 2)) == 60


def test_waits_are_medians_over_all_iterations():
    found = waits(simulate(looped(4), loop(), 40))
    assert found == {"load": {"unit": 0.0, "slot": 55.0}, "mma": {"data load": 0.0, "data mma": 50.0}}

"""What a plan fills, and which cost moves its interval: small cases by hand, random ones against brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.predict.explanation import demands
from warpplan.planner.predict.sensitivity import cost_changes
from warpplan.planner.solve import solve
from warpplan.planner.values.deadline import Deadline
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Channel, Partition, Placement, Plan, Schedule

from ..strategies import graphs

LOAD = Operation("load", "TMA", 700, 288, 30, buffer_bytes=49_152, alignment=1024)
MMA = Operation("mma", "TENSOR", 560, 512, 120, min_warps=4, registers=128)
EDGES = (Dependence("load", "mma"), Dependence("mma", "mma", 1, latency=512))
GEMM = DependenceGraph("gemm", (LOAD, MMA), EDGES, Limits(2, handoff_cycles=60))
OPTIONS = SolveOptions()


def test_demands_of_a_gemm() -> None:
    plan = solve(GEMM).plan
    assert plan is not None
    found = {d.name: (d.used, d.limit, d.slack) for d in demands(GEMM, plan)}
    ii = plan.schedule.ii_cycles
    assert ii == 512
    assert found["unit TENSOR"] == (512, ii, 0)
    assert found["recurrence"] == (512, ii, 0)
    assert found["unit TMA"] == (288, ii, 224)
    assert found["shared memory"] == (plan.smem_bytes, 232_448, 232_448 - plan.smem_bytes)
    assert sum(used for name, (used, _, _) in found.items() if name.startswith("issue of")) == 150


def test_demands_of_partitions_with_barriers_and_few_warps() -> None:
    """Two partitions, one ring of two slots and an SFU operation of two warps, counted by hand (rules 0, 3, 5, 6)."""
    ops = (
        Operation("a", "TMA", 100, 10, 5, buffer_bytes=1024, spread=7),
        Operation("b", "SFU", 20, 8, 4, registers=16, spread=1),
        Operation("c", "ALU", 6, 6, 6),
    )
    edges = (Dependence("a", "b"), Dependence("b", "c"), Dependence("c", "c", 1), Dependence("b", "a", 1, "token"))
    graph = DependenceGraph("few", ops, edges, Limits(2, handoff_cycles=50, barrier_cycles=3))
    plan = Plan(
        "few",
        Schedule(400, tuple(Placement(op, t, 0, t, g) for op, t, g in (("a", 0, 0), ("b", 150, 1), ("c", 200, 1)))),
        (Partition("default", 4, 24, ("a",)), Partition("worker1", 2, 40, ("b", "c"))),
        (Channel("a", 0, (1,), 1024, 2, 300),),
        (),
        2048,
    )
    found = {d.name: d for d in demands(graph, plan, slack_cycles=5)}
    # Half of a warp group: twice the occupancy and issue, occupancy more latency.
    assert found["unit SFU"].used == 16
    assert found["unit ALU"].used == 12
    # a waits for b's token and for a free slot and arrives once; b waits for a, tells a, and frees a's slot.
    assert found["issue of default"].used == 5 + 3 * 3
    assert found["issue of worker1"].used == 8 + 12 + 3 * 3
    # a -> b -> a over one iteration: 100 + 50, then 20 + 8 + 50.
    assert found["recurrence"].used == 150 + 78
    assert set(found["recurrence"].detail.split(" -> ")) == {"a", "b"}
    # Through the ring: 150 + 20 + 8 + 50 + the spreads 7 + 1 + the slack 5, over two iterations: less.
    assert "rings of the plan's depths" not in found
    assert found["registers"].used == 32 * 4 * (24 + 40)
    assert found["shared memory"].used == 2048
    shallow = replace(plan, channels=(replace(plan.channels[0], depth=1),))
    assert {d.name: d.used for d in demands(graph, shallow, slack_cycles=5)}["rings of the plan's depths"] == 241


@settings(deadline=None, max_examples=40)
@given(graphs(most_ops=5))
def test_a_plan_never_fills_more_than_there_is(graph: DependenceGraph) -> None:
    outcome = solve(graph, OPTIONS)
    if outcome.plan is not None:
        found = demands(graph, outcome.plan)
        assert all(d.used <= d.limit for d in found), found
        assert [d.share for d in found] == sorted((d.share for d in found), reverse=True)


def test_a_cost_that_alone_decides() -> None:
    graph = replace(GEMM, ops=(LOAD, replace(MMA, registers=0)), edges=EDGES[:1])
    found = cost_changes(graph, OPTIONS, solve(graph))
    assert (found.examined, found.undecided) == (found.costs, ())
    changes = {(c.name, c.to_cycles): c.ii_cycles for c in found.changes}
    assert changes[("occupancy of mma", 511)] == 511
    assert changes[("occupancy of mma", 513)] == 513
    # The loads take over at half; nothing else reaches the interval within twice its size but they do.
    assert changes[("occupancy of load", 513)] == 513


def test_a_cost_that_cannot_be_doubled_is_lowered_alone() -> None:
    graph = DependenceGraph("slow", (Operation("slow", "ALU", 1, 10**9, 1),), (), Limits(1))
    found = cost_changes(graph, OPTIONS, solve(graph))
    assert (found.examined, found.undecided) == (found.costs, ())
    assert [(c.name, c.to_cycles) for c in found.changes] == [("occupancy of slow", 10**9 - 1)]


def test_clones_change_together() -> None:
    ops = (replace(MMA, id="m0", registers=0), replace(MMA, id="m1", registers=0))
    graph = DependenceGraph("twins", ops, (), Limits(2), clones=(("m0",), ("m1",)))
    found = {(c.name, c.to_cycles): c.ii_cycles for c in cost_changes(graph, OPTIONS, solve(graph)).changes}
    assert found[("occupancy of m0, m1", 511)] == 1022
    assert found[("occupancy of m0, m1", 513)] == 1026


def test_work_that_is_ended() -> None:
    asked: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> bool:
        asked.append((done, total))
        return done < 2

    found = cost_changes(GEMM, OPTIONS, solve(GEMM), progress=progress)
    assert (found.examined, found.costs) == (2, 8)
    assert asked == [(0, 8), (1, 8), (2, 8)]


def test_work_whose_time_is_over() -> None:
    """In the middle of a cost, too."""
    outcome, now = solve(GEMM, OPTIONS), itertools.count()
    for end in (0, 5, 40):
        found = cost_changes(GEMM, OPTIONS, outcome, deadline=Deadline(next(now) + end, lambda: float(next(now))))
        assert found.examined < found.costs == 8


@settings(deadline=None, max_examples=15)
@given(graphs(most_ops=3, most_partitions=2), st.data())
def test_thresholds_against_every_value(graph: DependenceGraph, data: st.DataObject) -> None:
    graph = replace(graph, clones=())  # one operation at a time
    outcome = solve(graph, OPTIONS)
    found = cost_changes(graph, OPTIONS, outcome)
    if outcome.plan is None:
        assert found.changes == ()
        return
    op = data.draw(st.sampled_from(graph.ops))
    field = data.draw(st.sampled_from(["latency", "occupancy", "issue"]))
    value = getattr(op, field)

    def interval(cycles: int) -> int | None:
        ops = tuple(replace(o, **{field: cycles}) if o is op else o for o in graph.ops)
        plan = solve(replace(graph, ops=ops), OPTIONS).plan
        return plan.schedule.ii_cycles if plan is not None else None

    ii = outcome.plan.schedule.ii_cycles
    down = next((c for c in range(value - 1, -1, -1) if interval(c) != ii), None) if value else None
    up = next((c for c in range(value + 1, 2 * value + 1) if interval(c) != ii), None)
    mine = sorted(c.to_cycles for c in found.changes if c.name == f"{field} of {op.id}")
    assert mine == [c for c in (down, up) if c is not None]
    assert all(c.ii_cycles == interval(c.to_cycles) for c in found.changes if c.name == f"{field} of {op.id}")


def test_what_has_no_optimal_plan_is_not_asked() -> None:
    graph = replace(GEMM, ops=(replace(LOAD, buffer_bytes=300_000), MMA))
    outcome = solve(graph)
    assert outcome.status == "infeasible"
    assert cost_changes(graph, OPTIONS, outcome).examined == 0

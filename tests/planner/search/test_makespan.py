"""Among schedules of one interval, the one whose iterations end soonest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from warpplan.planner.check.plan_check import check
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Plan

from .. import strategies as given_

OPTIONS = SolveOptions(work_limit_s=1.0)


def makespan(graph: DependenceGraph, plan: Plan) -> int:
    cycles = {p.op: p.cycle for p in plan.schedule.placements}
    return max(cycles[op.id] + op.latency for op in graph.ops) - min(cycles.values())


@given(given_.graphs(most_ops=5, buffers=False, rules=False, most_partitions=1))
@settings(max_examples=40, deadline=None)
def test_the_interval_stays_and_the_makespan_is_no_longer(graph: DependenceGraph):
    lives, soonest = solve(graph, OPTIONS), solve(graph, replace(OPTIONS, among_equals="makespan"))
    assert (lives.status, lives.bound) == (soonest.status, soonest.bound)
    if lives.plan is not None and soonest.plan is not None:
        assert lives.plan.schedule.ii_cycles == soonest.plan.schedule.ii_cycles
        assert check(soonest.plan, graph) == ()
        if lives.status == "optimal":
            assert makespan(graph, soonest.plan) <= makespan(graph, lives.plan)


def test_the_critical_path_goes_first():
    # One unit, three jobs of 2 cycles: the one whose result is used for 9 more cycles is served first.
    jobs = tuple(Operation(f"j{i}", "ALU", 2, 2, 1) for i in range(3))
    ops = (*jobs, Operation("tail", None, 9, 0, 0))
    graph = DependenceGraph("x", ops, (Dependence("j2", "tail"),), Limits(max_partitions=1))
    plan = solve(graph, replace(OPTIONS, among_equals="makespan")).plan
    assert plan is not None
    assert (plan.schedule.ii_cycles, makespan(graph, plan)) == (6, 11)

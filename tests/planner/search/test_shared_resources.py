"""Cumulative resources modulo the interval: solver, checker, simulator and trying everything agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import InvalidGraph
from warpplan.planner.predict.explanation import demands
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.simulate.simulation import verify
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.search_params import SearchParams

from .. import strategies as given_
from ..brute import smallest_plan

MOST = 8
often = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def crew(capacity: int, *jobs: tuple[int, int], edges: tuple[Dependence, ...] = ()) -> DependenceGraph:
    """(cycles, demand) of jobs j0, j1, …: a cyclic project with one resource."""
    ops = tuple(Operation(f"j{i}", None, p, p, 0, demands=(("crew", n),)) for i, (p, n) in enumerate(jobs))
    return DependenceGraph("project", ops, edges, Limits(max_partitions=1, capacities=(("crew", capacity),)))


@given(given_.sharing_graphs())
@often
def test_trying_everything_finds_the_same_interval(graph: DependenceGraph):
    options = SolveOptions(work_limit_s=2.0)
    found = smallest_plan(graph, MOST, 16, options)
    if found is not None:
        assert check(found, graph) == ()
        if all(op.issue for op in graph.ops):
            assert verify(found, graph) == ()
    outcome = solve(graph, options)
    if outcome.plan is not None:
        assert check(outcome.plan, graph) == ()
    if outcome.status in ("optimal", "infeasible"):
        limit = MOST + 1
        least = limit if outcome.plan is None else min(limit, outcome.plan.schedule.ii_cycles)
        assert least == (limit if found is None else found.schedule.ii_cycles)


@given(given_.sharing_graphs(most_partitions=1))
@often
def test_every_technique_gives_the_same_answer(graph: DependenceGraph):
    """The core, the interval model, and list schedules that never undercut them."""
    core = solve(graph, SolveOptions(work_limit_s=2.0))
    model = solve(graph, SolveOptions(work_limit_s=2.0, search=SearchParams(core_feasibility=False)))
    if {core.status, model.status} <= {"optimal", "infeasible"}:
        assert (core.status, core.bound) == (model.status, model.bound)
    if core.status == "optimal":
        problem = Problem(graph, SolveOptions())
        assert all(first_schedule(problem, ii) is None for ii in range(max(1, core.bound - 3), core.bound))


def test_three_jobs_of_two_share_a_crew_of_five():
    # Two at a time, so that three jobs of 4 cycles take 6, though their energy is 24 of 5 x 5.
    outcome = solve(crew(5, (4, 2), (4, 2), (4, 2)))
    assert (outcome.status, outcome.plan.schedule.ii_cycles) == ("optimal", 6)


def test_jobs_that_need_more_than_half_exclude_one_another():
    outcome = solve(crew(4, (3, 3), (5, 3), (2, 1)))
    assert (outcome.status, outcome.bound) == ("optimal", 8)
    assert outcome.reason == "resource crew: 8 cycles of demands above half of 4"


def test_a_job_overlaps_itself_as_often_as_its_demand_fits():
    outcome = solve(crew(5, (9, 2)))
    assert (outcome.status, outcome.bound) == ("optimal", 5)
    assert outcome.reason == "resource crew: j0 holds 2 for 9 cycles"


def test_a_demand_beyond_the_capacity_is_infeasible_and_named():
    outcome = solve(crew(3, (2, 1), (2, 4)))
    assert outcome.status == "infeasible"
    assert "'j1' demands 4 of resource 'crew', of which there are 3" in outcome.reason


def test_the_checker_names_who_holds_too_much():
    graph = crew(3, (4, 1), (4, 2))
    plan = solve(graph).plan
    tighter = replace(graph, limits=replace(graph.limits, capacities=(("crew", 2),)))
    assert check(plan, tighter) == ("resource crew: j0, j1 hold 3 of 2 at phase 0",)


def test_the_explanation_counts_amount_times_cycles():
    graph = crew(3, (4, 1), (4, 2))
    found = {d.name: d for d in demands(graph, solve(graph).plan)}
    assert (found["resource crew"].used, found["resource crew"].limit) == (4, 4)


@pytest.mark.parametrize(
    ("capacities", "demand", "words"),
    [
        ((("crew", 0),), (("crew", 1),), "limits has capacity 0 of resource 'crew': expected a whole number of 1 or"),
        ((("crew", 2),), (("crew", 0),), "operation 'j' has demand 0 of resource 'crew': expected a whole number of 1"),
        ((("crew", 2),), (("crew", -3),), "operation 'j' has demand -3 of resource 'crew'"),
        ((("crew", 2),), (("crane", 1),), "demands unknown resource 'crane': expected one of crew"),
        ((("crew", 2), ("crew", 3)), (), "limits names resource 'crew' twice"),
    ],
)
def test_amounts_that_mean_nothing_are_refused_in_one_line(capacities, demand, words):
    with pytest.raises(InvalidGraph, match=words):
        DependenceGraph("x", (Operation("j", None, 1, 1, 0, demands=demand),), (), Limits(capacities=capacities))


def reason(op: Operation, **limits: int) -> str:
    outcome = solve(
        DependenceGraph("x", (op, Operation("b", None, 1, 0, 0)), (Dependence("a", "b"),), Limits(**limits))
    )
    assert outcome.status == "infeasible"
    return outcome.reason


def test_allowances_that_contradict_one_another_are_named():
    plain = Operation("a", None, 4, 2, 1)
    assert "limits.base_registers is 300: a thread has 240" in reason(plain, base_registers=300)
    assert "takes 3072 registers, limits.registers is 1024" in reason(plain, registers=1024)
    assert "takes 300 registers a thread beside" in reason(replace(plain, registers=300))
    assert "writes 4096 bytes, more than the 1024 bytes" in reason(replace(plain, buffer_bytes=4096), smem_bytes=1024)


def test_more_clones_than_partitions_and_units_nobody_uses_are_planned():
    clones = tuple(Operation(f"c{i}", "ALU", 4, 2, 1) for i in range(3))
    units = (("ALU", 1), ("SPARE", 2))
    graph = DependenceGraph("x", clones, (), Limits(max_partitions=2), units, (("c0",), ("c1",), ("c2",)))
    assert solve(graph).status == "optimal"

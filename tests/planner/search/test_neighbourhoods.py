"""Neighbourhoods of an incumbent: what is kept stays, what is found is a plan, and the draws are the same each time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.cpsat.runner import run
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.packing.ring_layout import layout
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.feasibility_query import FeasibilityQuery
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.search.heuristics.serial_schedule import serial_schedule
from warpplan.planner.search.ii_search import serial_ii
from warpplan.planner.search.neighbourhoods import Neighbourhood, NeighbourhoodChoice
from warpplan.planner.search.speculation import Speculation
from warpplan.planner.values.dependence_graph import DependenceGraph, Limits
from warpplan.planner.values.options import SolveOptions

from .. import strategies as given_
from .test_techniques import attention

PARAMS = SolveOptions().search.neighbourhoods


def incumbent(graph: DependenceGraph) -> tuple[Problem, int, Assignment | None]:
    problem = Problem(graph, SolveOptions())
    ii = serial_ii(problem)
    return problem, ii, first_schedule(problem, ii)


@settings(max_examples=25, deadline=None)
@given(graph=given_.graphs(most_ops=10, most_partitions=3, rules=True))
def test_the_incumbent_lies_in_each_of_its_neighbourhoods(graph: DependenceGraph):
    problem, ii, known = incumbent(graph)
    if known is None:
        return
    choice = NeighbourhoodChoice(problem)
    for _ in range(4):
        drawn = choice.draw(ii + 1, known, ii)
        same = Neighbourhood(problem, ii, known, ii, drawn.free, drawn.kind, drawn.seed, drawn.rule)
        assert run(same.build("shared").cp, 5.0)[0] == "yes"
        answer, solver = run((model := same.build("free")).cp, 5.0)
        assert answer == "yes"
        assert fits(problem, ii, model.read(solver))


@settings(max_examples=15, deadline=None)
@given(graph=given_.graphs(most_ops=10, most_partitions=3, rules=True))
def test_what_is_not_free_keeps_its_partition(graph: DependenceGraph):
    problem, ii, known = incumbent(graph)
    if known is None:
        return
    choice = NeighbourhoodChoice(problem)
    for _ in range(4):
        drawn = choice.draw(ii, known, 1)
        model = drawn.build("apart")
        answer, solver = run(model.cp, 1.0)
        if answer != "yes":
            continue
        found = model.read(solver)
        for i, cluster in enumerate(problem.cluster):
            if cluster not in drawn.free or drawn.kind == "order":
                assert found.partitions[i] == known.partitions[i]


def test_draws_are_the_same_each_time_and_adapt():
    problem, ii, known = incumbent(attention(2))
    assert known is not None
    one, other = NeighbourhoodChoice(problem), NeighbourhoodChoice(problem)
    drawn = [one.draw(ii, known, 1) for _ in range(20)]
    assert drawn == [other.draw(ii, known, 1) for _ in range(20)]
    assert all(1 <= n.ii < ii for n in drawn)
    before = one.gain, one.share
    one.learn(drawn[0], "unknown")
    assert one.gain < before[0]
    assert one.share < before[1]
    one.learn(drawn[0], "no")
    assert one.share >= PARAMS.least_share
    weight = one.weights[drawn[1].kind]
    one.learn(drawn[1], "yes")
    assert one.weights[drawn[1].kind] > weight


def test_a_layout_that_is_kept_is_the_layout_of_what_is_found():
    """Two rings in one place, as memory is too short for them side by side: they alternate there, shorter too."""
    graph = attention(1)
    graph = replace(graph, limits=replace(graph.limits, smem_bytes=20_000))
    problem = Problem(graph, SolveOptions())
    ii = serial_ii(problem)
    known = serial_schedule(problem, min_ii(problem).ii_cycles, ii, WorkBudget(10.0))
    assert known is not None
    placed = layout(problem, ii, known)
    assert placed.reuses
    query = FeasibilityQuery(problem, 3 * ii // 4, WorkBudget(10.0), Speculation())
    found = query.keep_partitions(known, 2.0, placed=placed)
    assert found is not None
    assert fits(problem, 3 * ii // 4, found)
    assert found.partitions == known.partitions
    assert layout(problem, 3 * ii // 4, found).buffers == placed.buffers


def test_pinned_partitions_leave_orders_to_be_decided_anew():
    graph = attention(1)
    pinned = {op.id: int(op.unit != "TMA") for op in graph.ops}
    problem = Problem(graph, SolveOptions(pinned=pinned))
    known = first_schedule(problem, serial_ii(problem))
    assert known is not None
    drawn = NeighbourhoodChoice(problem).draw(serial_ii(problem), known, 1)
    assert drawn.kind == "order"
    assert drawn.free
    assert isinstance(problem.graph.limits, Limits)

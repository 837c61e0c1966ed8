from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import run
from warpplan.planner.errors import Infeasible
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.core_feasibility import decide, exact
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions

from .. import strategies as given_
from ..brute import smallest_ii


@st.composite
def loops(draw: st.DrawFn, most_ops: int = 10) -> DependenceGraph:
    """Classic modulo scheduling: one partition, no buffers, no registers; units of one to three copies, often full."""
    count = draw(st.integers(2, most_ops))
    ops = tuple(
        Operation(
            f"op{i}",
            draw(st.sampled_from(["A", "A", "B", None])),
            draw(st.integers(0, 6)),
            draw(st.sampled_from([0, 1, 1, 2, 3, 5])),
            draw(st.sampled_from([0, 0, 0, 1])),
        )
        for i in range(count)
    )
    edges = []
    for _ in range(draw(st.integers(1, 2 * count))):
        a, b = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        edges.append(Dependence(f"op{a}", f"op{b}", draw(st.integers(0 if a < b else 1, 2)), "token"))
    units = (("A", draw(st.integers(1, 2))), ("B", draw(st.integers(1, 3))))
    return DependenceGraph("loop", ops, tuple(edges), Limits(max_partitions=1), units)


@given(loops())
@settings(max_examples=100, deadline=None)
def test_the_core_and_the_whole_model_answer_alike_at_every_interval(graph):
    problem = Problem(graph, SolveOptions())
    assert exact(problem)
    least = min_ii(problem).ii_cycles
    for ii in range(max(1, least - 2), least + 4):
        verdict = decide(problem, ii, 10)
        assert verdict.answer == run(IntervalModel(problem, ii).cp, 10)[0]
        assert (verdict.best is not None) == (verdict.answer == "yes")
        if verdict.best is not None:
            assert fits(problem, ii, verdict.best)


@given(loops(most_ops=4))
@settings(max_examples=60, deadline=None)
def test_brute_force_finds_the_same_smallest_interval(graph):
    graph = replace(
        graph, ops=tuple(replace(op, latency=op.latency % 4, occupancy=op.occupancy % 4) for op in graph.ops)
    )
    problem = Problem(graph, SolveOptions())
    ii = min_ii(problem).ii_cycles
    while decide(problem, ii, 10).answer == "no":
        ii += 1
    assert smallest_ii(graph, min(ii, 9), 1) == (ii if ii <= 9 else None)


@given(given_.graphs(most_ops=6), st.sampled_from([None, None, 1, 2]))
@settings(max_examples=60, deadline=None)
def test_infeasibility_is_a_proof_for_every_problem(graph, depth):
    problem = Problem(graph, SolveOptions(depth=depth))
    try:
        ii = min_ii(problem).ii_cycles
    except Infeasible:
        return
    verdict = decide(problem, ii, 10)
    if verdict.answer == "no":
        assert run(IntervalModel(problem, ii).cp, 10)[0] == "no"
    if verdict.best is not None:
        assert fits(problem, ii, verdict.best)


def test_two_holds_on_a_recurrence_are_infeasible_without_search():
    """The unit has 8 cycles of work, and the recurrence x, z, y, x asks for 8. But z, 3 cycles after x, must wait until
    x lets go of the unit after 4, and x, 2 after y, until y lets go after 3: 10."""
    ops = tuple(Operation(name, "A", 3, cycles, 0) for name, cycles in (("x", 4), ("z", 1), ("y", 3)))
    edges = (Dependence("x", "z"), Dependence("z", "y"), Dependence("y", "x", 1, latency=2))
    problem = Problem(DependenceGraph("tight", ops, edges, Limits(1), (("A", 1),)), SolveOptions())
    assert min_ii(problem).ii_cycles == 8
    for ii in (8, 9):
        refused = decide(problem, ii, 10)
        assert (refused.answer, refused.seconds) == ("no", 0.0)
    found = decide(problem, 10, 10).best
    assert found is not None
    assert fits(problem, 10, found)


def test_work_that_no_recurrence_touches_needs_no_search():
    """A thousand cycles of three copies, filled to the last by holds longer than a turn too."""
    holds = [1500, 999, 1, 7, 493]
    ops = tuple(Operation(f"op{i}", "A", 5, cycles, 0) for i, cycles in enumerate(holds))
    edges = tuple(Dependence(f"op{i}", f"op{i + 1}") for i in range(len(holds) - 1))
    problem = Problem(DependenceGraph("full", ops, edges, Limits(1), (("A", 3),)), SolveOptions())
    assert decide(problem, 999, 10).answer == "no"
    verdict = decide(problem, 1000, 10)
    assert verdict.seconds == 0
    assert verdict.best is not None
    assert fits(problem, 1000, verdict.best)


def test_too_few_registers_for_the_warps_are_not_time_alone():
    graph = DependenceGraph("one", (Operation("a", None, 1, 0, 0),), (), Limits(1, registers=1_000))
    problem = Problem(graph, SolveOptions())
    assert not exact(problem)
    assert decide(problem, 5, 1).answer == "unknown"

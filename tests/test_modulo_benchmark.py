"""The instances of the modulo scheduling benchmark, and the linear program that it is compared with."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_modulo
import iterative_modulo
import modulo_instances
import modulo_milp

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions


@st.composite
def loops(draw: st.DrawFn, most_ops: int) -> DependenceGraph:
    count = draw(st.integers(1, most_ops))
    ops = tuple(
        Operation(f"op{i}", draw(st.sampled_from(["A", "B"])), draw(st.integers(0, 9)), draw(st.integers(0, 5)), 0)
        for i in range(count)
    )
    edges = []
    for _ in range(draw(st.integers(0, 2 * count))):
        a, b = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        edges.append(Dependence(f"op{a}", f"op{b}", draw(st.integers(0 if a < b else 1, 3)), "token"))
    units = (("A", draw(st.integers(1, 2))), ("B", draw(st.integers(1, 3))))
    return DependenceGraph("loop", ops, tuple(edges), Limits(max_partitions=1), units)


@given(loops(most_ops=3), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_rows_hold_for_schedules_and_for_nothing_else(graph, ii):
    """Neither a cut that removes a schedule nor a rule that no row states, over all phases and three stages."""
    for edge in graph.edges:
        if edge.src == edge.dst and graph.edge_latency(edge) > ii * edge.distance:
            return  # Below RecMII: no rows are written for an operation that waits for itself.
    program = modulo_milp.Program(graph, ii)
    for starts in product(range(3 * ii), repeat=len(graph.ops)):
        holds = bool((program.matrix @ program.point(starts) <= np.array(program.upper)).all())
        assert holds == (modulo_milp.broken(graph, ii, starts) == [])


@given(loops(most_ops=6))
@settings(max_examples=25, deadline=None)
def test_both_solvers_find_the_same_interval(graph):
    least = min_ii(Problem(graph, SolveOptions())).ii_cycles
    found = modulo_milp.smallest(graph, least, 20)
    assert (found["status"], found["valid"]) == ("optimal", True)
    outcome = solve(graph, SolveOptions(work_limit_s=20))
    assert outcome.plan is not None
    assert (outcome.status, outcome.plan.schedule.ii_cycles) == ("optimal", found["ii"])


def test_a_solver_that_overruns_is_killed(monkeypatch):
    first, *_ = modulo_instances.instances()
    least = min_ii(Problem(first.graph, SolveOptions())).ii_cycles
    found = bench_modulo.compare_with_highs(first.name, least, 60)
    assert (found["status"], found["valid"]) == ("optimal", True)
    monkeypatch.setattr(bench_modulo, "GRACE_S", 0.0)
    killed = bench_modulo.compare_with_highs(first.name, least, 0.05)
    assert (killed["status"], killed["bound"], killed["wall_s"]) == ("unknown", least, 0.05)


def test_the_instances_are_many_and_always_the_same():
    first, second = list(modulo_instances.instances()), list(modulo_instances.instances())
    assert first == second
    assert len({instance.name for instance in first}) == len(first) >= 60
    copies = {copies for instance in first for _, copies in instance.graph.units}
    assert copies == {1, 2, 3, 4}
    for instance in first:
        graph = instance.graph
        assert 20 <= len(graph.ops) <= 500
        assert 2 <= len(graph.units) <= 5
        backward = [e for e in graph.edges if graph.index[e.src] >= graph.index[e.dst]]
        assert all(1 <= e.distance <= 4 for e in backward)
        forward = len(graph.edges) - len(backward)
        assert 1.4 * len(graph.ops) <= forward <= 2.6 * len(graph.ops)
        assert len(backward) <= 0.16 * forward
        assert all(1 <= op.occupancy <= op.latency for op in graph.ops)


@given(loops(most_ops=6))
@settings(max_examples=25, deadline=None)
def test_the_plain_heuristic_finds_schedules_and_none_below_the_optimum(graph):
    outcome = solve(graph, SolveOptions(work_limit_s=20))
    assert outcome.plan is not None
    found = iterative_modulo.smallest(graph, min_ii(Problem(graph, SolveOptions())).ii_cycles, 20)
    assert found["valid"]
    assert found["ii"] >= outcome.plan.schedule.ii_cycles


def test_the_plain_heuristic_obeys_shared_resources():
    kind = replace(next(kind for kind in modulo_instances.KINDS if kind.shared), sizes=(24,))
    graph = modulo_instances.loop("shared", 24, kind)
    assert any(op.demands for op in graph.ops)
    found = iterative_modulo.smallest(graph, min_ii(Problem(graph, SolveOptions())).ii_cycles, 20)
    outcome = solve(graph, SolveOptions(work_limit_s=20))
    assert found["valid"]
    assert outcome.plan is not None
    assert (outcome.status, outcome.plan.schedule.ii_cycles <= found["ii"]) == ("optimal", True)

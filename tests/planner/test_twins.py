"""Operations that differ in nothing but their names are put in order, and nothing is lost by it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import run
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions

from . import strategies as given_

UNITS = (("TMA", 1), ("TENSOR", 1))


def loads(**changes: dict) -> DependenceGraph:
    """Two loads of the same costs that one product reads; ``changes`` by operation."""
    ops = [Operation(name, "TMA", 5, 3, 1, 1, buffer_bytes=128) for name in ("left", "right")]
    ops = [replace(op, **changes.get(op.id, {})) for op in ops]
    product = Operation("product", "TENSOR", 8, 8, 1, 4)
    edges = tuple(Dependence(op.id, "product") for op in ops)
    return DependenceGraph("loads", (*ops, product), edges, Limits(2, 4096, 65_536, 0), UNITS)


def test_equal_loads_are_twins():
    assert Problem(loads(), SolveOptions()).twin_order == ((0, 1),)


def test_what_differs_is_not():
    assert Problem(loads(right={"latency": 6}), SolveOptions()).twin_order == ()
    assert Problem(loads(), SolveOptions(pinned={"left": 0})).twin_order == ()
    graph = loads()
    later = (*graph.edges[:1], replace(graph.edges[1], distance=1))
    assert Problem(replace(graph, edges=later), SolveOptions()).twin_order == ()


@settings(max_examples=60, deadline=None)
@given(given_.tiny_graphs())
def test_an_interval_is_as_feasible_in_their_order(graph):
    problem = Problem(graph, SolveOptions())
    for ii in (2, 5):
        answers = [run(IntervalModel(problem, ii, symmetric=symmetric).cp, 1.0)[0] for symmetric in (True, False)]
        assert "unknown" in answers or answers[0] == answers[1]

"""Start windows that no schedule leaves, and dominance cuts that some best schedule obeys."""

from __future__ import annotations

from itertools import combinations, pairwise

import networkx as nx
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.bounds.start_windows import Pair, dominance_cuts
from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import run
from warpplan.planner.errors import Infeasible
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions

from .. import strategies as given_


def cuts(nodes: int, pairs: set[Pair]) -> set[frozenset[Pair]]:
    """Of one or two pairs that all lead from one side to the other; tried out."""
    found = set()
    for cut in (*combinations(sorted(pairs), 1), *combinations(sorted(pairs), 2)):
        left = nx.Graph()
        left.add_nodes_from(range(nodes))
        left.add_edges_from(pairs - set(cut))
        before = nx.node_connected_component(left, cut[0][0])
        if all(src in before and dst not in before for src, dst in cut):
            found.add(frozenset(cut))
    return {cut for cut in found if not any(other < cut for other in found)}


@given(given_.graphs(most_ops=7))
@settings(max_examples=200, deadline=None)
def test_the_cuts_are_those_that_trying_finds(graph):
    problem = Problem(graph, SolveOptions())
    pairs = {(arc.src, arc.dst) for arc in problem.dependences if arc.src != arc.dst}
    found = [frozenset(cut) for cut in dominance_cuts(problem, 10)]
    assert len(found) == len(set(found))
    assert {cut for cut in found if len(cut) < 3} == cuts(len(graph.ops), pairs)


def test_all_around_an_operation_that_nothing_leads_to():
    ops = [Operation(name, "ALU", 5, 1, 1) for name in "abcd"]
    edges = [Dependence("a", other) for other in "bcd"] + [Dependence(x, y) for x, y in pairwise("bcd")]
    problem = Problem(DependenceGraph("fan", tuple(ops), tuple(edges), Limits(2, handoff_cycles=3)), SolveOptions())
    assert {(0, 1): 17, (0, 2): 17, (0, 3): 17} in dominance_cuts(problem, 10)


@given(given_.graphs(most_ops=6), st.integers(0, 12), st.sampled_from(["apart", "shared"]))
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost_where_nothing_waits_in_vain(graph, more, memory):
    """What a proof leaves out, another schedule of the same interval makes up for."""
    problem = Problem(graph, SolveOptions())
    try:
        ii = min_ii(problem).ii_cycles + more
    except Infeasible:
        assume(False)
    answers = [
        run(IntervalModel(problem, ii, memory=memory, tight=compact, compact=compact).cp, 5.0)[0] for compact in (0, 1)
    ]
    assume("unknown" not in answers)
    assert answers[0] == answers[1]

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner.bounds.min_ii import earliest, min_ii, recurrence
from warpplan.planner.errors import Infeasible
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions


def bound(graph: DependenceGraph, **options: object):
    return min_ii(Problem(graph, SolveOptions(**options)))


def test_an_empty_loop_still_takes_a_cycle():
    assert bound(DependenceGraph("idle", (Operation("nop", None, 0, 0, 0),), ())).ii_cycles == 1


def test_units_divide_their_work_by_their_capacity():
    ops = tuple(Operation(f"o{i}", "ALU", 1, 7, 0) for i in range(3))
    assert bound(DependenceGraph("one", ops, (), units=(("ALU", 1),))).ii_cycles == 21
    two = bound(DependenceGraph("two", ops, (), units=(("ALU", 2),)))
    assert (two.ii_cycles, two.binding) == (11, "unit ALU: busy 21 cycles per iteration, capacity 2")


def test_issue_slots_are_counted_where_operations_are_pinned_or_tied():
    ops = (Operation("a", None, 1, 0, 10), Operation("b", None, 1, 0, 10), Operation("c", None, 1, 0, 4))
    graph = DependenceGraph("issue", ops, (), Limits(max_partitions=2))
    assert bound(graph).ii_cycles == 12
    assert bound(graph, pinned={"a": 1, "b": 1}).binding == "issue of partition 1: 20 cycles"
    tied = DependenceGraph("tied", ops, (Dependence("a", "b", 3),), Limits(max_partitions=2))
    assert (bound(tied).ii_cycles, bound(tied).binding) == (20, "issue of operations tied to a: 20 cycles")


def test_recurrences_of_several_distances():
    ops = tuple(Operation(name, None, latency, 0, 0) for name, latency in (("a", 7), ("b", 5), ("c", 9)))
    edges = (
        Dependence("a", "b"), Dependence("b", "a", 2), Dependence("b", "c"), Dependence("c", "a", 3),
        Dependence("c", "c", 2),
    )  # fmt: skip
    found = bound(DependenceGraph("rec", ops, edges))
    assert (found.ii_cycles, found.binding) == (7, "recurrence a -> b -> c -> a")


def test_a_ring_of_given_depth_is_a_recurrence():
    ops = (Operation("load", "TMA", 100, 10, 0, buffer_bytes=8), Operation("use", "ALU", 50, 10, 0))
    graph = DependenceGraph("ring", ops, (Dependence("load", "use"),), Limits(handoff_cycles=15))
    assert bound(graph, depth=3).ii_cycles == 50
    assert bound(graph, depth=3, pinned={"load": 0, "use": 1}).ii_cycles == 60
    assert bound(graph, depth=3, slack_cycles=30).ii_cycles == 60


def test_a_cycle_of_no_distance_is_infeasible_at_any_interval():
    ops = (Operation("load", None, 5, 0, 0, buffer_bytes=8), Operation("use", None, 0, 0, 0))
    graph = DependenceGraph("stuck", ops, (Dependence("load", "use"), Dependence("load", "use", 1)))
    with pytest.raises(Infeasible, match="depth 1 is too short for the cycle"):
        bound(graph, depth=1)


arcs = st.lists(
    st.tuples(st.integers(0, 19), st.integers(0, 19), st.integers(0, 30), st.integers(0, 3)).filter(
        lambda arc: arc[3] > 0 or arc[0] < arc[1]
    ),
    max_size=40,
)


@given(arcs)
def test_the_recurrence_bound_is_the_first_interval_with_a_schedule(found_arcs):
    """Twenty nodes go through the condensation, ten through the plain path: both agree with trying intervals."""
    ii, cycle = recurrence(20, found_arcs)
    assert ii is not None
    assert earliest(20, found_arcs, ii) is not None
    assert ii == 0 or earliest(20, found_arcs, ii - 1) is None
    assert bool(cycle) == (ii > 0)
    few = [arc for arc in found_arcs if arc[0] < 10 and arc[1] < 10]
    assert recurrence(10, few)[0] == recurrence(20, few)[0]


@given(arcs)
def test_earliest_starts_obey_every_arc_and_leave_no_slack(found_arcs):
    ii = recurrence(20, found_arcs)[0]
    starts = earliest(20, found_arcs, ii)
    assert all(starts[dst] >= starts[src] + cycles - ii * distance for src, dst, cycles, distance in found_arcs)
    held = {dst for src, dst, cycles, distance in found_arcs if starts[dst] == starts[src] + cycles - ii * distance}
    assert all(start == 0 or node in held for node, start in enumerate(starts))

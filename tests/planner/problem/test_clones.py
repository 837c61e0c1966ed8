from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.errors import InvalidInput
from warpplan.planner.problem.clones import data_partition
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions

from .. import strategies as given_


def loop() -> DependenceGraph:
    ops = (
        Operation("load", "TMA", 100, 20, 5, buffer_bytes=1024, alignment=1024),
        Operation("mma", "TENSOR", 80, 60, 10, min_warps=4),
        Operation("sum", "ALU", 50, 50, 50),
    )
    edges = (Dependence("load", "mma"), Dependence("mma", "sum"), Dependence("sum", "sum", 1))
    return DependenceGraph("loop", ops, edges, Limits(3))


def test_named_operations_are_copied_with_their_edges_and_the_rest_is_shared():
    twice = data_partition(loop(), ("mma", "sum"), 2)
    assert [op.id for op in twice.ops] == ["load", "mma@0", "mma@1", "sum@0", "sum@1"]
    assert [(e.src, e.dst, e.distance) for e in twice.edges] == [
        ("load", "mma@0", 0), ("load", "mma@1", 0), ("mma@0", "sum@0", 0), ("mma@1", "sum@1", 0),
        ("sum@0", "sum@0", 1), ("sum@1", "sum@1", 1),
    ]  # fmt: skip
    assert twice.clones == (("mma@0", "sum@0"), ("mma@1", "sum@1"))
    assert data_partition(loop(), ("mma", "sum"), 1) == loop()


def test_two_copies_alternate_on_a_unit_that_both_need():
    """120 TENSOR cycles and 100 ALU cycles for both: while one multiplies, the other adds."""
    graph = data_partition(loop(), ("mma", "sum"), 2)
    outcome = solve(graph)
    assert outcome.plan is not None
    assert (outcome.status, outcome.bound) == ("optimal", 120)
    at = {p.op: p.cycle for p in outcome.plan.schedule.placements}
    assert at["mma@0"] <= at["mma@1"]
    assert abs(at["mma@0"] - at["mma@1"]) % 120 == 60


@given(given_.graphs(most_ops=3), st.data())
@settings(max_examples=40, deadline=None)
def test_breaking_the_symmetry_of_clones_costs_nothing(graph, data):
    if graph.clones:
        return
    named = data.draw(st.lists(st.sampled_from([op.id for op in graph.ops]), min_size=1, max_size=2, unique=True))
    cloned = data_partition(graph, named, 2)
    assert Problem(cloned, SolveOptions()).clone_order
    plain = DependenceGraph(cloned.name, cloned.ops, cloned.edges, cloned.limits, cloned.units)
    ordered, free = solve(cloned), solve(plain)
    assert (ordered.status, ordered.bound) == (free.status, free.bound)


def test_options_that_tell_clones_apart_leave_them_unordered():
    graph = data_partition(loop(), ("mma", "sum"), 2)
    assert Problem(graph, SolveOptions()).clone_order == ((1, 2),)
    assert Problem(graph, SolveOptions(pinned={"mma@1": 0})).clone_order == ()


@pytest.mark.parametrize(
    ("ops", "ways", "message"),
    [
        (("mma",), 0, "0 data partitions: expected 1 or more"),
        (("store",), 2, "operation 'store' is not in the graph"),
        ((), 2, "no operations to copy"),
    ],
)
def test_what_cannot_be_partitioned_is_named(ops, ways, message):
    with pytest.raises(InvalidInput) as caught:
        data_partition(loop(), ops, ways)
    assert message in str(caught.value)
    with pytest.raises(InvalidInput, match="has 2 clones already"):
        data_partition(data_partition(loop(), ("mma",), 2), ("sum",), 2)

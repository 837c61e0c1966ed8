"""The certificate of a plan with given partitions: small cases by hand, random ones against brute force."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.predict.certificate import certify, together
from warpplan.planner.solve import effective_ii, solve
from warpplan.planner.values.codec import from_json, to_json
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Optimality, Outcome

from ..strategies import graphs

LOAD = Operation("load", "TMA", 700, 288, 30, buffer_bytes=49_152, alignment=1024)
MMA = Operation("mma", "TENSOR", 560, 512, 120, min_warps=4, registers=128)
EDGES = (Dependence("load", "mma"), Dependence("mma", "mma", 1, latency=512))
GEMM = DependenceGraph("gemm", (LOAD, MMA), EDGES, Limits(2, handoff_cycles=60))
SMALL = Limits(3, handoff_cycles=2)


def test_a_full_unit_proves_any_partition_optimal_without_a_search() -> None:
    found = certify(GEMM, SolveOptions(work_limit_s=1e-9), 512)
    assert found == Optimality(512, 512, 512)
    assert found.is_proven
    assert found.gap == 0
    assert found.predicted_gain == 1


def test_a_partition_that_serialises_two_operations_is_told_from_the_best() -> None:
    """Two operations of 100 issue cycles each: 200 together, 100 apart."""
    ops = (Operation("a", "ALU", 100, 10, 100), Operation("b", "SFU", 100, 10, 100))
    graph = DependenceGraph("two", ops, (), Limits(2))
    served = solve(graph, SolveOptions(pinned={"a": 0, "b": 0})).plan
    assert served is not None
    assert served.schedule.ii_cycles == 200
    found = certify(graph, SolveOptions(), 200)
    assert (found.served_ii_cycles, found.free_ii_cycles, found.bound_cycles) == (200, 100, 100)
    assert sorted(found.free_partitions) == [("a",), ("b",)]
    assert not found.is_proven
    assert found.gap == 1.0
    assert found.predicted_gain == 2.0


def test_a_free_problem_that_asks_more_than_the_plan_claims_nothing_beyond_it() -> None:
    """One number of base registers stands for every partition, and here none has as many."""
    greedy = replace(GEMM, limits=replace(GEMM.limits, base_registers=250))
    assert solve(greedy).status == "infeasible"
    assert certify(greedy, SolveOptions(), 800).bound_cycles <= 512


def test_a_budget_that_ends_first_keeps_the_bound_below_the_best_found() -> None:
    ops = tuple(Operation(f"op{i}", ("ALU", "SFU", "LSU")[i % 3], 7, 3 + i, 5 + i) for i in range(12))
    edges = tuple(Dependence(f"op{i}", f"op{(i * 5 + 1) % 12}", 1 + i % 2) for i in range(12))
    graph = DependenceGraph("many", ops, edges, Limits(4, handoff_cycles=9))
    found = certify(graph, SolveOptions(work_limit_s=1e-3), 1_000)
    assert found.bound_cycles <= found.free_ii_cycles <= found.served_ii_cycles == 1_000


@settings(deadline=None, max_examples=40)
@given(graphs(most_ops=3, most_partitions=2, rules=False), st.data())
def test_the_free_problem_is_the_best_of_all_pinned_ones(graph: DependenceGraph, data: st.DataObject) -> None:
    names = [op.id for op in graph.ops]
    intervals = {}
    for homes in product(range(graph.limits.max_partitions), repeat=len(names)):
        outcome = solve(graph, SolveOptions(pinned=dict(zip(names, homes, strict=True))))
        if outcome.plan is not None:
            intervals[homes] = effective_ii(outcome.plan)
    if not intervals:
        return
    served = data.draw(st.sampled_from(sorted(intervals.values())))
    found = certify(graph, SolveOptions(), served)
    assert found.free_ii_cycles == found.bound_cycles == min(intervals.values())
    assert found.is_proven == (served == min(intervals.values()))
    assert bool(found.free_partitions) == (found.free_ii_cycles < served)


def test_operations_of_one_partition_are_listed_by_their_starts() -> None:
    plan = solve(GEMM, SolveOptions(pinned={"load": 1, "mma": 0})).plan
    assert plan is not None
    assert together(plan) == (("mma",), ("load",))
    plan = solve(replace(GEMM, limits=Limits(1)), SolveOptions()).plan
    assert plan is not None
    assert together(plan) == (("load", "mma"),)


def test_an_outcome_keeps_its_certificate_as_json_and_without_one_its_bytes() -> None:
    plain = solve(GEMM)
    assert "optimality" not in to_json(plain)
    assert "optimality" not in repr(plain)
    certified = replace(plain, optimality=Optimality(600, 512, 512, (("load",), ("mma",))))
    assert from_json(json.loads(json.dumps(to_json(certified))), Outcome) == certified

"""One iteration at a time: a plan wherever memory and registers suffice for one iteration."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.search.heuristics.serial_schedule import serial_schedule
from warpplan.planner.search.ii_search import serial_ii
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions

from .. import strategies as given_


def pairs(count: int) -> DependenceGraph:
    """Pairs of loads and a product each, summed up: memory is enough for one pair and a half."""
    ops, edges, before = [], [], ""
    for i in range(count):
        for side in "ab":
            ops.append(Operation(f"load_{side}{i}", "TMA", 600, 130, 30, buffer_bytes=16384, alignment=1024))
        ops.append(Operation(f"product{i}", "TENSOR", 300, 256, 30, min_warps=4, registers=32))
        ops.append(Operation(f"add{i}", "ALU", 80, 80, 80, min_warps=4, registers=32))
        edges += [Dependence(f"load_{side}{i}", f"product{i}") for side in "ab"]
        edges.append(Dependence(f"product{i}", f"add{i}"))
        edges += [Dependence(before, f"add{i}")] if before else []
        before = f"add{i}"
    limits = Limits(4, smem_bytes=3 * 16384, handoff_cycles=60, barrier_cycles=10)
    return DependenceGraph("pairs", tuple(ops), tuple(edges), limits)


def serial(graph: DependenceGraph):
    problem = Problem(graph, SolveOptions())
    ii = serial_ii(problem)
    return problem, ii, serial_schedule(problem, min_ii(problem).ii_cycles, ii, WorkBudget(10.0))


@settings(max_examples=60, deadline=None)
@given(graph=given_.graphs(most_ops=12, rules=True))
def test_a_serial_schedule_obeys_every_rule(graph: DependenceGraph):
    problem, ii, found = serial(graph)
    assert found is None or fits(problem, ii, found)


def test_loads_are_ordered_so_that_few_are_held_at_once():
    problem, ii, found = serial(pairs(6))
    assert found is not None
    assert fits(problem, ii, found)


def test_with_too_little_memory_for_one_pair_there_is_none():
    graph = pairs(3)
    problem, _, found = serial(replace(graph, limits=replace(graph.limits, smem_bytes=16384)))
    assert found is None
    assert solve(problem.graph).status == "infeasible"


def test_a_loop_whose_memory_hardly_suffices_has_a_plan_within_little_work():
    outcome = solve(pairs(8), SolveOptions(work_limit_s=1.0))
    assert outcome.plan is not None


def test_values_that_no_partition_holds_together_are_kept_apart():
    """Two values of 128 registers a thread, which the third operation reads: one of them has to cross. Partitions by
    kind, and those of balanced issue, have all three together or nothing to gain by another."""
    ops = [
        Operation(f"{name}{i}", "ALU", 60, 50, 50, min_warps=4, registers=128 * (name != "sum"))
        for i in range(2)
        for name in ("one", "other", "sum")
    ]
    edges = [Dependence(f"{name}{i}", f"sum{i}") for i in range(2) for name in ("one", "other")]
    edges += [Dependence(f"one{i}", f"other{i}") for i in range(2)]
    limits = Limits(3, smem_bytes=100 * 1024, registers=65_536, handoff_cycles=60, barrier_cycles=10)
    problem, ii, found = serial(DependenceGraph("wide", tuple(ops), tuple(edges), limits))
    assert found is not None
    assert fits(problem, ii, found)
    apart = [found.partitions[at] for at in range(3)]
    assert len(set(apart)) > 1

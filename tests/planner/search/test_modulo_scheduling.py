"""Large loops: always a plan where one trivially exists, never a longer interval than plain iterative modulo scheduling
finds, and within the limits of input an answer with a bound."""

from __future__ import annotations

import heapq
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import modulo_instances

from warpplan.planner.bounds.min_ii import min_ii, recurrence
from warpplan.planner.bounds.time_relaxation import NEVER, paths_of_first, relaxation, tight_paths
from warpplan.planner.check.plan_check import check
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.modulo_scheduling import large_schedules
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.search.ii_search import serial_ii
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.search_params import BoundParams, ModuloParams, SearchParams

from .. import strategies as given_

MIXED, HARD = modulo_instances.KINDS[:2]


def plain_schedule(graph: DependenceGraph, ii: int, ratio: int = 6) -> bool:
    """Whether Rau's algorithm, as published and with a table of operations by cycle, schedules ``ii``."""
    ops, index, capacity = graph.ops, graph.index, dict(graph.units)
    edges = [(index[e.src], index[e.dst], graph.edge_latency(e), e.distance) for e in graph.edges]
    height, moved = [0] * len(ops), True
    while moved:
        moved = False
        for a, b, latency, distance in reversed(edges):
            if height[b] + latency - ii * distance > height[a]:
                height[a], moved = height[b] + latency - ii * distance, True
    order = sorted(range(len(ops)), key=lambda i: (-height[i], i))
    rank = {i: at for at, i in enumerate(order)}
    table = {unit: [list[int]() for _ in range(ii)] for unit in capacity}
    starts: dict[int, int] = {}
    last: dict[int, int] = {}
    todo = list(range(len(ops)))

    def cells(i: int, at: int) -> list[list[int]]:
        return [table[ops[i].unit][(at + cycle) % ii] for cycle in range(ops[i].occupancy)]

    def remove(j: int) -> None:
        for cell in cells(j, starts.pop(j)):
            cell.remove(j)
        heapq.heappush(todo, rank[j])

    for _ in range(ratio * len(ops)):
        if not todo:
            return True
        i = order[heapq.heappop(todo)]
        most = capacity[ops[i].unit]
        low = max([0, *(starts[a] + cycles - ii * d for a, b, cycles, d in edges if b == i and a in starts)])
        free = (t for t in range(low, low + ii) if all(len(cell) < most for cell in cells(i, t)))
        at = next(free, None)
        if at is None:
            at = max(low, last.get(i, -1) + 1)
            for cell in cells(i, at):
                while len(cell) >= most:
                    remove(max(cell, key=lambda j: rank[j]))
        for a, b, cycles, distance in edges:
            if a == i != b and b in starts and starts[b] < at + cycles - ii * distance:
                remove(b)
        starts[i] = last[i] = at
        for cell in cells(i, at):
            cell.append(i)
    return not todo


@pytest.mark.parametrize(("kind", "size"), [(MIXED, 120), (MIXED, 160), (HARD, 120)])
def test_no_interval_is_longer_than_plain_iterative_modulo_scheduling_finds(kind, size):
    graph = modulo_instances.loop(f"test {kind.name}", size, kind)
    problem = Problem(graph, SolveOptions())
    low = min_ii(problem).ii_cycles
    found = list(large_schedules(problem, low, serial_ii(problem), WorkBudget(60.0)))
    assert [ii for ii, _ in found] == sorted({ii for ii, _ in found}, reverse=True)
    assert all(fits(problem, ii, schedule) for ii, schedule in found)
    assert not any(plain_schedule(graph, ii) for ii in range(low, found[-1][0]))


@given(given_.sharing_graphs(most_ops=4) | given_.graphs(most_ops=6, buffers=False))
@settings(max_examples=60, deadline=None)
def test_what_it_finds_obeys_every_rule_and_the_bound(graph: DependenceGraph):
    search = SearchParams(modulo=ModuloParams(least_operations=1))
    outcome = solve(graph, SolveOptions(work_limit_s=1.0))
    with_tables = solve(graph, SolveOptions(work_limit_s=1.0, search=search))
    assert with_tables.plan is None or check(with_tables.plan, graph) == ()
    if {outcome.status, with_tables.status} <= {"optimal", "infeasible"}:
        assert (outcome.status, outcome.bound) == (with_tables.status, with_tables.bound)


def test_a_thousand_operations_have_a_plan_within_a_small_budget_of_work():
    graph = modulo_instances.loop("test large", 1_000, MIXED)
    outcome = solve(graph, SolveOptions(work_limit_s=1.0))
    assert outcome.plan is not None
    assert check(outcome.plan, graph) == ()
    assert outcome.bound >= min_ii(Problem(graph, SolveOptions())).ii_cycles


def wide(count: int, units: int, distance: int) -> DependenceGraph:
    """``count`` operations in a ring over ``units`` units, closed by one edge of ``distance``."""
    made = random.Random(7)
    ops = tuple(Operation(f"o{i}", f"U{i % units}", made.randint(1, 9), 1, 0) for i in range(count))
    edges = [Dependence(f"o{i}", f"o{i + 1}") for i in range(count - 1)]
    edges.append(Dependence(f"o{count - 1}", "o0", distance))
    return DependenceGraph(
        "wide", ops, tuple(edges), Limits(max_partitions=1), tuple((f"U{u}", 1) for u in range(units))
    )


def test_the_largest_inputs_are_answered():
    # One cycle of 10,000 operations over 10,000 iterations, on 256 units: 40 operations each, and MinII is reached.
    graph = wide(10_000, 256, 10_000)
    outcome = solve(graph, SolveOptions(work_limit_s=2.0))
    assert outcome.status == "optimal"
    assert outcome.plan is not None
    assert outcome.plan.schedule.ii_cycles == 40


@pytest.mark.parametrize("seed", range(6))
def test_large_loops_and_small_ones_have_the_same_bounds(seed: int):
    """Early detection of positive cycles, and windows of single longest paths, against the cubic ways."""
    graph = modulo_instances.loop(f"bounds {seed}", 110, HARD)
    loop = relaxation(Problem(graph, SolveOptions()))
    least, cycle = recurrence(loop.nodes, loop.arcs)
    assert least is not None
    if cycle:
        path = tight_paths(loop, range(loop.nodes), least, BoundParams(tightening_rounds=0))
        assert path is not None
        assert tight_paths(loop, range(loop.nodes), least - 1, BoundParams(tightening_rounds=1)) is None
        ends = paths_of_first(loop, range(loop.nodes), least)
        assert ends is not None
        known = [(i, there) for i, there in enumerate(path[0][0]) if there > NEVER // 2]
        assert known == [(i, there) for i, there in enumerate(ends[0]) if there > NEVER // 2]
        assert paths_of_first(loop, sorted({*cycle}), least - 1) is None

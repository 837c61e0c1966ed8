"""More freedom never gives a worse plan: more partitions, memory, registers, rings as deep as they like, more work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.search_params import DriverParams, SearchParams

from .. import strategies as given_
from .test_techniques import attention

WORK_S = 1.0
SHORTENED = SearchParams(driver=DriverParams(attempt_seconds=0.01))
"""Rounds so short that small loops need several of them."""


def length(outcome: Outcome) -> float:
    """The interval; infinite without a plan."""
    return float("inf") if outcome.plan is None else outcome.plan.schedule.ii_cycles


def allowances(graph: DependenceGraph) -> Iterator[tuple[str, DependenceGraph]]:
    """The graph with one limit raised."""
    limits = graph.limits
    yield "partitions", replace(graph, limits=replace(limits, max_partitions=limits.max_partitions + 1))
    yield "partitions", replace(graph, limits=replace(limits, max_partitions=limits.max_partitions + 3))
    yield "memory", replace(graph, limits=replace(limits, smem_bytes=limits.smem_bytes * 3 // 2))
    yield "registers", replace(graph, limits=replace(limits, registers=limits.registers * 3 // 2))
    yield "tensor memory", replace(graph, limits=replace(limits, tmem_columns=min(512, 2 * limits.tmem_columns)))


@settings(max_examples=12, deadline=None)
@given(graph=given_.graphs(most_ops=10, most_partitions=3, rules=True))
def test_a_larger_allowance_never_gives_a_longer_interval(graph: DependenceGraph):
    options = SolveOptions(work_limit_s=WORK_S)
    least = length(solve(graph, options))
    for name, freer in allowances(graph):
        assert length(solve(freer, options)) <= least, name


def with_memory(graph: DependenceGraph, smem_bytes: int) -> DependenceGraph:
    return replace(graph, limits=replace(graph.limits, smem_bytes=smem_bytes))


@settings(max_examples=15, deadline=None)
@given(
    graph=given_.graphs(most_ops=12, most_partitions=3, rules=True),
    percents=st.lists(st.integers(10, 150), min_size=2, max_size=4, unique=True).map(sorted),
)
def test_more_shared_memory_never_gives_a_longer_interval(graph: DependenceGraph, percents: list[int]):
    options = SolveOptions(work_limit_s=WORK_S)
    loops = [with_memory(graph, graph.limits.smem_bytes * percent // 100) for percent in percents]
    found = [length(solve(loop, options)) for loop in loops]
    assert found == sorted(found, reverse=True)


def chain_of_products(count: int) -> DependenceGraph:
    """A chain of products, each of what a load of its own brings, and a store of the last one's result."""
    ops, edges = [], []
    for i in range(count):
        ops.append(Operation(f"load{i}", "TMA", 300, 40, 20, buffer_bytes=1_000))
        ops.append(Operation(f"mma{i}", "TENSOR", 150, 100, 20, min_warps=4, registers=32))
        edges.append(Dependence(f"load{i}", f"mma{i}"))
    edges += [Dependence(f"mma{i - 1}", f"mma{i}", latency=100) for i in range(1, count)]
    ops += [Operation("stage", "LSU", 60, 60, 60, buffer_bytes=2_000), Operation("store", "TMA", 200, 40, 20)]
    edges += [Dependence(f"mma{count - 1}", "stage"), Dependence("stage", "store")]
    return DependenceGraph("chain", tuple(ops), tuple(edges), Limits(3, handoff_cycles=60, barrier_cycles=10))


@settings(max_examples=5, deadline=None)
@given(sizes=st.lists(st.integers(2_500, 12_000), min_size=2, max_size=3, unique=True).map(sorted))
def test_a_loop_whose_rings_share_memory_is_never_longer_with_more_of_it(sizes: list[int]):
    """Its rings take 10,000 bytes side by side, one slot each."""
    graph = chain_of_products(8)
    found = [length(solve(with_memory(graph, size), SolveOptions(work_limit_s=WORK_S))) for size in sizes]
    assert found == sorted(found, reverse=True)
    assert found[-1] < float("inf")


@settings(max_examples=12, deadline=None)
@given(graph=given_.graphs(most_ops=8, most_partitions=3, rules=True), depth=st.integers(1, 3))
def test_rings_as_deep_as_they_need_are_never_worse_than_rings_of_one_depth(graph: DependenceGraph, depth: int):
    given_depth = solve(graph, SolveOptions(work_limit_s=WORK_S, depth=depth))
    assert length(solve(graph, SolveOptions(work_limit_s=WORK_S))) <= length(given_depth)


@settings(max_examples=15, deadline=None)
@given(graph=given_.graphs(most_ops=12, most_partitions=4, rules=True), shorter=st.sampled_from([0.01, 0.03, 0.1, 0.3]))
def test_a_longer_limit_never_gives_a_longer_interval_or_a_lower_bound(graph: DependenceGraph, shorter: float):
    outcomes = [solve(graph, SolveOptions(work_limit_s=shorter * factor, search=SHORTENED)) for factor in (1, 1.5, 4)]
    for one, other in pairwise(outcomes):
        assert length(other) <= length(one)
        assert other.status == "infeasible" or other.bound >= one.bound


@pytest.mark.parametrize("clones", [1, 2])
def test_a_loop_of_two_products_is_never_longer_in_more_partitions(clones: int):
    graph = attention(clones)
    found = [
        length(
            solve(
                replace(graph, limits=replace(graph.limits, max_partitions=most)),
                SolveOptions(work_limit_s=WORK_S),
            )
        )
        for most in (1, 2, 3, 4, 6)
    ]
    assert found == sorted(found, reverse=True)

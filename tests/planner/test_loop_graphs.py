"""The training loops are sound problems: they can be written, solved, and their plans pass the checker."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from loop_graphs import graphs
from loop_splits import SPLITS, file_name, loops
from schedule_first import schedule_first

from warpplan.planner.check.plan_check import check
from warpplan.planner.solve import solve
from warpplan.planner.values import codec
from warpplan.planner.values.dependence_graph import DependenceGraph

LOOPS = graphs()
QUICK = [name for name, graph in LOOPS.items() if len(graph.ops) <= 10]
"""Solved within a second; ``bench_solver.py`` solves and checks them all."""
FAMILIES = ("attention-forward", "attention-backward", "gemm", "fused-epilogue", "layer-norm-forward")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("architecture", ["hopper", "blackwell"])
def test_each_family_comes_for_both_architectures(family: str, architecture: str) -> None:
    found = [g for g in LOOPS.values() if g.name.split()[0] == family and g.limits.architecture == architecture]
    assert found
    assert all(5 <= len(g.ops) <= 40 for g in found)


@pytest.mark.parametrize("name", QUICK)
def test_a_loop_has_a_plan_that_passes_the_checker(name: str) -> None:
    graph = LOOPS[name]
    outcome = solve(graph)
    assert outcome.plan is not None, outcome.reason
    assert check(outcome.plan, graph) == ()
    assert outcome.bound <= outcome.plan.schedule.ii_cycles


@pytest.mark.parametrize("split", SPLITS)
def test_files_read_back_as_the_same_loops(split) -> None:
    found = loops(split)
    assert len({file_name(name) for name in found}) == len(found)
    for graph in found.values():
        assert codec.loads(codec.canonical(graph), kind=DependenceGraph) == graph


@pytest.mark.parametrize("part", ["gemm hopper fp8", "fused-epilogue hopper bias 64"])
def test_scheduling_first_is_never_better_than_deciding_together(part: str) -> None:
    graph = next(g for name, g in LOOPS.items() if name.startswith(part))
    together = solve(graph)
    assert together.status == "optimal"
    assert together.plan is not None
    apart = schedule_first(graph, together)
    assert apart.ii_cycles is not None
    assert together.plan.schedule.ii_cycles <= apart.bound <= apart.ii_cycles


def test_a_large_loop_that_no_interval_solves_is_said_to_be_one():
    """Restrictions alone could not say so: the unrestricted model has to be proven infeasible."""
    graph = graphs()["fused-epilogue hopper bias+gelu 128x128x192 x2"]
    outcome = solve(replace(graph, limits=replace(graph.limits, registers=128 * 24)))
    assert outcome.status == "infeasible"
    assert "registers" in outcome.reason

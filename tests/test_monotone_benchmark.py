"""The script of pairs: one allowance is raised at a time, and what is worse is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from monotone import KINDS, interval, loops, pair, violations

from warpplan.planner.solve import solve
from warpplan.planner.values.options import SolveOptions

from .planner.strategies import two_clones


def test_the_same_loops_are_drawn_each_time():
    assert loops(3) == loops(3)
    assert len(loops(3)) == 3


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_pair_differs_in_one_allowance(number: int):
    graph = two_clones()
    kind, (less, little), (more, much) = pair(graph, number)
    assert kind == KINDS[number]
    assert replace(more, limits=less.limits) == less
    changed = [name for name, value in vars(less.limits).items() if getattr(more.limits, name) != value]
    changed += [name for name in ("depth", "work_limit_s") if getattr(little, name) != getattr(much, name)]
    assert len(changed) == 1


def test_a_longer_interval_and_no_plan_are_violations():
    graph = two_clones()
    shorter = solve(graph, SolveOptions(work_limit_s=1.0))
    slower = tuple(replace(op, occupancy=op.occupancy + 5) for op in graph.ops)
    longer = solve(replace(graph, ops=slower), SolveOptions(work_limit_s=1.0))
    assert interval(shorter) < interval(longer)
    assert violations("partitions", graph, shorter, longer) == [
        f"{interval(shorter)} cycles against {interval(longer)}"
    ]
    assert violations("partitions", graph, longer, shorter) == []
    assert violations("memory", graph, shorter, replace(shorter, plan=None)) != []

"""The schedule-first baseline keeps the order that it decided."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from fixed_order import Order, first_in_order, keep_order, unit_order

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import run
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.values.options import SolveOptions

from ..strategies import two_clones


def test_an_order_is_kept():
    """exp1 before exp0 on the ALU, and mma1 before mma0 on the tensor core."""
    graph = replace(two_clones(), clones=())
    problem = Problem(graph, SolveOptions())
    order = Order((0, 40, 50, 0, 10), (0, 0, 1, 0, 1))
    assert [(i, j) for i, j, _, turn in unit_order(problem, order) if not turn] == [(3, 1), (4, 2)]
    model = IntervalModel(problem, 80)
    keep_order(model, order)
    answer, solver = run(model.cp, 5.0)
    assert answer == "yes"
    for found in (model.read(solver), first_in_order(problem, 80, order)):
        assert found is not None
        assert 40 <= found.starts[1] - found.starts[3] <= 80 - 40
        assert 30 <= found.starts[2] - found.starts[4] <= 80 - 30

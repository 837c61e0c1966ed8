"""Compaction: among schedules of one interval and order, the one whose values live shortest.

With the order fixed everything is an arc, and the sum of lives and starts is a linear function of the starts: a linear
program over differences, whose optimal corners are whole (the dual of a minimum-cost flow).
"""

from __future__ import annotations

from math import inf
from typing import Any

from warpplan.planner.problem.assignment import Assignment, rings
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import fits, order_arcs

Variable = Any
"""Of a linear program; OR-tools has no types for it."""


def compact_lifetimes(problem: Problem, ii: int, found: Assignment) -> Assignment:
    """``found`` with the same order, and the least sum of starts and, twice, of the lives of what rings hold.

    ``found`` as it is where that would break what order does not say all about (see
    :mod:`~warpplan.planner.search.heuristics.retiming`).
    """
    from ortools.linear_solver import pywraplp  # not before a loop is solved

    arcs = order_arcs(problem, ii, found)
    if arcs is None:
        return found
    program = pywraplp.Solver.CreateSolver("GLOP")
    infinite = program.infinity()

    def at_least(cycles: int, src: Variable, dst: Variable) -> None:
        """``dst`` comes ``cycles`` or more after ``src``."""
        row = program.Constraint(cycles, infinite)
        row.SetCoefficient(dst, 1.0)
        row.SetCoefficient(src, -1.0)

    starts = [program.NumVar(0.0, infinite, "") for _ in problem.ops]
    for src, dst, cycles, distance in arcs:
        if src != dst:
            at_least(cycles - ii * distance, starts[src], starts[dst])
    weight = [1.0] * len(starts)
    sum_of_all = program.Objective()
    for producer, uses in rings(problem, found).items():
        end = program.NumVar(0.0, infinite, "")
        for use in uses:
            at_least(ii * use.distance + use.cycles, starts[use.consumer], end)
        sum_of_all.SetCoefficient(end, 2.0)
        weight[producer] -= 2.0
    for start, cost in zip(starts, weight, strict=True):
        sum_of_all.SetCoefficient(start, cost)
    sum_of_all.SetMinimization()
    problem.deadline.check()
    if (left_s := problem.deadline.remaining_s()) < inf:
        program.SetTimeLimit(int(1000 * left_s))
    if program.Solve() != pywraplp.Solver.OPTIMAL:
        return found
    shorter = Assignment(tuple(round(start.solution_value()) for start in starts), found.partitions)
    return shorter if fits(problem, ii, shorter) else found

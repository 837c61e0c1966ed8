"""Compaction: among schedules of one interval and order, the one whose values live shortest.

With the order fixed everything is an arc, and the sum of lives and starts is a linear function of the starts: a linear
program over differences, whose optimal corners are whole (the dual of a minimum-cost flow).
"""

from __future__ import annotations

from warpplan.planner.problem.assignment import Assignment, rings
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import fits, order_arcs


def compact_lifetimes(problem: Problem, ii: int, found: Assignment) -> Assignment:
    """``found`` with the same order, and the least sum of starts and, twice, of the lives of what rings hold.

    ``found`` as it is where that would break what order does not say all about (see
    :mod:`~warpplan.planner.search.heuristics.retiming`).
    """
    import numpy as np
    from scipy.optimize import linprog  # a third of a second to import
    from scipy.sparse import coo_array

    arcs = order_arcs(problem, ii, found)
    if arcs is None:
        return found
    count = len(problem.ops)
    # start[dst] - start[src] >= cycles - II * distance; a ring's end is a variable of its own, beyond the operations'.
    rows = [(src, dst, cycles - ii * distance) for src, dst, cycles, distance in arcs if src != dst]
    weight = [1.0] * count
    for end, (producer, uses) in enumerate(rings(problem, found).items(), count):
        rows += [(use.consumer, end, ii * use.distance + use.cycles) for use in uses]
        weight.append(2.0)
        weight[producer] -= 2.0
    at = np.arange(len(rows))
    ones = np.ones(len(rows))
    matrix = coo_array(
        (
            np.concatenate([ones, -ones]),
            (np.concatenate([at, at]), np.array([[src for src, _, _ in rows], [dst for _, dst, _ in rows]]).ravel()),
        ),
        shape=(len(rows), len(weight)),
    ).tocsr()
    problem.deadline.check()
    most = [-least for _, _, least in rows]
    limit = {"time_limit": problem.deadline.remaining_s()}
    solved = linprog(weight, A_ub=matrix, b_ub=most, method="highs-ds", options=limit)
    if solved.status != 0:
        return found
    shorter = Assignment(tuple(round(t) for t in solved.x[:count]), found.partitions)
    return shorter if fits(problem, ii, shorter) else found

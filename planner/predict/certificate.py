"""A certificate of a plan whose partitions were given: is any other assignment of its operations faster?

The plans that run pin each operation to a partition (a producer that loads, consumers that multiply). The free joint
problem is the same loop without the pins: any assignment that the hardware rules allow (RULES.md, rule 4), rings of any
depth that fits, any order. Where MinII of the free problem reaches the plan's interval, that is a proof without search;
elsewhere the free problem is solved, and the certificate has the best interval found and the proven bound.
"""

from __future__ import annotations

from collections import defaultdict

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.errors import Infeasible
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Optimality, Plan


def certify(free: DependenceGraph, options: SolveOptions, served_ii_cycles: int) -> Optimality:
    """``served_ii_cycles``, the interval of a plan of the loop, beside the best of ``free``, its free joint problem.

    ``options`` are those of the free problem: no pins, the same extra buffers, its own work budget. A budget that ends
    first leaves a bound below the best interval found. The plan is itself a solution of the free problem, so that the
    bound never exceeds its interval; where the free problem asks more of a resource than the plan did (a graph has one
    number of registers that every partition needs) and has no solution, MinII is all that is claimed.
    """
    try:
        bound = min(served_ii_cycles, min_ii(Problem(free, options)).ii_cycles)
    except Infeasible:
        return Optimality(served_ii_cycles, served_ii_cycles, 1)
    if bound == served_ii_cycles:
        return Optimality(served_ii_cycles, served_ii_cycles, bound)
    outcome = solve(free, options)
    if outcome.status == "infeasible":  # which the plan itself is not: its bound is of a problem that asks more
        return Optimality(served_ii_cycles, served_ii_cycles, bound)
    bound = min(served_ii_cycles, max(bound, outcome.bound))
    if outcome.plan is None or outcome.plan.schedule.ii_cycles >= served_ii_cycles:
        return Optimality(served_ii_cycles, served_ii_cycles, bound)
    return Optimality(served_ii_cycles, outcome.plan.schedule.ii_cycles, bound, together(outcome.plan))


def together(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The operations of each partition that has any, in the order of their starts."""
    shared: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for placement in plan.schedule.placements:
        shared[placement.partition].append((placement.cycle, placement.op))
    return tuple(tuple(op for _, op in sorted(members)) for _, members in sorted(shared.items()))

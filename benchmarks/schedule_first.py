"""The schedule-first baseline: fixed-order scheduling of the whole loop, then the best partition for its order. Ours.

1. The loop is scheduled as if one set of warps ran it and issued at no cost: units and dependences count; hand-offs,
   barriers, issue, registers and memory do not. The best modulo schedule of that problem fixes the *order*: who follows
   whom around the circle of the initiation interval, and in which stage.
2. The order on every unit is kept, and the best partition for it is chosen under all rules: the times may stretch, and
   what no unit orders is free.
3. An order that no partition can keep (its values need more registers than there are, however slow the loop) is given
   up for that of one iteration by itself, the next beginning when it has ended.

Step 2 is exact as far as time allows: first schedules in that order, and the solver's own model with the order added,
over growing intervals; what is left open is a gap between ``ii_cycles`` and ``bound``. So the difference to the joint
solution is the price of deciding one after the other, not that of a weak heuristic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fixed_order import Order, first_in_order, keep_order, unpartitioned_order

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import run
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome

QUERY_SECONDS = 0.5
"""For the feasibility query of one interval; one that is left open counts as infeasible, but raises no bound."""
STRETCH = 4
"""The order is given up where it does not fit this many times the joint interval."""


@dataclass(frozen=True)
class Baseline:
    """``ii_cycles`` of step 2, ``None`` if neither order fits an interval tried; ``pipelined``: step 3 was not needed.
    ``bound``: no smaller interval fits the order, that is proven."""

    ii_cycles: int | None
    bound: int
    pipelined: bool


def schedule_first(graph: DependenceGraph, joint: Outcome) -> Baseline:
    """The interval that ``joint``, the outcome of deciding together, is to be compared with: never below its bound."""
    found = Baseline(None, joint.bound, True)
    for pipelined in (True, False):
        order = pipelined_order(graph) if pipelined else one_iteration_order(graph)
        if order is not None:
            found = replace(partition_after(graph, order, joint), pipelined=pipelined)
        if found.ii_cycles is not None:
            break
    return found


def pipelined_order(graph: DependenceGraph) -> Order | None:
    """Step 1."""

    def solved(unpartitioned: DependenceGraph) -> tuple[int, Assignment] | None:
        plan = solve(unpartitioned).plan
        if plan is None:
            return None
        placements = plan.schedule.placements
        return plan.schedule.ii_cycles, Assignment(tuple(p.cycle for p in placements), (0,) * len(placements))

    return unpartitioned_order(graph, solved)


def one_iteration_order(graph: DependenceGraph) -> Order:
    """Step 3: list scheduling of the loop body alone, the operation with the longest way to the end first."""
    within = [(graph.index[e.src], graph.index[e.dst], graph.edge_latency(e)) for e in graph.edges if e.distance == 0]
    ops, capacity = range(len(graph.ops)), dict(graph.units)
    way = [op.latency for op in graph.ops]
    for _ in ops:
        for i, j, cycles in within:
            way[i] = max(way[i], cycles + way[j])
    starts: dict[int, int] = {}
    free = {unit: [0] * copies for unit, copies in capacity.items()}
    while len(starts) < len(ops):
        ready = [j for j in ops if j not in starts and all(i in starts for i, dst, _ in within if dst == j)]
        earliest = {j: max((starts[i] + cycles for i, dst, cycles in within if dst == j), default=0) for j in ready}
        for j in ready:
            earliest[j] = max(earliest[j], min(free.get(graph.ops[j].unit or "", [0])))
        j = min(ready, key=lambda j: (earliest[j], -way[j], j))
        starts[j] = earliest[j]
        if (unit := graph.ops[j].unit) is not None:
            free[unit].remove(min(free[unit]))
            free[unit].append(starts[j] + graph.ops[j].occupancy)
    return Order(tuple(starts[i] for i in ops), (0,) * len(ops))


def partition_after(graph: DependenceGraph, order: Order, joint: Outcome) -> Baseline:
    """Step 2. The joint interval comes first; smaller ones, too, where that is not proven to be the smallest."""
    assert joint.plan is not None
    problem = Problem(replace(graph, clones=()), SolveOptions())
    bound, joint_ii = joint.bound, joint.plan.schedule.ii_cycles

    def fitting(ii: int) -> bool:
        nonlocal bound
        if first_in_order(problem, ii, order) is not None:
            return True
        # Infeasible with unlimited memory is a proof; a schedule must have a layout.
        for memory in ("free", "apart"):
            model = IntervalModel(problem, ii, memory=memory)
            keep_order(model, order)
            answer, solver = run(model.cp, QUERY_SECONDS, relax=0)
            if answer == "no" and memory == "free":
                bound = max(bound, ii + 1)
            if answer != "yes":
                return False
            if fits(problem, ii, model.read(solver)):
                return True
        return False

    low, high = bound, joint_ii
    while not fitting(high):
        if high >= STRETCH * joint_ii:
            return Baseline(None, bound, True)
        low, high = high + 1, min(2 * high - joint_ii + max(1, joint_ii // 16), STRETCH * joint_ii)
    while low < high:
        middle = (low + high - 1) // 2
        if fitting(middle):
            high = middle
        else:
            low = middle + 1
    return Baseline(high, bound, True)

"""Fixed-order scheduling, the schedule-first baseline: schedule the loop for one set of warps, then partition it.

The loop is scheduled as if its issue cost nothing and memory were free; that fixes who follows whom on each unit, and
the stages. Partitions and times are then found in that order, which leaves little to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from warpplan.planner.bounds.time_relaxation import loop_of
from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.list_scheduling import list_schedules
from warpplan.planner.search.heuristics.partition_heuristics import candidate_partitions
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.values.dependence_graph import DependenceGraph, Limits

PLENTY = 2**40
"""Bytes, and columns, that no loop's rings fill: memory is not limited."""
ScheduleUnpartitioned = Callable[[DependenceGraph], tuple[int, Assignment] | None]
"""Schedules a graph without partitions: an interval and an assignment, None where none was found."""


@dataclass(frozen=True)
class Order:
    """By operation: the phase at which it starts, and the stage."""

    phase: tuple[int, ...]
    stage: tuple[int, ...]


def units_and_dependences(graph: DependenceGraph) -> DependenceGraph:
    """``graph`` where only units and dependences count: hand-offs, barriers, issue, registers and memory do not."""
    ops = tuple(replace(op, issue=0, registers=0, min_warps=1, spread=0, buffer_bytes=0) for op in graph.ops)
    free = Limits(max_partitions=1, smem_bytes=PLENTY, tmem_columns=PLENTY)
    return replace(graph, ops=ops, limits=free, clones=())


def unpartitioned_order(graph: DependenceGraph, schedule_unpartitioned: ScheduleUnpartitioned) -> Order | None:
    """The phases of the unpartitioned loop's schedule, in those stages that keep the values' lives shortest in sum."""
    from scipy.optimize import linprog  # a third of a second to import

    found = schedule_unpartitioned(units_and_dependences(graph))
    if found is None:
        return None
    ii, phase = found[0], tuple(start % found[0] for start in found[1].starts)
    ops = range(len(graph.ops))
    weight, rows, bounds = [0.0] * len(ops), [], []
    for e in graph.edges:
        i, j = graph.index[e.src], graph.index[e.dst]
        if i == j:
            continue
        # stage[i] - stage[j] is at most what latency and phases leave of the distance.
        rows.append([float((k == i) - (k == j)) for k in ops])
        bounds.append(e.distance - -(-(phase[i] + graph.edge_latency(e) - phase[j]) // ii))
        size = graph.ops[i].buffer_bytes or graph.ops[i].register_bytes
        weight[j] += 1 + size
        weight[i] -= 1 + size
    if not rows:
        return Order(phase, (0,) * len(ops))
    # Difference constraints: the optimal corner is whole.
    stages = linprog(weight, A_ub=rows, b_ub=bounds, method="highs-ds").x
    return None if stages is None else Order(phase, tuple(round(x) for x in stages))


def first_in_order(problem: Problem, ii: int, order: Order) -> Assignment | None:
    """The schedule that list scheduling finds in that order, if any."""
    arcs = tuple(
        (i, j, cycles, order.stage[i] - order.stage[j] + wraps) for i, j, cycles, wraps in unit_order(problem, order)
    )
    for partitions in candidate_partitions(problem, ii):
        loop = loop_of(problem, partitions)
        for starts in list_schedules(replace(loop, arcs=loop.arcs + arcs), ii, problem.options.search):
            if fits(problem, ii, found := Assignment(starts, partitions)):
                return found
    return None


def keep_order(model: IntervalModel, order: Order) -> None:
    """With τ = start − II · the order's stage: τ of a unit's users in that order, all within one interval."""
    shifted = [model.start[i] - model.ii * order.stage[i] for i in model.ops]
    for i, j, cycles, wraps in unit_order(model.problem, order):
        model.cp.add(shifted[j] + wraps * model.ii >= shifted[i] + cycles)


def unit_order(problem: Problem, order: Order) -> Iterator[tuple[int, int, int, int]]:
    """(i, j, cycles, wraps): j follows i on their unit by ``cycles``, around the circle's end where ``wraps`` is 1."""
    for unit, capacity in problem.graph.units:
        users = [i for i, op in enumerate(problem.ops) if op.unit == unit and op.occupancy and capacity == 1]
        users.sort(key=lambda i: order.phase[i])
        yield from ((i, j, problem.ops[i].occupancy, 0) for i, j in pairwise(users))
        if users:
            yield users[-1], users[0], problem.ops[users[-1]].occupancy, 1

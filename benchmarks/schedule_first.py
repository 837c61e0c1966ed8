"""What is done where schedule and partition are not decided together: schedule first, then partition.

1. The loop is scheduled as if one set of warps ran it and issued at no cost: units and dependences count; hand-offs,
   barriers, issue, registers and memory do not. The best modulo schedule of that problem fixes the *order*: who follows
   whom around the circle of the initiation interval, and in which stage.
2. The order on every unit is kept, and the best partition for it is chosen under all rules: the times may stretch, and
   what no unit orders is free.
3. An order that no partition can keep (its values need more registers than there are, however slow the loop) is given
   up for that of one iteration by itself, the next beginning when it has ended.

Step 2 is exact as far as time allows: first schedules in that order, and the solver's own model with the order added,
over rising intervals; what is left open is a gap between ``ii_cycles`` and ``bound``. So the difference to the joint
solution is the price of deciding one after the other, not that of a weak heuristic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from scipy.optimize import linprog

from warpplan.planner.assignment import Assignment
from warpplan.planner.choices import partition_choices
from warpplan.planner.constructive import placings
from warpplan.planner.cpsat import run
from warpplan.planner.graph import DependenceGraph, Limits
from warpplan.planner.loop import loop_of
from warpplan.planner.model import Model
from warpplan.planner.plan import Outcome
from warpplan.planner.problem import Problem, SolveOptions
from warpplan.planner.retime import fits
from warpplan.planner.solve import solve

PLENTY = 2**40
QUESTION_SECONDS = 2.0
"""For one interval; a question left open counts as a no, but raises no bound."""
STRETCH = 4
"""The order is given up where it does not fit so many times the joint interval."""


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


@dataclass(frozen=True)
class Order:
    """By operation: the phase at which it starts, and the stage."""

    phase: tuple[int, ...]
    stage: tuple[int, ...]


def pipelined_order(graph: DependenceGraph) -> Order | None:
    """Step 1: the phases of the smallest interval, in those stages that keep the values' lives shortest in sum."""
    ops = tuple(replace(op, issue=0, registers=0, min_warps=1, spread=0, buffer_bytes=0) for op in graph.ops)
    free = Limits(max_partitions=1, smem_bytes=PLENTY, tmem_columns=PLENTY)
    outcome = solve(replace(graph, ops=ops, limits=free, clones=()))
    if outcome.plan is None:
        return None
    ii, phase = outcome.plan.schedule.ii_cycles, tuple(p.phase for p in outcome.plan.schedule.placements)
    weight, rows, bounds = [0.0] * len(ops), [], []
    for e in graph.edges:
        i, j = graph.index[e.src], graph.index[e.dst]
        if i == j:
            continue
        # stage[i] - stage[j] is at most what latency and phases leave of the distance.
        rows.append([float((k == i) - (k == j)) for k in range(len(ops))])
        bounds.append(e.distance - -(-(phase[i] + graph.edge_latency(e) - phase[j]) // ii))
        size = graph.ops[i].buffer_bytes or graph.ops[i].register_bytes
        weight[j] += 1 + size
        weight[i] -= 1 + size
    # Difference constraints: the optimal corner is whole.
    found = linprog(weight, A_ub=rows, b_ub=bounds, method="highs-ds")
    return Order(phase, tuple(round(x) for x in found.x))


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
    """Step 2. Asked first about the joint interval; below it, too, where that is not proven to be the smallest."""
    assert joint.plan is not None
    problem = Problem(replace(graph, clones=()), SolveOptions())
    bound, joint_ii = joint.bound, joint.plan.schedule.ii_cycles

    def fitting(ii: int) -> bool:
        nonlocal bound
        if first_in_order(problem, order, ii):
            return True
        # A refusal with memory for everything is a proof; a schedule must have places.
        for memory in ("free", "apart"):
            model = Model(problem, ii, memory=memory)
            keep_order(model, order)
            answer, solver = run(model.cp, QUESTION_SECONDS, relax=False)
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


def first_in_order(problem: Problem, order: Order, ii: int) -> bool:
    """Whether list scheduling finds a valid schedule in that order."""
    arcs = tuple(
        (i, j, cycles, order.stage[i] - order.stage[j] + turn) for i, j, cycles, turn in queues(problem, order)
    )
    for partitions in partition_choices(problem, ii):
        loop = loop_of(problem, partitions)
        for starts in placings(replace(loop, arcs=loop.arcs + arcs), ii):
            if fits(problem, ii, Assignment(starts, partitions)):
                return True
    return False


def keep_order(model: Model, order: Order) -> None:
    """With τ = start − II · the order's stage: τ of a unit's users in that order, all within one turn."""
    turned = [model.start[i] - model.ii * order.stage[i] for i in model.ops]
    for i, j, cycles, turn in queues(model.problem, order):
        model.cp.add(turned[j] + turn * model.ii >= turned[i] + cycles)


def queues(problem: Problem, order: Order) -> Iterator[tuple[int, int, int, int]]:
    """(i, j, cycles, turn): j follows i on their unit by ``cycles``, in the circle's next turn where ``turn`` is 1."""
    for unit, capacity in problem.graph.units:
        users = [i for i, op in enumerate(problem.ops) if op.unit == unit and op.occupancy and capacity == 1]
        users.sort(key=lambda i: order.phase[i])
        yield from ((i, j, problem.ops[i].occupancy, 0) for i, j in pairwise(users))
        if users:
            yield users[-1], users[0], problem.ops[users[-1]].occupancy, 1

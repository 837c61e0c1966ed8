"""What is done where schedule and partition are not decided together: schedule first, then partition.

1. The loop is scheduled as if one set of warps ran it and issued at no cost: units and dependences count; hand-offs,
   barriers, issue, registers and memory do not. The best modulo schedule of that problem fixes the *order*: who follows
   whom around the circle of the initiation interval, and in which stage.
2. The order on every unit is kept, and the best partition for it is chosen under all rules: the times may stretch, and
   what no unit orders is free.
3. An order that no partition can keep (its values need more registers than there are, however slow the loop) is given
   up for that of one iteration by itself, the next beginning when it has ended.

Step 2 is exact, too: the solver's own model with the order added, over rising intervals. So the difference to the joint
solution is the price of deciding one after the other, not that of a weak heuristic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from warpplan.planner.assignment import Assignment
from warpplan.planner.cpsat import run
from warpplan.planner.graph import Dependence, DependenceGraph, Limits
from warpplan.planner.model import Model
from warpplan.planner.plan import Outcome, Schedule
from warpplan.planner.problem import Problem, SolveOptions
from warpplan.planner.retime import fits
from warpplan.planner.solve import solve

PLENTY = 2**40
QUESTION_SECONDS = 2.0
"""For one interval; a question left open counts as a no, which the answer then says."""
STRETCH = 4
"""The order is given up for infeasible where it does not fit so many times the joint interval."""


@dataclass(frozen=True)
class Baseline:
    """``ii_cycles`` of step 2, ``None`` if neither order fits an interval tried; ``pipelined``: step 3 was not needed.
    ``proven``: every smaller interval was refused, none left open. ``memory``: the rings' places were found, too."""

    ii_cycles: int | None
    pipelined: bool
    proven: bool
    memory: bool


def schedule_first(graph: DependenceGraph, joint: Outcome) -> Baseline:
    """The interval that ``joint``, the outcome of deciding together, is to be compared with."""
    for pipelined in (True, False):
        schedule = schedule_alone(graph, pipelined=pipelined)
        if schedule and (found := partition_after(graph, schedule, joint)).ii_cycles:
            return replace(found, pipelined=pipelined)
    return Baseline(None, False, False, False)


def schedule_alone(graph: DependenceGraph, *, pipelined: bool = True) -> Schedule | None:
    """Step 1; ties go to short lives and early starts. Values in registers are given buffers for it, of which there are
    plenty: the solver then shortens their lives, too."""
    ops = tuple(
        replace(op, issue=0, registers=0, min_warps=1, spread=0, memory="smem",
                buffer_bytes=op.buffer_bytes or op.register_bytes)
        for op in graph.ops
    )  # fmt: skip
    edges = graph.edges
    if not pipelined:
        within = [e for e in graph.edges if e.distance == 0]
        first = {op.id for op in ops} - {e.dst for e in within}
        last = {op.id for op in ops} - {e.src for e in within}
        edges += tuple(Dependence(a, b, 1, "token") for a in sorted(last) for b in sorted(first))
    free = Limits(max_partitions=1, smem_bytes=PLENTY, tmem_columns=PLENTY)
    outcome = solve(replace(graph, ops=ops, edges=edges, limits=free, clones=()))
    return outcome.plan.schedule if outcome.plan else None


def partition_after(graph: DependenceGraph, schedule: Schedule, joint: Outcome) -> Baseline:
    """Step 2. No interval below the joint one is asked about."""
    assert joint.plan is not None
    problem = Problem(replace(graph, clones=()), SolveOptions())
    # Rings that take turns in one place are beyond the model: find the schedule without, then the places.
    without = ("shared memory", "tensor memory") if joint.plan.reuses else ()
    proven = True

    def fitting(ii: int) -> Assignment | None:
        nonlocal proven
        model = Model(problem, ii, without)
        keep_order(model, schedule)
        answer, solver = run(model.cp, QUESTION_SECONDS)
        proven = proven and answer != "unknown"
        return model.read(solver) if answer == "yes" else None

    least = low = high = joint.plan.schedule.ii_cycles
    best = fitting(high)
    while best is None and high < STRETCH * least:
        low, high = high + 1, min(2 * high - least + max(1, least // 16), STRETCH * least)
        best = fitting(high)
    if best is None:
        return Baseline(None, True, proven, False)
    while low < high:
        middle = (low + high - 1) // 2
        better = fitting(middle)
        if better is None:
            low = middle + 1
        else:
            high, best = middle, better
    return Baseline(high, True, proven, fits(problem, high, best))


def keep_order(model: Model, schedule: Schedule) -> None:
    """With τ = start − II · the schedule's stage: τ of a unit's users in the schedule's order, all within one turn."""
    graph = model.problem.graph
    place = {p.op: p for p in schedule.placements}
    turned = [t - model.ii * place[op.id].stage for t, op in zip(model.start, graph.ops, strict=True)]
    for unit, capacity in graph.units:
        users = [i for i, op in enumerate(graph.ops) if op.unit == unit and op.occupancy and capacity == 1]
        users.sort(key=lambda i: place[graph.ops[i].id].phase)
        for i, j in pairwise(users):
            model.cp.add(turned[j] >= turned[i] + graph.ops[i].occupancy)
        if users:
            first, last = users[0], users[-1]
            model.cp.add(turned[first] + model.ii >= turned[last] + graph.ops[last].occupancy)

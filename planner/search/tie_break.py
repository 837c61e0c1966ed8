"""Tie-breaks among schedules of one interval: in tiny loops fewest crossings, then short lives and early starts; where
it is asked for, the shortest makespan."""

from __future__ import annotations

from typing import Any

from warpplan.planner.bounds.min_ii import earliest
from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.cpsat.work_budget import RunSettings, WorkBudget
from warpplan.planner.packing.ring_layout import layout
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import fits, order_arcs
from warpplan.planner.values.search_params import MemoryModel


def break_ties(
    problem: Problem, ii: int, budget: WorkBudget, known: Assignment | None = None
) -> tuple[Answer, Assignment | None]:
    """Whether ``ii`` is feasible side by side in memory, and its best schedule, as far as ``tie_break_seconds`` allow;
    none where more crosses in it than in ``known``."""
    model = IntervalModel(problem, ii, branching="free")
    pairs = {(a.src, a.dst) for a in problem.dependences if a.src != a.dst}
    crossings = sum(model.crosses(a, b) for a, b in sorted(pairs))
    model.cp.minimize(crossings)
    if known is not None:
        model.begin_with(known)
        for (c, g), literal in model.member.items():
            if not isinstance(literal, int):
                model.cp.add_hint(literal, known.partitions[c] == g)
    seconds = problem.options.search.driver.tie_break_seconds
    answer, best = budget.solve(model, seconds, RunSettings(relax=1))
    if best is None or (known is not None and _crossing(pairs, known) < _crossing(pairs, best)):
        return answer, None
    model.cp.add(crossings <= _crossing(pairs, best))
    model.cp.minimize(_spread(model))
    best = budget.solve(model, seconds, RunSettings(presolve=True, relax=1))[1] or best
    return answer, best if fits(problem, ii, best) else None


def _crossing(pairs: set[tuple[int, int]], found: Assignment) -> int:
    return sum(found.apart(a, b) for a, b in pairs)


def _spread(model: IntervalModel) -> Any:
    """Starts, and twice the live ranges: a producer is delayed for them."""
    longest = model.ii * (model.stages + model.distances + 2)
    spread: list[Any] = [model.start[i] for i in model.ops]
    for producer, uses in model.problem.rings.items():
        live = model.cp.new_int_var(0, longest, "")
        for use in uses:
            model.cp.add(live >= model.start[use.consumer] + model.ii * use.distance - model.start[producer])
        spread += [live, live]
    return sum(spread)


def makespan(problem: Problem, found: Assignment) -> int:
    """Cycles from the first start of an iteration to its last result."""
    ends = (start + op.latency for start, op in zip(found.starts, problem.ops, strict=True))
    return max(ends) - min(found.starts)


def shorten_makespan(problem: Problem, ii: int, known: Assignment, budget: WorkBudget) -> Assignment:
    """A schedule of ``ii`` whose makespan is no longer than that of ``known``: its order in the earliest starts, then,
    in loops that are not large, whatever the whole model finds in the work that is left."""
    best = known
    arcs = order_arcs(problem, ii, known)
    starts = None if arcs is None else earliest(len(problem.ops), arcs, ii, problem.deadline)
    if starts is not None:
        early = Assignment(starts, known.partitions)
        if makespan(problem, early) < makespan(problem, best) and fits(problem, ii, early):
            best = early
    if len(problem.ops) > problem.options.search.driver.large_loop_operations or budget.left <= 0:
        return best
    memory: MemoryModel = "shared" if layout(problem, ii, best).reuses else "apart"
    model = IntervalModel(problem, ii, memory=memory, branching="free")
    longest = ii * (model.stages + 2) + max(op.latency for op in problem.ops)
    first, last = (model.cp.new_int_var(0, longest, "") for _ in range(2))
    for i in model.ops:
        model.cp.add(first <= model.start[i])
        model.cp.add(last >= model.start[i] + problem.ops[i].latency)
    model.cp.add(last - first <= makespan(problem, best))
    model.cp.minimize(last - first)
    model.begin_with(best)
    found = budget.solve(model, budget.left, RunSettings(presolve=True, relax=1))[1]
    better = found is not None and makespan(problem, found) < makespan(problem, best) and fits(problem, ii, found)
    return found if found is not None and better else best

"""Tie-break among a tiny loop's schedules of one interval: fewest crossings, then short lives and early starts."""

from __future__ import annotations

from typing import Any

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.cpsat.work_budget import RunSettings, WorkBudget
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import fits


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

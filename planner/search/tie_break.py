"""Of a small loop's schedules of one interval, the one to have: fewest crossings, then short lives and early starts."""

from __future__ import annotations

from typing import Any

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.search.work_budget import Effort, Way


def choose(
    problem: Problem, ii: int, effort: Effort, known: Assignment | None = None
) -> tuple[Answer, Assignment | None]:
    """Whether ``ii`` is feasible side by side in memory, and its best schedule, as far as time allows; ``known`` is
    one."""
    model = IntervalModel(problem, ii, branching="free")
    pairs = {(a.src, a.dst) for a in problem.dependences if a.src != a.dst}
    crossings = sum(model.crosses(a, b) for a, b in sorted(pairs))
    model.cp.minimize(crossings)
    if known is not None:
        model.begin_with(known)
        for (c, g), literal in model.member.items():
            if not isinstance(literal, int):
                model.cp.add_hint(literal, known.partitions[c] == g)
    answer, best = effort.solve(model, problem.options.search.driver.tie_break_seconds, Way(relax=1))
    if best is None:
        return answer, None
    model.cp.add(crossings <= sum(best.apart(a, b) for a, b in pairs))
    model.cp.minimize(_spread(model))
    best = effort.solve(model, problem.options.search.driver.tie_break_seconds, Way(presolve=True, relax=1))[1] or best
    return answer, best if fits(problem, ii, best) else None


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

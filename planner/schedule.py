"""The smallest initiation interval: which II to ask the model about, and what its answers prove.

A schedule for II is one for II + 1 too (cut the circle where the stage turns and put an idle cycle there), so
feasibility is monotone in II: the search starts at MinII, gallops up and comes down again, and the last refusal is the
proof that no smaller II exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warpplan.planner.assignment import Assignment
from warpplan.planner.bounds import Bound
from warpplan.planner.cpsat import Answer, run, spent
from warpplan.planner.model import Model
from warpplan.planner.problem import Problem
from warpplan.planner.retime import retime

Progress = Callable[[int, int, int | None], None]
"""Told (interval asked about, proven bound, best interval found or None)."""
POLISH_SECONDS = 2.0
"""Most of the time limit that may go into choosing among schedules of the final interval."""
SMALL = 8
"""Operations up to which a loop takes milliseconds, so that preparing the search costs more than searching."""


@dataclass(frozen=True)
class Search:
    """``bound`` is proven; where ``ii_cycles`` equals it, it is optimal. ``binding`` says what is in the way."""

    ii_cycles: int
    bound: int
    best: Assignment | None
    binding: str
    infeasible: bool
    seconds: float


def search(problem: Problem, bound: Bound, progress: Progress | None = None) -> Search:
    """The smallest initiation interval, its proof or the best bound that the time limit allowed."""
    attempt = _Run(problem)
    proven, enough = bound.ii_cycles, max(bound.ii_cycles, _serial_ii(problem))
    if attempt.small:
        # Mostly MinII is feasible: ask for its best schedule at once.
        answer, best = attempt.polish(proven)
        if best is not None:
            return Search(proven, proven, best, bound.binding, False, attempt.seconds)
        proven += answer == "no"
    step = max(1, proven // 8)
    candidate = proven if proven == bound.ii_cycles else min(proven + step, enough)
    while True:
        answer, best = attempt.decide(candidate, share=0.5)
        if answer == "no":
            proven = candidate + 1
        if best is not None:
            return _descend(attempt, bound, *retime(problem, candidate, best), proven)
        if candidate >= enough:
            binding = _what_binds(attempt, candidate) if answer == "no" else "the time limit"
            return Search(0, proven, None, binding, answer == "no", attempt.seconds)
        candidate, step = min(candidate + step, enough), 2 * step


def _descend(attempt: _Run, bound: Bound, found: int, best: Assignment, proven: int) -> Search:
    """From a schedule down to the smallest interval.

    A re-timed order is often the best one, so the first questions are just below it; then halves. A refusal raises
    what is proven; where the time limit ends one, look higher, unproven.
    """
    floor, shortcuts = proven, 4
    while floor < found:
        middle = found - 1 if shortcuts > 0 else (floor + found - 1) // 2
        answer, better = attempt.decide(middle, share=0.5)
        if better is not None:
            found, best = retime(attempt.problem, middle, better)
            shortcuts -= 1
        else:
            floor = middle + 1
            proven = floor if answer == "no" else proven
    if proven < found:
        binding = "the time limit"
    elif found == bound.ii_cycles:
        binding = bound.binding
    else:
        binding = f"exhaustive search: no schedule fits {found - 1} cycles"
    return Search(found, proven, attempt.polish(found, best)[1] or best, binding, False, attempt.seconds)


def _serial_ii(problem: Problem) -> int:
    """An interval at which one iteration can end before the next begins: if even that fails, every interval does."""
    slowest = [0] * len(problem.ops)
    rings = [a for p in (*problem.rings, *problem.crossings) for a in problem.ring_arcs(1, p)]
    for arc in (*problem.dependences, *rings):
        slowest[arc.src] = max(slowest[arc.src], arc.cycles + arc.handoff)
    cost, handoff = problem.graph.limits.barrier_cycles, problem.graph.limits.handoff_cycles
    edges = 4 * len(problem.graph.edges)
    return (
        1
        + cost * edges
        + sum(
            max(slow, op.latency, op.occupancy, op.issue) + handoff + 1
            for slow, op in zip(slowest, problem.ops, strict=True)
        )
    )


def _what_binds(attempt: _Run, ii: int) -> str:
    """Which limit, taken away alone, would make the problem solvable."""
    answers = {name: attempt.decide(ii, share=0.5, without=name)[0] for name in ("shared memory", "registers")}
    found = [name for name, answer in answers.items() if answer == "yes"]
    if "unknown" in answers.values() and not found:
        return "shared memory or registers (the time limit came before saying which)"
    return found[0] if found else "shared memory and registers together"


class _Run:
    """The decisions of one search, and what is left of its time."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.left = problem.options.time_limit_s
        self.small = len(problem.graph.ops) <= SMALL
        self.seconds = 0.0

    def decide(self, ii: int, *, share: float, without: str = "") -> tuple[Answer, Assignment | None]:
        """Whether ``ii`` is feasible. Large loops decide faster by propagation alone than with linear relaxations."""
        return self._solve(Model(self.problem, ii, without), self.left * share, relax=self.small)

    def polish(self, ii: int, best: Assignment | None = None) -> tuple[Answer, Assignment | None]:
        """Among the schedules of ``ii``: fewest crossings, then short live ranges and early starts."""
        model = Model(self.problem, ii)
        model.prefer(best)
        return self._solve(model, min(self.left, POLISH_SECONDS), relax=True)

    def _solve(self, model: Model, seconds: float, *, relax: bool) -> tuple[Answer, Assignment | None]:
        if seconds <= 0:
            return "unknown", None
        # Presolve costs more than a small loop's whole search.
        answer, solver = run(model.cp, seconds, presolve=not self.small, relax=relax)
        self.seconds += solver.wall_time
        self.left -= spent(solver)
        return answer, model.read(solver) if answer == "yes" else None

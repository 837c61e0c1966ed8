"""What a search knows: the proven lower bound, the incumbent, and the feasibility queries that change either.

A schedule for II is one for II + 1 too (cut the circle where the stage changes and put an idle cycle there), so
feasibility is monotone in II: a schedule bounds the optimum from above, a proof of infeasibility from below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warpplan.planner.bounds.min_ii import Bound
from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.cpsat.sharing_constraints import NoGoodCut
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.errors import InvalidPlan
from warpplan.planner.packing.ring_layout import fits_side_by_side, layout
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.attempts import Attempt, AttemptOutcome
from warpplan.planner.search.core_feasibility import decide, exact
from warpplan.planner.search.feasibility_query import FeasibilityQuery
from warpplan.planner.search.heuristics.retiming import retime
from warpplan.planner.search.speculation import Speculation

Progress = Callable[[int, int, int | None], None]
"""Told (interval queried, proven bound, best interval found or None)."""


@dataclass(frozen=True)
class SearchResult:
    """``bound`` is proven; where ``ii_cycles`` equals it, it is optimal. ``binding`` names the binding constraint;
    ``seconds`` are CP-SAT's, by its clock."""

    ii_cycles: int
    bound: int
    best: Assignment | None
    binding: str
    infeasible: bool
    seconds: float


class SearchState:
    """One search: ``proven`` (no smaller interval is feasible), the incumbent ``best`` of interval ``ii``, and what is
    left of the work budget."""

    best: Assignment | None

    def __init__(
        self,
        problem: Problem,
        bound: Bound,
        speculation: Speculation[AttemptOutcome],
        progress: Progress | None,
        budget: WorkBudget | None = None,
    ) -> None:
        self.problem, self.speculation, self.progress = problem, speculation, progress
        self.proven, self.ii, self.best = bound.ii_cycles, 0, None
        self.search, self.params = problem.options.search, problem.options.search.driver
        self.small_loop = len(problem.ops) <= self.search.attempts.small_loop_operations
        self.budget = budget or WorkBudget(problem.options.work_limit_s, problem.deadline)
        self.exact = self.search.core_feasibility and exact(problem)
        """Whether the core decides the whole problem: every answer is a proof."""
        self.queries: dict[int, FeasibilityQuery] = {}
        self.cuts: dict[NoGoodCut, None] = {}
        """The no-good cuts of all queries, in the order in which they were found: they hold at every interval."""
        self.heuristic_limit = 0
        """Below it no interval was found to have a schedule in the stage window: a heuristic lower limit, no proof."""

    @property
    def out_of_work(self) -> bool:
        """Whether the work limit, or the share of the round, is spent."""
        return self.budget.left <= 0 or self.budget.round_left <= self.params.least_seconds

    @property
    def settled(self) -> bool:
        """Whether the incumbent is proven optimal."""
        return self.best is not None and self.proven >= self.ii

    # What is known

    def record_schedule(self, ii: int, schedule: Assignment) -> None:
        """``schedule``, re-timed, becomes the incumbent if it is shorter. Raises :class:`InvalidPlan` where it is
        shorter than what was proven."""
        if not self.exact and self.search.retiming:  # On the core, the next query takes less time than that.
            ii, schedule = retime(self.problem, ii, schedule)
        if ii < self.proven:
            raise InvalidPlan(f"{ii} cycles are feasible, and {self.proven} were proven to be needed: a bug")
        if self.best is None or ii < self.ii:
            self.ii, self.best = ii, schedule
            self._tell(ii)

    def record_infeasible(self, ii: int) -> None:
        """``ii`` is proven infeasible."""
        self.proven = max(self.proven, ii + 1)
        self._tell(ii)

    def _tell(self, ii: int) -> None:
        if self.progress is not None:
            self.progress(ii, self.proven, None if self.best is None else self.ii)

    def result(self, bound: Bound) -> SearchResult:
        """The incumbent; ``bound`` was the first one, with what binds it."""
        if self.best is None:
            return SearchResult(0, self.proven, None, "the time limit binds", False, self.budget.wall)
        if self.proven < self.ii:
            binding = "the time limit"
        elif self.ii == bound.ii_cycles:
            binding = bound.binding
        else:
            binding = f"exhaustive search: no schedule fits {self.ii - 1} cycles"
        return SearchResult(self.ii, self.proven, self.best, binding, False, self.budget.wall)

    # Feasibility queries

    def find_schedule(self, ii: int, seconds: float, then: Attempt | None = None) -> Answer:
        """Whether a schedule of ``ii`` is found in the stage window; "no" proves nothing. ``then``: the attempt that is
        likely to be next."""
        if self.exact:
            return self.prove_infeasible(ii, seconds)
        if self.out_of_work:
            return "unknown"
        reuse = self.reuses_memory()
        query = self.query(ii)
        answer, schedule = query.find_schedule(seconds, reuse=reuse, then=then)
        if schedule is not None:
            self.record_schedule(ii, schedule)
        elif answer == "no" and query.small_loop:
            self.record_infeasible(ii)
        elif answer == "no":
            self.heuristic_limit = max(self.heuristic_limit, ii + 1)
        return answer

    def find_side_by_side(self, ii: int) -> Answer:
        """Whether a schedule of ``ii`` whose rings lie side by side is found in the stage window by one attempt; "no"
        proves nothing."""
        answer, schedule = self.query(ii).find_side_by_side(self.params.attempt_seconds)
        if schedule is not None:
            self.record_schedule(ii, schedule)
        return answer

    def prove_infeasible(self, ii: int, seconds: float, then: Attempt | None = None) -> Answer:
        """Whether ``ii`` is feasible: "no" is a proof. ``then``: the attempt that is likely to be next."""
        answer, schedule = self._decide(ii, seconds, then)
        if answer == "no":
            self.record_infeasible(ii)
        elif schedule is not None:
            self.record_schedule(ii, schedule)
        return answer

    def _decide(self, ii: int, seconds: float, then: Attempt | None) -> tuple[Answer, Assignment | None]:
        if self.exact:
            available = self.budget.available
            seconds = min(self.params.exact_factor * seconds, available)
            last = seconds >= self.budget.left
            verdict = decide(self.problem, ii, seconds)
            self.budget.take(verdict.seconds)
            if last and verdict.answer == "unknown":
                self.budget.left = 0.0
            return verdict.answer, verdict.best
        if self.out_of_work:
            return "unknown", None
        return self.query(ii).prove_infeasible(seconds, then=then)

    def likely_next(self, ii: int, seconds: float | None = None, *, proof: bool = False) -> Attempt | None:
        """The attempt that is likely to be next where the one before finds nothing."""
        if self.exact:
            return None
        seconds = self.params.attempt_seconds if seconds is None else seconds
        return self.query(ii).proof_attempt(seconds) if proof else self.query(ii).first_attempt(seconds)

    def query(self, ii: int) -> FeasibilityQuery:
        """The query about ``ii``, with what was learnt of it."""
        if ii not in self.queries:
            for query in self.queries.values():
                self.cuts.update(dict.fromkeys(query.cuts))
            self.queries = {known: query for known, query in self.queries.items() if known >= self.proven}
            self.queries[ii] = FeasibilityQuery(self.problem, ii, self.budget, self.speculation, tuple(self.cuts))
        return self.queries[ii]

    def reuses_memory(self) -> bool:
        """Whether schedules with rings in one another's place are searched: where the incumbent has such, or there is
        too little memory for all rings side by side. Otherwise a proof finds them."""
        if self.best is None:
            return not fits_side_by_side(self.problem)
        return layout(self.problem, self.ii, self.best).reuses != ()

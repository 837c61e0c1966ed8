"""Windowed CP-SAT attempts: is there a schedule at this II? One query, in two forms.

:meth:`FeasibilityQuery.find_schedule` searches schedules whose operations are a few stages from one another, as good
ones mostly are: the models are small, and a schedule is found soon or there is none in the window, which proves nothing
about the interval. Its rounds alternate between all schedules of the window, the same with registers left out, and
restrictions (see :mod:`~warpplan.planner.search.restrictions`). :meth:`FeasibilityQuery.prove_infeasible` searches all
schedules, with dominance cuts: its "no" is a proof. While one attempt is waited for, the one that is likely to be next
begins in a second thread (see :mod:`~warpplan.planner.search.speculation`). The arrangement is ours; it was tuned on
the loop bodies of ``benchmarks/loop_graphs.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, cycle, islice, zip_longest
from threading import Lock

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer, SearchSeed
from warpplan.planner.cpsat.sharing_constraints import NoGoodCut
from warpplan.planner.cpsat.work_budget import RunSettings, WorkBudget
from warpplan.planner.packing.ring_layout import Layout, fits_side_by_side
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.ring_sharing import worth_sharing
from warpplan.planner.search.attempts import Attempt, AttemptOutcome, Build, Restriction
from warpplan.planner.search.heuristics.partition_relaxation import relaxed_partitions
from warpplan.planner.search.neighbourhoods import Neighbourhood
from warpplan.planner.search.portfolio import RANDOM_ORDER
from warpplan.planner.search.restrictions import (
    in_lockstep,
    layout_kept,
    one_partition_per_clone,
    partitions_kept,
    register_free_model,
    window_model,
)
from warpplan.planner.search.speculation import Speculation
from warpplan.planner.values.search_params import MemoryModel

WHOLE = RunSettings(seed=SearchSeed(rule="proof"))
"""For all schedules."""


class FeasibilityQuery:
    """Is ``ii`` feasible? What was learnt stays between rounds: infeasible restrictions, no-good cuts, built models."""

    def __init__(
        self,
        problem: Problem,
        ii: int,
        budget: WorkBudget,
        speculation: Speculation[AttemptOutcome],
        cuts: tuple[NoGoodCut, ...] = (),
    ) -> None:
        """``cuts`` are known from other intervals."""
        self.problem, self.ii, self.budget, self.speculation = problem, ii, budget, speculation
        self.search, self.params = problem.options.search, problem.options.search.attempts
        self.sharing = worth_sharing(problem, ii)
        self.cuts = cuts
        self.infeasible: set[MemoryModel] = set()
        """Memory models for which no schedule lies in the stage window."""
        self.restrictions = self._restrictions()
        self._relaxed = relaxed_partitions(problem, ii)
        self._relaxed_found, self._relaxing = list[tuple[int, ...]](), Lock()
        self.open: list[Restriction] = []
        self.attempts: dict[Restriction, int] = {}
        """Attempts that each restriction has had."""
        self.proof_seconds = 0.0
        """Seconds for which :meth:`prove_infeasible` has searched to no avail."""
        self.small_loop = len(problem.ops) <= self.params.small_loop_operations
        self.all = Restriction(self._all, "shared")

    # Schedules in the stage window

    def find_schedule(
        self, seconds: float, enough: float = 0.0, *, reuse: bool = True, then: Attempt | None = None
    ) -> tuple[Answer, Assignment | None]:
        """One round: what was left open in the rounds before and new restrictions, ``seconds`` for each, until no more
        than ``enough`` of the round's share is left. Without ``reuse``, no ring lies in another's place. ``then``: the
        attempt that is likely to be next where nothing is found."""
        if self.small_loop:
            return self.prove_infeasible(self.params.small_loop_factor * seconds, then=then)
        if self._window_is_empty(reuse):
            return "no", None
        round_ = self._round()
        for restriction, following in zip_longest(round_, round_[1:]):
            if self.budget.round_left <= enough or self.budget.left <= 0:
                break
            if restriction not in self.open:
                continue
            # Where rings share bytes, all of the window is mostly infeasible at once.
            if following is None or (restriction.whole and restriction.memory == "shared"):
                following, after = round_[0], then
            else:
                after = None
            after = after or self._attempt(following, seconds, later=following is restriction)
            outcome = self._make(self._attempt(restriction, seconds), after)
            self.attempts[restriction] = self.attempts.get(restriction, 0) + 1
            if outcome.found is not None:
                return "yes", outcome.found
            if outcome.answer == "no" or self.attempts[restriction] == restriction.most_attempts:
                self.open.remove(restriction)
            if outcome.answer == "no" and restriction.covers_window:
                self.infeasible.add(restriction.memory)
                self.open = [other for other in self.open if other.memory != restriction.memory]
            if self._window_is_empty(reuse):
                return "no", None
        return "unknown", None

    def find_side_by_side(self, seconds: float) -> tuple[Answer, Assignment | None]:
        """One attempt at all schedules in the stage window whose rings lie side by side."""
        if "apart" in self.infeasible:
            return "no", None
        outcome = self._make(self._attempt(self._window("apart"), seconds))
        if outcome.answer == "no":
            self.infeasible.add("apart")
        return outcome.answer, outcome.found

    def _round(self) -> list[Restriction]:
        """What to attempt next: what was left open and new restrictions, with all of the window between; where there
        are no clones, all of the window first."""
        new = (restriction for restriction in self.restrictions if restriction.memory not in self.infeasible)
        self.open = [*islice(new, self.params.new_restrictions), *self.open]
        whole = next((one for one in reversed(self.open) if one.whole), None)
        if whole is None:
            return list(self.open)
        register_free = next((one for one in self.open if one.register_free), None)
        broad = [whole] if register_free is None else [whole, register_free]
        others = [one for one in self.open if one not in broad]
        if not others or not (self.attempts or self.problem.clone_order):
            return list(islice(cycle(broad), self.params.unrestricted_attempts))
        round_ = broad if self.open[0] in broad else [others.pop(0), whole]
        for other in others:
            first_of_few = other.most_attempts and other not in self.attempts
            round_ = [*round_, other] if first_of_few else [*round_, other, *broad]
        return round_

    def _window_is_empty(self, reuse: bool) -> bool:
        return "shared" in self.infeasible or (bool(self.infeasible) and not (self.sharing and reuse))

    def keep_partitions(
        self, known: Assignment, seconds: float, *, placed: Layout | None, then: Attempt | None = None
    ) -> Assignment | None:
        """A schedule in the stage window with the partitions of ``known``: with rings side by side or, where ``placed``
        is given, in one another's place as they are there."""
        if placed is None:
            restriction = Restriction(partial(partitions_kept, self.problem, self.ii, known.partitions), "apart")
        elif self.search.layouts_kept:
            restriction = Restriction(partial(layout_kept, self.problem, self.ii, known, placed), "free")
        else:
            restriction = Restriction(partial(partitions_kept, self.problem, self.ii, known.partitions), "shared")
        return self._make(self._attempt(restriction, seconds), then).found

    def attempt_neighbourhood(
        self, drawn: Neighbourhood, seconds: float, *, reuse: bool
    ) -> tuple[Answer, Assignment | None]:
        """Whether a schedule lies in a neighbourhood of the incumbent; "no" proves nothing beyond it."""
        memory: MemoryModel = ("free" if drawn.layout_kept else "shared") if reuse else "apart"
        restriction = Restriction(drawn.build, memory)
        settings = RunSettings(seed=SearchSeed(drawn.seed, drawn.rule))
        attempt = self._attempt_with(restriction, settings, seconds)
        outcome = self._make(attempt)
        return outcome.answer, outcome.found

    # All schedules

    def prove_infeasible(self, seconds: float, *, then: Attempt | None = None) -> tuple[Answer, Assignment | None]:
        """Whether there is a schedule at all. Rings may lie in one another's place, even where none could: that
        relaxation is mostly proven infeasible sooner."""
        seconds = min(seconds, self.budget.round_left)
        if seconds <= self.proof_seconds:
            return "unknown", None
        self.proof_seconds = seconds
        outcome = self._make(self._attempt_with(self.all, WHOLE, seconds), then)
        return outcome.answer, outcome.found

    # Attempts

    def first_attempt(self, seconds: float) -> Attempt | None:
        """What :meth:`find_schedule` begins with where nothing was attempted before."""
        if self.small_loop:
            return self.proof_attempt(self.params.small_loop_factor * seconds)
        if self.open or self.attempts:
            return None
        restriction = next(self.restrictions, None)
        if restriction is None:
            return None
        self.restrictions = chain((restriction,), self.restrictions)
        return self._attempt(restriction, seconds)

    def proof_attempt(self, seconds: float) -> Attempt | None:
        """What :meth:`prove_infeasible` begins with."""
        seconds = min(seconds, self.budget.round_left)
        return self._attempt_with(self.all, WHOLE, seconds) if seconds > self.proof_seconds else None

    def _attempt(self, restriction: Restriction, seconds: float, *, later: bool = False) -> Attempt:
        """The next attempt at ``restriction``, or the one ``later``."""
        large = restriction.whole and restriction.memory == "shared"
        attempt = self.attempts.get(restriction, 0) + later
        seed = restriction.portfolio.slot(attempt, randomised=self.search.randomised_branching)
        factor = self.params.shared_memory_factor if large else 1.0
        return self._attempt_with(restriction, RunSettings(seed=seed), factor * seconds)

    def _attempt_with(self, restriction: Restriction, settings: RunSettings, seconds: float) -> Attempt:
        cuts = self.cuts if restriction.memory == "shared" else ()
        return Attempt(self.problem, self.ii, restriction, settings, min(seconds, self.budget.available), cuts)

    def _make(self, attempt: Attempt, then: Attempt | None = None) -> AttemptOutcome:
        last = attempt.seconds >= self.budget.left
        outcome = self.speculation.result(attempt, attempt.run, None if then is None else (then, then.run))
        self.budget.take(outcome.seconds, outcome.wall)
        if last and outcome.answer == "unknown":
            self.budget.left = 0.0  # A longer limit would have let the attempt go on: nothing may follow it here.
        attempt.restriction.known = outcome.known
        if outcome.known is not None and attempt.restriction.memory == "shared":
            self.cuts = outcome.known.cuts
        return outcome

    # Restrictions, in the order of promise, each made when its round comes

    def _restrictions(self) -> Iterator[Restriction]:
        undecided = len(self.problem.pins) < len(self.problem.clusters)
        if fits_side_by_side(self.problem):
            partitions = one_partition_per_clone(self.problem)
            if partitions is not None and self.search.clones_in_lockstep:
                yield self._lockstep(partial(partitions_kept, self.problem, self.ii, partitions), "apart")
            yield self._window("apart")
            if undecided and self.search.register_relaxation:
                yield self.without_registers()
        else:
            self.infeasible.add("apart")
        memory: MemoryModel = "shared" if "apart" in self.infeasible else "apart"
        if memory == "shared":
            yield self._window("shared")
        if undecided:
            yield from self._narrow(memory)
        yield from self._narrow_windows(memory)
        if memory == "apart" and self.sharing:
            yield self._window("shared")

    def _window(self, memory: MemoryModel) -> Restriction:
        build = partial(window_model, self.problem, self.ii)
        return Restriction(build, memory, whole=True, covers_window=True, portfolio=RANDOM_ORDER)

    def _narrow_windows(self, memory: MemoryModel) -> Iterator[Restriction]:
        """Schedules of few stages are found sooner among their like."""
        for reach in self.params.narrow_windows if self.search.stage_window else ():
            build = partial(window_model, self.problem, self.ii, reach=reach)
            yield Restriction(build, memory, portfolio=RANDOM_ORDER)

    def without_registers(self) -> Restriction:
        """Mostly registers suffice, or do with the same partitions; they are most of a model."""
        build = partial(register_free_model, self.problem, self.ii)
        return Restriction(build, "apart", register_free=True, covers_window=True, portfolio=RANDOM_ORDER)

    def _narrow(self, memory: MemoryModel) -> Iterator[Restriction]:
        clones = bool(self.problem.clone_order) and self.search.clones_in_lockstep
        if clones:
            yield self._lockstep(partial(window_model, self.problem, self.ii), memory)
        if not self.search.partition_relaxation:
            return
        for at in range(len(self.params.relaxation_levels)):
            build = partial(self._with_relaxed_partitions, at)
            if clones:
                yield self._lockstep(build, memory)
            yield Restriction(build, memory)

    def _lockstep(self, build: Build, memory: MemoryModel) -> Restriction:
        return Restriction(in_lockstep(build), memory, most_attempts=self.params.lockstep_attempts)

    def _with_relaxed_partitions(self, at: int, memory: MemoryModel) -> IntervalModel | None:
        """With the partitions of a relaxation, computed when they are asked for."""
        with self._relaxing:
            while len(self._relaxed_found) <= at:
                partitions = next(self._relaxed, None)
                if partitions is None:
                    return None
                self._relaxed_found.append(partitions)
        return partitions_kept(self.problem, self.ii, self._relaxed_found[at], memory)

    def _all(self, memory: MemoryModel) -> IntervalModel:
        return IntervalModel(self.problem, self.ii, memory=memory, tight=True, compact=True, branching="median")

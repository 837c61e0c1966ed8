"""One attempt: CP-SAT on one model of one interval, with the no-good cuts of ring layouts that cannot be packed.

Where rings may share bytes, the model is a relaxation of rule 7: a solution's layout is packed afterwards. If that is
infeasible, the rings in conflict become a no-good cut and the model is solved again (logic-based Benders decomposition,
Hooker and Ottosson, Mathematical Programming 96, 2003; the packing is the subproblem).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer, Stop
from warpplan.planner.cpsat.sharing_constraints import NoGoodCut, no_good_cut
from warpplan.planner.cpsat.work_budget import RunSettings, solve_model
from warpplan.planner.packing.ring_layout import layout
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.search.portfolio import MIXED, REPAIR, Portfolio
from warpplan.planner.search.restrictions import partitions_kept
from warpplan.planner.values.search_params import MemoryModel

Build = Callable[[MemoryModel], IntervalModel | None]


@dataclass(eq=False)
class Restriction:
    """A set of schedules to search: all in the stage window (``whole``), these without registers (``register_free``),
    some of them, or all there are. Its attempts follow one portfolio."""

    build: Build
    """The model, without no-good cuts; None where there is no such restriction after all."""
    memory: MemoryModel
    whole: bool = False
    register_free: bool = False
    """Registers are left out: where they do not suffice, the partitions found are tried once more, with them."""
    covers_window: bool = False
    """If this model is infeasible, every schedule in the stage window is infeasible for this memory model."""
    portfolio: Portfolio = MIXED
    most_attempts: int | None = None
    """Attempts after which it is given up."""
    known: KnownModel | None = None


@dataclass(frozen=True)
class KnownModel:
    """A restriction's model, and the no-good cuts that are in it."""

    model: IntervalModel
    cuts: tuple[NoGoodCut, ...]


@dataclass(frozen=True)
class AttemptOutcome:
    """What an attempt came to, what it took of the budget, and the model that the next one need not build again."""

    answer: Answer
    found: Assignment | None
    seconds: float
    wall: float
    known: KnownModel | None


@dataclass(frozen=True)
class Attempt:
    """One attempt at ``restriction``: all that its outcome depends on, so that a second thread may make it earlier."""

    problem: Problem
    ii: int
    restriction: Restriction
    settings: RunSettings
    seconds: float
    cuts: tuple[NoGoodCut, ...]

    def run(self, stop: Stop) -> AttemptOutcome:
        """A schedule that obeys every rule, a proof that the restriction has none, or neither."""
        problem, ii, params = self.problem, self.ii, self.problem.options.search
        known = self.restriction.known
        own = known is None or known.cuts != self.cuts
        if own:
            known = self._built(self.cuts)
        taken = wall = 0.0
        while known is not None and not stop.called:
            outcome = solve_model(known.model, self.seconds - taken, self.settings, stop)
            answer, found = outcome.answer, outcome.found
            taken, wall = taken + outcome.seconds, wall + outcome.wall
            if self.restriction.register_free and found is not None and not fits(problem, ii, found):
                model = partitions_kept(problem, ii, found.partitions, self.restriction.memory)
                again = solve_model(model, self.seconds - taken, RunSettings(seed=REPAIR), stop)
                answer, found = "unknown" if again.found is None else "yes", again.found
                taken, wall = taken + again.seconds, wall + again.wall
            if found is None or fits(problem, ii, found):
                return AttemptOutcome(answer, found, taken, wall, known)
            placed = layout(problem, ii, found)
            if placed.fits or placed.unknown or self.restriction.memory != "shared" or not params.no_good_cuts:
                break
            cut = no_good_cut(problem, ii, found, placed.refused)
            if own:
                known.model.forbid(cut)
                known = KnownModel(known.model, (*known.cuts, cut))
            else:  # Another attempt may be running on that model.
                known, own = self._built((*known.cuts, cut)), True
            if known is not None and params.hints:
                known.model.begin_with(found)  # Mostly little has to change for one cut.
        return AttemptOutcome("no" if known is None else "unknown", None, taken, wall, known)

    def _built(self, cuts: tuple[NoGoodCut, ...]) -> KnownModel | None:
        model = self.restriction.build(self.restriction.memory)
        if model is None:
            return None
        for cut in cuts:
            model.forbid(cut)
        return KnownModel(model, cuts)

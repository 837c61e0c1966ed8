"""The work budget: a limit in deterministic time and model size, not by the clock: every machine answers alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import PROOF_SEED, Answer, SearchSeed, Stop, run, spent
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.values.deadline import NO_DEADLINE, Deadline


@dataclass(frozen=True)
class RunSettings:
    """How CP-SAT is run. Without presolve, propagation alone decides most models in less time than presolve takes;
    ``relax`` is how much linear relaxations see, 0 to 2."""

    presolve: bool = False
    relax: int = 0
    seed: SearchSeed = PROOF_SEED


PROPAGATION = RunSettings()


@dataclass(frozen=True)
class RunOutcome:
    """What a run came to: ``seconds`` of a slow core, ``wall`` by CP-SAT's clock."""

    answer: Answer = "unknown"
    found: Assignment | None = None
    seconds: float = 0.0
    wall: float = 0.0


def solve_model(model: IntervalModel, seconds: float, settings: RunSettings, stop: Stop | None = None) -> RunOutcome:
    """Whether ``model`` has a solution, and one, within ``seconds``."""
    if seconds <= 0:
        return RunOutcome()
    params = model.problem.options.search.cpsat
    answer, solver = run(
        model.cp, seconds, presolve=settings.presolve, relax=settings.relax, small=True, seed=settings.seed,
        rate=params.interval_model_rate, stop=stop, params=params,
        deadline=model.problem.deadline,
    )  # fmt: skip
    each = params.seconds_per_constraint + (params.presolve_seconds_per_constraint if settings.presolve else 0.0)
    taken = spent(solver, params.interval_model_rate) + each * len(model.cp.proto.constraints)
    return RunOutcome(answer, model.read(solver) if answer == "yes" else None, taken, solver.wall_time)


@dataclass
class WorkBudget:
    """``left`` of the work limit, in seconds of a slow core; ``wall`` is what CP-SAT has taken by its clock.

    ``round_left`` is left of the share that :meth:`share` gave to what is under way. The search goes by that, never by
    ``left``, which only ends it: so a search with a longer limit begins with exactly the steps of a shorter one.
    """

    left: float
    deadline: Deadline = NO_DEADLINE
    wall: float = 0.0
    round_left: float = inf

    @property
    def available(self) -> float:
        """Seconds that one run may take at most."""
        return min(self.left, self.round_left)

    @contextmanager
    def share(self, seconds: float) -> Iterator[None]:
        """Inside, ``round_left`` begins at ``seconds``, or at what was left of the share around it."""
        around, given = self.round_left, min(seconds, self.round_left)
        self.round_left = given
        try:
            yield
        finally:
            self.round_left = around - (given - self.round_left)

    def take(self, seconds: float, wall: float = 0.0) -> None:
        """Counts work done. Raises :class:`~warpplan.planner.values.deadline.DeadlineReached` where it is too late to
        do more."""
        self.deadline.check()
        self.left -= seconds
        self.round_left -= seconds
        self.wall += wall

    def solve(
        self, model: IntervalModel, seconds: float, settings: RunSettings = PROPAGATION
    ) -> tuple[Answer, Assignment | None]:
        """Whether ``model`` has a solution, and one, within ``seconds`` or what is left."""
        outcome = solve_model(model, min(seconds, self.available), settings)
        self.take(outcome.seconds, outcome.wall)
        return outcome.answer, outcome.found

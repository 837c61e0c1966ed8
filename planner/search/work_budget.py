"""The time limit, kept in what the search does instead of by the clock: a slow machine gives the same answer."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer, Stop, run, spent
from warpplan.planner.problem.assignment import Assignment


@dataclass(frozen=True)
class Way:
    """How to ask CP-SAT. Without presolve, propagation alone decides most models in less time than presolve takes."""

    presolve: bool = False
    relax: int = 0
    turn: int = 0
    randomised: bool = True


@dataclass(frozen=True)
class Reply:
    """What a run came to: ``seconds`` of a slow core, ``wall`` by the clock."""

    answer: Answer = "unknown"
    found: Assignment | None = None
    seconds: float = 0.0
    wall: float = 0.0


def solved(model: IntervalModel, seconds: float, way: Way, stop: Stop | None = None) -> Reply:
    """Whether ``model`` has a solution, and one, within ``seconds``."""
    if seconds <= 0:
        return Reply()
    params = model.problem.options.search.cpsat
    answer, solver = run(
        model.cp, seconds, presolve=way.presolve, relax=way.relax, small=True, turn=way.turn, randomised=way.randomised,
        rate=params.interval_model_rate, stop=stop, params=params,
    )  # fmt: skip
    each = params.seconds_per_constraint + (params.presolve_seconds_per_constraint if way.presolve else 0.0)
    taken = spent(solver, params.interval_model_rate) + each * len(model.cp.proto.constraints)
    return Reply(answer, model.read(solver) if answer == "yes" else None, taken, solver.wall_time)


@dataclass
class Effort:
    """``left`` of the time limit, in seconds of a slow core; ``wall`` is what CP-SAT has taken by the clock."""

    left: float
    wall: float = 0.0

    def take(self, seconds: float, wall: float = 0.0) -> None:
        self.left -= seconds
        self.wall += wall

    def solve(self, model: IntervalModel, seconds: float, way: Way = Way()) -> tuple[Answer, Assignment | None]:
        """Whether ``model`` has a solution, and one, within ``seconds`` or what is left."""
        outcome = solved(model, min(seconds, self.left), way)
        self.take(outcome.seconds, outcome.wall)
        return outcome.answer, outcome.found

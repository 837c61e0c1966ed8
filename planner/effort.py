"""The time limit, kept in what the search does instead of by the clock: a slow machine gives the same answer."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.planner.assignment import Assignment
from warpplan.planner.cpsat import Answer, run, spent
from warpplan.planner.model import Model

RATE = 0.15
"""Deterministic time that a slow core gets through in one second on such models (measured: 0.25 to 0.7)."""
SECONDS_PER_CONSTRAINT = 6e-6
PRESOLVE_SECONDS_PER_CONSTRAINT = 4e-5
"""For a model to be built, and presolved, of which CP-SAT's deterministic time counts little (measured)."""


@dataclass
class Effort:
    """``left`` of the time limit, in seconds of a slow core; ``wall`` is what CP-SAT has taken by the clock."""

    left: float
    wall: float = 0.0

    def take(self, seconds: float) -> None:
        self.left -= seconds

    def solve(
        self, model: Model, seconds: float, *, presolve: bool = False, relax: int = 0, turn: int = 0
    ) -> tuple[Answer, Assignment | None]:
        """Whether ``model`` has a solution, and one, within ``seconds`` or what is left."""
        seconds = min(seconds, self.left)
        if seconds <= 0:
            return "unknown", None
        answer, solver = run(model.cp, seconds, presolve=presolve, relax=relax, probe=False, turn=turn, rate=RATE)
        self.wall += solver.wall_time
        each = SECONDS_PER_CONSTRAINT + (PRESOLVE_SECONDS_PER_CONSTRAINT if presolve else 0.0)
        self.take(spent(solver, RATE) + each * len(model.cp.proto.constraints))
        return answer, model.read(solver) if answer == "yes" else None

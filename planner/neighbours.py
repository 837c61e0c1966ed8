"""Schedules like one that is known: what a shorter one mostly shares with it is fixed, and little is left to decide.

Large neighbourhood search (Shaw, "Using constraint programming and local search methods to solve vehicle routing
problems", CP 1998). A refusal proves nothing. (Measured on the loops of benchmarks/loop_graphs.py: each way finds
schedules where the others find none.)
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from warpplan.planner.assignment import Assignment
from warpplan.planner.memory import layout
from warpplan.planner.model import Branching, Model, Places
from warpplan.planner.problem import Problem

WAYS: tuple[tuple[str, Branching], ...] = (
    ("some partitions", "median"),
    ("partitions", "median"),
    ("near stages", "median"),
    ("stages", "median"),
    ("stages", "free"),
)
"""What is fixed ("near": to the stage before or after, too), and branching."""
LOOSE = 3
"""One of so many clusters may change its partition where some are fixed."""
STEPS = (0.02, 0.0, 0.1, 0.35)
"""Shares of what is open to go down by."""


class Neighbours:
    """A new neighbourhood on each call, the same sequence in every run."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.random = Random(0)

    def target(self, proven: int, ii: int) -> int:
        return ii - 1 - int(self.random.choice(STEPS) * (ii - 1 - proven))

    def model(self, ii: int, known_ii: int, known: Assignment) -> Model:
        """For interval ``ii``, around a schedule of ``known_ii``."""
        way, branching = self.random.choice(WAYS)
        # One ring in another's place makes the model larger: only where what is known does so.
        memory: Places = "shared" if layout(self.problem, known_ii, known).reuses else "apart"
        model = Model(self._pinned(way, known), ii, memory=memory, symmetric=False)
        if "stages" in way:
            turn = known_ii * (model.stages // 2) - known.starts[model.anchor]
            room = int(way == "near stages")
            for i in model.ops:
                stage = (known.starts[i] + turn) // known_ii
                model.cp.add_linear_constraint(model.stage[i], stage - room, stage + room)
        model.branch(branching)
        return model

    def _pinned(self, way: str, known: Assignment) -> Problem:
        problem = self.problem
        if "partitions" not in way:
            return problem
        loose: set[int] = set()
        if way == "some partitions":
            loose = set(self.random.sample(problem.clusters, max(1, len(problem.clusters) // LOOSE)))
        pinned = {
            op.id: known.partitions[i]
            for i, op in enumerate(problem.graph.ops)
            if problem.cluster[i] not in loose or problem.cluster[i] in problem.pins
        }
        return Problem(problem.graph, replace(problem.options, pinned=pinned))

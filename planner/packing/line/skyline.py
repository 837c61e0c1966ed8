"""Exact depth-first packing search on a line: skyline packing with explained backjumping.

A node's packing is built upwards, section by section; :mod:`~warpplan.planner.packing.line.skyline_inference` defines
sections, floors, slack and valleys, and says what follows from a decision. The search decides in one valley what rests
on its floor, the valley with the fewest choices first.

A failure is explained by the sections that it depends on: the search jumps back to the last decision that changed one
of them (Prosser, "Hybrid algorithms for the constraint satisfaction problem", 1993), remembers what was left to place
over them, and branches first where failures are frequent (Boussemart et al., "Boosting systematic search by weighting
constraints", 2004).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.packing.line.failure_memo import FailureMemo
from warpplan.planner.packing.line.skyline_inference import DONE, SkylineInference, SkylineNode, Valley
from warpplan.planner.packing.pieces import Pieces, bits
from warpplan.planner.values.deadline import Deadline
from warpplan.planner.values.packing_params import PackingParams

RAISE = -1
"""The choice that no piece rests on the floor of the section."""


@dataclass
class SkylineFrame:
    """A node on the path: the sections that the decision into it changed, its valley, the choices left (last first),
    and the sections that its failures depend on."""

    state: SkylineNode
    changed: int
    valley: Valley
    choices: list[int]
    conflict: int


class Skyline(SkylineInference):
    """The search; nodes, failures and weights of sections are kept from run to run."""

    def __init__(
        self,
        problem: Pieces,
        first: Sequence[int],
        end: Sequence[int],
        count: int,
        deadline: Deadline,
        params: PackingParams,
    ) -> None:
        super().__init__(problem, first, end, count, deadline)
        self.offsets = [0] * len(first)
        self._params = params
        self._weight = [1.0] * count
        self._failures = FailureMemo(self.over, self.slack, params)

    def run(self, ranks: Sequence[float], nodes: float, snug: bool) -> tuple[Answer, int]:
        """The answer within ``nodes`` nodes, and how many it took; "yes" leaves ``offsets``.

        Low ranks go first; with ``snug``, among pieces that touch as many walls, and come level with as many.
        """
        root = self.root()
        if root is None:
            return "no", 0
        if not root.valleys:
            return "yes", 0
        everything = (1 << self.count) - 1
        path, taken = [self.frame(root, 0, ranks, snug)], 0
        while path:
            frame = path[-1]
            if frame.choices:
                if taken >= nodes:
                    return "unknown", taken
                self.deadline.check()
                taken += 1
                child, changed, failure = self.decide(frame, frame.choices.pop())
                if failure is None:
                    if not child.valleys:
                        return "yes", taken
                    path.append(self.frame(child, changed, ranks, snug))
                    failure = self._failures.known(path[-1].valley[:2], child.todo, child.slack)
                    if failure is None:
                        continue
                    path.pop()
                conflict = self._before(child, failure) if self._params.backjumping else everything
                if conflict & changed:
                    frame.conflict |= conflict
                    continue
            else:
                conflict = frame.conflict if self._params.backjumping else everything
                self._failures.learn(frame.valley[:2], conflict, frame.state.todo, frame.state.slack)
            # Back to the last decision that changed what the failure depends on.
            while path:
                frame = path.pop()
                conflict = self._before(frame.state, conflict)
                if conflict & frame.changed:
                    path[-1].conflict |= conflict
                    break
            else:
                return "no", taken
        return "no", taken

    def _before(self, state: SkylineNode, conflict: int) -> int:
        """The sections that a failure depends on before ``_settle`` raised some of them."""
        for section, walls in reversed(state.raises):
            if conflict >> section & 1:
                conflict |= walls
        return conflict

    def frame(self, state: SkylineNode, changed: int, ranks: Sequence[float], snug: bool) -> SkylineFrame:
        """What to decide at a node that a decision about the sections ``changed`` led to."""
        weight = self._weight
        valley = min(state.valleys, key=lambda v: (v.choices > 1 and v.choices / weight[v.section], v.floor))
        left, right, _, section, resting, raised, _ = valley
        choices: dict[tuple[int, ...], int] = {}
        for i in bits(resting):
            alike = self.first[i], self.end[i], self.sizes[i], self.steps[i], self.tops[i]
            choices.setdefault(alike, i)
        _, low, high = self.levels(state, left, right)

        def order(i: int) -> tuple[int, float]:
            if not snug:
                return 0, ranks[i]
            a, b, top = self.first[i] == left, self.end[i] == right, valley.floor + self.sizes[i]
            return -(a + b + (a and top == low) + (b and top == high)), ranks[i]

        ordered = sorted(choices.values(), key=order, reverse=True)
        if state.slack[section]:
            # How far the floor could be raised depends on all sections that what rests on it reaches.
            first, end = self.reach(state, valley.left, valley.right, section)
            conflict = (1 << end) - (1 << first) | self.walls(state, left, right)
        else:
            conflict = 1 << section | self.walls(state, left, right)
        return SkylineFrame(state, changed, valley, [RAISE, *ordered] if raised else ordered, conflict)

    def decide(self, frame: SkylineFrame, choice: int) -> tuple[SkylineNode, int, int | None]:
        """The node after ``choice``, the sections changed, and those that it fails for, if it fails."""
        old, valley = frame.state, frame.valley
        floors, slack, todo = old.floors[:], old.slack[:], old.todo
        if choice == RAISE:
            first, end = valley.section, valley.section + 1
            slack[first] -= valley.raised - valley.floor
            floors[first] = valley.raised
        else:
            first, end = self.first[choice], self.end[choice]
            self.offsets[choice] = valley.floor
            todo &= ~(1 << choice)
            top = valley.floor + self.sizes[choice]
            for s in range(first, end):
                floors[s] = top if todo & self.over[s] else DONE
        state = SkylineNode(floors, slack, todo, [v for v in old.valleys if v is not valley], [])
        failure = self.stairs(state, first, end)
        if failure is None:
            failure = self.settle(state, first, end)
        if failure is not None and self._params.section_weights:
            for s in bits(failure):
                self._weight[s] += 1
        return state, (1 << end) - (1 << first), failure

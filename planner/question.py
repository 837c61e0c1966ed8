"""One interval, asked about in several ways by turns.

Which way answers first differs by a factor of a hundred and more from loop to loop, so each gets a turn of little
effort, then one of more. A *guess* fixes what is usually right, partitions or clones in step: it finds schedules in a
small model, and its refusal proves nothing. The whole model's refusal is a proof. (Measured on the loop bodies of
benchmarks/loop_graphs.py.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from warpplan.planner.assignment import Assignment
from warpplan.planner.cpsat import Answer
from warpplan.planner.divide import divisions
from warpplan.planner.effort import Effort
from warpplan.planner.memory import layout
from warpplan.planner.model import Branching, Model, Places
from warpplan.planner.problem import Problem
from warpplan.planner.retime import fits
from warpplan.planner.sharing import Cut, cut, worth_sharing

Way = tuple[Branching, bool, int]
"""Branching, presolve, linear relaxations."""
MEDIAN: Way = ("median", False, 0)
FREE: Way = ("free", False, 0)
"""Propagation alone: it decides most models in less time than presolve would take for them."""
THOROUGH: tuple[Way, ...] = (("median", True, 0), ("free", True, 1))
"""Presolve, and linear relaxations, which see that registers or issue slots do not suffice on average."""
DIVISIONS = 3
"""Partitions guessed from a relaxation; later ones are hardly ever better."""
FEW = 14
"""Operations up to which the whole model is decided as fast as one with something guessed."""
MANY = 24
"""Operations up to which the whole model is asked before all that is guessed."""
MORE = 4
"""New guesses in each turn."""
LATE = 3
"""The turn from which the thorough ways are tried."""


class Question:
    """Is ``ii`` feasible? What was learnt stays between turns: guesses that are refused, cuts, models built."""

    def __init__(self, problem: Problem, ii: int, effort: Effort) -> None:
        self.problem, self.ii, self.effort = problem, ii, effort
        self.guesses = self._guesses()
        self.tried: list[Model] = []
        self.turns = 0
        self.models: dict[Places, Model] = {}
        self.open: list[Places] = ["shared", "apart"]
        """How rings may lie: in one another's place too, or side by side. Where the first says nothing new its model
        still is another, and often the faster."""
        self.sharing = worth_sharing(problem, ii)
        self.cuts: tuple[Cut, ...] = ()
        self.guessable = len(problem.pins) < len(problem.clusters)
        few = len(problem.ops) <= FEW
        self.quick = (FREE, MEDIAN) if few else (MEDIAN, FREE)
        """The solver's own branching finds what has many solutions, or few operations; the other refuses sooner."""

    def turn(self, seconds: float, *, likely: bool) -> tuple[Answer, Assignment | None]:
        """One more turn, of so many seconds for each way. In a large loop, guesses come first where a schedule is
        ``likely``."""
        self.turns += 1
        guess_first = likely and len(self.problem.ops) > FEW and self.guessable
        if guess_first and (found := self._guess(seconds)) is not None:
            return "yes", found
        if guess_first and self.turns < LATE and (len(self.problem.ops) > MANY or self.turns > 1):
            return "unknown", None
        answer, found = self._decide_whole(seconds, self.quick if self.turns < LATE else (*self.quick, *THOROUGH))
        if answer == "unknown" and not guess_first and (found := self._guess(seconds)) is not None:
            return "yes", found
        return answer, found

    def refute(self, seconds: float) -> tuple[Answer, Assignment | None]:
        """No turn, but the way that mostly refuses soonest."""
        return self._decide("shared", MEDIAN, seconds)

    def _guess(self, seconds: float) -> Assignment | None:
        """What was left open in the turns before, then new guesses; one way for all of them before the next."""
        new = islice(self.guesses, MORE)
        for branching, presolve, relax in (MEDIAN, FREE):
            guesses, self.tried = chain(self.tried, new), []
            for guess in guesses:
                guess.branch(branching)
                answer, found = self.effort.solve(guess, seconds, presolve=presolve, relax=relax)
                if found is not None and fits(self.problem, self.ii, found):
                    return found
                if answer == "unknown":
                    self.tried.append(guess)
        return None

    def _guesses(self) -> Iterator[Model]:
        """Models with less to decide, built when their turn comes."""
        problem, ii = self.problem, self.ii
        if not self.guessable:
            return
        for partitions in _by_clone(problem):
            model = self._pinned(partitions)
            model.in_step(evenly=True)
            yield model
        likeliest = divisions(problem, ii)
        for partitions in islice(likeliest, 1):
            yield self._pinned(partitions)
        if problem.clone_order:
            yield self._in_step(evenly=True)
        for partitions in islice(likeliest, DIVISIONS - 1):
            yield self._pinned(partitions)
        if problem.clone_order:
            yield self._in_step(evenly=False)

    def _in_step(self, *, evenly: bool) -> Model:
        model = Model(self.problem, self.ii, memory=self.open[-1])
        model.in_step(evenly=evenly)
        return model

    def _pinned(self, partitions: Sequence[int]) -> Model:
        pinned = {op.id: g for op, g in zip(self.problem.graph.ops, partitions, strict=True)}
        options = replace(self.problem.options, pinned=pinned)
        return Model(Problem(self.problem.graph, options), self.ii, memory=self.open[-1])

    def _decide_whole(self, seconds: float, ways: Iterable[Way]) -> tuple[Answer, Assignment | None]:
        for way in ways:
            for memory in tuple(self.open):
                answer, found = self._decide(memory, way, seconds)
                if found is not None:
                    return "yes", found
                if answer == "no":
                    self.open.remove(memory)
                    if memory == "shared" or not self.sharing:
                        return "no", None
        return "unknown", None

    def _decide(self, memory: Places, way: Way, seconds: float) -> tuple[Answer, Assignment | None]:
        branching, presolve, relax = way
        while True:
            if memory not in self.models:
                self.models[memory] = Model(self.problem, self.ii, memory=memory, cuts=self.cuts)
            model = self.models[memory]
            model.branch(branching)
            answer, found = self.effort.solve(model, seconds, presolve=presolve, relax=relax)
            if found is None:
                return answer, None
            places = layout(self.problem, self.ii, found)
            if places.fits:
                return answer, found
            if places.unknown:
                return "unknown", None
            self.cuts = (*self.cuts, cut(self.problem, self.ii, found, places.refused))
            del self.models[memory]


def _by_clone(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Each clone in a partition of its own; what they share in the first one's, or in one more."""
    graph = problem.graph
    clones = len(graph.clones)
    if not problem.clone_order or problem.pins or clones > problem.most_partitions:
        return
    home = {graph.index[op]: at for at, clone in enumerate(graph.clones) for op in clone}
    seen = set()
    for shared in (clones, 0):
        found = [home.get(i, shared) for i in range(len(graph.ops))]
        partitions = tuple(found[c] for c in problem.cluster)
        if max(partitions) < problem.most_partitions and partitions not in seen:
            seen.add(partitions)
            yield partitions

"""One interval, asked about in several ways by turns.

Which way answers first differs by a factor of a hundred and more from loop to loop, so each gets a turn of little
effort, then one of more. A *guess* fixes what is usually right, partitions or clones in step: it finds schedules in a
small model, and its refusal proves nothing. The whole model's refusal is a proof. (Measured on the loop bodies of
benchmarks/loop_graphs.py.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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

Ways = tuple[tuple[Branching, int], ...]
"""Branching and linear relaxations."""
PROBE: Ways = (("free", 0),)
PROBE_SECONDS = 0.02
"""Presolve alone refuses many an interval."""
DIVISIONS = 3
"""Partitions guessed from a relaxation; later ones are hardly ever better."""
WAYS: Ways = (("median", 0), ("free", 1))
"""Propagation alone, which finds schedules; and linear relaxations, which see that registers or issue slots do not
suffice on average."""
SMALL = 8
"""Operations up to which presolve takes longer than the whole search."""
EARLY = 2
"""Guesses before anything else, where a schedule is likely."""
MORE = 2
"""New guesses in each turn after that."""
LAST = 3
"""The turn from which all guesses are made."""


@dataclass
class _Guess:
    model: Model
    in_step: bool
    branching: Branching = "median"
    turn: int = 0


class Question:
    """Is ``ii`` feasible? What was learnt stays between turns: guesses that are refused, cuts, models built."""

    def __init__(self, problem: Problem, ii: int, effort: Effort) -> None:
        self.problem, self.ii, self.effort = problem, ii, effort
        self.guesses = self._guesses()
        self.tried: list[_Guess] = []
        self.turns = 0
        self.small = len(problem.ops) <= SMALL
        self.whole: Model | None = None
        self.apart = True
        """Rings side by side; else one in another's place, which is asked only once that is refused."""
        self.cuts: tuple[Cut, ...] = ()

    def turn(self, seconds: float, *, likely: bool) -> tuple[Answer, Assignment | None]:
        """One more turn, of so many seconds for each way. Guesses come first where a schedule is ``likely``."""
        self.turns += 1
        answer: Answer = "unknown"
        if likely and (found := self._guess(seconds, EARLY if self.turns == 1 else 0)) is not None:
            return "yes", found
        if self.turns > 1 or not likely or not self.tried:
            answer, found = self.decide(seconds, WAYS)
        elif self.turns == 1:
            answer, found = self.decide(PROBE_SECONDS, PROBE)
        if answer != "unknown":
            return answer, found
        found = self._guess(seconds, None if likely and self.turns == LAST else MORE)
        return ("yes" if found is not None else "unknown"), found

    def _guess(self, seconds: float, most: int | None) -> Assignment | None:
        """What was left open in the turns before, once each turn, then ``most`` new guesses."""
        again = [guess for guess in self.tried if guess.turn < self.turns]
        for guess in chain(again, islice(self.guesses, most)):
            self.tried = [other for other in self.tried if other is not guess]
            if (found := self._try(guess, seconds)) is not None:
                return found
        return None

    def _try(self, guess: _Guess, seconds: float) -> Assignment | None:
        """A schedule; where the question stays open, the guess is kept, to be searched in another way."""
        guess.model.branch(guess.branching)
        answer, found = self.effort.solve(guess.model, seconds)
        if found is not None and fits(self.problem, self.ii, found):
            return found
        if answer == "unknown":
            if not guess.in_step:
                guess.branching = "free" if guess.branching == "median" else "median"
            guess.turn = self.turns
            self.tried.append(guess)
        return None

    def _guesses(self) -> Iterator[_Guess]:
        """Models with less to decide, built when their turn comes."""
        problem, ii = self.problem, self.ii
        if len(problem.pins) == len(problem.clusters):
            return
        for partitions in _by_clone(problem):
            model = self._pinned(partitions)
            model.in_step(evenly=True)
            yield _Guess(model, in_step=True)
        for partitions in islice(divisions(problem, ii), DIVISIONS):
            yield _Guess(self._pinned(partitions), in_step=False)
        if problem.clone_order:
            model = Model(problem, ii, memory=self._memory)
            model.in_step(evenly=False)
            yield _Guess(model, in_step=True)

    def _pinned(self, partitions: Sequence[int]) -> Model:
        pinned = {op.id: g for op, g in zip(self.problem.graph.ops, partitions, strict=True)}
        options = replace(self.problem.options, pinned=pinned)
        return Model(Problem(self.problem.graph, options), self.ii, memory=self._memory)

    @property
    def _memory(self) -> Places:
        return "apart" if self.apart else "shared"

    def decide(self, seconds: float, ways: Ways) -> tuple[Answer, Assignment | None]:
        """The whole model, in each of ``ways`` (branching, linear relaxations) for so many seconds."""
        while True:
            if self.whole is None:
                self.whole = Model(self.problem, self.ii, memory=self._memory, cuts=self.cuts)
            answer, found = self._each(seconds, ways)
            if answer == "unknown":
                return answer, None
            self.whole = None
            if found is not None:
                places = layout(self.problem, self.ii, found)
                if places.fits:
                    return answer, found
                if places.unknown:
                    return "unknown", None
                self.cuts = (*self.cuts, cut(self.problem, self.ii, found, places.refused))
            elif self.apart and worth_sharing(self.problem, self.ii):
                self.apart = False
            else:
                return answer, None

    def _each(self, seconds: float, ways: Ways) -> tuple[Answer, Assignment | None]:
        assert self.whole is not None
        for branching, relax in ways:
            self.whole.branch(branching)
            answer, found = self.effort.solve(self.whole, seconds, presolve=not self.small, relax=relax)
            if answer != "unknown":
                return answer, found
        return "unknown", None


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

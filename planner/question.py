"""One interval, asked about in two ways: is there a schedule nearby, and is there none at all?

*Near* looks only at schedules whose operations are a few stages from one another, as good ones mostly are: the model is
small, and a schedule is found soon or surely not there; "no" proves nothing. Before it looks at all of them it makes
*guesses*, which fix what is usually right, partitions or clones in step. *Refute* looks at every schedule: its "no" is
a proof. (Measured on the loop bodies of benchmarks/loop_graphs.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from warpplan.planner.assignment import Assignment
from warpplan.planner.cpsat import Answer
from warpplan.planner.divide import divisions
from warpplan.planner.effort import Effort
from warpplan.planner.memory import layout, room_side_by_side
from warpplan.planner.model import Branching, Model, Places
from warpplan.planner.problem import Problem
from warpplan.planner.retime import fits
from warpplan.planner.sharing import Cut, cut, worth_sharing

NEAR = 5
"""Stages from the anchor in which schedules mostly are found; with more, they are found later."""
FEW = 14
"""Operations up to which all schedules are looked at about as fast as some of them."""
FEW_SHARE = 5
"""Times as many seconds for all schedules of so few operations."""
SHARED_SHARE = 3
"""Times as many seconds where rings may lie in one another's place: such models are larger."""
MORE = 2
"""New guesses in each turn."""
DIVISIONS = 3
"""Partitions guessed from a relaxation; later ones are hardly ever better."""
Build = Callable[[Places, tuple[Cut, ...]], Model]


@dataclass(frozen=True)
class Way:
    """How to ask CP-SAT. Without presolve, propagation alone decides most models in less time than presolve takes."""

    branching: Branching = "median"
    presolve: bool = False
    relax: int = 0
    turn: int = 0


DECIDE = Way()
THOROUGH = (Way(presolve=True), Way("free", presolve=True, relax=1))
"""Presolve, and linear relaxations, which see that registers or issue slots do not suffice on average."""


@dataclass
class _Guess:
    """Schedules to look at: all that are near (``whole``), or some of them."""

    build: Build
    """The model, with what memory has refused so far."""
    memory: Places
    whole: bool = False
    model: Model | None = None
    looks: int = 0
    """How often it was looked at: each time from another end. (How long CP-SAT takes to find a schedule is mostly luck.)"""


class Question:
    """Is ``ii`` feasible? What was learnt stays between turns: guesses that are refused, cuts, models built."""

    def __init__(self, problem: Problem, ii: int, effort: Effort) -> None:
        self.problem, self.ii, self.effort = problem, ii, effort
        self.sharing = worth_sharing(problem, ii)
        self.cuts: tuple[Cut, ...] = ()
        self.guesses = self._guesses()
        self.open: list[_Guess] = []
        self.refused: set[Places] = set()
        """Nothing near lies so."""
        self.asked = 0.0
        """Seconds for which :meth:`refute` has looked, to no avail."""
        self.few = len(problem.ops) <= FEW
        self.all = _Guess(
            lambda memory, cuts: Model(problem, ii, memory=memory, cuts=cuts, tight=True), "shared"
        )

    def near(self, seconds: float, enough: float = 0.0, *, reuse: bool = True) -> tuple[Answer, Assignment | None]:
        """What was left open in the turns before, then new guesses, so many seconds for each, until no more than
        ``enough`` of the time limit is left. Without ``reuse``, no ring lies in another's place."""
        if self.few:
            return self.refute(FEW_SHARE * seconds)
        if self._nothing_near(reuse):
            return "no", None
        guesses, self.open = chain(self.open, islice(self.guesses, MORE)), []
        for guess in guesses:
            if self.effort.left <= enough:
                self.open.append(guess)
                continue
            much = guess.whole and guess.memory == "shared"
            answer, found = self._look(guess, SHARED_SHARE * seconds if much else seconds)
            if found is not None:
                return "yes", found
            if answer == "unknown":
                self.open.append(guess)
            elif guess.whole:
                self.refused.add(guess.memory)
            if self._nothing_near(reuse):
                return "no", None
        return "unknown", None

    def _nothing_near(self, reuse: bool) -> bool:
        return "shared" in self.refused or (bool(self.refused) and not (self.sharing and reuse))

    def alike(self, known: Assignment, seconds: float, *, reuse: bool) -> Assignment | None:
        """A schedule near, with the partitions of ``known``."""
        return self._look(_Guess(self._pinned(known.partitions), "shared" if reuse else "apart"), seconds)[1]

    def refute(self, seconds: float, *, thorough: bool = False) -> tuple[Answer, Assignment | None]:
        """Whether there is a schedule at all. Rings may lie in one another's place, even where none could: that
        relaxation mostly refuses sooner. ``thorough``: in more ways than the one that mostly refuses soonest, so many
        seconds for each."""
        if seconds <= self.asked:
            return "unknown", None
        self.asked = seconds
        for way in (DECIDE, *(THOROUGH if thorough else ())):
            answer, found = self._solve(self.all, way, seconds)
            if answer != "unknown":
                return answer, found
        return "unknown", None

    def _look(self, guess: _Guess, seconds: float) -> tuple[Answer, Assignment | None]:
        guess.looks += 1
        return self._solve(guess, Way(turn=guess.looks - 1), seconds)

    def _solve(self, guess: _Guess, way: Way, seconds: float) -> tuple[Answer, Assignment | None]:
        while True:
            if guess.model is None:
                guess.model = guess.build(guess.memory, self.cuts)
            guess.model.branch(way.branching)
            answer, found = self.effort.solve(
                guess.model, seconds, presolve=way.presolve, relax=way.relax, turn=way.turn
            )
            if found is None or fits(self.problem, self.ii, found):
                return answer, found
            places = layout(self.problem, self.ii, found)
            if places.fits or places.unknown or guess.memory != "shared":
                return "unknown", None
            self.cuts = (*self.cuts, cut(self.problem, self.ii, found, places.refused))
            guess.model = None

    def _guesses(self) -> Iterator[_Guess]:
        """In the order of promise, each when its turn comes."""
        some = len(self.problem.pins) < len(self.problem.clusters)
        if room_side_by_side(self.problem):
            by_clone = _by_clone(self.problem) if some else iter(())
            for partitions in islice(by_clone, 1):
                yield _Guess(_in_step(self._pinned(partitions), evenly=True), "apart")
            yield _Guess(self._near, "apart", whole=True)
        else:
            self.refused.add("apart")
        memory: Places = "shared" if "apart" in self.refused else "apart"
        if memory == "shared":
            yield _Guess(self._near, "shared", whole=True)
        if some:
            yield from self._some(memory)
        if memory == "apart" and self.sharing:
            yield _Guess(self._near, "shared", whole=True)

    def _some(self, memory: Places) -> Iterator[_Guess]:
        problem = self.problem
        likeliest = (self._pinned(partitions) for partitions in divisions(problem, self.ii))
        yield from (_Guess(build, memory) for build in islice(likeliest, 1))
        if problem.clone_order:
            yield _Guess(_in_step(self._near, evenly=True), memory)
        yield from (_Guess(build, memory) for build in islice(likeliest, DIVISIONS - 1))
        for partitions in _by_clone(problem):
            yield _Guess(_in_step(self._pinned(partitions), evenly=True), memory)
        if problem.clone_order:
            yield _Guess(_in_step(self._near, evenly=False), memory)

    def _near(self, memory: Places, cuts: tuple[Cut, ...]) -> Model:
        # Rings are shared in small loops, and where they are refused side by side: mostly to be refused again.
        return Model(self.problem, self.ii, memory=memory, cuts=cuts, reach=NEAR, tight=memory == "shared")

    def _pinned(self, partitions: Sequence[int]) -> Build:
        pinned = {op.id: g for op, g in zip(self.problem.graph.ops, partitions, strict=True)}
        problem = Problem(self.problem.graph, replace(self.problem.options, pinned=pinned))
        return lambda memory, cuts: Model(problem, self.ii, memory=memory, cuts=cuts, reach=NEAR)


def _in_step(build: Build, *, evenly: bool) -> Build:
    def built(memory: Places, cuts: tuple[Cut, ...]) -> Model:
        model = build(memory, cuts)
        model.in_step(evenly=evenly)
        return model

    return built


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

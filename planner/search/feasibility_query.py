"""One interval, asked about in two ways: is there a schedule nearby, and is there none at all?

*Near* looks only at schedules whose operations are a few stages from one another, as good ones mostly are: the model is
small, and a schedule is found soon or surely not there; "no" proves nothing. It looks by turns at all of them, at all
with registers left out, and at *guesses*, which fix what is usually right, partitions or clones in step. *Refute* looks
at every schedule: its "no" is a proof. While one is waited for, the look that is likely to be next begins in a second
thread (see :mod:`ahead`). (Measured on the loop bodies of benchmarks/loop_graphs.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle, islice, zip_longest
from threading import Lock

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer, Stop
from warpplan.planner.cpsat.sharing_constraints import NoGoodCut, no_good_cut
from warpplan.planner.packing.ring_layout import layout, room_side_by_side
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.ring_sharing import worth_sharing
from warpplan.planner.search.heuristics.partition_relaxation import divisions
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.search.restrictions import by_clone, gapless, in_step, in_turn
from warpplan.planner.search.speculation import Ahead
from warpplan.planner.search.work_budget import Effort, Way, solved
from warpplan.planner.values.search_params import Branching, MemoryModel

AT_RANDOM, NOW_AND_THEN = (2, 4), (1, 4)
"""All that is near is found soonest with all decisions in random order; what is guessed beside units without gaps, with
few of them at random."""
Build = Callable[[MemoryModel], IntervalModel | None]
DECIDE = Way()
PRESOLVED, RELAXED = Way(presolve=True), Way(presolve=True, relax=1)
"""Presolve, and linear relaxations, which see that registers or issue slots do not suffice on average."""


@dataclass(eq=False)
class _Guess:
    """Schedules to look at: all that are near (``whole``, or ``relaxed``), some of them, or all there are."""

    build: Build
    """The model, without cuts; None where there is no such guess after all."""
    memory: MemoryModel
    whole: bool = False
    relaxed: bool = False
    """Registers are left out: where they do not suffice, the partitions found are looked at once more, with them."""
    refuses: bool = False
    """Where there is none of these, nothing near lies so."""
    ways: tuple[int, int] = (0, 1)
    """The first look's way, and how far it is to the next one's: see :func:`cpsat.run`."""
    most: int | None = None
    """Looks after which it is given up."""
    known: _Known | None = None


@dataclass(frozen=True)
class _Known:
    """A guess's model, and the cuts that are in it."""

    model: IntervalModel
    cuts: tuple[NoGoodCut, ...]


@dataclass(frozen=True)
class Seen:
    """What a look came to, what it took, and what the next one need not do again."""

    answer: Answer
    found: Assignment | None
    seconds: float
    wall: float
    known: _Known | None


@dataclass(frozen=True)
class Ask:
    """One look at a guess: all that its outcome depends on."""

    question: Question
    guess: _Guess
    way: Way
    seconds: float
    cuts: tuple[NoGoodCut, ...]

    def run(self, stop: Stop) -> Seen:
        problem, ii, guess, known = self.question.problem, self.question.ii, self.guess, self.guess.known
        own = known is None or known.cuts != self.cuts
        if own:
            known = self._built(self.cuts)
        taken = wall = 0.0
        while known is not None and not stop.called:
            outcome = solved(known.model, self.seconds - taken, self.way, stop)
            answer, found = outcome.answer, outcome.found
            taken, wall = taken + outcome.seconds, wall + outcome.wall
            if guess.relaxed and found is not None and not fits(problem, ii, found):
                again = solved(
                    self.question.pinned(found.partitions, guess.memory), self.seconds - taken, Way(turn=1), stop
                )
                answer, found = "unknown" if again.found is None else "yes", again.found
                taken, wall = taken + again.seconds, wall + again.wall
            if found is None or fits(problem, ii, found):
                return Seen(answer, found, taken, wall, known)
            places = layout(problem, ii, found)
            cuts = self.question.search.no_good_cuts
            if places.fits or places.unknown or guess.memory != "shared" or not cuts:
                break
            one = no_good_cut(problem, ii, found, places.refused)
            if own:
                known.model.forbid(one)
                known = _Known(known.model, (*known.cuts, one))
            else:  # Another look may be at that model.
                known, own = self._built((*known.cuts, one)), True
            if known is not None and self.question.search.hints:
                known.model.begin_with(found)  # Mostly little has to change for one cut.
        return Seen("no" if known is None else "unknown", None, taken, wall, known)

    def _built(self, cuts: tuple[NoGoodCut, ...]) -> _Known | None:
        model = self.guess.build(self.guess.memory)
        if model is None:
            return None
        for one in cuts:
            model.forbid(one)
        return _Known(model, cuts)


class Question:
    """Is ``ii`` feasible? What was learnt stays between turns: guesses that are refused, cuts, models built."""

    def __init__(self, problem: Problem, ii: int, effort: Effort, ahead: Ahead[Seen]) -> None:
        self.problem, self.ii, self.effort, self.ahead = problem, ii, effort, ahead
        self.search, self.params = problem.options.search, problem.options.search.attempts
        self.sharing = worth_sharing(problem, ii)
        self.cuts: tuple[NoGoodCut, ...] = ()
        self.guesses = self._guesses()
        self._divisions, self._divided, self._dividing = divisions(problem, ii), list[tuple[int, ...]](), Lock()
        self.open: list[_Guess] = []
        self.looks: dict[_Guess, int] = {}
        """How often each was looked at: every time in another way, since when a schedule is found is mostly luck."""
        self.refused: set[MemoryModel] = set()
        """Nothing near lies so."""
        self.asked = 0.0
        """Seconds for which :meth:`refute` has looked, to no avail."""
        self.few = len(problem.ops) <= self.params.small_loop_operations
        self._reach = self.params.stage_window if self.search.stage_window else None
        self.all, self.all_free = (
            _Guess(partial(self._all, "median"), "shared"),
            _Guess(partial(self._all, "free"), "shared"),
        )

    def near(
        self, seconds: float, enough: float = 0.0, *, reuse: bool = True, then: Ask | None = None
    ) -> tuple[Answer, Assignment | None]:
        """What was left open in the turns before, then new guesses, so many seconds for each, until no more than
        ``enough`` of the time limit is left. Without ``reuse``, no ring lies in another's place. ``then``: what is
        likely to be asked where nothing is found."""
        if self.few:
            return self.refute(self.params.small_loop_factor * seconds, then=then)
        if self._nothing_near(reuse):
            return "no", None
        guesses = self._turn()
        for guess, following in zip_longest(guesses, guesses[1:]):
            if self.effort.left <= enough:
                break
            if guess not in self.open:
                continue
            # Where rings share room, all that is near is mostly refused at once.
            if following is None or (guess.whole and guess.memory == "shared"):
                following, after = guesses[0], then
            else:
                after = None
            after = after or self._look(following, seconds, later=following is guess)
            seen = self._see(self._look(guess, seconds), after)
            self.looks[guess] = self.looks.get(guess, 0) + 1
            if seen.found is not None:
                return "yes", seen.found
            if seen.answer == "no" or self.looks[guess] == guess.most:
                self.open.remove(guess)
            if seen.answer == "no" and guess.refuses:
                self.refused.add(guess.memory)
                self.open = [g for g in self.open if g.memory != guess.memory]
            if self._nothing_near(reuse):
                return "no", None
        return "unknown", None

    def _turn(self) -> list[_Guess]:
        """What to look at next: what was left open and new guesses, with all that is near between; where there are no
        clones, all that is near first."""
        new = (guess for guess in self.guesses if guess.memory not in self.refused)
        self.open = [*islice(new, self.params.new_restrictions), *self.open]
        whole = next((g for g in reversed(self.open) if g.whole), None)
        if whole is None:
            return list(self.open)
        relaxed = next((g for g in self.open if g.relaxed), None)
        broad = [whole] if relaxed is None else [whole, relaxed]
        others = [g for g in self.open if g not in broad]
        if not others or not (self.looks or self.problem.clone_order):
            return list(islice(cycle(broad), self.params.unrestricted_attempts))
        turns = broad if self.open[0] in broad else [others.pop(0), whole]
        for other in others:
            turns = [*turns, other] if other.most and other not in self.looks else [*turns, other, *broad]
        return turns

    def _nothing_near(self, reuse: bool) -> bool:
        return "shared" in self.refused or (bool(self.refused) and not (self.sharing and reuse))

    def alike(self, known: Assignment, seconds: float, *, reuse: bool, then: Ask | None = None) -> Assignment | None:
        """A schedule near, with the partitions of ``known``."""
        guess = _Guess(partial(self.pinned, known.partitions), "shared" if reuse else "apart")
        return self._see(self._look(guess, seconds), then).found

    def refute(
        self, seconds: float, *, thorough: bool = False, then: Ask | None = None
    ) -> tuple[Answer, Assignment | None]:
        """Whether there is a schedule at all. Rings may lie in one another's place, even where none could: that
        relaxation mostly refuses sooner. ``thorough``: in more ways than the one that mostly refuses soonest, so many
        seconds for each."""
        if seconds <= self.asked:
            return "unknown", None
        self.asked = seconds
        thorough = thorough and self.search.thorough_proofs
        more = ((self.all, PRESOLVED), (self.all_free, RELAXED)) if thorough else ()
        for guess, way in ((self.all, DECIDE), *more):
            seen = self._see(self._ask(guess, way, seconds), then)
            if seen.answer != "unknown":
                return seen.answer, seen.found
        return "unknown", None

    def first(self, seconds: float) -> Ask | None:
        """What :meth:`near` begins with where nothing was asked before."""
        if self.few:
            return self.proof(self.params.small_loop_factor * seconds)
        if self.open or self.looks:
            return None
        guess = next(self.guesses, None)
        if guess is None:
            return None
        self.guesses = chain((guess,), self.guesses)
        return self._look(guess, seconds)

    def proof(self, seconds: float) -> Ask | None:
        """What :meth:`refute` begins with."""
        return self._ask(self.all, DECIDE, seconds) if seconds > self.asked else None

    def _look(self, guess: _Guess, seconds: float, *, later: bool = False) -> Ask:
        """The next look at ``guess``, or the one ``later``."""
        much = guess.whole and guess.memory == "shared"
        first, step = guess.ways
        turn = first + step * (self.looks.get(guess, 0) + later)
        way = Way(turn=turn, randomised=self.search.randomised_branching)
        return self._ask(guess, way, self.params.shared_memory_factor * seconds if much else seconds)

    def _ask(self, guess: _Guess, way: Way, seconds: float) -> Ask:
        return Ask(self, guess, way, min(seconds, self.effort.left), self.cuts if guess.memory == "shared" else ())

    def _see(self, ask: Ask, then: Ask | None = None) -> Seen:
        seen = self.ahead.result(ask, ask.run, None if then is None else (then, then.run))
        self.effort.take(seen.seconds, seen.wall)
        ask.guess.known = seen.known
        if seen.known is not None and ask.guess.memory == "shared":
            self.cuts = seen.known.cuts
        return seen

    def _guesses(self) -> Iterator[_Guess]:
        """In the order of promise, each when its turn comes."""
        some = len(self.problem.pins) < len(self.problem.clusters)
        if room_side_by_side(self.problem):
            partitions = by_clone(self.problem)
            if partitions is not None and self.search.clones_in_lockstep:
                yield _Guess(_in_step(partial(self.pinned, partitions)), "apart", most=self.params.lockstep_attempts)
            yield self._whole("apart")
            if some and self.search.register_relaxation:
                yield self.without_registers()
        else:
            self.refused.add("apart")
        memory: MemoryModel = "shared" if "apart" in self.refused else "apart"
        if memory == "shared":
            yield self._whole("shared")
        if some:
            yield from self._some(memory)
        if memory == "apart" and self.sharing:
            yield self._whole("shared")

    def _whole(self, memory: MemoryModel) -> _Guess:
        return _Guess(self._near, memory, whole=True, refuses=True, ways=AT_RANDOM)

    def without_registers(self) -> _Guess:
        """Mostly they suffice, or do with the same partitions; they are most of a model."""
        busy = self.search.unit_alternation and bool(gapless(self.problem, self.ii))
        return _Guess(self._relaxed, "apart", relaxed=True, refuses=not busy, ways=NOW_AND_THEN if busy else AT_RANDOM)

    def _some(self, memory: MemoryModel) -> Iterator[_Guess]:
        clones = bool(self.problem.clone_order) and self.search.clones_in_lockstep
        if clones:
            yield _Guess(_in_step(self._near), memory, most=self.params.lockstep_attempts)
        if not self.search.partition_relaxation:
            return
        for at in range(len(self.params.relaxation_levels)):
            division = partial(self._division, at)
            if clones:
                yield _Guess(_in_step(division), memory, most=self.params.lockstep_attempts)
            yield _Guess(division, memory)

    def _division(self, at: int, memory: MemoryModel) -> IntervalModel | None:
        """With the partitions of a relaxation, computed when they are asked for."""
        with self._dividing:
            while len(self._divided) <= at:
                partitions = next(self._divisions, None)
                if partitions is None:
                    return None
                self._divided.append(partitions)
        return self.pinned(self._divided[at], memory)

    def _all(self, branching: Branching, memory: MemoryModel) -> IntervalModel:
        return IntervalModel(self.problem, self.ii, memory=memory, tight=True, compact=True, branching=branching)

    def _near(self, memory: MemoryModel) -> IntervalModel:
        # Rings are shared in small loops, and where they are refused side by side: mostly to be refused again.
        return IntervalModel(self.problem, self.ii, memory=memory, reach=self._reach, tight=memory == "shared")

    def _relaxed(self, memory: MemoryModel) -> IntervalModel:
        model = IntervalModel(self.problem, self.ii, memory=memory, reach=self._reach, tight=True, registers=False)
        if self.search.unit_alternation:
            in_turn(model)
        return model

    def pinned(self, partitions: Sequence[int], memory: MemoryModel) -> IntervalModel:
        """All that is near with these partitions."""
        pinned = {op.id: g for op, g in zip(self.problem.graph.ops, partitions, strict=True)}
        problem = Problem(self.problem.graph, replace(self.problem.options, pinned=pinned))
        return IntervalModel(problem, self.ii, memory=memory, reach=self._reach, tight=True)


def _in_step(build: Build) -> Build:
    def built(memory: MemoryModel) -> IntervalModel | None:
        model = build(memory)
        if model is not None:
            in_step(model)
        return model

    return built

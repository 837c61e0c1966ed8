"""The smallest initiation interval: which II to ask about, and what the answers prove.

A schedule for II is one for II + 1 too (cut the circle where the stage turns and put an idle cycle there), so
feasibility is monotone in II. From below come proofs: MinII, tight distances on recurrences, and each interval that the
model refuses. From above come schedules: constructed, found with the partitions guessed, found by the model, and each
re-timed to the smallest interval of its order. The search ends where they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from warpplan.planner.assignment import Assignment
from warpplan.planner.bounds import Bound
from warpplan.planner.constructive import first_schedule
from warpplan.planner.core import decide, exact, raised
from warpplan.planner.cpsat import Answer, run, spent
from warpplan.planner.divide import divisions
from warpplan.planner.memory import layout
from warpplan.planner.model import Branching, Model, Places
from warpplan.planner.problem import Problem
from warpplan.planner.retime import fits, retime
from warpplan.planner.sharing import Cut, cut, worth_sharing

Progress = Callable[[int, int, int | None], None]
"""Told (interval asked about, proven bound, best interval found or None)."""
SMALL = 8
"""Operations up to which a loop takes milliseconds, so that preparing the search costs more than searching."""
LADDER = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0, 3.0)
"""Multiples of the proven bound at which a schedule is constructed."""
GUESS_SECONDS = 0.4
"""For a schedule with the partitions guessed: mostly there is one at once, or none."""
NEARLY = (1.0, 1.1)
"""Multiples of the proven bound at which partitions are guessed."""
QUESTION_SECONDS = 1.0
"""For whether an interval between what is proven and what is found is feasible."""
LEAST_SECONDS = 0.1
"""With less left, nothing is asked."""
POLISH_SECONDS = 0.5
"""Most of the time limit that may go into choosing among schedules of the final interval."""


@dataclass(frozen=True)
class Way:
    """How a question is searched for some share of its time. Which way answers first differs by a factor of ten and
    more from loop to loop, so each gets a turn (measured on the loop bodies of benchmarks/loop_graphs.py)."""

    branching: Branching
    relax: bool
    share: float


FIND = (Way("median", False, 0.4), Way("halves", False, 0.3), Way("free", True, 0.3))
"""Where a schedule is expected: propagation alone."""
REFUSE = (Way("free", True, 0.3), Way("median", False, 0.4), Way("halves", False, 0.3))
"""Where a refusal is: linear relaxations, which see that registers or issue slots do not suffice on average."""


@dataclass(frozen=True)
class Search:
    """``bound`` is proven; where ``ii_cycles`` equals it, it is optimal. ``binding`` says what is in the way."""

    ii_cycles: int
    bound: int
    best: Assignment | None
    binding: str
    infeasible: bool
    seconds: float


def search(problem: Problem, bound: Bound, progress: Progress | None = None) -> Search:
    """The smallest initiation interval, its proof or the best bound that the time limit allowed."""
    run_ = _Run(problem, bound, progress)
    if run_.small:
        # Mostly MinII is feasible: ask for its best schedule at once.
        answer, best = run_.polish(bound.ii_cycles)
        if best is not None:
            run_.found(bound.ii_cycles, best)
            return run_.result(bound)
        if answer == "no" and not worth_sharing(problem, bound.ii_cycles):
            run_.refused(bound.ii_cycles)
    if run_.proven == bound.ii_cycles:
        bound = raised(problem, bound)
        run_.proven = bound.ii_cycles
    run_.construct()
    if not run_.exact:
        run_.guess()
    enough = max(run_.proven, serial_ii(problem))
    if run_.best is None and not run_.climb(enough):
        return run_.without_plan(enough)
    run_.descend()
    if run_.best is not None:
        run_.best = run_.polish(run_.ii, run_.best)[1] or run_.best
    return run_.result(bound)


def serial_ii(problem: Problem) -> int:
    """An interval at which one iteration can end before the next begins: if even that fails, every interval does."""
    slowest = [0] * len(problem.ops)
    rings = [a for p in (*problem.rings, *problem.crossings) for a in problem.ring_arcs(1, p)]
    for arc in (*problem.dependences, *rings):
        slowest[arc.src] = max(slowest[arc.src], arc.cycles + arc.handoff)
    limits = problem.graph.limits
    barriers = 4 * limits.barrier_cycles * len(problem.graph.edges)
    return (
        1
        + barriers
        + sum(
            max(slow, op.latency, op.occupancy, op.issue) + limits.handoff_cycles + 1
            for slow, op in zip(slowest, problem.ops, strict=True)
        )
    )


class _Run:
    """One search: what is proven, the best schedule, and what is left of the time."""

    def __init__(self, problem: Problem, bound: Bound, progress: Progress | None) -> None:
        self.problem, self.progress = problem, progress
        self.proven, self.ii, self.best = bound.ii_cycles, 0, None
        self.left, self.seconds = problem.options.time_limit_s, 0.0
        self.small = len(problem.ops) <= SMALL
        self.exact = exact(problem)
        self.cuts: tuple[Cut, ...] = ()
        self.places: Places = "apart"
        self.undecided = False

    best: Assignment | None

    # What is known

    def found(self, ii: int, schedule: Assignment) -> None:
        ii, schedule = retime(self.problem, ii, schedule)
        if self.best is None or ii < self.ii:
            self.ii, self.best = ii, schedule
            self._tell(ii)

    def refused(self, ii: int) -> None:
        self.proven = max(self.proven, ii + 1)
        self._tell(ii)

    def _tell(self, ii: int) -> None:
        if self.progress is not None:
            self.progress(ii, self.proven, None if self.best is None else self.ii)

    def result(self, bound: Bound) -> Search:
        if self.proven < self.ii:
            binding = "the time limit"
        elif self.ii == bound.ii_cycles:
            binding = bound.binding
        else:
            binding = f"exhaustive search: no schedule fits {self.ii - 1} cycles"
        return Search(self.ii, self.proven, self.best, binding, False, self.seconds)

    def without_plan(self, ii: int) -> Search:
        if self.undecided:
            return Search(0, self.proven, None, "the time limit binds", False, self.seconds)
        return Search(0, self.proven, None, _what_binds(self, ii), True, self.seconds)

    # From above

    def construct(self) -> None:
        for factor in LADDER:
            ii = int(factor * self.proven)
            schedule = first_schedule(self.problem, ii)
            if schedule is not None:
                self.found(ii, schedule)
                return

    def climb(self, enough: int) -> bool:
        """Up from what is proven until some interval has a schedule."""
        candidate, step = self.proven, max(1, self.proven // 8)
        while True:
            self._ask(candidate, 0.5 * self.left)
            if self.best is not None or candidate >= enough:
                return self.best is not None
            candidate, step = min(candidate + step, enough), 2 * step

    def descend(self) -> None:
        """Down to the smallest interval: first what is proven, which mostly is feasible; then halves, in short
        questions; then the proof that one cycle less is refused; then how far up proofs reach."""
        if self.best is None:
            return
        floor = self.proven
        first = True
        while floor < self.ii:
            middle = floor if first else (floor + self.ii - 1) // 2
            first = False
            floor = max(floor, self.proven)
            if self._ask(middle, QUESTION_SECONDS) != "yes":
                floor = max(floor, middle + 1)
        while self.proven < self.ii and self._ask(self.ii - 1, 0.6 * self.left, REFUSE) == "yes":
            pass
        ceiling = self.ii - 1
        while self.proven < ceiling and self.left > LEAST_SECONDS:
            middle = (self.proven + ceiling) // 2
            if self._ask(middle, 0.5 * self.left, REFUSE) == "unknown":
                ceiling = middle

    def guess(self) -> None:
        """Schedules with the partitions given: at what is proven, else somewhat above."""
        if len(self.problem.pins) == len(self.problem.clusters):
            return
        for factor in NEARLY:
            ii = int(factor * self.proven)
            if self.proven == self.ii or (self.best is not None and ii >= self.ii):
                return
            for partitions in divisions(self.problem, ii):
                pinned = {op.id: g for op, g in zip(self.problem.ops, partitions, strict=True)}
                model = Model(Problem(self.problem.graph, replace(self.problem.options, pinned=pinned)), ii)
                model.branch("median")
                schedule = self._solve(model, min(GUESS_SECONDS, 0.1 * self.left))[1]
                if schedule is not None and fits(self.problem, ii, schedule):
                    self.found(ii, schedule)
                    break

    def _ask(self, ii: int, seconds: float, ways: tuple[Way, ...] = FIND) -> Answer:
        answer, schedule = self.decide(ii, seconds, ways)
        if answer == "no":
            self.refused(ii)
        elif schedule is not None:
            self.found(ii, schedule)
        else:
            self.undecided = True
        return answer

    # Decisions

    def decide(self, ii: int, seconds: float, ways: tuple[Way, ...] = FIND) -> tuple[Answer, Assignment | None]:
        """Whether ``ii`` is feasible: with the rings side by side, which mostly answers, or in one another's place."""
        end = self.left - min(seconds, self.left)
        if self.exact:
            verdict = decide(self.problem, ii, self.left - end)
            self._spend(verdict.seconds)
            return verdict.answer, verdict.best
        answer, schedule = self._either(Model(self.problem, ii), end, ways)
        if answer != "no" or not worth_sharing(self.problem, ii):
            return answer, schedule
        while True:
            answer, schedule = self._shared(ii, end, ways)
            if answer != "yes" or schedule is not None:
                return answer, schedule

    def _shared(self, ii: int, end: float, ways: tuple[Way, ...]) -> tuple[Answer, Assignment | None]:
        """ "yes" without a schedule: one was found that has no places, and left a cut."""
        answer, schedule = self._either(Model(self.problem, ii, memory="shared", cuts=self.cuts), end, ways)
        if schedule is None:
            return answer, None
        places = layout(self.problem, ii, schedule)
        if places.fits:
            self.places = "shared"
            return "yes", schedule
        if places.unknown:
            return "unknown", None
        self.cuts = (*self.cuts, cut(self.problem, ii, schedule, places.refused))
        return "yes", None

    def _either(self, model: Model, end: float, ways: tuple[Way, ...]) -> tuple[Answer, Assignment | None]:
        """Each of ``ways`` for its share of the time until ``end``, the last for the rest, until one answers."""
        if self.small:
            return self._solve(model, self.left - end, relax=True)
        budget = self.left - end
        answer: Answer = "unknown"
        for way in ways:
            model.branch(way.branching)
            answer, schedule = self._solve(model, min(way.share * budget, self.left - end), relax=way.relax)
            if answer != "unknown":
                return answer, schedule
        return answer, None

    def polish(self, ii: int, best: Assignment | None = None) -> tuple[Answer, Assignment | None]:
        """Among the schedules of ``ii``: fewest crossings, then short live ranges and early starts."""
        model = Model(self.problem, ii, memory=self.places, cuts=self.cuts)
        model.prefer(best)
        answer, schedule = self._solve(model, min(self.left, POLISH_SECONDS), relax=True)
        if schedule is None or fits(self.problem, ii, schedule):
            return answer, schedule
        return "unknown", None

    def _solve(self, model: Model, seconds: float, *, relax: bool = False) -> tuple[Answer, Assignment | None]:
        if seconds <= 0:
            return "unknown", None
        # Presolve costs more than a small loop's whole search.
        answer, solver = run(model.cp, seconds, presolve=not self.small, relax=relax or self.small)
        self.seconds += solver.wall_time
        self._spend(spent(solver))
        return answer, model.read(solver) if answer == "yes" else None

    def _spend(self, seconds: float) -> None:
        self.left -= seconds


# What binds


def _what_binds(attempt: _Run, ii: int) -> str:
    """Which limit, taken away alone, would make the problem solvable; else which two."""
    answers = {}
    for name, relaxed in _relaxations(attempt.problem):
        model = Model(relaxed, ii, memory="apart", registers=name != "registers")
        answers[name] = attempt._solve(model, attempt.left * 0.3)[0]
    found = [name for name, answer in answers.items() if answer == "yes"]
    if found:
        return f"{' or '.join(found)} binds"
    if "unknown" in answers.values():
        unknown = [name for name, answer in answers.items() if answer == "unknown"]
        return f"{' or '.join(unknown)} binds (the time limit came before saying which)"
    return f"{' and '.join(answers)} bind together"


def _relaxations(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Each limit that the problem has, and the problem without it."""
    graph, options, limits = problem.graph, problem.options, problem.graph.limits
    memories = {problem.memory(p) for p in (*problem.rings, *problem.crossings)}
    plenty = 2**40
    if "smem" in memories:
        yield "shared memory", Problem(replace(graph, limits=replace(limits, smem_bytes=plenty)), options)
    if "tmem" in memories:
        yield "tensor memory", Problem(replace(graph, limits=replace(limits, tmem_columns=2**30)), options)
    yield "registers", problem
    if options.depth is not None:
        yield "depth", Problem(graph, replace(options, depth=None))
    if options.pinned and not options.partitions:
        yield "pins", Problem(graph, replace(options, pinned={}))
    if limits.max_partitions < len(problem.clusters):
        more = replace(
            graph, limits=replace(limits, max_partitions=min(len(problem.clusters), limits.max_partitions + 2))
        )
        yield "the number of partitions", Problem(more, options)

"""The smallest initiation interval: which II to ask about, and what the answers prove.

A schedule for II is one for II + 1 too (cut the circle where the stage turns and put an idle cycle there), so
feasibility is monotone in II. From below come proofs: MinII, tight distances on recurrences, and each interval that the
model refuses. From above come schedules: constructed, found with something guessed, found by the model, and each
re-timed to the smallest interval of its order. The search ends where they meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warpplan.planner.bounds.min_ii import Bound, min_ii
from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.errors import InvalidPlan
from warpplan.planner.packing.ring_layout import layout, room_side_by_side
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.ring_sharing import worth_sharing
from warpplan.planner.search.core_feasibility import decide, exact, raised
from warpplan.planner.search.diagnosis import what_binds
from warpplan.planner.search.feasibility_query import Ask, Question, Seen
from warpplan.planner.search.heuristics.compaction import shorten
from warpplan.planner.search.heuristics.fixed_order import shortest_in_order
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.search.heuristics.retiming import retime
from warpplan.planner.search.speculation import Ahead
from warpplan.planner.search.tie_break import choose
from warpplan.planner.search.work_budget import Effort
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions

Progress = Callable[[int, int, int | None], None]
"""Told (interval asked about, proven bound, best interval found or None)."""


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
    params = problem.options.search
    with Ahead[Seen](params.driver.patience_wall_s if params.speculation else None) as ahead:
        return _search(_Run(problem, bound, ahead, progress), bound)


def _search(run_: _Run, bound: Bound) -> Search:
    problem = run_.problem
    if problem.options.search.tie_break and len(problem.ops) <= problem.options.search.driver.tiny_loop_operations:
        # Mostly MinII is feasible: ask for its best schedule at once.
        answer, best = choose(problem, bound.ii_cycles, run_.effort)
        if best is not None:
            run_.found(bound.ii_cycles, best)
            return run_.result(bound)
        if answer == "no" and not worth_sharing(problem, bound.ii_cycles):
            run_.refused(bound.ii_cycles)
    if run_.proven == bound.ii_cycles and problem.options.search.core_bound:
        bound = raised(problem, bound)
        run_.proven = bound.ii_cycles
    enough = max(run_.proven, serial_ii(problem))
    if not run_.climb(enough):
        return run_.without_plan(enough)
    run_.descend()
    run_.polish()
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

    best: Assignment | None

    def __init__(self, problem: Problem, bound: Bound, ahead: Ahead[Seen], progress: Progress | None) -> None:
        self.problem, self.ahead, self.progress = problem, ahead, progress
        self.proven, self.ii, self.best = bound.ii_cycles, 0, None
        self.search, self.params = problem.options.search, problem.options.search.driver
        self.few = len(problem.ops) <= self.search.attempts.small_loop_operations
        self.effort = Effort(problem.options.work_limit_s)
        self.exact = self.search.core_feasibility and exact(problem)
        self.questions: dict[int, Question] = {}
        self.ordered = False
        self.creeps = 0
        """Schedules found one cycle below the best known, one after the other."""
        self.barren = 0
        """Below it no interval was found to have a schedule nearby."""

    # What is known

    def found(self, ii: int, schedule: Assignment) -> None:
        if not self.exact and self.search.retiming:  # There the next question takes less time than that.
            ii, schedule = retime(self.problem, ii, schedule)
        if ii < self.proven:
            raise InvalidPlan(f"{ii} cycles are feasible, and {self.proven} were proven to be needed: a bug")
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
        return Search(self.ii, self.proven, self.best, binding, False, self.effort.wall)

    def without_plan(self, ii: int) -> Search:
        if self.proven <= ii:
            return Search(0, self.proven, None, "the time limit binds", False, self.effort.wall)
        return Search(0, self.proven, None, what_binds(self.problem, ii, self.effort), True, self.effort.wall)

    # Which intervals

    def climb(self, enough: int) -> bool:
        """Up from what is proven until some interval has a schedule; if ``enough`` has none, none has."""
        count, decided = len(self.problem.ops), len(self.problem.pins) == len(self.problem.clusters)
        many, apart = self.exact or count > self.params.large_loop_operations, room_side_by_side(self.problem)
        if many or decided or self.few:
            # In milliseconds, and what is placed as early as it can be lives shorter than what is searched for.
            self._construct_at(self.proven)
        ii, step = self.proven, max(1, self.proven // self.params.first_step_parts)
        rounds = self.params.first_round_seconds
        for turn, seconds in enumerate(rounds[:1] if many else rounds):
            # Where rings have to share room, the first look mostly says that nothing is nearby.
            then = None if turn or apart else self._likely(min(ii + step, enough))
            if self.effort.left < (1 - self.params.first_rounds_share) * self.problem.options.work_limit_s:
                break
            if self.best is None and self.near(ii, seconds, then) == "no":
                break
        if self.few:
            self._construct_above(enough)
        while self.best is None and ii < enough and self.effort.left > self.params.least_seconds:
            ii, step = min(ii + step, enough), self.params.step_growth * step
            if many:
                self._construct_at(ii)
            if self.best is not None:
                break
            answer = self.near(ii, self.params.attempt_seconds, self._likely(min(ii + step, enough)))
            if answer == "unknown" and not many:  # Then any schedule will do: its partitions are followed down.
                self._construct_at(ii)
        seconds = self.params.attempt_seconds
        while self.best is None and self.proven <= enough and self.effort.left > self.params.least_seconds:
            all_of_it = seconds >= self.effort.left
            self.refute(enough, seconds, thorough=seconds > self.params.attempt_seconds)
            if all_of_it:
                break
            seconds *= self.params.seconds_growth
        return self.best is not None

    def _construct_at(self, ii: int) -> None:
        if not self.search.list_scheduling:
            return
        schedule = first_schedule(self.problem, ii, self.effort)
        if schedule is not None:
            self.found(ii, schedule)

    def _construct_above(self, enough: int) -> None:
        """A small loop's schedule, constructed at an interval not far from the least, to be followed down."""
        for factor in self.params.construction_ladder:
            ii = min(int(factor * self.proven), enough)
            if self.best is None and ii > self.proven:
                self._construct_at(ii)

    def in_order(self) -> None:
        """Down in the order of the loop scheduled first and partitioned afterwards: never to be longer than that."""
        if self.proven == self.ii or self.exact or self.problem.options.pinned or self.ordered:
            return
        if not self.search.fixed_order:
            return
        self.ordered = True
        schedule = shortest_in_order(self.problem, self.proven, self.ii, self._blindly, self.effort)
        if schedule is not None:
            self.found(*schedule)

    def _blindly(self, graph: DependenceGraph) -> tuple[int, Assignment] | None:
        seconds = max(self.params.least_seconds, self.params.fixed_order_share * self.effort.left)
        problem = Problem(graph, SolveOptions(work_limit_s=seconds, search=self.search))
        found = search(problem, min_ii(problem))
        return None if found.best is None else (found.ii_cycles, found.best)

    def descend(self) -> None:
        """The smallest interval with a schedule nearby; then by turns a proof that the next smaller one has none at
        all, a better bound where that is left open, and schedules nearby again, in more time."""
        seconds = self.params.attempt_seconds
        self.follow(seconds)
        self.lower(seconds)
        all_of_it = False
        while self.proven < self.ii and self.effort.left > self.params.least_seconds and not all_of_it:
            all_of_it = seconds >= self.effort.left
            known, answer = self.ii, self.refute(self.ii - 1, self.params.proof_factor * seconds)
            if answer == "yes":
                self.creeps += 1
                if self.creeps >= self.params.steps_before_bisection:  # What all of them yielded is mostly the best.
                    self.follow(seconds)
            if answer != "no":
                self.lower(seconds)
            if answer == "unknown" and self.ii == known:
                if self.search.bound_bisection:
                    self.rise(self.params.proof_factor * seconds)
                if seconds > self.params.attempt_seconds:
                    self.in_order()
                seconds *= self.params.seconds_growth

    def lower(self, seconds: float) -> None:
        """Down through schedules nearby: by one cycle, since what was followed is mostly next to the best, and by half
        of what is open where that goes on. Where nothing is found is no proof, but the end of this turn."""
        few, enough = self.few, (1 - self.params.improvement_share) * self.effort.left
        while self.effort.left > max(enough, self.params.least_seconds):
            reuses = self._reuses()
            floor, last = max(self.proven, self.barren), self.ii - 1
            if floor > last:
                return
            if self.exact:
                target = (floor + last) // 2  # Either answer is a proof.
            elif self.params.precision * (self.ii - floor) < self.ii and not few:
                target = floor  # Hardly any harder to find, and the end.
            else:
                target = (floor + last) // 2 if self.creeps >= self.params.steps_before_bisection else last
            if target == last and reuses and not few:
                return  # Such models are large: the proof at once.
            answer = self.near(target, seconds, self._likely(last, self.params.proof_factor * seconds, proof=True))
            if answer == "yes":
                self.creeps = self.creeps + 1 if target == last else 0
                self.follow(seconds)
            elif target in (floor, last) or (self.exact and answer == "unknown"):
                return
            else:
                self.creeps = 0

    def follow(self, seconds: float) -> None:
        """Down about as far as the best known's partitions go: little is left to decide. By steps that grow, then by
        half of what is open."""
        if self.exact or not self.search.fixed_partition_improvement:
            return
        floor = max(self.proven, self.barren if self.barren < self.ii else 0)
        step, stopped = 1, False
        while self.best is not None and floor < self.ii and self.effort.left > self.params.least_seconds:
            target = max(self.ii - step, (floor + self.ii - 1) // 2)
            proof = self._likely(self.ii - 1, self.params.proof_factor * seconds, proof=True)
            schedule = self._question(target).alike(self.best, seconds, reuse=self._reuses(), then=proof)
            if schedule is not None:
                self.found(target, schedule)
            else:
                floor, stopped = target + 1, True
            if self.params.precision * (self.ii - floor) < self.ii:
                return
            step = self.ii if stopped else max(2 * step, self.ii // self.params.precision)

    def _reuses(self) -> bool:
        """Whether rings in one another's place are looked for: where the best known has such, or none has room for all
        side by side. Otherwise a proof finds them."""
        if self.best is None:
            return not room_side_by_side(self.problem)
        return layout(self.problem, self.ii, self.best).reuses != ()

    def rise(self, seconds: float) -> None:
        """A better bound: half of what is open, again and again, in less time where that is left open."""
        ceiling = self.ii - 1
        while self.proven < ceiling and self.effort.left > self.params.least_seconds:
            middle = (self.proven + ceiling) // 2
            if self.refute(middle, seconds) != "no":
                ceiling, seconds = min(middle, self.ii - 1), seconds / 2
                if seconds < self.params.attempt_seconds:
                    return

    # Questions

    def near(self, ii: int, seconds: float, then: Ask | None = None) -> Answer:
        """Whether a schedule of ``ii`` is found nearby; "no" proves nothing. ``then``: what is likely to be next."""
        if self.exact:
            return self.refute(ii, seconds)
        if self.effort.left <= self.params.least_seconds:
            return "unknown"
        reuse = self._reuses()
        enough = (1 - self.params.query_share) * self.effort.left
        question = self._question(ii)
        answer, schedule = question.near(seconds, enough, reuse=reuse, then=then)
        if schedule is not None:
            self.found(ii, schedule)
        elif answer == "no" and question.few:
            self.refused(ii)
        elif answer == "no":
            self.barren = max(self.barren, ii + 1)
        return answer

    def refute(self, ii: int, seconds: float, *, thorough: bool = False) -> Answer:
        """Whether ``ii`` is feasible: "no" is a proof."""
        answer, schedule = self._decide(ii, seconds, thorough or seconds > self.params.thorough_seconds)
        if answer == "no":
            self.refused(ii)
        elif schedule is not None:
            self.found(ii, schedule)
        return answer

    def _decide(self, ii: int, seconds: float, thorough: bool) -> tuple[Answer, Assignment | None]:
        if self.exact:
            verdict = decide(self.problem, ii, min(self.params.exact_factor * seconds, self.effort.left))
            self.effort.take(verdict.seconds)
            return verdict.answer, verdict.best
        if self.effort.left <= self.params.least_seconds:
            return "unknown", None
        return self._question(ii).refute(seconds, thorough=thorough)

    def _likely(self, ii: int, seconds: float | None = None, *, proof: bool = False) -> Ask | None:
        """What is likely to be asked where the question before finds nothing."""
        if self.exact:
            return None
        seconds = self.params.attempt_seconds if seconds is None else seconds
        return self._question(ii).proof(seconds) if proof else self._question(ii).first(seconds)

    def _question(self, ii: int) -> Question:
        if ii not in self.questions:
            self.questions = {known: q for known, q in self.questions.items() if known >= self.proven}
            self.questions[ii] = Question(self.problem, ii, self.effort, self.ahead)
        return self.questions[ii]

    # Among schedules of the same interval

    def polish(self) -> None:
        if self.best is None:
            return
        if self.search.tie_break and len(self.problem.ops) <= self.params.tiny_loop_operations:
            self.best = choose(self.problem, self.ii, self.effort, self.best)[1] or self.best
        if self.search.compaction:
            self.best = shorten(self.problem, self.ii, self.best)

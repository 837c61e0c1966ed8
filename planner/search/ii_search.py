"""Bidirectional search over II: which interval is queried next, and what the answers prove.

Feasibility is monotone in II (see :mod:`~warpplan.planner.search.search_state`). From below come proofs: MinII, tight
distances on recurrences, and each interval whose model is infeasible. From above come schedules: list schedules,
schedules of restrictions, schedules of the whole model, and each re-timed to the smallest interval of its order. The
search ends where they meet, or with a gap where the work budget ends. The arrangement is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from math import inf

from warpplan.planner.bounds.min_ii import Bound, min_ii
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.errors import WarpplanError
from warpplan.planner.packing.ring_layout import fits_side_by_side, layout, require_capacity
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.ring_sharing import worth_sharing
from warpplan.planner.search.attempts import AttemptOutcome
from warpplan.planner.search.diagnosis import diagnose
from warpplan.planner.search.heuristics.compaction import compact_lifetimes
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.search.heuristics.modulo_scheduling import large_schedules
from warpplan.planner.search.heuristics.serial_schedule import serial_schedule
from warpplan.planner.search.neighbourhoods import NeighbourhoodChoice
from warpplan.planner.search.search_state import Progress, SearchResult, SearchState
from warpplan.planner.search.speculation import Speculation
from warpplan.planner.search.tie_break import break_ties, shorten_makespan
from warpplan.planner.values.deadline import Deadline, DeadlineReached


def search(problem: Problem, bound: Bound, progress: Progress | None = None) -> SearchResult:
    """The smallest initiation interval, and its proof or the best bound that work budget and deadline allowed."""
    params = problem.options.search
    with Speculation[AttemptOutcome](params.driver.patience_wall_s if params.speculation else None) as speculation:
        found = BidirectionalSearch(problem, bound, speculation, progress)
        with suppress(DeadlineReached):
            result = found.run(bound)
            if found.best is not None or result.infeasible:
                return result
        if found.best is None:
            _construct_late(found)
        return found.result(bound)


def _construct_late(found: BidirectionalSearch) -> None:
    """A serial schedule as the incumbent of a search that ended before it had any: mostly that takes milliseconds, and
    a deadline of its own bounds it."""
    problem, seconds = found.problem, found.params.late_schedule_wall_s
    options = replace(problem.options, work_limit_s=seconds)
    again = Problem(problem.graph, options, Deadline.after(seconds, problem.deadline.now))
    late = BidirectionalSearch(again, Bound(found.proven, ""), found.speculation, found.progress)
    late.exact = False  # the core's schedules are not re-timed
    with suppress(DeadlineReached):
        late.construct_serially(max(late.proven, serial_ii(again)))
    found.ii, found.best = late.ii, late.best


def serial_ii(problem: Problem) -> int:
    """An interval at which one iteration can end before the next begins: if even that is infeasible, all are."""
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


class BidirectionalSearch(SearchState):
    """The driver of one search."""

    kept: tuple[Assignment | None, float] = (None, 0.0)
    """The incumbent whose partitions were improved on last, and the seconds for each attempt."""

    _restricted: list[BidirectionalSearch] | None = None

    def __init__(
        self,
        problem: Problem,
        bound: Bound,
        speculation: Speculation[AttemptOutcome],
        progress: Progress | None,
        budget: WorkBudget | None = None,
        freer: BidirectionalSearch | None = None,
    ) -> None:
        super().__init__(problem, bound, speculation, progress, budget)
        self.freer = freer
        """The search of the freer problem, for which every schedule found here is one too."""
        self.choice = NeighbourhoodChoice(problem)
        self.first_bound = bound.ii_cycles

    def record_schedule(self, ii: int, schedule: Assignment) -> None:
        super().record_schedule(ii, schedule)
        if self.freer is not None and self.best is not None and (self.freer.best is None or self.ii < self.freer.ii):
            self.freer.record_schedule(self.ii, self.best)

    def run(self, bound: Bound) -> SearchResult:
        """From ``bound`` to the incumbent that is proven optimal, or as far as the work budget suffices."""
        problem = self.problem
        if self.search.tie_break and len(problem.ops) <= self.params.tiny_loop_operations:
            # Mostly MinII is feasible: ask for its best schedule at once.
            answer, best = break_ties(problem, bound.ii_cycles, self.budget)
            if best is not None:
                self.record_schedule(bound.ii_cycles, best)
                self._shorten_makespan()
                return self.result(bound)
            if answer == "no" and not worth_sharing(problem, bound.ii_cycles):
                self.record_infeasible(bound.ii_cycles)
        enough = max(self.proven, serial_ii(problem))
        self.search_in_rounds(enough)
        if self.best is None:
            if self.proven <= enough:
                return self.result(bound)
            binding = diagnose(problem, enough, self.budget)
            return SearchResult(0, self.proven, None, binding, True, self.budget.wall)
        self.break_ties()
        return self.result(bound)

    def search_in_rounds(self, enough: int) -> None:
        """Rounds whose attempts take longer each time, each a whole search that goes on from what is known. No step
        depends on the work limit: with a longer one, the same steps come first."""
        seconds, rounds = self.params.attempt_seconds, 0
        while not self.settled and self.budget.left > 0 and (self.best is not None or self.proven <= enough):
            if rounds:
                self.search_restricted_problems(seconds)
            self.search_round(seconds, enough)
            if seconds > self.problem.options.work_limit_s:
                return
            seconds, rounds = self.params.seconds_growth * seconds, rounds + 1

    def search_round(self, seconds: float, enough: int) -> None:
        """A first incumbent up to ``enough`` where there is none, then shorter intervals, a higher bound, and a proof
        of optimality, in attempts of ``seconds``."""
        if self.best is None:
            self.find_incumbent(seconds, enough)
        if self.best is not None and self.bound_moves and self.search.gap_bisection:
            with self.share(self.params.bisection_attempts * seconds):
                self.bisect_gap(self.params.proof_attempts * seconds)
        if self.best is not None:
            with self.share(self.params.improvement_attempts * seconds):
                self.improve_incumbent(seconds)
        if self.search.bound_bisection:
            with self.share(self.params.bound_attempts * seconds):
                self.raise_lower_bound(seconds, enough)
        if self.best is not None:
            self.prove_optimal(self.params.proof_attempts * seconds)

    def share(self, seconds: float) -> AbstractContextManager[None]:
        """Bounds the work of a step; the core, which decides the whole problem, is given what it takes."""
        return nullcontext() if self.exact else self.budget.share(seconds)

    # Restricted problems

    def search_restricted_problems(self, seconds: float) -> None:
        """Problems that allow less, some attempts of ``seconds`` for each that can still be better: what is found there
        is a schedule here."""
        if self._restricted is None:
            self._restricted = list(self._restrict()) if self.search.restricted_problems and not self.exact else []
        for restricted in self._restricted:
            enough = serial_ii(self.problem) if self.best is None else self.ii - 1
            if restricted.proven > enough or self.budget.left <= 0:
                continue
            with self.share(self.params.restricted_attempts * seconds):
                if self.best is None:
                    restricted.find_incumbent(seconds, enough)
                else:
                    restricted.find_shorter(enough, seconds)

    def _restrict(self) -> Iterator[BidirectionalSearch]:
        """The searches with rings of few slots, and in fewer partitions."""
        problem, graph, options = self.problem, self.problem.graph, self.problem.options
        less = [(graph, replace(options, depth=depth)) for depth in self.params.restricted_depths]
        made = less if options.depth is None and (problem.rings or problem.crossings) else []
        for most in range(1, problem.most_partitions if len(problem.pins) < len(problem.clusters) else 1):
            made.append((replace(graph, limits=replace(graph.limits, max_partitions=most)), options))
        for restricted_graph, restricted_options in made:
            try:
                restricted = Problem(restricted_graph, restricted_options, problem.deadline)
                require_capacity(restricted)
                bound = min_ii(restricted)
            except WarpplanError:  # Pinned to more partitions, too short a ring for a recurrence, or too little memory.
                continue
            bound = replace(bound, ii_cycles=max(bound.ii_cycles, self.proven))
            yield BidirectionalSearch(restricted, bound, self.speculation, None, self.budget, self)

    # The first incumbent

    def find_incumbent(self, seconds: float, enough: int) -> None:
        """Raises the interval from the bound until one has a schedule; if ``enough`` has none, none has."""
        large = self.exact or len(self.problem.ops) > self.params.large_loop_operations
        if self.search.modulo_scheduling and len(self.problem.ops) >= self.search.modulo.least_operations:
            for ii, schedule in large_schedules(self.problem, self.proven, enough, self.budget):
                self.record_schedule(ii, schedule)
            if self.best is not None:
                return
        if large or len(self.problem.pins) == len(self.problem.clusters) or self.small_loop:
            # List scheduling is fast and gives short lifetimes, so it provides the first incumbent.
            self._construct(self.proven)
        few = len(self.problem.ops) < self.search.modulo.least_operations and not self.exact
        if self.best is not None:
            return
        if few and not self.small_loop and self.search.backward_schedules and not fits_side_by_side(self.problem):
            # Models in which rings share bytes may take all of a small work limit, and find nothing.
            self._construct_above(enough, self.params.tight_memory_ladder, backward=True)
        ii, step = self.proven, max(1, self.proven // self.params.first_step_parts)
        # The bound is mostly feasible. Where rings have to share bytes, the first attempt mostly shows that the window
        # is empty.
        then = None if fits_side_by_side(self.problem) else self.likely_next(min(ii + step, enough), seconds)
        with self.share(self.params.first_attempts * seconds):
            answer = self.find_schedule(ii, seconds, then)
            repeated, before = not (self.exact or self.small_loop), None
            while repeated and answer == "unknown" and not self.out_of_work and before != self.budget.left:
                before = self.budget.left
                answer = self.find_schedule(ii, seconds)
        if self.best is not None and (self.ii <= ii or (answer == "no" and self.search.gap_bisection)):
            return
        if self.small_loop:
            self._construct_above(enough, self.params.construction_ladder)
        elif few and self.search.backward_schedules and fits_side_by_side(self.problem):
            self._construct_above(enough, self.params.spare_memory_ladder, backward=True)
        if self.best is None:
            self.construct_serially(enough)
        failures = 0
        while ii < enough and not self.out_of_work:
            ii, step = min(ii + step, enough), self.params.step_growth * step
            if self.best is not None and (ii >= self.ii or failures == self.params.step_failures):
                return
            if large:
                self._construct(ii)
                if self.best is not None and self.ii <= ii:
                    return
            with self.share(self.params.step_attempts * seconds):
                answer = self.find_schedule(ii, seconds, self.likely_next(min(ii + step, enough), seconds))
            if answer == "yes":
                return
            failures += answer == "unknown"
            if answer == "unknown" and not large and self.best is None:  # Any schedule will do.
                self._construct(ii)
        if self.best is None and not self.out_of_work:
            self.prove_infeasible(enough, self.params.proof_attempts * seconds)

    def _construct(self, ii: int, *, backward: bool = False) -> None:
        if not self.search.list_scheduling:
            return
        schedule = first_schedule(self.problem, ii, self.budget, backward=backward)
        if schedule is not None:
            self.record_schedule(ii, schedule)

    def _construct_above(self, enough: int, ladder: Sequence[float], *, backward: bool = False) -> None:
        """A schedule constructed at an interval not far from the bound, to be improved on."""
        for factor in ladder:
            ii = min(int(factor * self.proven), enough)
            if self.best is None and ii > self.proven:
                self._construct(ii, backward=backward)

    def construct_serially(self, enough: int) -> None:
        """One iteration at a time, which needs the interval ``enough`` before it is re-timed; not for the loops that
        modulo scheduling or the core begins with."""
        few = len(self.problem.ops) < self.search.modulo.least_operations and not self.exact
        if not (self.search.serial_schedule and few):
            return
        serial = serial_schedule(self.problem, self.proven, enough, self.budget)
        if serial is not None:
            self.record_schedule(enough, serial)

    def find_shorter(self, enough: int, seconds: float) -> None:
        """A schedule of at most ``enough`` cycles, where nothing longer is of use."""
        self._construct(enough)
        if self.best is None or self.ii > enough:
            self.find_schedule(enough, seconds)

    # Improving it, and proving it optimal

    def bisect_gap(self, seconds: float) -> None:
        """Bisection of the gap between bound and incumbent by whole models, as long as each is decided within
        ``seconds``: a proof halves the gap as a schedule does. It ends where little is left: next to the optimum every
        proof takes as long as the last one, and neighbourhoods are decided sooner."""
        while not self.exact and not self.settled and not self.out_of_work:
            if self.params.bisected_parts * (self.ii - self.proven) < self.ii:
                return
            target = (self.proven + self.ii - 1) // 2
            found = not self.reuses_memory() and self.find_side_by_side(target) == "yes"
            if not found and self.prove_infeasible(target, seconds) == "unknown":
                return

    def raise_lower_bound(self, seconds: float, enough: int) -> None:
        """Whole models from the proven bound up, in steps that double while they are proven infeasible, then by
        bisection: far below the optimum such proofs take milliseconds."""
        ceiling = enough + 1 if self.best is None else self.ii
        step, bisecting, target, failures = max(1, self.proven // self.params.bound_step_parts), False, self.proven, 0
        while self.proven < ceiling and failures < self.params.bound_failures and not self.out_of_work:
            following = self.likely_next(min(target + 1 + 2 * step, ceiling - 1), seconds, proof=True)
            answer = self.prove_infeasible(target, seconds, following)
            if answer == "no":
                step = step if bisecting else 2 * step
            else:
                failures += answer == "unknown"
                ceiling, bisecting = min(target, self.ii) if self.best is not None else target, True
            middle = (self.proven + ceiling) // 2
            target = middle if bisecting else min(self.proven + step, middle)
            if bisecting and not self.exact and self.params.precision * (ceiling - self.proven) < self.proven:
                return

    @property
    def bound_moves(self) -> bool:
        """Whether MinII is infeasible, at least in the stage window: then whole models mostly decide soon what is next
        to the optimum. Where a unit is busy all the time, MinII mostly is the optimum, and neighbourhoods find it."""
        return max(self.proven, self.heuristic_limit) > self.first_bound

    def improve_incumbent(self, seconds: float) -> None:
        """Shorter intervals with the incumbent's partitions, in its neighbourhoods, and in the stage window half way to
        what was proven, as long as one of these finds any. That none is found proves nothing."""
        known = self.ii + 1
        while self.ii < known and not self.settled and not self.out_of_work:
            known = self.ii
            self.improve_fixed_partitions(seconds)
            self.search_neighbourhoods(seconds)
            early, late = self.params.early_proof_attempts, self.params.proof_attempts
            self.prove_optimal((late if self.bound_moves else early) * seconds)
            floor, last = max(self.proven, self.heuristic_limit), self.ii - 1
            # Where rings share bytes, windows are decided no sooner than whole models, which prove something.
            windowed = not (self.search.gap_bisection and self.bound_moves and self.reuses_memory())
            while windowed and floor <= last and not self.out_of_work:
                # Where little is left, the end is hardly any harder to find.
                close = self.params.precision * (self.ii - floor) < self.ii and not self.small_loop
                with self.share(self.params.step_attempts * seconds):
                    answer = self.find_schedule(floor if close else (floor + last) // 2, seconds)
                if close or answer != "no":
                    break
                floor = max(self.proven, self.heuristic_limit)

    def prove_optimal(self, seconds: float) -> None:
        """Whether the interval below the incumbent is infeasible: if it is not, a few shorter ones in the same way."""
        for _ in range(self.params.proofs_in_a_row):
            if self.settled or self.out_of_work:
                return
            with self.share(seconds):
                if self.prove_infeasible(self.ii - 1, seconds) != "yes":
                    return
            self.improve_fixed_partitions(self.params.attempt_seconds)

    def improve_fixed_partitions(self, seconds: float) -> None:
        """Fixed-partition improvement: shorter intervals with the incumbent's partitions, which leave little to decide;
        by steps that grow, then by bisection of the gap."""
        if self.exact or not self.search.fixed_partition_improvement:
            return
        if self.kept[0] is self.best and seconds <= self.kept[1]:
            return
        floor = max(self.proven, self.heuristic_limit if self.heuristic_limit < self.ii else 0)
        step, bisecting = 1, False
        while self.best is not None and floor < self.ii and not self.out_of_work:
            target = max(self.ii - step, (floor + self.ii - 1) // 2)
            proof = self.likely_next(self.ii - 1, self.params.proof_attempts * seconds, proof=True)
            placed = layout(self.problem, self.ii, self.best)
            query = self.query(target)
            schedule = query.keep_partitions(self.best, seconds, placed=placed if placed.reuses else None, then=proof)
            if schedule is not None:
                self.record_schedule(target, schedule)
            else:
                floor, bisecting = target + 1, True
            if self.params.precision * (self.ii - floor) < self.ii:
                break
            step = self.ii if bisecting else max(2 * step, self.ii // self.params.precision)
        if not self.out_of_work:
            self.kept = self.best, seconds

    def search_neighbourhoods(self, seconds: float) -> None:
        """Large-neighbourhood search around the incumbent, until the share is spent, or ``failures`` attempts in a row
        have found nothing."""
        if self.exact or not self.search.large_neighbourhoods or self.small_loop:
            return
        failures, reuse = 0, self._neighbours_reuse_memory()
        while self.best is not None and not self.settled and not self.out_of_work:
            if failures >= self._most_failures(reuse=reuse):
                return
            drawn = self.choice.draw(self.ii, self.best, self.proven)
            answer, schedule = self.query(drawn.ii).attempt_neighbourhood(drawn, seconds, reuse=reuse)
            self.choice.learn(drawn, answer)
            failures = 0 if schedule is not None else failures + 1
            if schedule is not None:
                self.record_schedule(drawn.ii, schedule)
                reuse = self._neighbours_reuse_memory()

    def _neighbours_reuse_memory(self) -> bool:
        """Whether rings may lie in one another's place in neighbourhoods, though the incumbent's may lie side by side:
        where MinII is infeasible, that is mostly for want of memory."""
        return self.reuses_memory() or (self.bound_moves and worth_sharing(self.problem, self.ii))

    def _most_failures(self, *, reuse: bool) -> int:
        """Attempts in a row without a shorter interval after which a proof is tried; ``reuse``: rings may lie in one
        another's place."""
        params = self.search.neighbourhoods
        further = params.shared_memory_failures * (self.ii - self.proven) / self.proven if reuse else 0.0
        return params.failures[self.bound_moves] + int(further)

    # Among schedules of the same interval

    def break_ties(self) -> None:
        """The incumbent's interval with the best schedule, beyond the work limit: the same for every limit."""
        if self.best is None:
            return
        if self.problem.options.among_equals == "makespan":
            self._shorten_makespan()
            return
        if self.search.tie_break and len(self.problem.ops) <= self.params.tiny_loop_operations:
            budget = WorkBudget(inf, self.problem.deadline)
            self.best = break_ties(self.problem, self.ii, budget, self.best)[1] or self.best
        if self.search.compaction:
            self.best = compact_lifetimes(self.problem, self.ii, self.best)

    def _shorten_makespan(self) -> None:
        if self.problem.options.among_equals == "makespan" and self.best is not None:
            self.best = shorten_makespan(self.problem, self.ii, self.best, self.budget)

"""One iteration at a time: every operation waits for the one before, in an order of small peak memory.

A loop whose memory or registers suffice for one iteration has such a schedule, however hard its software pipeline is.
The order is found by beam search over the dependences within an iteration; re-timing then lets operations overlap.
Ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.problem.assignment import Assignment, rings
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.partition_sizes import registers_taken
from warpplan.planner.problem.terms import REGISTER_COUNTS, whole_multiple
from warpplan.planner.search.heuristics.partition_heuristics import candidate_partitions
from warpplan.planner.search.heuristics.retiming import fits


def serial_schedule(problem: Problem, bound: int, ii: int, budget: WorkBudget) -> Assignment | None:
    """A schedule of interval ``ii`` that obeys every rule, or ``None`` where none was found (which proves nothing): in
    partitions that would suit ``bound``, else in those that local search finds, which moves one cluster at a time as
    long as less is held beyond memory and registers. The former takes milliseconds, and is tried even where the work
    budget has ended; the latter up to half a second for 40 operations."""
    params = problem.options.search.construction
    tried = list[tuple[float, tuple[int, ...]]]()
    for partitions in candidate_partitions(problem, bound):
        budget.take(params.serial_seconds_per_operation * len(problem.ops))
        orders = _Orders(problem, partitions)
        order = orders.smallest_peak(_beam(problem))
        found = Assignment(_starts(problem, partitions, order), partitions)
        if fits(problem, ii, found):
            return found
        tried.append((orders.excess(order), partitions))
    for least, partitions in dict.fromkeys((tried[0], min(tried))):  # All together, and what is nearest.
        improved = _improved(problem, least, partitions, ii, budget)
        if improved is not None:
            return improved
    return None


def _improved(
    problem: Problem, least: float, partitions: tuple[int, ...], ii: int, budget: WorkBudget
) -> Assignment | None:
    """Local search from ``partitions``, with which ``least`` is held in excess, to a local optimum."""
    params = problem.options.search.construction
    while least and budget.left > 0:
        moved = []
        for other in _moves(problem, partitions):
            budget.take(params.serial_seconds_per_operation * len(problem.ops) / _beam(problem))
            orders = _Orders(problem, other)
            order = orders.smallest_peak(1)
            moved.append((orders.excess(order), other, order))
        excess, partitions, order = min(moved, default=(least, partitions, ()))
        if excess >= least:
            return None
        least, found = excess, Assignment(_starts(problem, partitions, order), partitions)
        if fits(problem, ii, found):
            return found
    return None


def _beam(problem: Problem) -> int:
    return max(1, problem.options.search.construction.serial_states // len(problem.ops))


def _moves(problem: Problem, partitions: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """``partitions`` with one cluster elsewhere: in each partition that is used, and in the first that is not."""
    used = min(max(partitions) + 2, problem.most_partitions)
    for cluster in problem.clusters:
        for g in range(used if cluster not in problem.pins else 0):
            if g != partitions[cluster]:
                yield tuple(g if c == cluster else p for c, p in zip(problem.cluster, partitions, strict=True))


def _starts(problem: Problem, partitions: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Each operation once the one before has ended and its readers could have heard of it."""
    limits, at_zero = problem.graph.limits, Assignment((0,) * len(problem.ops), tuple(partitions))
    after = [max(op.latency, op.occupancy, op.issue) for op in problem.ops]
    for arc in problem.dependences:
        handoff = arc.handoff if at_zero.apart(arc.src, arc.dst) else 0
        after[arc.src] = max(after[arc.src], arc.cycles + handoff)
    for uses in rings(problem, at_zero).values():
        for use in uses:
            after[use.consumer] = max(after[use.consumer], use.cycles + use.margin + use.handoff)
    barriers = 2 * limits.barrier_cycles * (1 + max(len(readers) for readers in problem.readers.values()))
    starts, now = [0] * len(problem.ops), barriers
    for i in order:
        starts[i] = now
        now += after[i] + barriers
    return tuple(starts)


class _Orders:
    """Orders of one iteration's operations, by what their values hold at once."""

    def __init__(self, problem: Problem, partitions: Sequence[int]) -> None:
        self.problem, self.partitions = problem, partitions
        ops = range(len(problem.ops))
        found = Assignment((0,) * len(problem.ops), tuple(partitions))
        self.waits: list[set[int]] = [set() for _ in ops]
        for arc in problem.dependences:
            if arc.distance == 0 and arc.src != arc.dst:
                self.waits[arc.dst].add(arc.src)
        self.held: list[list[tuple[int, int, frozenset[int]]]] = [[] for _ in ops]
        """Per operation, what its value takes: (memory, amount, the readers that free it)."""
        limits = problem.graph.limits
        self.capacity = [limits.smem_bytes - problem.extra_bytes, 128 * limits.tmem_columns]
        self.capacity += [REGISTER_COUNTS[-1] - limits.base_registers] * (1 + max(partitions))
        for i, uses in rings(problem, found).items():
            memory = 0 if problem.memory(i) == "smem" else 1
            size = problem.slot_area(i) if memory else problem.slot_bytes(i)
            self._hold(i, memory, size, {use.consumer: use.distance for use in uses if use.consumer != i})
        for i, op in enumerate(problem.ops):
            if op.registers and not op.buffer_bytes:
                inside = {r: edge.distance for r, edge in problem.readers[i] if partitions[r] == partitions[i]}
                self._hold(i, 2 + partitions[i], op.registers, inside)

    def _hold(self, i: int, memory: int, amount: int, readers: dict[int, int]) -> None:
        carried = any(readers.values())
        self.held[i].append((memory, amount, frozenset({-1} if carried else readers)))

    def smallest_peak(self, beam: int) -> tuple[int, ...]:
        """The order of the smallest peak that a beam of that many sets of operations finds."""
        always = self._always()
        front: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for _ in self.waits:
            self.problem.deadline.check()
            grown: dict[frozenset[int], tuple[float, tuple[int, ...]]] = {}
            for peak, order in front:
                done = set(order)
                for i, waits in enumerate(self.waits):
                    if i in done or not waits <= done:
                        continue
                    state = (max(peak, self._level(done | {i}, i, always)), (*order, i))
                    key = frozenset(done | {i})
                    if key not in grown or state < grown[key]:
                        grown[key] = state
            front = sorted(grown.values(), key=lambda state: (state[0], self._level(set(state[1]), -1, always), state))
            front = front[:beam]
        return front[0][1]

    def excess(self, order: Sequence[int]) -> float:
        """What is held beyond the capacities, in shares of them, summed over the steps of ``order``, and registers of
        all partitions together beyond what a block has."""
        always = self._always()
        steps = [self._levels(set(order[: at + 1]), i, always) for at, i in enumerate(order)]
        beyond = sum(max(0.0, level - 1.0) for levels in steps for level in levels)
        taken, limits = 0, self.problem.graph.limits
        for g in set(self.partitions):
            warps = max(w for w, p in zip(self.problem.warps, self.partitions, strict=True) if p == g)
            live = round(max(levels[2 + g] for levels in steps) * self.capacity[2 + g])
            count = whole_multiple(max(REGISTER_COUNTS[0], limits.base_registers + live), 8)
            taken += registers_taken(warps, count)
        return beyond + max(0.0, taken / limits.registers - 1.0)

    def _always(self) -> list[int]:
        """Per memory, what values hold that outlive an iteration."""
        always = [0] * len(self.capacity)
        for values in self.held:
            for memory, amount, readers in values:
                always[memory] += amount if -1 in readers else 0
        return always

    def _level(self, done: set[int], now: int, always: Sequence[int]) -> float:
        """The largest share of a capacity that is held while ``now`` runs (-1: afterwards)."""
        return max(self._levels(done, now, always))

    def _levels(self, done: set[int], now: int, always: Sequence[int]) -> list[float]:
        level = list(always)
        for i in done:
            for memory, amount, readers in self.held[i]:
                if -1 not in readers and (i == now or now in readers or not readers <= done):
                    level[memory] += amount
        return [taken / max(1, capacity) for taken, capacity in zip(level, self.capacity, strict=True)]

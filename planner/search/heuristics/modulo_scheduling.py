"""Iterative modulo scheduling (Rau, MICRO 1994) with a reservation table, for loops of hundreds to thousands of
operations.

Operations are placed in the order of their heights (longest paths to the end of the iteration), each at the first cycle
of one interval from its earliest start on at which its resources are free. Where there is none, it is placed all the
same, later than the time before, and what stands in its way is evicted: backtracking within a budget of placements.
No step needs the longest paths between all pairs: the time grows with the dependences, not with the operations' cube.

One thing is ours: where a *decoupled* attempt is made, only dependences inside strongly connected components bound a
start; between components they are met by whole intervals afterwards, as in
:mod:`~warpplan.planner.search.heuristics.list_scheduling`. It reaches smaller intervals, and Rau's own rule shorter
lives; each interval is tried with both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.bounds.min_ii import WeightedArc, earliest, forward_order, recurrence
from warpplan.planner.bounds.time_relaxation import (
    Resource,
    TimeRelaxation,
    Usage,
    connected,
    loop_of,
    resource_interval,
)
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.list_scheduling import restage
from warpplan.planner.search.heuristics.partition_heuristics import candidate_partitions
from warpplan.planner.search.heuristics.retiming import fits

Found = tuple[int, Assignment]
"""An interval, and a schedule of it that obeys every rule."""


def large_schedules(problem: Problem, low: int, enough: int, budget: WorkBudget) -> Iterator[Found]:
    """Ever shorter schedules of intervals in ``low`` to ``enough``, each obeying every rule; nothing is proven.

    First any schedule, by growing steps from ``low`` up; then shorter ones, by bisection and at last, in twice as many
    placements each round, at every interval that is left.
    """
    params = problem.options.search.modulo
    best: int | None = None
    for partitions in islice(candidate_partitions(problem, low), params.partitions):
        search = _IntervalSearch(problem, partitions, budget)
        for found in search.descend(low, enough if best is None else best - 1):
            best = found[0]
            yield found
        if best == low:
            return


class _IntervalSearch:
    """The intervals of one choice of partitions."""

    def __init__(self, problem: Problem, partitions: tuple[int, ...], budget: WorkBudget) -> None:
        self.problem, self.partitions, self.budget = problem, partitions, budget
        self.params = problem.options.search.modulo
        loop = loop_of(problem, partitions)
        self.loop = replace(loop, arcs=tuple(forward_order(loop.nodes, loop.arcs)))
        self.lives_do_not_matter = not (problem.rings or any(op.registers for op in problem.ops))
        self.home = [0] * loop.nodes
        for at, component in enumerate(connected(loop.nodes, loop.arcs)):
            for i in component:
                self.home[i] = at

    def descend(self, low: int, high: int) -> Iterator[Found]:
        least, _ = recurrence(self.loop.nodes, self.loop.arcs, self.problem.deadline)
        low = max(low, least or 0, resource_interval(self.loop))
        best = high + 1
        ratio, failed, ii = self.params.placements_per_operation, low - 1, low
        step = max(1, low // self.params.first_step_parts)
        while ii <= high and best > high and not self._spent():
            found = self._schedule(ii, min(ratio, self.params.first_placements_per_operation))
            if found is not None:
                best = ii
                yield found
            else:
                failed = ii
                ii = high if ii < high < ii + step else ii + step
                step *= self.params.step_growth
        if best > high:
            return
        while best - failed > 1 and not self._spent():
            middle = (failed + best) // 2
            found = self._schedule(middle, ratio)
            if found is not None:
                best = middle
                yield found
            else:
                failed = middle
        kept = (1 - self.params.sweep_share) * self.budget.left
        for _ in range(self.params.rounds):
            for ii in range(low, best):
                if self.budget.left <= kept:
                    return
                found = self._schedule(ii, ratio, every=True)
                if found is not None:
                    best = ii
                    yield found
                    break
            ratio *= 2

    def _spent(self) -> bool:
        return self.budget.left <= 0

    def _schedule(self, ii: int, ratio: int, *, every: bool = False) -> Found | None:
        """An attempt at ``ii`` of the kind that is likelier to succeed, or of both kinds."""
        if ii * len(self.loop.capacity) > self.params.most_table_cycles:
            return None
        for decoupled in (self.lives_do_not_matter, not self.lives_do_not_matter)[: 1 + every]:
            placing = _TablePlacing(self.loop, ii, self.home if decoupled else None)
            starts = placing.run(ratio * self.loop.nodes)
            self.budget.take(self.params.seconds_per_placement * placing.placements)
            if starts is not None:
                found = Assignment(restage(self.loop, ii, starts) if decoupled else tuple(starts), self.partitions)
                if fits(self.problem, ii, found):
                    return ii, found
        return None


class _Table:
    """The reservation table of one resource: what is held in each cycle of the interval.

    ``full[n]`` has a byte for each cycle of two rounds of the circle: 1 where another ``n`` would be too many. A run of
    free cycles is then found by a search for a run of zeros.
    """

    def __init__(self, ii: int, capacity: int, users: Sequence[tuple[int, Usage]]) -> None:
        self.ii, self.capacity = ii, capacity
        self.level = [0] * ii
        needs = {u.amount * (u.cycles // ii + more) for _, u in users for more in (0, 1)}
        self.full = {n: bytearray([n > capacity]) * (2 * ii) for n in sorted(needs)}
        self.position = {i: at for at, (i, _) in enumerate(users)}
        self.ops = np.array([i for i, _ in users])
        self.cycles = np.array([min(u.cycles, ii) for _, u in users])
        self.begin: NDArray[np.int64] = np.full(len(users), -1, dtype=np.int64)

    def next_free(self, begin: int, usage: Usage) -> int | None:
        """The first cycle from ``begin`` on, within one interval, at which ``usage`` fits."""
        whole, rest = divmod(usage.cycles, self.ii)
        if whole and self.full[usage.amount * whole].find(1) >= 0:
            return None
        if not rest:
            return begin
        full, gap, phase = self.full[usage.amount * (whole + 1)], bytes(rest), begin % self.ii
        at = full.find(gap, phase)
        if at < 0:
            at = full.find(gap, 0, phase - 1 + rest)
            if at < 0:
                return None
            at += self.ii
        return begin - phase + at if at - phase < self.ii else None

    def change(self, i: int, begin: int, usage: Usage, sign: int) -> None:
        """``usage`` of operation ``i`` from cycle ``begin`` on is held (1), or no longer (-1)."""
        whole, rest = divmod(usage.cycles, self.ii)
        phase = begin % self.ii
        self.begin[self.position[i]] = phase if sign > 0 else -1
        if whole:
            self._add(0, self.ii, sign * usage.amount * whole)
        self._add(phase, min(phase + rest, self.ii), sign * usage.amount)
        self._add(0, phase + rest - self.ii, sign * usage.amount)

    def _add(self, first: int, last: int, amount: int) -> None:
        if first < last:
            level = self.level[first:last] = [held + amount for held in self.level[first:last]]
            for n, full in self.full.items():
                most = self.capacity - n
                full[first:last] = full[first + self.ii : last + self.ii] = bytes([held > most for held in level])

    def overlapping(self, begin: int, usage: Usage) -> list[int]:
        """The operations that hold some of the cycles that ``usage`` would."""
        phase = begin % self.ii
        meets = ((self.begin - phase) % self.ii < usage.cycles) | ((phase - self.begin) % self.ii < self.cycles)
        return [int(i) for i in self.ops[meets & (self.begin >= 0)]]


@dataclass(frozen=True)
class _Arcs:
    """Arcs by their ends."""

    into: list[list[WeightedArc]]
    out: list[list[WeightedArc]]


class _TablePlacing:
    """One attempt at one interval. ``home``: the component of each operation, where dependences between components do
    not count; None: all count."""

    def __init__(self, loop: TimeRelaxation, ii: int, home: Sequence[int] | None) -> None:
        self.loop, self.ii, self.placements = loop, ii, 0
        users: dict[Resource, list[tuple[int, Usage]]] = {}
        for i, held in enumerate(loop.usages):
            for usage in held:
                users.setdefault(usage.resource, []).append((i, usage))
        self.tables = {resource: _Table(ii, loop.capacity[resource], used) for resource, used in users.items()}
        counted = [arc for arc in loop.arcs if arc[0] != arc[1] and (home is None or home[arc[0]] == home[arc[1]])]
        self.arcs = _Arcs([[] for _ in range(loop.nodes)], [[] for _ in range(loop.nodes)])
        for arc in counted:
            self.arcs.out[arc[0]].append(arc)
            self.arcs.into[arc[1]].append(arc)
        back = [(dst, src, cycles, distance) for src, dst, cycles, distance in reversed(counted)]
        heights = earliest(loop.nodes, back, ii, loop.deadline)
        self.feasible = heights is not None
        longest = [max((u.cycles for u in held), default=0) for held in loop.usages]
        many = [sum(u.amount * u.cycles for u in held) for held in loop.usages]
        # In a decoupled attempt operations on no recurrence come last: they go into whatever gaps are left.
        alone = [home is not None and not self.arcs.into[i] and not self.arcs.out[i] for i in range(loop.nodes)]
        tall = heights or (0,) * loop.nodes
        order = sorted(range(loop.nodes), key=lambda i: (alone[i], -tall[i], -longest[i], -many[i], i))
        self.order = order
        self.rank = {i: at for at, i in enumerate(order)}

    def run(self, budget: int) -> list[int] | None:
        """Starts of all operations, or None where ``budget`` placements do not suffice."""
        if not self.feasible:
            return None
        starts: dict[int, int] = {}
        last: dict[int, int] = {}
        todo = list(range(self.loop.nodes))  # ranks; a heap as it is
        while todo:
            if self.placements == budget:
                return None
            self.placements += 1
            if self.placements % 64 == 0:
                self.loop.deadline.check()
            i = self.order[heapq.heappop(todo)]
            low = max((starts[a[0]] + a[2] - self.ii * a[3] for a in self.arcs.into[i] if a[0] in starts), default=0)
            low = max(low, 0)
            at = self._fit(i, low)
            if at is None:
                at = max(low, last.get(i, low - 1) + 1)
                for j in self._in_conflict(i, at):
                    self._hold(j, starts.pop(j), -1)
                    heapq.heappush(todo, self.rank[j])
            for _, j, cycles, distance in self.arcs.out[i]:
                if j in starts and starts[j] < at + cycles - self.ii * distance:
                    self._hold(j, starts.pop(j), -1)
                    heapq.heappush(todo, self.rank[j])
            starts[i] = last[i] = at
            self._hold(i, at, 1)
        return [starts[i] for i in range(self.loop.nodes)]

    def _hold(self, i: int, at: int, sign: int) -> None:
        for usage in self.loop.usages[i]:
            self.tables[usage.resource].change(i, at + usage.offset, usage, sign)

    def _fit(self, i: int, low: int) -> int | None:
        """The first start from ``low`` on, within one interval, at which every resource is free."""
        at, settled, usages = low, 0, self.loop.usages[i]
        while settled < len(usages):
            settled = 0
            for usage in usages:
                free = self.tables[usage.resource].next_free(at + usage.offset, usage)
                if free is None or free - usage.offset >= low + self.ii:
                    return None
                settled += free - usage.offset == at
                at = free - usage.offset
        return at

    def _in_conflict(self, i: int, at: int) -> list[int]:
        """Operations without which ``i`` fits at ``at``: those of lowest priority first, by resource."""
        evicted: dict[int, None] = {}
        for usage in self.loop.usages[i]:
            table, begin = self.tables[usage.resource], at + usage.offset
            removed = []
            for j in sorted(table.overlapping(begin, usage), key=lambda j: -self.rank[j]):
                if table.next_free(begin, usage) == begin:
                    break
                held = next(u for u in self.loop.usages[j] if u.resource == usage.resource)
                phase = int(table.begin[table.position[j]])
                table.change(j, phase, held, -1)
                removed.append((j, phase, held))
                evicted[j] = None
            for j, phase, held in removed:  # The caller removes them from all of their resources.
                table.change(j, phase, held, 1)
        return list(evicted)

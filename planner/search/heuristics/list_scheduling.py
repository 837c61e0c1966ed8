"""Iterative modulo scheduling (Rau, MICRO 1994) on intervals instead of a table of cycles.

Its rule: place the operation of highest priority at the first cycle that dependences and resources allow; where there
is none, place it all the same and evict what stands in its way, within a budget. Three things differ. Resources are
intervals on the circle of II cycles, so that costs need no scaling. Only operations of one strongly connected component
bound one another: between components, dependences are met afterwards by whole intervals (once the phases are known,
stages are longest paths). And a failed attempt is repeated with the operations that made trouble moved to the front
(Joslin and Clements, "Squeaky wheel optimization", JAIR 1999).

Where rings have to share bytes, schedules are placed backwards: each operation as late before those that depend on it
as resources allow, so that values live shorter (Huff, "Lifetime-sensitive modulo scheduling", PLDI 1993, chooses the
direction by operation).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from warpplan.planner.bounds.min_ii import WeightedArc, earliest
from warpplan.planner.bounds.time_relaxation import (
    NEVER,
    TimeRelaxation,
    connected,
    loop_of,
    overfull,
    ring_arcs,
    tight_paths,
    weighted,
)
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.problem.assignment import Assignment, retirement_arcs, rings
from warpplan.planner.problem.circular_intervals import Circle
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import Arc
from warpplan.planner.search.heuristics.partition_heuristics import candidate_partitions
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.values.search_params import SearchParams


def first_schedule(
    problem: Problem, ii: int, budget: WorkBudget | None = None, *, backward: bool = False
) -> Assignment | None:
    """A schedule of interval ``ii`` that obeys every rule, or ``None`` where none was found (which proves nothing).

    A schedule that breaks only what placing does not see is tried once more: in the order that its wgmma groups retire
    in, and with rings no deeper than memory allows.
    """
    params = problem.options.search.construction
    for partitions in candidate_partitions(problem, ii):
        loop = loop_of(problem, partitions)
        if budget is not None:
            if budget.left <= 0:
                return None
            budget.take(
                params.seconds_per_operation * len(problem.ops) + params.seconds_per_path * len(problem.ops) ** 3
            )
        for repaired in (False, True):
            found = None
            for starts in (backward_schedules if backward else list_schedules)(loop, ii, problem.options.search):
                found = Assignment(starts, partitions)
                if fits(problem, ii, found):
                    return found
            if found is None:
                break
            if not repaired:
                arcs = [*retirement_arcs(problem, ii, found), *_affordable_rings(problem, found)]
                loop = replace(loop, arcs=loop.arcs + weighted(arcs, found.apart))
    return None


def _affordable_rings(problem: Problem, found: Assignment) -> list[Arc]:
    """Arcs of rings in shared memory that are all as deep as memory allows."""
    slots = {p: problem.slot_bytes(p) for p in rings(problem, found) if problem.memory(p) == "smem"}
    depth = max(1, (problem.graph.limits.smem_bytes - problem.extra_bytes) // max(1, sum(slots.values())))
    return [] if problem.options.depth is not None else ring_arcs(problem, found, depth, set(slots))


# Placing


def list_schedules(loop: TimeRelaxation, ii: int, params: SearchParams) -> Iterator[tuple[int, ...]]:
    """Starts ≥ 0 that obey the loop's arcs and capacities at ``ii``; one for each attempt that succeeds."""
    backward = earliest(
        loop.nodes, [(dst, src, cycles, distance) for src, dst, cycles, distance in loop.arcs], ii, loop.deadline
    )
    if backward is None or overfull(loop, ii):
        return
    components = connected(loop.nodes, loop.arcs)
    paths = []
    for component in components:
        tight = tight_paths(loop, component, ii, params.bounds)
        if tight is None:
            return
        paths.append(tight[0])
    longest = [max((u.cycles for u in held), default=0) for held in loop.usages]
    core = {i for component in components for i in component if len(component) > 1}
    # Operations on recurrences first; long holds first, which would not find a gap later; by dependences alone, which
    # keeps values short-lived.
    orders = ([int(i not in core) for i in range(loop.nodes)], [-cycles for cycles in longest], [0] * loop.nodes)
    trouble = [0] * loop.nodes
    for attempt in range(params.construction.attempts):
        first = orders[attempt % len(orders)]
        order = sorted(range(loop.nodes), key=lambda i: (-trouble[i], first[i], -backward[i], -longest[i], i))
        starts = _Placing(loop, ii, components, paths, order, trouble).run(
            params.construction.placements_per_operation * loop.nodes
        )
        if starts is not None:
            yield restage(loop, ii, starts)


def backward_schedules(loop: TimeRelaxation, ii: int, params: SearchParams) -> Iterator[tuple[int, ...]]:
    """Likewise, each operation placed before those that depend on it: the list schedules of the loop with time
    reversed."""
    arcs = tuple((dst, src, cycles, distance) for src, dst, cycles, distance in loop.arcs)
    usages = tuple(tuple(replace(u, offset=-u.offset - u.cycles) for u in held) for held in loop.usages)
    for starts in list_schedules(replace(loop, arcs=arcs, usages=usages), ii, params):
        end = -(-max(starts) // ii) * ii
        yield tuple(end - t for t in starts)


def restage(loop: TimeRelaxation, ii: int, starts: Sequence[int]) -> tuple[int, ...]:
    """The same phases in the earliest stages that all arcs allow; operations nobody precedes as late as they may be,
    so that what they load does not lie about."""
    phase = [t % ii for t in starts]
    stages_apart = [
        (src, dst, -((phase[dst] - phase[src] - cycles) // ii) - distance, 0)
        for src, dst, cycles, distance in loop.arcs
    ]
    stage = list(earliest(loop.nodes, stages_apart, ii, loop.deadline) or ())
    preceded = {dst for _, dst, _, _ in loop.arcs}
    latest: dict[int, int] = {}
    for src, dst, apart, _ in stages_apart:
        if src not in preceded:
            latest[src] = min(latest.get(src, stage[dst] - apart), stage[dst] - apart)
    for i, late in latest.items():
        stage[i] = late
    return tuple(phase[i] + ii * stage[i] for i in range(loop.nodes))


class _Placing:
    """One attempt: what is placed where, and what is still to do."""

    def __init__(
        self,
        loop: TimeRelaxation,
        ii: int,
        components: Sequence[Sequence[int]],
        paths: Sequence[Sequence[Sequence[int]]],
        order: Sequence[int],
        trouble: list[int],
    ) -> None:
        self.loop, self.ii, self.components, self.paths, self.trouble = loop, ii, components, paths, trouble
        self.home = {i: (at, k) for at, component in enumerate(components) for k, i in enumerate(component)}
        self.rank = {i: at for at, i in enumerate(order)}
        self.todo = list(range(loop.nodes))  # ranks; a heap as it is
        self.order = order
        self.starts: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.circles = {resource: Circle(ii, capacity) for resource, capacity in loop.capacity.items()}
        self.into: list[list[WeightedArc]] = [[] for _ in range(loop.nodes)]
        for arc in loop.arcs:
            self.into[arc[1]].append(arc)

    def run(self, budget: int) -> list[int] | None:
        while self.todo:
            self.loop.deadline.check()
            if budget == 0:
                return None
            budget -= 1
            i = self.order[heapq.heappop(self.todo)]
            low, high = self._window(i)
            at = self._fit(i, low, high)
            if at is None:
                at = self._evict_for(i, max(low, self.last.get(i, low - 1) + 1))
            self.starts[i] = self.last[i] = at
            for usage in self.loop.usages[i]:
                self.circles[usage.resource].add(i, at + usage.offset, usage.cycles, usage.amount)
        return [self.starts[i] for i in range(self.loop.nodes)]

    def _window(self, i: int) -> tuple[int, int]:
        """The first and last start that the component's placed operations allow; one interval at most."""
        component, k = self.home[i]
        members, path = self.components[component], self.paths[component]
        low, high = NEVER, -NEVER
        for m, j in enumerate(members):
            if (t := self.starts.get(j)) is not None:
                low = max(low, t + path[m][k])
                high = min(high, t - path[k][m])
        if low == NEVER:
            # Nothing bounds it: close behind its predecessors, to need few stages.
            low = max(
                (self.starts[a[0]] + a[2] - self.ii * a[3] for a in self.into[i] if a[0] in self.starts), default=0
            )
        return low, min(high, low + self.ii - 1)

    def _fit(self, i: int, low: int, high: int) -> int | None:
        """The first start in the window at which every resource is free."""
        at = low
        settled = 0
        usages = self.loop.usages[i]
        while settled < len(usages):
            settled = 0
            for usage in usages:
                free = self.circles[usage.resource].next_free(at + usage.offset, usage.cycles, usage.amount)
                if free is None or free - usage.offset > high:
                    return None
                settled += free - usage.offset == at
                at = free - usage.offset
        return at

    def _evict_for(self, i: int, at: int) -> int:
        """Evict the operations in conflict with ``i`` at ``at``: by resource those of lowest priority first, then those
        whose distances from it are broken."""
        self.trouble[i] += 1
        for usage in self.loop.usages[i]:
            circle = self.circles[usage.resource]
            for j in sorted(circle.overlapping(at + usage.offset, usage.cycles), key=lambda j: -self.rank[j]):
                if circle.next_free(at + usage.offset, usage.cycles, usage.amount) == at + usage.offset:
                    break
                self._evict(j)
        component, k = self.home[i]
        for m, j in enumerate(self.components[component]):
            t = self.starts.get(j)
            if t is not None and (t < at + self.paths[component][k][m] or at < t + self.paths[component][m][k]):
                self._evict(j)
        return at

    def _evict(self, j: int) -> None:
        del self.starts[j]
        for usage in self.loop.usages[j]:
            self.circles[usage.resource].remove(j)
        heapq.heappush(self.todo, self.rank[j])

"""First schedules in milliseconds: iterative modulo scheduling on intervals instead of a table of cycles.

After Rau, "Iterative modulo scheduling", MICRO 1994: place the operation of highest priority at the first cycle that
dependences and resources allow; where there is none, place it all the same and evict what stands in its way, within a
budget. Three things differ. Resources are intervals on the circle of II cycles, so that costs need no scaling. Only
operations of one strongly connected component bound one another: between components, dependences are met afterwards by
whole turns (once the phases are known, stages are longest paths). And a failed attempt is repeated with the operations
that made trouble moved to the front (Joslin and Clements, "Squeaky wheel optimization", JAIR 1999).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from warpplan.planner.assignment import Assignment, issue_spans, rings
from warpplan.planner.bounds import WeightedArc, earliest
from warpplan.planner.problem import Arc, Problem

ATTEMPTS = 6
BUDGET = 6
"""Placements an attempt may make, per operation."""
SMALL = 16
"""Nodes up to which networkx takes longer to load than to do without."""
NEVER = -(2**60)
"""A longest path that does not exist; sums of two still fit 64 bits."""

Resource = tuple[str, int]
"""("unit", its index in the graph) or ("issue", a partition)."""


@dataclass(frozen=True)
class Usage:
    """An operation that starts at t holds ``resource`` during [t + ``offset``, t + ``offset`` + ``cycles``)."""

    resource: Resource
    offset: int
    cycles: int


def first_schedule(problem: Problem, ii: int) -> Assignment | None:
    """A schedule of interval ``ii``, or ``None`` where none was found (which proves nothing).

    It obeys dependences with their hand-offs, rings of given depth, units, issue slots with their barriers, pins and
    clusters. Shared memory, registers, and wgmma groups that retire in order are left to the caller to verify.
    """
    for partitions in partition_choices(problem):
        starts = place(loop_of(problem, partitions), ii)
        if starts is not None:
            return Assignment(starts, partitions)
    return None


@dataclass(frozen=True)
class Loop:
    """A problem whose partitions are decided: arcs with their hand-offs, and what each operation holds."""

    nodes: int
    arcs: tuple[WeightedArc, ...]
    usages: tuple[tuple[Usage, ...], ...]
    capacity: dict[Resource, int]


def loop_of(problem: Problem, partitions: Sequence[int]) -> Loop:
    """``problem`` with its operations in ``partitions``; empty holds are left out."""
    graph = problem.graph
    at_zero = Assignment((0,) * len(graph.ops), tuple(partitions))
    arcs = list(problem.dependences)
    if problem.options.depth is not None:
        arcs += [
            Arc(use.consumer, i, use.cycles + use.margin, use.handoff, problem.options.depth - use.distance)
            for i, uses in rings(problem, at_zero).items()
            for use in uses
        ]
    weighted = tuple((a.src, a.dst, a.cycles + a.handoff * at_zero.apart(a.src, a.dst), a.distance) for a in arcs)
    capacity: dict[Resource, int] = {("unit", at): copies for at, (_, copies) in enumerate(graph.units)}
    capacity.update({("issue", g): 1 for g in partitions})
    units = {unit: at for at, (unit, _) in enumerate(graph.units)}
    usages = []
    for op, g, (begin, end) in zip(problem.ops, partitions, issue_spans(problem, at_zero), strict=True):
        held = [Usage(("issue", g), begin, end - begin)]
        if op.unit is not None:
            held.append(Usage(("unit", units[op.unit]), 0, op.occupancy))
        usages.append(tuple(usage for usage in held if usage.cycles))
    return Loop(len(graph.ops), weighted, tuple(usages), capacity)


def partition_choices(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Ways to share the operations out, the simplest first: together; loads apart; loads, tensor work and the rest
    apart; each clone apart. Pins are kept; what is left joins the lowest partition."""
    graph, most = problem.graph, problem.graph.limits.max_partitions
    units: dict[int, set[str | None]] = {c: set() for c in problem.clusters}
    for i, op in enumerate(graph.ops):
        units[problem.cluster[i]].add(op.unit)
    copy = {problem.cluster[graph.index[op]]: at for at, clone in enumerate(graph.clones) for op in clone}
    loads = {c: int(units[c] != {"TMA"}) for c in problem.clusters}
    tensor = {c: loads[c] and 1 + ("TENSOR" not in units[c]) for c in problem.clusters}
    cloned = {c: loads[c] and 1 + copy.get(c, 0) for c in problem.clusters}
    seen = set()
    for choice in (dict.fromkeys(problem.clusters, 0), loads, cloned, tensor):
        chosen = {c: problem.pins.get(c, min(choice[c], most - 1)) for c in problem.clusters}
        partitions = tuple(chosen[c] for c in problem.cluster)
        if partitions not in seen:
            seen.add(partitions)
            yield partitions


# Placing


def place(loop: Loop, ii: int, attempts: int = ATTEMPTS) -> tuple[int, ...] | None:
    """Starts ≥ 0 that obey the loop's arcs and capacities at ``ii``, or ``None``."""
    backward = earliest(loop.nodes, [(dst, src, cycles, distance) for src, dst, cycles, distance in loop.arcs], ii)
    if backward is None or any(
        sum(u.cycles for held in loop.usages for u in held if u.resource == resource) > capacity * ii
        for resource, capacity in loop.capacity.items()
    ):
        return None
    components = connected(loop.nodes, loop.arcs)
    paths = [longest_paths(component, loop.arcs, ii) for component in components]
    longest = [max((u.cycles for u in held), default=0) for held in loop.usages]
    core = {i for component in components for i in component if len(component) > 1}
    trouble = [0] * loop.nodes
    for attempt in range(attempts):
        # Odd attempts put long holds first, which would not find a gap later; even ones what is bound by recurrences.
        first = [-longest[i] if attempt % 2 else int(i not in core) for i in range(loop.nodes)]
        order = sorted(range(loop.nodes), key=lambda i: (-trouble[i], first[i], -backward[i], -longest[i], i))
        starts = _Placing(loop, ii, components, paths, order, trouble).run(BUDGET * loop.nodes)
        if starts is not None:
            return restage(loop, ii, starts)
    return None


def restage(loop: Loop, ii: int, starts: Sequence[int]) -> tuple[int, ...]:
    """The same phases in the earliest stages that all arcs allow; operations nobody precedes as late as they may be,
    so that what they load does not lie about."""
    phase = [t % ii for t in starts]
    turns = [
        (src, dst, -((phase[dst] - phase[src] - cycles) // ii) - distance, 0)
        for src, dst, cycles, distance in loop.arcs
    ]
    stage = list(earliest(loop.nodes, turns, ii) or ())
    preceded = {dst for _, dst, _, _ in loop.arcs}
    for i in set(range(loop.nodes)) - preceded:
        stage[i] = min((stage[dst] - turn for src, dst, turn, _ in turns if src == i), default=stage[i])
    return tuple(phase[i] + ii * stage[i] for i in range(loop.nodes))


class _Placing:
    """One attempt: what is placed where, and what is still to do."""

    def __init__(
        self,
        loop: Loop,
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
                self.circles[usage.resource].add(i, at + usage.offset, usage.cycles)
        return [self.starts[i] for i in range(self.loop.nodes)]

    def _window(self, i: int) -> tuple[int, int]:
        """The first and last start that the component's placed operations allow; one turn at most."""
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
        """The first start in the window at which every resource has room."""
        at = low
        settled = 0
        usages = self.loop.usages[i]
        while settled < len(usages):
            settled = 0
            for usage in usages:
                free = self.circles[usage.resource].next_free(at + usage.offset, usage.cycles)
                if free is None or free - usage.offset > high:
                    return None
                settled += free - usage.offset == at
                at = free - usage.offset
        return at

    def _evict_for(self, i: int, at: int) -> int:
        """Make room for ``i`` at ``at``: by resource the operations of lowest priority first, then all out of reach."""
        self.trouble[i] += 1
        for usage in self.loop.usages[i]:
            circle = self.circles[usage.resource]
            for j in sorted(circle.overlapping(at + usage.offset, usage.cycles), key=lambda j: -self.rank[j]):
                if circle.next_free(at + usage.offset, usage.cycles) == at + usage.offset:
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


class Circle:
    """One resource over II cycles: intervals that repeat every turn, at most ``capacity`` at a time."""

    def __init__(self, ii: int, capacity: int) -> None:
        self.ii, self.capacity = ii, capacity
        self.held: dict[int, tuple[int, int]] = {}
        self.full: dict[int, list[tuple[int, int]]] = {}

    def add(self, op: int, begin: int, cycles: int) -> None:
        self.held[op] = (begin % self.ii, cycles)
        self.full.clear()

    def remove(self, op: int) -> None:
        del self.held[op]
        self.full.clear()

    def next_free(self, begin: int, cycles: int) -> int | None:
        """The first cycle from ``begin`` on at which ``cycles`` cycles find room; ``None`` if no turn has it."""
        whole, rest = divmod(cycles, self.ii)
        if whole and self._full(self.capacity - whole + 1):
            return None
        full = self._full(self.capacity - whole) if rest else []
        turns, phase = divmod(begin, self.ii)
        limit = begin + self.ii
        while (at := bisect_left(full, (phase + rest, 0)) - 1) >= 0 and full[at][1] > phase:
            more, phase = divmod(full[at][1], self.ii)
            turns += more
            if phase + self.ii * turns >= limit:
                return None
        return phase + self.ii * turns

    def overlapping(self, begin: int, cycles: int) -> list[int]:
        """The operations that hold some of [``begin``, ``begin`` + ``cycles``)."""
        return [
            op
            for op, (at, held) in self.held.items()
            if (at - begin) % self.ii < cycles or (begin - at) % self.ii < held
        ]

    def _full(self, room: int) -> list[tuple[int, int]]:
        """Where ``room`` or more intervals overlap: disjoint [begin, end), ascending, over two turns."""
        if room not in self.full:
            level, steps = 0, []
            for begin, cycles in self.held.values():
                whole, rest = divmod(cycles, self.ii)
                level += whole
                if rest:
                    end = begin + rest
                    level += end >= self.ii
                    steps += [(begin, 1), (end % self.ii, -1)]
            self.full[room] = _at_least(room, level, sorted(steps), self.ii)
        return self.full[room]


def _at_least(room: int, level: int, steps: Sequence[tuple[int, int]], ii: int) -> list[tuple[int, int]]:
    """The segments of two turns in which ``level``, changed by each of ``steps``, is ``room`` or more."""
    segments = []
    since = 0 if level >= room else None
    for at, change in steps:
        level += change
        if level >= room and since is None:
            since = at
        elif level < room and since is not None:
            if at > since:
                segments.append((since, at))
            since = None
    if since is not None and since < ii:
        segments.append((since, ii))
    return segments + [(begin + ii, end + ii) for begin, end in segments]


# Graphs


def connected(nodes: int, arcs: Sequence[WeightedArc]) -> list[list[int]]:
    """The strongly connected components, each ascending, by their smallest node."""
    if nodes <= SMALL:
        path = longest_paths(range(nodes), [(src, dst, 0, 0) for src, dst, _, _ in arcs], 1)
        joined = [[j for j in range(nodes) if path[i][j] > NEVER // 2 < path[j][i]] for i in range(nodes)]
        return [component for i, component in enumerate(joined) if component[0] == i]
    import networkx as nx

    digraph = nx.DiGraph()
    digraph.add_nodes_from(range(nodes))
    digraph.add_edges_from((src, dst) for src, dst, _, _ in arcs)
    return sorted(sorted(component) for component in nx.strongly_connected_components(digraph))


def longest_paths(members: Sequence[int], arcs: Sequence[WeightedArc], ii: int) -> list[list[int]]:
    """Per pair of ``members``, the most that a path of arcs between them asks for (Floyd-Warshall; Rau's MinDist)."""
    import numpy as np

    index = {i: k for k, i in enumerate(members)}
    path = np.full((len(members), len(members)), NEVER, dtype=np.int64)
    np.fill_diagonal(path, 0)
    for src, dst, cycles, distance in arcs:
        if src in index and dst in index:
            path[index[src], index[dst]] = max(path[index[src], index[dst]], cycles - ii * distance)
    for k in range(len(members)):
        np.maximum(path, path[:, k, None] + path[None, k], out=path)
    return path.tolist()

"""Relaxation to time alone: who must start how long after whom, and what each operation holds in the meantime.

Exact where the partitions are decided, else a relaxation. Memory and registers are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from warpplan.planner.bounds.min_ii import WeightedArc, forward_order
from warpplan.planner.problem.assignment import Assignment, barriers, rings
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import Arc
from warpplan.planner.values.deadline import NO_DEADLINE, Deadline
from warpplan.planner.values.search_params import BoundParams

SMALL = 16
"""Nodes up to which networkx takes longer to load than to do without."""
NEVER = -(2**60)
"""A longest path that does not exist; sums of two still fit 64 bits."""

Resource = tuple[str, int]
"""("unit", its index in the graph), ("issue", whose) or ("shared", its index in the limits' capacities)."""
Apart = Callable[[int, int], bool]


@dataclass(frozen=True)
class Usage:
    """An operation that starts at t holds ``amount`` of ``resource`` during [t + ``offset``, t + ``offset`` +
    ``cycles``)."""

    resource: Resource
    offset: int
    cycles: int
    amount: int = 1


@dataclass(frozen=True)
class TimeRelaxation:
    """A problem as time alone: arcs with their hand-offs, and what each operation holds; empty holds are left out."""

    nodes: int
    arcs: tuple[WeightedArc, ...]
    usages: tuple[tuple[Usage, ...], ...]
    capacity: dict[Resource, int]
    deadline: Deadline = NO_DEADLINE


def loop_of(problem: Problem, partitions: Sequence[int]) -> TimeRelaxation:
    """``problem`` with its operations in ``partitions``."""
    at_zero = Assignment((0,) * len(problem.ops), tuple(partitions))
    depth = problem.options.depth
    rings_ = ring_arcs(problem, at_zero, depth, set(range(len(problem.ops)))) if depth is not None else []
    return _loop(problem, (*problem.dependences, *rings_), partitions, at_zero.apart)


def relaxation(problem: Problem) -> TimeRelaxation:
    """What every assignment has to obey: hand-offs and barriers only where both ends are pinned apart, an issue slot
    for each pinned partition and one for each cluster that is not."""
    homes = [c if (pin := problem.pins.get(c)) is None else len(problem.ops) + pin for c in problem.cluster]
    return _loop(problem, problem.arcs, homes, problem.surely_cross)


def _loop(problem: Problem, arcs: Sequence[Arc], homes: Sequence[int], apart: Apart) -> TimeRelaxation:
    units = {unit: at for at, (unit, _) in enumerate(problem.graph.units)}
    cost = problem.graph.limits.barrier_cycles
    before, after = barriers(problem, apart) if cost else ([0] * len(homes),) * 2
    shared: list[list[Usage]] = [[] for _ in homes]
    for at, resource in enumerate(problem.shared):
        for i, cycles, amount in resource.users:
            shared[i].append(Usage(("shared", at), 0, cycles, amount))
    usages = []
    for i, op in enumerate(problem.ops):
        held = [Usage(("issue", homes[i]), -cost * before[i], op.issue + cost * (before[i] + after[i]))]
        if op.unit is not None:
            held.append(Usage(("unit", units[op.unit]), 0, op.occupancy))
        usages.append(tuple(usage for usage in (*held, *shared[i]) if usage.cycles))
    capacity: dict[Resource, int] = {("unit", at): copies for at, (_, copies) in enumerate(problem.graph.units)}
    capacity.update({("issue", home): 1 for home in homes})
    capacity.update({("shared", at): resource.capacity for at, resource in enumerate(problem.shared)})
    return TimeRelaxation(len(homes), weighted(arcs, apart), tuple(usages), capacity, problem.deadline)


def ring_arcs(problem: Problem, found: Assignment, depth: int, only: set[int]) -> list[Arc]:
    """The rings of ``only`` these operations, of ``depth`` slots, as arcs: iteration i refills what i − depth freed."""
    return [
        Arc(use.consumer, i, use.cycles + use.margin, use.handoff, depth - use.distance)
        for i, uses in rings(problem, found).items()
        if i in only
        for use in uses
    ]


def weighted(arcs: Sequence[Arc], apart: Apart) -> tuple[WeightedArc, ...]:
    return tuple((a.src, a.dst, a.cycles + (a.handoff if apart(a.src, a.dst) else 0), a.distance) for a in arcs)


def overfull(loop: TimeRelaxation, ii: int) -> bool:
    """Whether some resource has more to do than ``ii`` cycles of all its copies (ResMII)."""
    return resource_interval(loop) > ii


def resource_interval(loop: TimeRelaxation) -> int:
    """The least interval at which no resource has more to do than all its copies can (ResMII)."""
    work: dict[Resource, int] = {}
    for usage in (u for held in loop.usages for u in held):
        work[usage.resource] = work.get(usage.resource, 0) + usage.cycles * usage.amount
    return max((-(-cycles // loop.capacity[resource]) for resource, cycles in work.items()), default=0)


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


def longest_paths(
    members: Sequence[int], arcs: Sequence[WeightedArc], ii: int, deadline: Deadline = NO_DEADLINE
) -> list[list[int]]:
    """Per pair of ``members``, the most that a path of arcs between them asks for (Floyd-Warshall; Rau's MinDist)."""
    import numpy as np

    index = {i: k for k, i in enumerate(members)}
    path = np.full((len(members), len(members)), NEVER, dtype=np.int64)
    np.fill_diagonal(path, 0)
    for src, dst, cycles, distance in arcs:
        if src in index and dst in index:
            path[index[src], index[dst]] = max(path[index[src], index[dst]], cycles - ii * distance)
    for k in range(len(members)):
        deadline.check()
        np.maximum(path, path[:, k, None] + path[None, k], out=path)
    return path.tolist()


def paths_of_first(loop: TimeRelaxation, component: Sequence[int], ii: int) -> tuple[list[int], list[int]] | None:
    """The component's longest paths from its first operation, and those to it; ``None``: contradictory. Unlike
    :func:`tight_paths` it takes time in proportion to the arcs."""
    index = {i: k for k, i in enumerate(component)}
    arcs = forward_order(
        len(component), [(index[a], index[b], c, d) for a, b, c, d in loop.arcs if a in index and b in index]
    )
    found = []
    for directed in (arcs, [(dst, src, cycles, distance) for src, dst, cycles, distance in reversed(arcs)]):
        path = [NEVER] * len(component)
        path[0] = 0
        moved, passes = True, 0
        while moved:
            loop.deadline.check()
            if passes > len(component):
                return None
            moved, passes = False, passes + 1
            for src, dst, cycles, distance in directed:
                if path[src] > NEVER and path[src] + cycles - ii * distance > path[dst]:
                    path[dst], moved = path[src] + cycles - ii * distance, True
        found.append(path)
    return found[0], found[1]


def tight_paths(
    loop: TimeRelaxation, component: Sequence[int], ii: int, params: BoundParams
) -> tuple[list[list[int]], list[tuple[int, int]]] | None:
    """The component's longest paths, and the pairs (by position) that exclusion on units has moved further apart;
    ``None``: contradictory."""
    import numpy as np

    path = np.array(longest_paths(component, loop.arcs, ii, loop.deadline), dtype=np.int64)
    excluding = _excluding(loop, component)
    apart = set()
    for _ in range(params.tightening_rounds):
        loop.deadline.check()
        if (np.diagonal(path) > 0).any():
            return None
        moved = False
        for a, b, after, before in excluding:
            # start[b] − start[a] modulo II lies in [after, II − before].
            beyond = int(path[a, b] - after) % ii
            if beyond > ii - before - after:
                path[a, b] += ii - beyond
                apart.add((a, b))
                moved = True
        if not moved:
            break
        for k in range(len(component)):
            loop.deadline.check()
            np.maximum(path, path[:, k, None] + path[None, k], out=path)
    return None if (np.diagonal(path) > 0).any() else (path.tolist(), sorted(apart))


def _excluding(loop: TimeRelaxation, component: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """(a, b, after, before) by position, both ways round: b starts ``after`` cycles or more after a, modulo the
    interval, and a ``before`` or more after b."""
    users: dict[Resource, list[tuple[int, Usage]]] = {}
    for k, i in enumerate(component):
        for usage in loop.usages[i]:
            if loop.capacity[usage.resource] == 1 or usage.resource[0] == "shared":
                users.setdefault(usage.resource, []).append((k, usage))
    found = []
    for (a, one), (b, other) in (pair for sharing in users.values() for pair in combinations(sharing, 2)):
        if one.amount + other.amount <= loop.capacity[one.resource]:
            continue
        after = one.offset + one.cycles - other.offset
        before = other.offset + other.cycles - one.offset
        found += [(a, b, after, before), (b, a, before, after)]
    return found

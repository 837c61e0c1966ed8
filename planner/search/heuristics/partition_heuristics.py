"""Ways to share a loop's operations out to partitions, the simplest first, for heuristics to try."""

from __future__ import annotations

from collections.abc import Iterator

from warpplan.planner.bounds.time_relaxation import connected
from warpplan.planner.problem.formulation import Problem


def partition_choices(problem: Problem, ii: int) -> Iterator[tuple[int, ...]]:
    """Partitions of all operations, each choice once: by kind (together; loads apart; each clone apart; loads, tensor
    work and the rest apart), then in 2, 3, … partitions of balanced issue with few hand-offs. Pins are kept."""
    seen = set()
    for choice in _choices(problem, ii):
        if choice not in seen:
            seen.add(choice)
            yield choice


def _choices(problem: Problem, ii: int) -> Iterator[tuple[int, ...]]:
    graph, most = problem.graph, problem.graph.limits.max_partitions
    units: dict[int, set[str | None]] = {c: set() for c in problem.clusters}
    for i, op in enumerate(graph.ops):
        units[problem.cluster[i]].add(op.unit)
    copy = {problem.cluster[graph.index[op]]: at for at, clone in enumerate(graph.clones) for op in clone}
    loads = {c: int(units[c] != {"TMA"}) for c in problem.clusters}
    tensor = {c: loads[c] and 1 + ("TENSOR" not in units[c]) for c in problem.clusters}
    cloned = {c: loads[c] and 1 + copy.get(c, 0) for c in problem.clusters}
    for kind in (dict.fromkeys(problem.clusters, 0), loads, cloned, tensor):
        yield tuple(problem.pins.get(c, min(kind[c], most - 1)) for c in problem.cluster)
    params = problem.options.search.construction
    if len(problem.pins) < len(problem.clusters) and problem.options.search.partition_heuristics:
        weights = (1, params.recurrence_weight)
        handoffs = {weight: _handoffs(problem, weight) for weight in weights}
        for count in range(2, most + 1):
            for target in params.issue_targets:
                for weight in weights:
                    yield _balanced(problem, int(target * ii), count, handoffs[weight])


Handoffs = dict[int, dict[int, int]]
"""Cluster → neighbour → cycles that both lose where they are apart."""


def _handoffs(problem: Problem, weight: int) -> Handoffs:
    arcs = [(a.src, a.dst, 0, 0) for a in problem.arcs]
    home = {i: at for at, component in enumerate(connected(len(problem.ops), arcs)) for i in component}
    barriers = 2 * problem.graph.limits.barrier_cycles
    near: Handoffs = {c: {} for c in problem.clusters}
    for arc in problem.dependences:
        a, b = problem.cluster[arc.src], problem.cluster[arc.dst]
        if a != b:
            cycles = (arc.handoff + barriers + 1) * (weight if home[arc.src] == home[arc.dst] else 1)
            near[a][b] = near[b][a] = near[a].get(b, 0) + cycles
    return near


def _balanced(problem: Problem, ii: int, count: int, near: Handoffs) -> tuple[int, ...]:
    """Largest issue first, each cluster where it costs least, then moved while that helps (a local optimum)."""
    params, issue = problem.options.search.construction, dict.fromkeys(problem.clusters, 0)
    for i, op in enumerate(problem.ops):
        issue[problem.cluster[i]] += op.issue
    chosen = dict(problem.pins)
    load = [0] * max([count, *(g + 1 for g in chosen.values())])
    for c, g in chosen.items():
        load[g] += issue[c]

    def price(c: int, g: int) -> tuple[int, int, int]:
        apart = sum(cycles for other, cycles in near[c].items() if chosen.get(other, g) != g)
        return params.overload_cost * max(0, load[g] + issue[c] - ii) + apart, load[g], g

    def join(c: int, g: int) -> None:
        chosen[c] = g
        load[g] += issue[c]

    free = sorted((c for c in problem.clusters if c not in problem.pins), key=lambda c: (-issue[c], c))
    for c in free:
        join(c, min(range(count), key=lambda g: price(c, g)))
    for _ in range(params.local_search_passes):
        before = dict(chosen)
        for c in free:
            here = chosen.pop(c)
            load[here] -= issue[c]
            best = min(range(count), key=lambda g: price(c, g))
            join(c, best if price(c, best)[0] < price(c, here)[0] else here)
        if chosen == before:
            break
    return tuple(chosen[c] for c in problem.cluster)

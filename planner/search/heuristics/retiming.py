"""Re-timing: with the order of a schedule fixed, the smallest interval is a maximum cycle ratio.

Fixed are the partitions, the order on each unit and issue slot, the stage of the loop in which each step of it falls,
the slots of each ring and which rings lie in one another's place. Everything is then an arc, and the
ratio is found by the parametric longest path (:func:`~warpplan.planner.bounds.min_ii.recurrence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from warpplan.planner.bounds.min_ii import WeightedArc, earliest, recurrence
from warpplan.planner.packing.ring_layout import layout
from warpplan.planner.problem.assignment import Assignment, issue_spans, peak, retirement_arcs, rings, slots
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.partition_sizes import dimension


def retime(problem: Problem, ii: int, found: Assignment) -> tuple[int, Assignment]:
    """The smallest interval that keeps ``found``'s order, and its earliest starts.

    ``found`` as it is where that would break what order does not say all about: live registers, units of several
    copies.
    """
    arcs = order_arcs(problem, ii, found)
    if arcs is None:
        return ii, found
    least, _ = recurrence(len(problem.ops), arcs, problem.deadline)
    assert least is not None
    least = max(least, 1)
    starts = earliest(len(problem.ops), arcs, least, problem.deadline)
    assert starts is not None
    better = Assignment(starts, found.partitions)
    return (least, better) if least < ii and fits(problem, least, better) else (ii, found)


def fits(problem: Problem, ii: int, found: Assignment) -> bool:
    """Whether ``found`` is a plan at ``ii``: every rule."""
    problem.deadline.check()
    start, ops = found.starts, problem.ops
    for a in (*problem.dependences, *retirement_arcs(problem, ii, found)):
        handoff = a.handoff if found.apart(a.src, a.dst) else 0
        if start[a.dst] + ii * a.distance < start[a.src] + a.cycles + handoff:
            return False
    for unit, capacity in problem.graph.units:
        if peak([(t, t + op.occupancy, 1) for t, op in zip(start, ops, strict=True) if op.unit == unit], ii) > capacity:
            return False
    for resource in problem.shared:
        if peak([(start[i], start[i] + cycles, n) for i, cycles, n in resource.users], ii) > resource.capacity:
            return False
    spans = issue_spans(problem, found)
    for g in set(found.partitions):
        if peak([(*spans[i], 1) for i, home in enumerate(found.partitions) if home == g], ii) > 1:
            return False
    if any(found.partitions[i] != found.partitions[c] for i, c in enumerate(problem.cluster)):
        return False
    if any(found.partitions[c] != g for c, g in problem.pins.items()):
        return False
    depth = problem.options.depth
    if depth is not None:
        for producer, uses in rings(problem, found).items():
            for u in uses:
                freed = start[u.consumer] + ii * u.distance + u.cycles + u.margin
                if freed + (u.handoff if found.apart(u.consumer, producer) else 0) > start[producer] + depth * ii:
                    return False
    return dimension(problem, ii, found) is not None and layout(problem, ii, found).fits


def order_arcs(problem: Problem, ii: int, found: Assignment) -> list[WeightedArc] | None:
    """The arcs that keep ``found``'s order; None where its rings cannot be laid out."""
    ops = range(len(problem.ops))
    arcs: list[WeightedArc] = []
    spans = issue_spans(problem, found)
    for g in sorted(set(found.partitions)):
        arcs += queue(found, ii, [(i, *spans[i]) for i in ops if found.partitions[i] == g])
    for unit, capacity in problem.graph.units:
        users = [
            (i, found.starts[i], found.starts[i] + problem.ops[i].occupancy) for i in ops if problem.ops[i].unit == unit
        ]
        arcs += queue(found, ii, users) if capacity == 1 else _apart(found, ii, users)
    for resource in problem.shared:
        arcs += _apart(found, ii, [(i, found.starts[i], found.starts[i] + held) for i, held, _ in resource.users])
    for arc in (*problem.dependences, *retirement_arcs(problem, ii, found)):
        handoff = arc.handoff if found.apart(arc.src, arc.dst) else 0
        arcs.append((arc.src, arc.dst, arc.cycles + handoff, arc.distance))
    for producer in rings(problem, found):
        arcs += _released(problem, found, producer, producer, slots(problem, ii, found, producer))
    placed = layout(problem, ii, found)
    if not placed.fits:
        return None
    index = problem.graph.index
    for reuse in placed.reuses:
        arcs += _released(problem, found, index[reuse.before], index[reuse.after], reuse.distance)
    return arcs


def queue(found: Assignment, ii: int, users: Sequence[tuple[int, int, int]]) -> list[WeightedArc]:
    """(operation, from, to) one after the other around the circle, each beginning where the one before has ended."""
    line = sorted((u for u in users if u[1] < u[2]), key=lambda u: u[1] % ii)
    arcs = [_follow(found, a, b, b[1] // ii - a[1] // ii) for a, b in pairwise(line)]
    if line:
        first, last = line[0], line[-1]
        arcs.append(_follow(found, last, first, first[1] // ii - last[1] // ii - 1))
    return arcs


def _apart(found: Assignment, ii: int, users: Sequence[tuple[int, int, int]]) -> list[WeightedArc]:
    """Those that do not overlap now stay so, in their order."""
    arcs = []
    for a, b in combinations([u for u in users if u[1] < u[2]], 2):
        iterations = (b[1] - a[2]) // ii
        # b begins at or after the end of the a that is ``iterations`` later, and ends before the next a begins.
        if b[2] <= a[1] + (iterations + 1) * ii:
            arcs += [_follow(found, a, b, iterations), _follow(found, b, a, -iterations - 1)]
    return arcs


def _follow(found: Assignment, a: tuple[int, int, int], b: tuple[int, int, int], iterations: int) -> WeightedArc:
    """b begins ``iterations`` intervals after a's end, or later: b.from ≥ a.to + II · iterations."""
    (i, _, end), (j, begin, _) = a, b
    return i, j, (end - found.starts[i]) + (found.starts[j] - begin), -iterations


def _released(problem: Problem, found: Assignment, ring: int, refiller: int, distance: int) -> list[WeightedArc]:
    """``refiller`` starts ``distance`` iterations later, once all readers of ``ring`` have left its slot."""
    return [
        (
            use.consumer,
            refiller,
            use.cycles + use.margin + (use.handoff if found.apart(use.consumer, refiller) else 0),
            distance - use.distance,
        )
        for use in rings(problem, found)[ring]
    ]

"""When an operation can start at all: cycles after another one, and stages.

What a constraint model needs before it has a variable: windows that no schedule leaves, or no best one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import Arc

Pair = tuple[int, int]


def distances(
    problem: Problem, ii: int, anchor: int, memory: bool, registers: bool
) -> list[tuple[int | None, int | None]]:
    """Per operation, the least and the most cycles that it can start after ``anchor``; None where nothing bounds it.

    Longest paths over dependences, and back from a reader to what it reads: nothing is held for longer than memory or
    registers have room for copies.
    """
    arcs = [(a.src, a.dst, a.cycles, a.distance) for a in problem.arcs]
    for i, op in enumerate(problem.ops):
        for reader, edge in problem.readers[i]:
            crossing = problem.may_cross(i, reader)
            most = problem.most_copies(i, crossing=crossing)
            limited = (memory or not (op.buffer_bytes or crossing)) and (registers or op.buffer_bytes)
            if most is not None and limited:
                freed = problem.ops[reader].latency + problem.options.slack_cycles if op.buffer_bytes else 0
                arcs.append((reader, i, freed, most - edge.distance))
    least = _longest(len(problem.ops), arcs, ii, anchor)
    back = _longest(len(problem.ops), [(dst, src, cycles, distance) for src, dst, cycles, distance in arcs], ii, anchor)
    return [(low, None if high is None else -high) for low, high in zip(least, back, strict=True)]


def _longest(nodes: int, arcs: list[tuple[int, int, int, int]], ii: int, source: int) -> list[int | None]:
    """Longest paths from ``source``; a positive cycle, which makes the model infeasible, is gone around a few times."""
    reach: list[int | None] = [None] * nodes
    reach[source] = 0
    for _ in range(nodes):
        moved = False
        for src, dst, cycles, distance in arcs:
            start, there = reach[src], reach[dst]
            if start is not None and (there is None or start + cycles - ii * distance > there):
                reach[dst], moved = start + cycles - ii * distance, True
        if not moved:
            break
    reach[source] = 0
    return reach


def stage_limit(problem: Problem, ii: int) -> int:
    """A stage that no operation of some best schedule exceeds.

    For given phases the least stages are longest paths over ⌈(cycles + hand-off + phase[src] − phase[dst]) / II⌉ −
    distance an arc, and the arcs that keep values and slots no longer than they were kept are among them. Along a path
    the phases between cancel, and rounding up adds less than one turn an arc.
    """
    worst = [0] * len(problem.ops)
    arcs = [*_waits(problem), *problem.ring_arcs(problem.options.depth or 1)]
    for producer in problem.crossings:
        arcs += problem.ring_arcs(problem.options.depth or 1, producer)
    for op, readers in problem.readers.items():
        if problem.ops[op].registers and not problem.ops[op].buffer_bytes:
            arcs += [Arc(reader, op, 0, 0, -edge.distance) for reader, edge in readers]
    for arc in arcs:
        worst[arc.src] = max(worst[arc.src], arc.cycles + arc.handoff + ii - 1 - arc.distance * ii)
    return (sum(worst) + ii - 1) // ii + 1


def _waits(problem: Problem) -> list[Arc]:
    """Dependences, and those that hold where wgmma groups retire late."""
    late = [
        Arc(k, j, problem.ops[i].latency, problem.graph.edge_handoff(edge), edge.distance)
        for i, k, edges in problem.retirements
        for j, edge in edges
    ]
    return [*problem.dependences, *late]


def dominance_cuts(problem: Problem, ii: int) -> list[dict[Pair, int]]:
    """Sets of (source, destination): cycles between their starts; some best schedule exceeds them nowhere but leaves
    one of each set within them.

    Where all that leads from one part of a loop to the rest waits a whole turn too long, the rest can be a stage
    earlier: no phase changes, and nothing is held for longer. So there is a schedule in which, for every such way to
    cut the graph in two, something is not late by a turn. These are the cuts of one or two arcs, and those around an
    operation that nothing leads to, or that leads to nothing.
    """
    longest: dict[Pair, int] = {}
    for arc in _waits(problem):
        if arc.src != arc.dst:
            most = arc.cycles + arc.handoff - ii * arc.distance + ii - 1
            longest[arc.src, arc.dst] = max(most, longest.get((arc.src, arc.dst), most))
    flows = _flows(len(problem.ops), longest)
    found = [(pair,) for pair, flow in flows.items() if not flow]
    opposite = [
        (one, other)
        for (one, flow), (other, back) in combinations(flows.items(), 2)
        if flow and flow.keys() == back.keys() and all(flow[k] == -back[k] for k in flow)
    ]
    around = [cut for i in range(len(problem.ops)) for cut in _around(i, longest) if len(cut) > 2]
    return [{pair: longest[pair] for pair in cut} for cut in (*found, *opposite, *around)]


def _flows(nodes: int, pairs: Iterable[Pair]) -> dict[Pair, dict[int, int]]:
    """What each pair carries when one unit is sent around each fundamental cycle: nothing where it is a bridge;
    opposite amounts in all cycles where two pairs alone lead from one side of a cut to the other."""
    pairs = list(pairs)
    near: dict[int, list[tuple[int, Pair, int]]] = defaultdict(list)
    for pair in pairs:
        near[pair[0]].append((pair[1], pair, -1))
        near[pair[1]].append((pair[0], pair, 1))
    above: dict[int, tuple[int, Pair, int]] = {}
    """By node of the spanning forest but the roots: its parent, by which pair, and whether that leads there."""
    seen: set[int] = set()
    for root in range(nodes):
        todo = [] if root in seen else [root]
        seen.add(root)
        for node in todo:
            for other, pair, sign in near[node]:
                if other not in seen:
                    seen.add(other)
                    above[other] = (node, pair, sign)
                    todo.append(other)
    flows: dict[Pair, dict[int, int]] = {pair: {} for pair in pairs}
    inside = {pair for _, pair, _ in above.values()}
    for cycle, pair in enumerate(pairs):
        if pair in inside:
            continue
        flows[pair][cycle] = 1
        for end, way in ((pair[1], 1), (pair[0], -1)):
            while end in above:
                end, link, sign = above[end]
                carried = flows[link].get(cycle, 0) + way * sign
                if carried:
                    flows[link][cycle] = carried
                else:
                    del flows[link][cycle]
    return flows


def _around(i: int, pairs: Iterable[Pair]) -> list[tuple[Pair, ...]]:
    """The cut around an operation, if all of it leads away, or all of it here."""
    ways = [tuple(pair for pair in pairs if pair[end] == i) for end in (0, 1)]
    return [ways[0]] if not ways[1] else [ways[1]] if not ways[0] else []

"""When an operation can start at all: cycles after another one, and stages.

What a constraint model needs before it has a variable: windows that no schedule leaves, or no best one.
"""

from __future__ import annotations

from warpplan.planner.problem import Arc, Problem


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
    arcs = [*problem.dependences, *problem.ring_arcs(problem.options.depth or 1)]
    for producer in problem.crossings:
        arcs += problem.ring_arcs(problem.options.depth or 1, producer)
    for i, k, edges in problem.retirements:
        arcs += [
            Arc(k, j, problem.ops[i].latency, problem.graph.edge_handoff(edge), edge.distance) for j, edge in edges
        ]
    for op, readers in problem.readers.items():
        if problem.ops[op].registers and not problem.ops[op].buffer_bytes:
            arcs += [Arc(reader, op, 0, 0, -edge.distance) for reader, edge in readers]
    for arc in arcs:
        worst[arc.src] = max(worst[arc.src], arc.cycles + arc.handoff + ii - 1 - arc.distance * ii)
    return (sum(worst) + ii - 1) // ii + 1

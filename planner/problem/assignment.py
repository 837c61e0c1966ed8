"""One solution of a loop, when each operation starts and where it runs, and what follows from it: rings and their
slots, barriers, live registers. RULES.md numbers the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import Arc, Use

Span = tuple[int, int, int]
"""(start, end, weight): so much of something is taken during [start, end), again every II cycles."""


@dataclass(frozen=True)
class Assignment:
    """Per operation, in the graph's order, its start cycle and the index of its partition."""

    starts: tuple[int, ...]
    partitions: tuple[int, ...]

    def apart(self, a: int, b: int) -> bool:
        return self.partitions[a] != self.partitions[b]


def peak(spans: Iterable[Span], ii: int) -> int:
    """The most that is taken at once on the circle of ``ii`` cycles; it is so at some span's start."""
    spans = [span for span in spans if span[0] < span[1]]
    return max(
        (
            sum(weight * ((end - 1 - at) // ii - (start - 1 - at) // ii) for start, end, weight in spans)
            for at in {start % ii for start, _, _ in spans}
        ),
        default=0,
    )


# Rings (rule 6)


def rings(problem: Problem, found: Assignment) -> dict[int, tuple[Use, ...]]:
    """Every ring that ``found`` needs, by operation: buffers, and register values that cross."""
    uses = dict(problem.rings)
    for producer, readers in problem.crossings.items():
        crossing = tuple(u for u in readers if found.apart(producer, u.consumer))
        if crossing:
            uses[producer] = crossing
    return dict(sorted(uses.items()))


def held(
    problem: Problem, ii: int, found: Assignment, producer: int, *, margin: bool, refiller: int | None = None
) -> int:
    """Cycles from ``producer``'s start until its slot is free, as ``refiller`` (itself, else) hears of it."""
    hears = producer if refiller is None else refiller
    return (
        max(
            found.starts[use.consumer]
            + ii * use.distance
            + use.cycles
            + (use.margin if margin else 0)
            + (use.handoff if found.apart(use.consumer, hears) else 0)
            for use in rings(problem, found)[producer]
        )
        - found.starts[producer]
    )


def slots(problem: Problem, ii: int, found: Assignment, producer: int) -> int:
    """The ring's depth: the caller's, or the least that holds, spreads and slack need."""
    return problem.options.depth or max(
        problem.least_slots(producer), -(-held(problem, ii, found, producer, margin=True) // ii)
    )


# Barriers (rule 3)


def barriers(problem: Problem, apart: Callable[[int, int], bool]) -> tuple[list[int], list[int]]:
    """Per operation, the barriers it waits for before its issue, and those it arrives at after; ``apart`` says which
    operations are in different partitions."""
    ops = range(len(problem.ops))
    waits: list[set[int]] = [set() for _ in ops]
    reads: list[set[int]] = [set() for _ in ops]
    fills, tells = [0] * len(ops), [0] * len(ops)
    for edge in problem.graph.edges:
        a, b = problem.graph.index[edge.src], problem.graph.index[edge.dst]
        if apart(a, b):
            waits[b].add(a)
            tells[a] = 1
            if edge.kind == "data" and problem.has_value(a):
                reads[b].add(a)
                fills[a] = 1
    return [len(waits[i]) + fills[i] for i in ops], [tells[i] + len(reads[i]) for i in ops]


def issue_spans(problem: Problem, found: Assignment) -> list[tuple[int, int]]:
    """Per operation, from when to when its partition is busy with it, barriers included."""
    cost = problem.graph.limits.barrier_cycles
    before, after = barriers(problem, found.apart) if cost else ([0] * len(problem.ops),) * 2
    return [(t - cost * before[i], t + problem.ops[i].issue + cost * after[i]) for i, t in enumerate(found.starts)]


# Registers (rule 5)


def register_span(problem: Problem, ii: int, found: Assignment, op: int) -> Span:
    """When the value of ``op`` holds its registers."""
    value, start = problem.ops[op], found.starts[op]
    ends = [
        start + problem.latency(edge) + problem.graph.edge_handoff(edge)
        if found.apart(op, reader)
        else found.starts[reader] + ii * edge.distance
        for reader, edge in problem.readers[op]
    ]
    end = start + value.latency if value.buffer_bytes or not ends else max(ends)
    return start, end, value.registers


def registers_needed(problem: Problem, ii: int, found: Assignment, partition: int) -> int:
    """Registers a thread that the partition's values, the base and reported spills ask for, not yet rounded."""
    inside = {i for i, g in enumerate(found.partitions) if g == partition}
    live = peak((register_span(problem, ii, found, i) for i in inside if problem.ops[i].registers), ii)
    spilled = [
        spill.registers + 1
        for spill in problem.options.spills
        if all(problem.graph.index[name] in inside for name in spill.ops)
    ]
    return max([problem.graph.limits.base_registers + live, *spilled])


# In-order retirement (rule 3)


def retirement_arcs(problem: Problem, ii: int, found: Assignment) -> list[Arc]:
    """What waiting for one wgmma asks of those before it, and that they stay before it: arcs at ``ii``."""
    arcs = []
    for i, k, edges in problem.retirements:
        if found.apart(i, k):
            continue
        turns = (found.starts[k] - found.starts[i]) // ii
        arcs += [Arc(i, k, 0, 0, -turns), Arc(k, i, 1, 0, turns + 1)]
        for j, edge in edges:
            handoff = problem.graph.edge_handoff(edge) if found.apart(k, j) else 0
            arcs.append(Arc(i, j, problem.ops[i].latency + handoff, 0, edge.distance - turns))
    return arcs

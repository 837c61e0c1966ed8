"""Partition relaxation: partitions from a model without times, so that only a schedule is left to find. Ours.

Each is the cheapest partition, by what crosses, in which issue slots and registers suffice on average over the
interval; the schedule decides whether they suffice at each moment. Restricting a model to such partitions never proves
anything, but with the partitions given the rest of a model is decided many times sooner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warpplan.planner.cpsat.literals import Truth
from warpplan.planner.cpsat.runner import run
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import REGISTER_COUNTS, WARP_GROUP


def relaxed_partitions(problem: Problem, ii: int) -> Iterator[tuple[int, ...]]:
    """Partitions by operation, each choice once, most promising first."""
    excluded: list[dict[int, int]] = []
    for filled, live in problem.options.search.attempts.relaxation_levels:
        found = _cheapest(problem, ii, filled, live, excluded)
        if found is not None:
            excluded.append(found)
            yield tuple(found[c] for c in problem.cluster)


def _cheapest(
    problem: Problem, ii: int, filled: float, live: float, excluded: list[dict[int, int]]
) -> dict[int, int] | None:
    from warpplan.planner.cpsat.lean_model import LeanModel

    cp, params = LeanModel(), problem.options.search
    clusters, count = problem.clusters, problem.most_partitions
    member: dict[tuple[int, int], Truth] = {}
    for at, c in enumerate(clusters):
        for g in range(count):
            member[c, g] = int(problem.pins[c] == g) if c in problem.pins else cp.new_bool_var("")
        cp.add_exactly_one(member[c, g] for g in range(count))
        for g in range(1, count if not problem.pins else 0):
            cp.add_bool_or([*(member[e, g - 1] for e in clusters[:at]), member[c, g].Not()])
    crossing: dict[tuple[int, int], Any] = {}

    def crosses(a: int, b: int) -> Any:
        a, b = sorted((problem.cluster[a], problem.cluster[b]))
        if a == b:
            return 0
        if (a, b) not in crossing:
            crossing[a, b] = cp.new_bool_var("")
            for g in range(count):
                cp.add(member[a, g] - member[b, g] <= crossing[a, b])
                cp.add(member[b, g] - member[a, g] <= crossing[a, b])
        return crossing[a, b]

    pairs = {(a.src, a.dst) for a in problem.dependences if a.src != a.dst}
    # A barrier each for filling and reading, and for the free slot, on both sides.
    waiting = {
        i: problem.graph.limits.barrier_cycles
        * sum((2 if problem.has_value(a) else 1) * crosses(a, b) for a, b in pairs if i in (a, b))
        for i in range(len(problem.ops))
    }
    registers = [cp.new_int_var(REGISTER_COUNTS[0] // 8, REGISTER_COUNTS[-1] // 8, "") for _ in range(count)]
    allotted = []
    for g in range(count):
        busy, area, taken = [], [], cp.new_int_var(0, 2**20, "")
        for i, op in enumerate(problem.ops):
            inside = member[problem.cluster[i], g]
            if op.issue or problem.graph.limits.barrier_cycles:
                spent = cp.new_int_var(0, 2 * ii, "")
                cp.add(spent >= op.issue * inside)
                cp.add(spent >= op.issue + waiting[i]).only_enforce_if(inside)
                busy.append(spent)
            area.append(int(live * op.registers * _least_life(problem, i, ii)) * inside)
            groups = -(-problem.warps[i] // WARP_GROUP)
            cp.add(taken >= groups * 8 * registers[g]).only_enforce_if(inside)
        cp.add(sum(busy) <= int(filled * ii))
        cp.add(sum(area) + ii * problem.graph.limits.base_registers <= 8 * ii * registers[g])
        allotted.append(taken)
    cp.add(sum(allotted) * 32 * WARP_GROUP <= problem.graph.limits.registers)
    for known in excluded:
        cp.add_bool_or([1 - x if isinstance(x, int) else x.Not() for x in (member[c, known[c]] for c in clusters)])
    cp.minimize(sum(_cost(problem, a, b) * crosses(a, b) for a, b in sorted(pairs)))
    answer, solver = run(
        cp, params.attempts.relaxation_seconds, presolve=False, relax=0, params=params.cpsat, deadline=problem.deadline
    )
    if answer != "yes":
        return None
    return {c: next(g for g in range(count) if _holds(solver, member[c, g])) for c in clusters}


def _least_life(problem: Problem, i: int, ii: int) -> int:
    """Cycles for which registers hold the value at least."""
    op, readers = problem.ops[i], problem.readers[i]
    if op.buffer_bytes or not readers:
        return op.latency
    carried = [ii * edge.distance for reader, edge in readers if reader == i]
    return max([*carried, *(problem.latency(edge) for _, edge in readers)])


def _cost(problem: Problem, a: int, b: int) -> int:
    reads = any(reader == b for reader, _ in problem.readers[a])
    return problem.options.search.attempts.crossing_cost + (
        -(-problem.graph.ops[a].register_bytes // 1024) if reads else 0
    )


def _holds(solver: Any, truth: Truth) -> bool:
    return bool(truth if isinstance(truth, int) else solver.value(truth))

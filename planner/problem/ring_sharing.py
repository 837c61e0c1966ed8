"""Whether one ring may lie in another's place: how long a slot is held, when two single slots alternate (rule 7)."""

from __future__ import annotations

from warpplan.planner.problem.assignment import Assignment, held
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.values.dependence_graph import Memory


def turns_between(problem: Problem, ii: int, found: Assignment, a: int, b: int) -> int | None:
    """The m with which the lives of the single-slot rings of ``a`` and ``b`` are disjoint: b of an iteration is filled
    after a of m iterations before was released, and a of 1 − m after b. None where they are not."""
    first, second = (
        found.starts[x] + held(problem, ii, found, x, margin=True, refiller=y) for x, y in ((a, b), (b, a))
    )
    turns = -(-(first - found.starts[b]) // ii)
    return turns if second <= found.starts[a] + (1 - turns) * ii else None


def may_share(problem: Problem, ring: int) -> bool:
    """Whether a ring's place may be another's too: not where an extra buffer lies in it."""
    return all(extra.shares_with != problem.ops[ring].id for extra in problem.options.extra_buffers)


def least_hold(problem: Problem, producer: int) -> int:
    """Cycles for which a slot of ``producer``'s ring is held in any schedule; of a value in registers, in any in which
    it leaves its partition."""
    written = [problem.latency(edge) for _, edge in problem.readers[producer]] or [0]
    if producer in problem.crossings:
        return min(written) + min(use.cycles + use.margin for use in problem.crossings[producer])
    return max(
        before + use.cycles + use.margin + (use.handoff if problem.surely_cross(producer, use.consumer) else 0)
        for before, use in zip(written, problem.rings[producer], strict=True)
    )


def worth_sharing(problem: Problem, ii: int) -> bool:
    """Whether two rings of one memory could have a single slot each, and take turns."""
    holds: dict[Memory, list[int]] = {"smem": [], "tmem": []}
    if problem.options.depth not in (None, 1):
        return False
    for p in (*problem.rings, *problem.crossings):
        if may_share(problem, p) and problem.least_slots(p) == 1:
            holds[problem.memory(p)].append(least_hold(problem, p))
    return any(len(found) > 1 and sum(sorted(found)[:2]) <= ii for found in holds.values())

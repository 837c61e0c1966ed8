"""Rings in the constraint model: as many slots as their lives need (rule 6), and memory for them side by side (rule 7).

Where rings may lie in one another's place, :mod:`~warpplan.planner.cpsat.sharing_constraints` limits memory instead.
"""

from __future__ import annotations

from typing import Any

from warpplan.planner.cpsat.literals import Truth, always, given, never
from warpplan.planner.cpsat.variables import ModelVariables
from warpplan.planner.problem.terms import Arc, Use

UNLIMITED = 2**31
"""Slots where memory is not limited: beyond any loop's need, and CP-SAT's sums of them fit 64 bits."""


def add_rings(model: ModelVariables) -> None:
    """``model.depth`` and ``model.exists``, and slots enough for the lives."""
    for producer, uses in model.problem.rings.items():
        model.exists[producer] = 1
        model.depth[producer] = _slots(model, producer, uses, 1)
    for producer, uses in model.problem.crossings.items():
        crossed = model.any_crosses(producer, (u.consumer for u in uses))
        if not never(crossed):
            model.exists[producer] = crossed
            model.depth[producer] = _slots(model, producer, uses, crossed)


def _slots(model: ModelVariables, producer: int, uses: tuple[Use, ...], needed: Truth) -> Any:
    problem, fixed = model.problem, model.problem.options.depth
    if fixed is not None:
        count = fixed * needed
    else:
        least = problem.least_slots(producer)
        capacity = problem.most_slots(producer) if model.memory_limited else UNLIMITED
        most = max(least, min(_longest_life(model, uses), capacity))
        count = model.cp.new_int_var(least if always(needed) else 0, most, "")
        given(model.cp.add(count >= 1), needed)
    for use in uses:
        arc = Arc(use.consumer, producer, use.cycles + use.margin, use.handoff, 0)
        reads = 1 if producer in problem.rings else model.crosses(producer, use.consumer)
        model.starts_after(arc, use.distance - (count if fixed is None else fixed), reads)
    return count


def _longest_life(model: ModelVariables, uses: tuple[Use, ...]) -> int:
    """In iterations, at most."""
    cycles = max(u.cycles + u.margin + u.handoff for u in uses)
    return model.distances + model.stages + 2 + -(-cycles // model.ii)


def add_memory(model: ModelVariables) -> None:
    """Memory for all rings side by side."""
    problem = model.problem
    flat = [(p, count) for p, count in model.depth.items() if problem.memory(p) == "smem"]
    if flat:
        capacity = problem.graph.limits.smem_bytes - problem.extra_bytes
        model.cp.add(sum(problem.slot_bytes(p) * count for p, count in flat) <= capacity)
    tall = [(p, count) for p, count in model.depth.items() if problem.memory(p) == "tmem"]
    if tall:
        _add_columns(model, tall)


def _add_columns(model: ModelVariables, rings: list[tuple[int, Any]]) -> None:
    """Each ring of half height is on one half; each half is wide enough for its rings and the full ones."""
    halves: tuple[list[Any], list[Any]] = ([], [])
    columns = model.problem.graph.limits.tmem_columns
    for p, count in rings:
        width = model.problem.slot_columns(p) * count
        if model.problem.ops[p].lanes == 128:
            for half in halves:
                half.append(width)
            continue
        upper = model.cp.new_bool_var("")
        for half, there in zip(halves, (upper.Not(), upper), strict=True):
            taken = model.cp.new_int_var(0, columns, "")
            model.cp.add(taken >= width).only_enforce_if(there)
            half.append(taken)
    for half in halves:
        model.cp.add(sum(half) <= columns)

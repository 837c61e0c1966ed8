"""Restrictions: models with some decisions fixed as good schedules mostly have them. Infeasible, they prove nothing.

Partitions given, the rest of a model is decided many times sooner; clones in lockstep are what hand-written
warp-specialised kernels do (ping-pong scheduling). Both are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.sharing_constraints import keep_layout
from warpplan.planner.packing.ring_layout import Layout
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.values.search_params import MemoryModel


def stage_window(problem: Problem) -> int | None:
    """Stages around the anchor that a windowed model allows; None: all that a best schedule may need."""
    params = problem.options.search
    return params.attempts.stage_window if params.stage_window else None


def window_model(problem: Problem, ii: int, memory: MemoryModel, reach: int | None = None) -> IntervalModel:
    """All schedules in the stage window, or within ``reach`` stages of the anchor."""
    # Where rings may share bytes, the loop is small, or side by side was infeasible: mostly to be so again.
    return IntervalModel(problem, ii, memory=memory, reach=reach or stage_window(problem), tight=memory == "shared")


def register_free_model(problem: Problem, ii: int, memory: MemoryModel) -> IntervalModel:
    """All schedules in the stage window, registers left out."""
    return IntervalModel(problem, ii, memory=memory, reach=stage_window(problem), tight=True, registers=False)


def partitions_kept(problem: Problem, ii: int, partitions: Sequence[int], memory: MemoryModel) -> IntervalModel:
    """All schedules in the stage window with these partitions, given by operation."""
    pinned = {op.id: g for op, g in zip(problem.graph.ops, partitions, strict=True)}
    pinned_problem = replace(problem, options=replace(problem.options, pinned=pinned))
    return IntervalModel(pinned_problem, ii, memory=memory, reach=stage_window(problem), tight=True)


def layout_kept(problem: Problem, ii: int, known: Assignment, placed: Layout, memory: MemoryModel) -> IntervalModel:
    """All schedules in the stage window with the partitions of ``known`` and every ring where ``placed`` has it."""
    model = partitions_kept(problem, ii, known.partitions, memory)
    keep_layout(model, placed.buffers, placed.reuses)
    return model


def in_lockstep(build: Callable[[MemoryModel], IntervalModel | None]) -> Callable[[MemoryModel], IntervalModel | None]:
    """The models of ``build`` with clones in lockstep."""

    def built(memory: MemoryModel) -> IntervalModel | None:
        model = build(memory)
        if model is not None:
            keep_clones_in_lockstep(model)
        return model

    return built


def keep_clones_in_lockstep(model: IntervalModel) -> None:
    """Every clone does what the first does, an equal part of the interval later."""
    index, clones = model.problem.graph.index, model.problem.graph.clones
    for at, clone in enumerate(clones):
        later = model.ii * at // len(clones)
        for one, other in zip(clones[0], clone, strict=True) if at else ():
            model.cp.add(model.start[index[other]] == model.start[index[one]] + later)


def one_partition_per_clone(problem: Problem) -> tuple[int, ...] | None:
    """Partitions: each clone in one of its own; what they share in one more, or in the first one's."""
    graph = problem.graph
    if not problem.clone_order or problem.pins:
        return None
    home = {graph.index[op]: at for at, clone in enumerate(graph.clones) for op in clone}
    for shared in (len(graph.clones), 0):
        found = [home.get(i, shared) for i in range(len(graph.ops))]
        partitions = tuple(found[c] for c in problem.cluster)
        if max(partitions) < problem.most_partitions:
            return partitions
    return None

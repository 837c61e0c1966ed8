"""What happens when, as rows of bars: the form that every picture of a time line is drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.device import UNITS
from warpplan.planner.values.plan import Plan
from warpplan.planner.values.timeline import Timeline

WAIT, EPILOGUE, OTHER = "wait", "epilogue", "other"
"""Kinds of bars beside the names of the GPU's units; operations on no unit or on another one are ``OTHER``."""


@dataclass(frozen=True)
class Bar:
    """``label`` is busy, or waited for, during the cycles [``start``, ``end``)."""

    label: str
    kind: str
    start: float
    end: float
    iteration: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Lane:
    """One row. ``group`` says what its bars are: issue slots, units, or measured scopes; ``warp`` is the first of the
    warps that it shows, if any."""

    group: str
    name: str
    bars: tuple[Bar, ...]
    warp: int | None = None


def predicted(graph: DependenceGraph, plan: Plan, timeline: Timeline, epilogue_cycles: int = 0) -> tuple[Lane, ...]:
    """A lane for each partition that runs something (waits and issue) and each unit that is used (as long as it is
    held). An epilogue of so many cycles follows the last result of each partition that multiplies."""
    lanes = []
    warp = 0
    for number, partition in enumerate(plan.partitions):
        bars = (*_issued(timeline, number), *_epilogue(timeline, number, epilogue_cycles))
        if bars:
            lanes.append(Lane("predicted: warps", partition.name, bars, warp))
        warp += partition.warps
    for unit, _ in graph.units:
        held = [s for s in timeline.spans if s.unit == unit and s.released > s.start]
        if held:
            bars = tuple(Bar(s.op, _kind(unit), s.start, s.released, s.iteration) for s in held)
            lanes.append(Lane("predicted: units", unit, bars))
    return tuple(lanes)


def _kind(unit: str | None) -> str:
    """The unit's own where it is one of the GPU's: a graph may have any others."""
    return unit if unit in UNITS else OTHER


def end_of(lanes: Sequence[Lane]) -> float:
    """When the last bar ends; 1 without any."""
    return max((bar.end for lane in lanes for bar in lane.bars), default=1.0)


def _issued(timeline: Timeline, partition: int) -> Iterator[Bar]:
    for s in sorted((s for s in timeline.spans if s.partition == partition), key=lambda s: s.start):
        if s.start > s.ready:
            yield Bar(s.op, WAIT, s.ready, s.start, s.iteration, f"waits for {s.waited_for or 'its barriers'}")
        if s.issued > s.start:
            yield Bar(s.op, _kind(s.unit), s.start, s.issued, s.iteration)


def _epilogue(timeline: Timeline, partition: int, cycles: int) -> Iterator[Bar]:
    mine = [s for s in timeline.spans if s.partition == partition]
    done = max((s.done for s in mine if s.unit == "TENSOR"), default=0)
    if cycles and done:
        free = max(s.issued for s in mine)
        if done > free:
            yield Bar(EPILOGUE, WAIT, free, done, None, "waits for the last multiply")
        yield Bar(EPILOGUE, EPILOGUE, max(free, done), max(free, done) + cycles)

"""A predicted loop and a measured one, phase by phase, in the words of Proton's scopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from warpplan.planner.errors import MeasurementFailed
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Plan
from warpplan.planner.values.timeline import Span, Timeline
from warpplan.profiler.traces import Event, TraceSummary, summarize
from warpplan.service.views.lanes import EPILOGUE, WAIT, Bar, Lane

PREDICTED = "predicted"
PHASES = {
    "consumer_wait": "load wait",
    "mma": "multiply",
    "producer_wait": "slot wait",
    "tma_issue": "load issue",
    "epilogue": "epilogue",
}
KINDS = {"tma_issue": "TMA", "mma": "TENSOR", "epilogue": EPILOGUE}


@dataclass(frozen=True)
class PhaseComparison:
    """``predicted`` and ``measured`` median cycles of one phase; ``None`` where it does not occur."""

    phase: str
    predicted: float | None
    measured: float | None


def scopes(graph: DependenceGraph, plan: Plan, timeline: Timeline, epilogue_cycles: int = 0) -> tuple[Event, ...]:
    """The time line as the scopes that the kernels record, of each partition's first warp.

    As in the kernel a wait is there even where nothing was waited for, and none is for a unit. A consumer waits for
    data alone; "mma" lasts from there to where the next operation of the same iteration may start, which knows an
    earlier multiply done. A producer queues an iteration's copies one behind the other, and waits before them for as
    long as the simulated one waits in all.
    """
    data = _data_there(graph, plan, timeline)
    found: list[Event] = []
    warp = 0
    for number, partition in enumerate(plan.partitions):
        spans = sorted((s for s in timeline.spans if s.partition == number), key=lambda s: s.start)
        for scope, start, end in (*_consumer(spans, data), *_producer(spans), *_epilogue(spans, epilogue_cycles)):
            found.append(Event(scope, PREDICTED, warp, float(start), float(end - start)))
        warp += partition.warps
    return tuple(sorted(found, key=lambda e: (e.launch, e.warp, e.start_cycles)))


def _data_there(graph: DependenceGraph, plan: Plan, timeline: Timeline) -> dict[tuple[str, int], int]:
    """When the values that an operation of one iteration reads from other partitions are there."""
    done = {(s.op, s.iteration): s.done for s in timeline.spans}
    home = {p.op: p.partition for p in plan.schedule.placements}
    found: dict[tuple[str, int], int] = {}
    for edge in graph.edges:
        if edge.kind != "data" or home[edge.src] == home[edge.dst]:
            continue
        for n in range(edge.distance, timeline.trip_count):
            there = done[edge.src, n - edge.distance] + graph.edge_handoff(edge)
            found[edge.dst, n] = max(found.get((edge.dst, n), 0), there)
    return found


def _consumer(spans: Sequence[Span], data: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, int]]:
    for at, s in enumerate(spans):
        if s.unit != "TENSOR":
            continue
        there = min(max(s.ready, data.get((s.op, s.iteration), 0)), s.start)
        yield "consumer_wait", s.ready, there
        following = spans[at + 1] if at + 1 < len(spans) else None
        known = following is not None and following.unit is None and following.iteration == s.iteration
        yield "mma", there, following.start if known and following is not None else s.issued


def _producer(spans: Sequence[Span]) -> Iterator[tuple[str, int, int]]:
    loads = sorted((s for s in spans if s.unit == "TMA"), key=lambda s: (s.iteration, s.start))
    for _, group in groupby(loads, key=lambda s: s.iteration):
        mine = list(group)
        begin, end = mine[0].ready, mine[-1].issued
        issue = sum(s.issued - s.start for s in mine)
        waited = sum(s.wait_cycles for s in mine)
        yield "producer_wait", begin, begin + waited
        yield "tma_issue", end - issue, end


def _epilogue(spans: Sequence[Span], cycles: int) -> Iterator[tuple[str, int, int]]:
    done = max((s.done for s in spans if s.unit == "TENSOR"), default=0)
    if done and cycles:
        start = max(done, max(s.issued for s in spans))
        yield "epilogue", start, start + cycles


def compare(predicted: Sequence[Event], events: Sequence[Event]) -> tuple[PhaseComparison, ...]:
    """The initiation interval, each phase's median and the exposed part of waiting (in percent of the main loop).

    Raises :class:`MeasurementFailed` where the measured events hold no two multiplies of one tile.
    """
    measured = summarize(events)
    try:
        mine: TraceSummary | None = summarize(predicted)
    except MeasurementFailed:
        mine = None
    rows = [PhaseComparison("initiation interval", mine.ii.p50 if mine else None, measured.ii.p50)]
    for scope, phase in PHASES.items():
        pair = [q.p50 if s is not None and (q := s.scope(scope)) is not None else None for s in (mine, measured)]
        if pair != [None, None]:
            rows.append(PhaseComparison(phase, *pair))
    exposed = None if mine is None else 100 * mine.exposed_wait
    rows.append(PhaseComparison("exposed load wait, %", exposed, 100 * measured.exposed_wait))
    return tuple(rows)


def on_one_clock(predicted: Sequence[Event], events: Sequence[Event]) -> tuple[Event, ...]:
    """The first recorded block that multiplies at least twice, its first multiply where the predicted one starts: a
    trace has no other origin in common with a plan. Raises :class:`MeasurementFailed` where there is no such block."""
    origin = min((e.start_cycles for e in predicted if e.scope == "mma"), default=0.0)
    for _, group in groupby(events, key=lambda e: e.launch):
        block = list(group)
        multiplies = [e.start_cycles for e in block if e.scope == "mma"]
        if len(multiplies) > 1:
            return tuple(replace(e, start_cycles=e.start_cycles - min(multiplies) + origin) for e in block)
    raise MeasurementFailed("the trace holds no block with two multiplies: trace a shape with more iterations of K")


def measured_lanes(plan: Plan, block: Sequence[Event], until: float) -> tuple[Lane, ...]:
    """A block's events during [0, ``until``) cycles, a lane for the first recorded warp of each partition."""
    recorded = sorted({e.warp for e in block})
    lanes = []
    begin = 0
    for partition in plan.partitions:
        warp = next((w for w in recorded if begin <= w < begin + partition.warps), None)
        begin += partition.warps
        bars = tuple(
            Bar(PHASES[e.scope], KINDS.get(e.scope, WAIT), max(e.start_cycles, 0.0),
                min(e.start_cycles + e.cycles, until), None, f"{e.cycles:.0f} cycles")
            for e in block
            if e.warp == warp and e.start_cycles < until and e.start_cycles + e.cycles > 0
        )  # fmt: skip
        if warp is not None:
            lanes.append(Lane("measured: warps", f"{partition.name}", bars, warp))
    return tuple(lanes)

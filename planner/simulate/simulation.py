"""A plan played as the kernel would run it: in order within each partition, held up by barriers, slots and units.

Nothing here trusts the schedule's cycles: they only give the order in which a partition issues. What starts when
follows from latencies, as planned or drawn from their measured spread. A plan that would hang, overwrite a slot or read
too early raises :class:`SimulationFault` where that would first happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from statistics import median

from warpplan.planner.errors import InvalidInput, SimulationFault
from warpplan.planner.simulate.event_loop import Order, Play
from warpplan.planner.simulate.plan_program import program
from warpplan.planner.simulate.program import Program
from warpplan.planner.simulate.slot_hazards import PlayRecord, first_hazard
from warpplan.planner.simulate.steady_state import steady_state
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Plan
from warpplan.planner.values.timeline import Span, Timeline

MOST_VERIFIED = 20_000
"""Operations that one play of :func:`verify` issues at most, unless the plan has more stages: a fifth of a second."""
MOST_STAGES = 1_000
"""Iterations that :func:`verify` plays at most for a plan's stages, of which no kernel's loop has as many: a latency of
10⁸ intervals would otherwise be played for as many iterations. What lies beyond is left to the checker."""
MOST_IN_FULL = 100_000
"""Operations times stages up to which :func:`verify` plays a plan from its first stage to its last: five plays of a
quarter of a second. The loops of kernels have a hundredth. A chain of 2,000 operations in 1,476 stages has 3 million.
Chosen by hand; doubled, the verification of the longest plans takes up to a second longer."""


@dataclass(frozen=True)
class Draws:
    """Latencies as they vary: the median, and in half of the instances an exponential tail beyond it.

    The tail's scale is spread / ln 5, so that P(latency ≤ median) = 1/2 and P(latency ≤ median + spread) = 9/10, as
    measured. Of the half below the median a profile says nothing; taking it at the median errs on the slow side and
    keeps every latency at or above its planned one. Whole cycles; the same ``seed`` gives the same draws, and a longer
    run those of a shorter one first.
    """

    seed: int = 0

    def late_cycles(self, spreads: Sequence[int], trip_count: int) -> list[list[int]]:
        """Cycles beyond the median, per operation and iteration."""
        import numpy as np

        sample = np.random.Generator(np.random.PCG64(self.seed)).standard_exponential((trip_count, len(spreads)))
        scale = np.array(spreads, dtype=np.float64) / log(5)
        late = np.rint(scale * np.maximum(sample - log(2), 0)).astype(np.int64)
        return [list(map(int, column)) for column in late.T]


def simulate(
    plan: Plan, graph: DependenceGraph, trip_count: int, *, draws: Draws | None = None, order: Order | None = None
) -> Timeline:
    """``trip_count`` iterations of the loop, cycle by cycle.

    ``order`` says whom a unit serves first: "planned" (the default without ``draws``) keeps the plan's order, and then
    nothing starts later than planned; "arrival" (the default with them) takes whoever asks first, as hardware does.
    Raises :class:`SimulationFault` where the plan deadlocks, overwrites a slot or reads too early, and
    :class:`InvalidInput` for a plan of another graph.
    """
    if isinstance(trip_count, bool) or trip_count < 0:
        raise InvalidInput(
            f"trip count is {trip_count}: expected 0 or more", field="trip_count", value=trip_count, limit=0
        )
    compiled = program(plan, graph)
    run = _played(compiled, trip_count, draws, order or ("planned" if draws is None else "arrival"))
    spans = [
        Span(step.op, n, step.partition, graph.ops[i].unit, ready, start, start + step.issue + step.after,
             start + step.occupancy, done, reason)
        for i, step in enumerate(compiled.steps)
        for n, (ready, start, done, reason) in enumerate(
            zip(run.readies[i], run.starts[i], run.retired[i], run.reasons[i], strict=True)
        )
    ]  # fmt: skip
    spans.sort(key=lambda s: (s.start, s.partition, graph.index[s.op], s.iteration))
    names = tuple(p.name for p in plan.partitions)
    return Timeline(graph.name, trip_count, names, tuple(spans), max((s.done for s in spans), default=0))


def verify(plan: Plan, graph: DependenceGraph) -> tuple[str, ...]:
    """The first thing wrong with ``plan`` over a few trip counts, once with drawn latencies; empty for a good plan.

    That is a fault that :func:`simulate` raises, or an operation that is late although everything before it was in
    time: the plan cannot keep its own interval. A plan of up to ``MOST_IN_FULL`` operations times stages is played as
    it is: for one iteration, for as many as it has stages, and for a count that fills each ring and spans each distance
    once more after every stage has begun, as far as ``MOST_VERIFIED`` allows.

    To fill the stages of a longer plan takes minutes and shows nothing that its steady state does not: a cycle of waits
    in which nothing runs lies within one interval, and units, rings and partitions are as full in each interval of the
    steady state. So its steady state is played, as a loop of one stage
    (:mod:`~warpplan.planner.simulate.steady_state`): in the plan's order, with drawn latencies, and for what is late.
    The plan as it is is played for one iteration and for as many as fill each ring and span each distance. Distances
    and rings beyond ``MOST_IN_FULL`` operations a play are left to the checker.
    """
    try:
        compiled = program(plan, graph)
    except InvalidInput as error:
        return (str(error),)
    stages = min(plan.schedule.stages, MOST_STAGES)
    try:
        if len(graph.ops) * stages <= MOST_IN_FULL:
            enough = _trip_count(compiled, stages, MOST_VERIFIED)
            return _faults(compiled, (1, stages, enough))
        for trip_count in (1, _trip_count(compiled, 0, MOST_IN_FULL)):
            _played(compiled, trip_count)
        steady = program(*steady_state(plan, graph))
        return _faults(steady, (_trip_count(steady, 1, MOST_IN_FULL),))
    except SimulationFault as fault:
        return (str(fault),)


def _trip_count(compiled: Program, stages: int, most: int) -> int:
    """Iterations that fill each ring and span each distance once more after every stage has begun; the stages and two
    more where that is more than ``most`` operations."""
    deepest = max((ring.depth for ring in compiled.rings), default=1)
    reach = max((distance for _, _, distance, _ in compiled.dependences), default=0)
    return min(stages + max(deepest, reach) + 2, max(most // max(len(compiled.steps), 1), stages + 2))


def _faults(compiled: Program, trip_counts: tuple[int, ...]) -> tuple[str, ...]:
    """What is late in a play of the last of ``trip_counts``. Raises :class:`SimulationFault` for a fault in a play of
    any of them, or of the last with drawn latencies."""
    for trip_count in trip_counts:
        _played(compiled, trip_count)
    _played(compiled, trip_counts[-1], Draws(), "arrival")
    return _late(compiled, _played(compiled, trip_counts[-1], planned_starts=True))


def _late(compiled: Program, run: PlayRecord) -> tuple[str, ...]:
    """The first start of a play in which nothing starts early that is later than planned."""
    late = [
        (start, step.op, n, planned)
        for step, starts in zip(compiled.steps, run.starts, strict=True)
        for n, start in enumerate(starts)
        if start > (planned := compiled.planned_cycle(step, n))
    ]
    return tuple(
        f"operation {op}, iteration {n}, cycle {start}: planned for cycle {planned}"
        for start, op, n, planned in sorted(late)[:1]
    )


def steady_ii(timeline: Timeline) -> float | None:
    """Cycles per iteration between a quarter and three quarters of the way, of the operation that is slowest there;
    ``None`` with fewer than two iterations."""
    first, last = timeline.trip_count // 4, 3 * timeline.trip_count // 4
    if first == last:
        return None
    starts: dict[str, dict[int, int]] = {}
    for span in timeline.spans:
        if span.iteration in (first, last):
            starts.setdefault(span.op, {})[span.iteration] = span.start
    return max((at[last] - at[first] for at in starts.values()), default=0) / (last - first)


def waits(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Per operation and reason ("data x", "slot", "unit"), the median over all iterations of the cycles waited for it:
    0 where it was the reason in fewer than half of them. Comparable to the medians of a trace's wait scopes."""
    cycles: dict[str, dict[str, list[int]]] = {span.op: {} for span in timeline.spans}
    for span in timeline.spans:
        if span.waited_for:
            cycles[span.op].setdefault(span.waited_for, []).append(span.wait_cycles)
    none = [0] * timeline.trip_count
    return {
        op: {reason: float(median(some + none[len(some) :])) for reason, some in reasons.items()}
        for op, reasons in cycles.items()
    }


def _played(
    compiled: Program,
    trip_count: int,
    draws: Draws | None = None,
    order: Order = "planned",
    planned_starts: bool = False,
) -> PlayRecord:
    """The cycles of a play without fault; ``planned_starts``: in which nothing starts before its planned cycle."""
    spreads = [op.spread for op in compiled.graph.ops]
    late = draws.late_cycles(spreads, trip_count) if draws is not None and any(spreads) else None
    play = Play(compiled, trip_count, late, order, planned_starts)
    play.run()
    # Contents do not change what waits for what: until its first hazard a play is right, whatever comes after.
    fault = first_hazard(compiled, play.record, trip_count) or play.deadlock()
    if fault is not None:
        raise SimulationFault(fault.message, op=fault.op, iteration=fault.iteration, cycle=fault.cycle, slot=fault.slot)
    return play.record

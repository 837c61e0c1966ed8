"""A plan played as the kernel would run it: in order within each partition, held up by barriers, slots and units.

Nothing here trusts the schedule's cycles: they only give the order in which a partition issues. What starts when
follows from latencies, as planned or drawn from their measured spread. A plan that would hang, overwrite a slot or read
too early raises :class:`SimulationFault` where that would first happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from math import log
from statistics import median
from typing import Literal

from warpplan.planner.errors import InvalidInput, WarpplanError
from warpplan.planner.graph import DependenceGraph
from warpplan.planner.hazards import Fault, Run, first_hazard
from warpplan.planner.plan import Plan
from warpplan.planner.program import Program, Wait, program
from warpplan.planner.timeline import Span, Timeline

Order = Literal["planned", "arrival"]

MOST_VERIFIED = 20_000
"""Operations that one play of :func:`verify` issues at most: a fifth of a second."""


class SimulationFault(WarpplanError):
    """What a plan would do wrong when run: operation ``op`` of ``iteration`` at ``cycle``; ``slot`` of the ring
    concerned, if any."""

    def __init__(self, message: str, *, op: str, iteration: int, cycle: int, slot: int | None = None) -> None:
        super().__init__(message, field="plan", value=op)
        self.op, self.iteration, self.cycle, self.slot = op, iteration, cycle, slot


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
             start + step.occupancy,
             done, reason)
        for i, step in enumerate(compiled.steps)
        for n, (ready, start, done, reason) in enumerate(
            zip(run.readies[i], run.starts[i], run.retired[i], run.reasons[i], strict=True)
        )
    ]  # fmt: skip
    spans.sort(key=lambda s: (s.start, s.partition, graph.index[s.op], s.iteration))
    names = tuple(p.name for p in plan.partitions)
    return Timeline(graph.name, trip_count, names, tuple(spans), max((s.done for s in spans), default=0))


def verify(plan: Plan, graph: DependenceGraph) -> tuple[str, ...]:
    """What is wrong with ``plan`` over a few trip counts, once with drawn latencies; empty for a good plan.

    Beside the faults that :func:`simulate` raises, an operation that is late although everything before it was in time:
    the plan cannot keep its own interval. The longest count lets each ring turn and each distance span once more after
    every stage has begun, as far as ``MOST_VERIFIED`` allows.
    """
    try:
        compiled = program(plan, graph)
    except InvalidInput as error:
        return (str(error),)
    stages = plan.schedule.stages
    turns = max((ring.depth for ring in compiled.rings), default=1)
    reach = max((distance for _, _, distance, _ in compiled.dependences), default=0)
    enough = min(stages + max(turns, reach) + 2, max(MOST_VERIFIED // max(len(graph.ops), 1), stages + 2))
    try:
        for trip_count in (1, stages, enough):
            _played(compiled, trip_count)
        _played(compiled, enough, Draws(), "arrival")
        return _late(compiled, _played(compiled, enough, in_step=True))
    except SimulationFault as fault:
        return (str(fault),)


def _late(compiled: Program, run: Run) -> tuple[str, ...]:
    """The first start of a play in step that is later than planned."""
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
    """Per operation and reason, the median over all iterations of the cycles waited for it: 0 where it was the reason
    less than every other time. What a trace's wait scopes show."""
    cycles: dict[str, dict[str, list[int]]] = {span.op: {} for span in timeline.spans}
    for span in timeline.spans:
        if span.waited_for:
            cycles[span.op].setdefault(span.waited_for, []).append(span.wait_cycles)
    none = [0] * timeline.trip_count
    return {
        op: {reason: float(median(some + none[len(some) :])) for reason, some in reasons.items()}
        for op, reasons in cycles.items()
    }


# Playing


def _played(
    compiled: Program, trip_count: int, draws: Draws | None = None, order: Order = "planned", in_step: bool = False
) -> Run:
    """The cycles of a play without fault; ``in_step``: in which nothing starts before its planned cycle."""
    spreads = [op.spread for op in compiled.graph.ops]
    late = draws.late_cycles(spreads, trip_count) if draws is not None and any(spreads) else None
    play = _Play(compiled, trip_count, late, order, in_step)
    play.run()
    # Contents do not change what waits for what: until its first hazard a play is right, whatever comes after.
    fault = first_hazard(compiled, play.record, trip_count) or play.deadlock()
    if fault is not None:
        raise SimulationFault(fault.message, op=fault.op, iteration=fault.iteration, cycle=fault.cycle, slot=fault.slot)
    return play.record


class _Play:
    """Partitions are processes that ask for their next operation as soon as they know from when on it may start.

    Requests are granted by planned cycle, or as they arrive. A request that is not known yet depends on an operation
    that was not granted yet and comes no earlier than any request that is known: granting the earliest is safe.
    """

    def __init__(
        self, compiled: Program, trip_count: int, late: list[list[int]] | None, order: Order, in_step: bool
    ) -> None:
        steps, self.trip_count, self.late = compiled.steps, trip_count, late
        self.compiled, self.steps, self.planned, self.in_step = compiled, steps, order == "planned", in_step
        self.ii, self.offset = compiled.plan.schedule.ii_cycles, compiled.offset
        done: list[list[int]] = [[] for _ in steps]
        self.record = Run(
            [[] for _ in steps], [[] for _ in steps], done,
            [[] if step.in_order else done[i] for i, step in enumerate(steps)], [[] for _ in steps],
        )  # fmt: skip
        partitions = range(len(compiled.plan.partitions))
        members: list[list[int]] = [[] for _ in partitions]
        users: list[list[int]] = [[] for _ in compiled.units]
        for i, step in enumerate(steps):
            members[step.partition].append(i)
            if step.unit is not None:
                users[step.unit].append(i)
        self.programs = [compiled.instances(inside, trip_count) for inside in members]
        self.turns = [compiled.instances(inside, trip_count) for inside in users]
        self.turn = [next(turn, None) for turn in self.turns]
        self.head: list[tuple[int, int] | None] = [None for _ in partitions]
        self.issued = [0 for _ in partitions]
        self.last_start = [0 for _ in partitions]
        self.last_retired = [0 for _ in partitions]
        self.servers = [[0] * capacity for _, capacity in compiled.units]
        self.parked: list[list[int]] = [[] for _ in steps]  # by the operation that partitions wait for
        self.blocked: dict[int, tuple[int, int, Wait | None]] = {}  # partition → since, operation, wait (none: unit)
        self.requests: list[tuple[int, int, int, int, int, int, str]] = []
        for g in partitions:
            self._turn_to_next(g)

    def run(self) -> None:
        while self.requests:
            self._grant(*heappop(self.requests))

    def _turn_to_next(self, g: int) -> None:
        self.head[g] = next(self.programs[g], None)
        if self.head[g] is not None:
            self._request(g)

    def _request(self, g: int) -> None:
        """From when on partition ``g`` may start its next operation, once all that it waits for has run."""
        head = self.head[g]
        assert head is not None
        i, n = head
        step, record = self.steps[i], self.record
        ready = self.last_start[g] if step.silent else max(self.issued[g], self.last_start[g])
        when, why, last = ready + step.before, "", self.trip_count - 1
        for wait in step.waits:
            source, back, first, offset, barrier, retired, reason = wait
            if n < first:
                continue
            m = min(n - back, last)
            done = record.retired[source] if retired else record.done[source]
            if m < len(done):
                if done[m] + offset > when:
                    when, why = done[m] + offset, reason
            elif barrier:
                self._park(g, source, ready, wait)
                return
        planned = self.offset + step.cycle + self.ii * n
        if self.in_step:
            when = max(when, planned)
        heappush(self.requests, (planned if self.planned else when, planned, step.rank, g, ready, when, why))

    def _park(self, g: int, source: int, since: int, wait: Wait | None) -> None:
        self.parked[source].append(g)
        self.blocked[g] = (since, source, wait)

    def _grant(self, _key: int, planned: int, _rank: int, g: int, ready: int, when: int, why: str) -> None:
        head = self.head[g]
        assert head is not None
        i, n = head
        step, record = self.steps[i], self.record
        start = when
        if step.unit is not None:
            turn = self.turn[step.unit]
            if self.planned and turn is not None and turn != head:
                self._park(g, turn[0], ready, None)
                return
            servers = self.servers[step.unit]
            if servers[0] > start:
                start, why = servers[0], "unit"
            heapreplace(servers, start + step.occupancy)
            self.turn[step.unit] = next(self.turns[step.unit], None)
        done = start + step.latency + (self.late[i][n] if self.late else 0)
        record.readies[i].append(ready)
        record.starts[i].append(start)
        record.done[i].append(done)
        if step.in_order:
            self.last_retired[g] = max(done, self.last_retired[g])
            record.retired[i].append(self.last_retired[g])
        record.reasons[i].append(why)
        self.last_start[g] = start
        if not step.silent:
            self.issued[g] = start + step.issue + step.after
        waiting, self.parked[i] = self.parked[i], []
        self._turn_to_next(g)
        for other in waiting:
            del self.blocked[other]
            self._request(other)

    def deadlock(self) -> Fault | None:
        """Every partition that has not come to its end, with what it waits for."""
        if not self.blocked:
            return None
        said = []
        for g, (_, source, wait) in sorted(self.blocked.items()):
            i, n = self._at(g)
            m = min(n - wait.back, self.trip_count - 1) if wait is not None else n
            name, other = self.compiled.plan.partitions[g].name, self.steps[source].op
            if wait is None:
                what = f"its turn on unit {self.compiled.graph.ops[i].unit} after {other}"
            elif wait.reason == "slot":
                what = f"a free slot, to be released by {other} of iteration {m}"
            else:
                what = f"{other} of iteration {m}"
            said.append(f"{name} waits with {self.steps[i].op} of iteration {n} for {what}")
        cycle = max(since for since, _, _ in self.blocked.values())
        i, n = self._at(min(self.blocked))
        return Fault(cycle, self.steps[i].op, n, None, f"deadlock at cycle {cycle}: {'; '.join(said)}")

    def _at(self, g: int) -> tuple[int, int]:
        head = self.head[g]
        assert head is not None
        return head

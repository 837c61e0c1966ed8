"""An explanation as titled tables, for lines and for a page alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from warpplan.planner.predict.alternatives import Flips, Need, RankedCandidates
from warpplan.planner.predict.explanation import Demand
from warpplan.planner.predict.sensitivity import CostChanges
from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Buffer, Optimality, Outcome, Plan
from warpplan.service.views.phases import PhaseComparison

Cell = str | int | float


@dataclass(frozen=True)
class Section:
    """``notes`` are sentences below the table of ``rows``, whose columns ``head`` names."""

    title: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str, ...] = ()


def bounds(outcome: Outcome, demands: Sequence[Demand]) -> Section:
    """What the interval is made of, fullest first, and what the proof says."""
    assert outcome.plan is not None
    ii = outcome.plan.schedule.ii_cycles
    rows = tuple(
        (d.name, d.used, d.limit, d.slack, f"{100 * d.share:.1f} %", d.unit, _short(d.detail)) for d in demands
    )
    gap = outcome.gap_cycles or 0
    notes = [
        f"II {ii} cycles, proven bound {outcome.bound}"
        + (
            ": optimal"
            if not gap
            else f": {gap} cycles ({100 * gap / max(outcome.bound, 1):.1f} %) are not proven needed"
        )
    ]
    full = [d.name for d in demands if d.unit == "cycles" and d.slack == 0]
    near = next((d for d in demands if d.unit == "cycles" and d.slack > 0), None)
    notes.append(f"what binds: {outcome.reason}")
    if len(full) > 1:
        notes.append(f"full together: {', '.join(full)}; to shorten the interval, each of them must shrink")
    if near is not None:
        notes.append(f"the next is {near.name}: {near.slack} cycles ({100 * near.slack / ii:.1f} %) below the interval")
    if outcome.optimality is not None:
        notes.append(certificate(outcome.optimality))
    return Section("What binds", ("demand", "used", "limit", "slack", "full", "unit", "of"), rows, tuple(notes))


def certificate(found: Optimality) -> str:
    """What is known of other partitions of the same loop, in a sentence."""
    ii, free = found.served_ii_cycles, found.free_ii_cycles
    if found.is_proven:
        return f"no other partition or order has a shorter interval than {ii} cycles: proven"
    proven = "the shortest there is" if free == found.bound_cycles else f"proven bound {found.bound_cycles}"
    if free == ii:
        return f"no partition or order with a shorter interval than {ii} cycles was found; {proven}"
    groups = [", ".join(ops) for ops in found.free_partitions]
    apart = f"with partitions {' | '.join(groups)}" if len(groups) > 1 else "in one partition"
    shorter = (
        f"another partition or order is predicted to take {free} of {ii} cycles ({100 * (1 - free / ii):.1f} % less)"
    )
    return f"{shorter}, {proven}, {apart}"


def costs(found: CostChanges, ii: int) -> Section:
    """Which cost would have to change for another interval."""
    rows = tuple(
        (c.name, c.cycles, c.to_cycles, f"{100 * (c.factor - 1):+.1f} %", c.ii_cycles or "no plan")
        for c in found.changes
    )
    notes = []
    if not found.examined:
        notes.append("not asked, since the interval is not proven optimal")
    elif not any(c.to_cycles < c.cycles for c in found.changes):
        whole = found.examined == found.costs and not found.undecided
        none = "no single cost" if whole else "none of those decided"
        notes.append(f"{none}, however small, brings the interval below {ii} cycles")
    if 0 < found.examined < found.costs:
        notes.append(f"{found.examined} of {found.costs} costs were looked at, the largest first")
    if found.undecided:
        notes.append(f"a re-solve came to its time limit for {', '.join(found.undecided)}")
    head = ("cost", "cycles", "at", "change", "II then")
    return Section("The smallest change of one cost that moves the interval", head, rows, tuple(notes))


def terms(prediction: Prediction) -> Section:
    """What the kernel's time is made of, the largest term first."""
    ordered = sorted(prediction.parts, key=lambda part: -part[1])
    rows = tuple((name, round(us, 2), f"{100 * us / prediction.time_us:.1f} %") for name, us in ordered)
    (first, most), (second, next_us) = ordered[0], ordered[1]
    notes = (
        f"bound by {first}; the next, {second}, is {most - next_us:.2f} us ({100 * (1 - next_us / most):.1f} %) below",
        "terms overlap, so that they add up to more than the predicted time",
    )
    return Section("What the time is made of", ("term", "us", "of the time"), rows, notes)


def contenders(race: RankedCandidates, predictions: Sequence[Prediction]) -> Section:
    """The best of unlike block structures."""
    best = predictions[0].time_us
    rows = tuple(
        (n, name, round(p.time_us, 2), f"{100 * (p.time_us / best - 1):+.2f} %", p.bound_by, round(float(ii)))
        for n, (name, p, ii) in enumerate(zip(race.names, predictions, race.work.ii_cycles, strict=True), 1)
    )
    return Section("The best of other block structures", ("", "structure", "us", "gap", "bound by", "II"), rows)


def what_the_next_needs(race: RankedCandidates, needs: Sequence[Need]) -> Section:
    rows = tuple(
        (n.quantity, "not enough alone" if n.factor is None else f"{100 * (n.factor - 1):+.1f} %") for n in needs
    )
    return Section(f"What the next best would need: {race.names[1]}", ("less of", "to be as fast"), rows)


def choice(race: RankedCandidates, found: Flips) -> Section:
    """Which measured number would flip the choice, and whether its own spread allows that."""
    rows = tuple(
        (f.measured, f"{f.value:.6g}", f"{100 * (f.factor - 1):+.1f} %", f"{100 * (f.spread - 1):.1f} %",
         "yes" if f.within_spread else "no", f"no. {race.names.index(f.winner) + 1}")
        for f in found.flips
    )  # fmt: skip
    notes = [] if rows else ["no measured number flips the choice within a factor of 2"]
    if found.examined < found.numbers:
        notes.append(f"{found.examined} of {found.numbers} measured numbers were looked at")
    head = ("measured", "value", "flips at", "spread", "within", "in favour of")
    return Section("Which measured number would flip the choice", head, rows, tuple(notes))


def plan(graph: DependenceGraph, plan: Plan) -> tuple[Section, ...]:
    """The plan itself: schedule, partitions, channels, buffers, reuses of bytes; empty ones are left out."""
    names = [p.name for p in plan.partitions]
    rows = sorted(plan.schedule.placements, key=lambda p: p.cycle)
    readers = {c.name: ", ".join(names[g] for g in c.consumers) for c in plan.channels}
    found = (
        Section(
            "Schedule",
            ("operation", "partition", "cycle", "stage", "phase"),
            tuple((p.op, names[p.partition], p.cycle, p.stage, p.phase) for p in rows),
        ),
        Section(
            "Partitions",
            ("partition", "warps", "registers", "operations"),
            tuple((p.name, p.warps, p.registers, ", ".join(p.ops)) for p in plan.partitions),
        ),
        Section(
            "Channels",
            ("channel", "from", "to", "depth", "slot B", "held cycles"),
            tuple(
                (c.name, names[c.producer], readers[c.name], c.depth, c.slot_bytes, c.live_cycles)
                for c in plan.channels
            ),
        ),
        Section(
            "Buffers",
            ("buffer", "offset", "size", "alignment", "place"),
            tuple((b.name, b.offset, b.size, b.alignment, _place(b)) for b in plan.buffers),
            (f"{plan.smem_bytes} of {graph.limits.smem_bytes} B of shared memory",),
        ),
        Section(
            "Bytes used twice",
            ("buffer", "after", "iterations later"),
            tuple((r.after, r.before, r.distance) for r in plan.reuses),
        ),
    )
    return tuple(section for section in found if section.rows)


def comparison(found: Sequence[PhaseComparison]) -> Section:
    """Predicted and measured phases."""
    return Section(
        "Predicted and measured, median cycles", ("phase", "predicted", "measured", "ratio"), tuple(_compared(found))
    )


def _compared(found: Sequence[PhaseComparison]) -> Iterator[tuple[Cell, ...]]:
    for c in found:
        ratio = f"{c.measured / c.predicted:.2f}" if c.predicted and c.measured is not None else "-"
        shown = ["-" if value is None else f"{value:.0f}" for value in (c.predicted, c.measured)]
        yield (c.phase, *shown, ratio)


def _place(buffer: Buffer) -> str:
    if buffer.memory == "tmem":
        return f"tensor memory, lanes {buffer.lane} to {buffer.lane + buffer.lanes - 1}"
    return f"within {buffer.shares_with}" if buffer.shares_with else "shared memory"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

"""A plan as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from warpplan.planner.graph import DependenceGraph
from warpplan.planner.plan import Buffer, Outcome, Plan


def outcome_lines(graph: DependenceGraph, outcome: Outcome) -> Iterator[str]:
    """The answer to one graph: status, interval, proof, and the plan's tables."""
    count = len(graph.ops)
    yield f"{graph.name}: {count} operations, {len(graph.edges)} dependences"
    yield f"  status       {outcome.status}"
    if outcome.plan is None:
        yield (
            f"  bound        no interval below {outcome.bound} cycles"
            if outcome.bound
            else "  bound        none proven"
        )
        yield f"  reason       {outcome.reason}"
        return
    plan = outcome.plan
    gap = outcome.gap_cycles or 0
    share = f" ({100 * gap / outcome.bound:.1f} %)" if outcome.bound else ""
    yield f"  II           {plan.schedule.ii_cycles} cycles, {plan.schedule.stages} stages"
    yield f"  proven bound {outcome.bound} cycles, gap {gap}{share if gap else ''}"
    yield f"  binds        {outcome.reason}"
    for lines in (schedule_lines(plan), resource_lines(graph, plan)):
        yield ""
        yield from lines


def schedule_lines(plan: Plan) -> Iterator[str]:
    """Every operation in the order in which an iteration runs it."""
    names = [p.name for p in plan.partitions]
    rows = sorted(plan.schedule.placements, key=lambda p: p.cycle)
    yield from table(
        ("operation", "partition", "cycle", "stage", "phase"),
        [(p.op, names[p.partition], p.cycle, p.stage, p.phase) for p in rows],
    )


def resource_lines(graph: DependenceGraph, plan: Plan) -> Iterator[str]:
    """Partitions, channels, buffers and shared bytes."""
    names = [p.name for p in plan.partitions]
    yield from table(
        ("partition", "warps", "registers", "operations"),
        [(p.name, p.warps, p.registers, ", ".join(p.ops)) for p in plan.partitions],
    )
    if plan.channels:
        yield ""
        readers = {c.name: ", ".join(names[g] for g in c.consumers) for c in plan.channels}
        yield from table(
            ("channel", "from", "to", "depth", "slot B", "held cycles"),
            [(c.name, names[c.producer], readers[c.name], c.depth, c.slot_bytes, c.live_cycles) for c in plan.channels],
        )
    if plan.buffers:
        yield ""
        yield from table(
            ("buffer", "offset", "size", "alignment", "place"),
            [(b.name, b.offset, b.size, b.alignment, _place(b)) for b in plan.buffers],
        )
        yield f"shared memory {plan.smem_bytes} of {graph.limits.smem_bytes} B"
    for reuse in plan.reuses:
        yield f"reuse: {reuse.after} takes the bytes of {reuse.before}, {reuse.distance} iterations later"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Columns as wide as their widest cell; a column of numbers stands to the right, text to the left."""
    lines = [head, *([str(cell) for cell in row] for row in rows)]
    aligned = [">" if all(isinstance(row[i], int | float) for row in rows) else "<" for i in range(len(head))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        yield "  ".join(f"{c:{a}{w}}" for c, a, w in zip(line, aligned, widths, strict=True)).rstrip()


def _place(buffer: Buffer) -> str:
    if buffer.memory == "tmem":
        return f"tensor memory, lanes {buffer.lane} to {buffer.lane + buffer.lanes - 1}"
    return f"within {buffer.shares_with}" if buffer.shares_with else "shared memory"

"""Proton's trace of any recorded kernel, operation by operation, and beside it what the planner's costs say.

:mod:`warpplan.kernels.compiler.inspection.instrument` puts the scopes into the finished kernel: "mma@file.py:12" is the
product of that line with the wait for it, "math@file.py:12" the arithmetic that starts there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from warpplan.kernels.compiler.analysis.capture import Body
from warpplan.kernels.compiler.costing.loop_graph import Shape, cost_of
from warpplan.kernels.compiler.inspection.instrument import KINDS
from warpplan.planner.errors import MeasurementFailed
from warpplan.planner.values.costs import CostTable, Quantiles
from warpplan.planner.values.dependence_graph import DependenceGraph, Operation
from warpplan.profiler.traces import Event, parse

_MATH = ("elementwise", "sfu", "reduce", "convert_layout")


@dataclass(frozen=True)
class MeasuredOperation:
    """The cycles of one scope over all warps and iterations; ``warps``: the median of each warp that ran it."""

    name: str
    cycles: Quantiles
    warps: tuple[tuple[int, float], ...]

    @property
    def kind(self) -> str:
        return self.name.partition("@")[0].partition("#")[0]

    @property
    def line(self) -> str:
        """ "file.py:12", empty where the scope has none."""
        return self.name.partition("@")[2].partition("#")[0]


@dataclass(frozen=True)
class Beside:
    """Cycles of one warp in one iteration: ``measured`` less what recording costs, ``predicted`` from the probes."""

    operation: str
    measured: float
    predicted: float

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted if self.predicted else 0.0


def read_operations(path: Path) -> tuple[MeasuredOperation, ...]:
    """What the trace in ``path`` says of each scope. Raises :class:`MalformedFile` where it is no trace,
    :class:`MeasurementFailed` where it holds no scope of a recorded kernel."""
    return operations(parse(path, KINDS), str(path))


def operations(events: Sequence[Event], what: str = "the trace") -> tuple[MeasuredOperation, ...]:
    """:func:`read_operations` of events, by name."""
    if not events:
        raise MeasurementFailed(f"{what} holds no scope of a recorded kernel: expected one of {', '.join(KINDS)}")
    by_name: dict[str, dict[int, list[float]]] = {}
    for event in events:
        by_name.setdefault(event.name, {}).setdefault(event.warp, []).append(event.cycles)
    found = []
    for name in sorted(by_name):
        warps = by_name[name]
        samples = np.concatenate([warps[w] for w in sorted(warps)])
        p50, p90 = np.percentile(samples, [50, 90])
        medians = tuple((w, float(np.median(warps[w]))) for w in sorted(warps))
        found.append(MeasuredOperation(name, Quantiles(float(p50), float(p90), len(samples)), medians))
    return tuple(found)


def beside_costs(
    measured: Sequence[MeasuredOperation], loop: Body, shape: Shape, costs: CostTable, recording: float = 0.0
) -> tuple[Beside, ...]:
    """``measured`` beside the costs of ``loop`` under ``shape``: the products of each line with the wait for them, and
    what the compiler puts together otherwise than the planner, as a whole: the issue of all loads, all arithmetic.

    ``recording``: the cycles that an empty scope shows. Leaves out what the trace or the loop does not have.
    """
    loads, math = loop.of_kind("tma_load"), loop.of_kind(*_MATH)
    rows = [
        ("tma_issue", _inside(measured, "tma_issue"), sum(cost_of(w, costs, shape).issue for w in loads)),
        ("math", _inside(measured, "math"), sum(cost_of(w, costs, shape).latency for w in math)),
    ]
    products = _inside(measured, "mma")
    for line in sorted({m.line for m in products}):
        work = [w for w in loop.of_kind("dot") if w.line == line]
        occupancy = sum(cost_of(w, costs, shape).occupancy for w in work)
        rows.append((f"mma@{line}", [m for m in products if m.line == line], occupancy))
    return tuple(
        Beside(name, sum(max(0.0, m.cycles.p50 - recording) for m in scopes), predicted)
        for name, scopes, predicted in rows
        if scopes and predicted
    )


def with_measured(graph: DependenceGraph, loop: Body, rows: Sequence[Beside]) -> DependenceGraph:
    """``graph`` of ``loop`` with costs as they were measured, for a plan made for them: each operation's are scaled by
    the ratio of its row; what was not measured keeps its probed costs."""
    ratios = {row.operation: row.ratio for row in rows}
    names = {work.id: f"mma@{work.line}" for work in loop.of_kind("dot")}

    def scaled(op: Operation) -> Operation:
        if op.unit == "TMA":
            return replace(op, issue=round(op.issue * ratios.get("tma_issue", 1.0)))
        name = names.get(op.id, "math" if op.unit in ("ALU", "SFU") else "")
        ratio = ratios.get(name, 1.0)
        latency, occupancy, issue = (round(n * ratio) for n in (op.latency, op.occupancy, op.issue))
        return replace(op, latency=latency, occupancy=occupancy, issue=issue)

    return replace(graph, ops=tuple(map(scaled, graph.ops)))


def _inside(measured: Sequence[MeasuredOperation], kind: str) -> list[MeasuredOperation]:
    """The scopes of ``kind`` that the loop runs: those peeled off it, or before it, have few samples."""
    found = [m for m in measured if m.kind == kind]
    most = max((m.cycles.count for m in found), default=0)
    return [m for m in found if 2 * m.cycles.count > most]

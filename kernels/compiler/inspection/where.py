"""Where each line of a kernel goes under a plan: which partition, stage of the software pipeline and buffer."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.capture import Body, Captured
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.costing.fusing import fuse, steady
from warpplan.kernels.compiler.costing.kernel_model import RankedStrategy
from warpplan.kernels.compiler.costing.loop_graph import kept_apart
from warpplan.kernels.compiler.strategy.blackwell import REST
from warpplan.planner.problem.clones import MARK
from warpplan.planner.values.plan import Placement, Plan


@dataclass(frozen=True)
class Placed:
    """One operation: ``partitions`` by name, ``stage`` and ``cycle`` within the loop's plan (``None`` outside of
    planned loops), ``buffer`` in words."""

    lines: tuple[str, ...]
    operation: str
    kind: str
    loop: str
    partitions: tuple[str, ...]
    stage: int | None = None
    cycle: int | None = None
    buffer: str = ""


def placed(captured: Captured, ranked: RankedStrategy) -> tuple[Placed, ...]:
    """Every operation of the kernel, in program order of its loops, outer ones first.

    What is outside of the planned loops every consumer runs on its own rows, apart from TMA loads, which are the
    producer's; where the kernel is left alone all of it is in one partition. On Blackwell that one is the default
    partition; where Triton finds partitions itself ("found") they are not known here.
    """
    scheme = ranked.scheme
    plans = {loop.id: plan for loop, plan in zip(captured.loading, ranked.plans, strict=False)}
    loading = [loop.id for loop in captured.loading]
    depth_of = dict(zip(loading, scheme.ring_depths(len(loading)), strict=True)) if scheme is not None else {}
    found: list[Placed] = []
    for body in (captured.body, *captured.loops):
        plan = plans.get(body.id)
        homes = _homes(body, plan) if plan is not None else {}
        for work in body.work:
            if work.kind == "loop":
                continue
            at = homes.get(work.id, [])
            names = tuple(dict.fromkeys(plan.partitions[p.partition].name for p in at)) if plan is not None else ()
            if not names or scheme is None:
                names = (REST,) if scheme is None else scheme.partitions_outside(work.kind)
            first = at[0] if at and not work.rare else None
            stage, cycle = (first.stage, first.cycle) if first is not None else (None, None)
            buffer = _tensor_memory(work, plan) or _buffer(work, depth_of.get(body.id, 1))
            found.append(Placed(work.lines, work.id, work.kind, body.id, names, stage, cycle, buffer))
    return tuple(found)


def _tensor_memory(work: LoopWork, plan: Plan | None) -> str:
    """The tensor memory that ``work`` writes, in words: one place where the loop goes on with it, or where another
    wrote there before it."""
    if work.tensor is None:
        return ""
    slots = next((c.depth for c in plan.channels if c.name == work.id), 1) if plan is not None else 1
    size = f"{work.tensor.columns} columns of {work.tensor.lanes} lanes of tensor memory"
    return f"{slots} x {size}" if slots > 1 else size


def _homes(body: Body, plan: Plan) -> dict[str, list[Placement]]:
    """The placements of each operation: those of the run that it became part of, one a consumer."""
    often = steady(body)
    _, home = fuse(often, kept_apart(often))
    placements: dict[str, list[Placement]] = {}
    for placement in plan.schedule.placements:
        stem, mark, copy = placement.op.rpartition(MARK)
        placements.setdefault(stem if mark and copy.isdigit() else placement.op, []).append(placement)
    return {work: placements.get(run, []) for work, run in home.items()}


def _buffer(work: LoopWork, depth: int) -> str:
    if not work.buffer_bytes:
        return ""
    ring = f"{depth} x " if depth > 1 else ""
    return f"{ring}{work.buffer_bytes} bytes of shared memory"

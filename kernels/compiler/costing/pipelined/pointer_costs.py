"""Costs of what a kernel without TMA does: cp.async copies, loads into registers, mma.sync on tiles from shared memory.

A profile is asked for the kinds named in :data:`WANTED` first. One that was recorded before a kind was known has a
fall-back for it, and what was priced by a fall-back is said (:func:`missing_points`):

- ``gather_load`` (bytes, source: rows copied by cp.async, which ``profiler/probes/gather.py``
  measures): the latency of a TMA box of as many bytes from the same place; an instruction
  copies 16 bytes a thread and leaves a warp after 4 cycles (32 lanes of 16 bytes at 128 bytes a cycle, CUDA C++
  Programming Guide, "Shared Memory"); the load-store unit is held for bytes / 128.
- ``global_load`` (bytes, source): the same. Such a load waits where it stands; its latency alone is measured. The
  load-store unit is held for every element that a thread loads of a vector in an accumulator's layout.
- ``ldmatrix``: the profile's ``shared_load``.
- ``mma`` (m16n8k16 on register operands): half of the rate of wgmma, in proportion to its rows, 16 at least.
- ``widen_fp8_float16`` and its like: the profile's ``convert``, from fp32 to bfloat16.
"""

from __future__ import annotations

from dataclasses import replace

from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.costing.loop_graph import THREADS, WIDENED, Cost, Shape, cost_of
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import WorkFacts
from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.costs import CostTable, OperationCost, Quantiles

WANTED = ("gather_load", "global_load", "ldmatrix", "mma", *WIDENED)
"""Kinds that a profile should have for kernels that load through pointers (families ``gather``, ``loads``, ``mma`` and
``widening`` of ``warpplan profile --only``)."""
LSU_BYTES_PER_CYCLE = 128.0
"""Shared memory's and L1's width an SM (CUDA C++ Programming Guide, "Shared Memory")."""
COPY_BYTES = 16
"""Of a thread's widest copy; :data:`COPY_ISSUE_CYCLES` until the warp goes on."""
COPY_ISSUE_CYCLES = 4.0
ELEMENT_LOAD_CYCLES = 9.0
"""Of the load-store unit, for a warp's load of one element a thread of a vector in an accumulator's layout, whether its
lanes ask for one address or for eight. Chosen by hand on the training rows of the block-scaled product in
``benchmarks/results/consumers_h200.json`` and ``consumers_h100.json``: 9 to 10 choose alike, 6 to 9 predict best; at 16
times are off by a quarter. Two neighbours that lie together are one load, and counted as two."""
LEAST_ELEMENTS, MEASURED_ELEMENTS, WIDENED_ELEMENTS = 128, 1024, 2048
"""One element a thread of four warps, and the smallest tiles whose arithmetic was measured, and whose conversion from 8
bits: what lies between is in proportion."""
MEASURED_BYTES, SHARED_LATENCY = 4096, 30.0
"""The smallest tile whose way through shared memory was measured, and the cycles of one access to it, as in
:data:`~warpplan.kernels.compiler.costing.loop_graph.ESTIMATED_RATES`."""
STAGED_KINDS = {"load": "global_load", "ahead": "gather_load"}


def price(work: WorkFacts, costs: CostTable, warps: int, source: str = "l2") -> Cost:
    """What ``work`` costs a block of ``warps`` warps, in SM cycles; loads come from ``source``, "l2" or "dram"."""
    if work.kind == "loop":
        return Cost()
    if work.kind == "tma_load":
        found = _lookup(costs, "tma_load", work.moved_bytes, source)
        return Cost(_p50(found.latency), _p50(found.occupancy), _p50(found.issue))
    if work.kind in ("load", "store"):
        return _moved(work, costs, warps, source)
    return _scaled(work, cost_of(_as_work(work), costs, Shape(1, warps, specialized=False)))


def _scaled(work: WorkFacts, cost: Cost) -> Cost:
    """``cost`` in proportion to a tile that is smaller than any that was measured."""
    size = max((part.size for part in work.parts), default=0)
    least = WIDENED_ELEMENTS if any(part.kind in WIDENED for part in work.parts) else MEASURED_ELEMENTS
    if work.kind in ("convert_layout", "shared_load", "shared_store") and size < MEASURED_BYTES:
        share = max(1, size) / MEASURED_BYTES
        busy = share * cost.occupancy
        return replace(cost, occupancy=busy, issue=share * cost.issue, latency=busy + SHARED_LATENCY * len(work.parts))
    if work.kind in ("elementwise", "sfu", "reduce") and size < least:
        share = max(LEAST_ELEMENTS, size) / least
        return replace(cost, occupancy=share * cost.occupancy, issue=share * cost.issue)
    return cost


def missing_points(work: WorkFacts, costs: CostTable) -> str | None:
    """The kind of :data:`WANTED` that ``costs`` lacks for ``work``, if it needs one."""
    kind = next((p.kind for p in work.parts if p.kind in WIDENED and not _has(costs, p.kind)), None)
    if work.product is not None:
        kind = "mma" if work.product.cores == "mma" else None
    elif work.kind == "load":
        kind = "gather_load" if work.ahead else "global_load"
    elif _is_operand(work):
        kind = "ldmatrix"
    return kind if kind is not None and not _has(costs, kind) else None


def _moved(work: WorkFacts, costs: CostTable, warps: int, source: str) -> Cost:
    size = max(1, work.moved_bytes)
    issue = COPY_ISSUE_CYCLES * -(-size // (COPY_BYTES * THREADS * warps))
    if work.kind == "store":
        found = _lookup(costs, "tma_store", size, None)
        return Cost(issue, _p50(found.occupancy, size / 32.0), issue)
    kind, busy = STAGED_KINDS["ahead" if work.ahead else "load"], lsu_cycles(work, warps)
    if not _has(costs, kind):
        return Cost(_p50(_lookup(costs, "tma_load", size, source).latency, 600.0), busy, issue, estimated=True)
    measured = costs.lookup(kind, size, source=source)
    return Cost(_p50(measured.latency), _p50(measured.occupancy, busy), _p50(measured.issue, issue))


def lsu_cycles(work: WorkFacts, warps: int) -> float:
    """Cycles of the load-store unit for what ``work`` moves: for its bytes, or for the loads of all warps."""
    size = work.moved_bytes or float(sum(part.size * part.times for part in work.parts))
    return max(size / LSU_BYTES_PER_CYCLE, ELEMENT_LOAD_CYCLES * work.thread_elements * warps)


def _is_operand(work: WorkFacts) -> bool:
    """Whether ``work`` reads an operand of a product out of the ring that it was copied into."""
    return work.kind == "convert_layout" and [part.kind for part in work.parts] == ["shared_load"]


def _as_work(work: WorkFacts) -> LoopWork:
    product = work.product
    shape = (product.m, product.n) if product is not None else ()
    parts = tuple(replace(p, kind="ldmatrix") for p in work.parts) if _is_operand(work) else work.parts
    return LoopWork("", work.kind, (), "", (), shape, parts, product.as_product() if product is not None else None)


def _has(costs: CostTable, kind: str) -> bool:
    return any(entry.kind == kind for entry in costs.entries)


def _lookup(costs: CostTable, kind: str, size: int, source: str | None) -> OperationCost:
    try:
        return costs.lookup(kind, size, **({"source": source} if source else {}))
    except MissingCosts:
        return OperationCost()


def _p50(quantiles: Quantiles | None, otherwise: float = 0.0) -> float:
    return quantiles.p50 if quantiles is not None else otherwise

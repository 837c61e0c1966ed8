"""What a tile costs that is copied by ``cp.async``: its latency, the copies' instructions, the memory pipeline.

The profile's ``gather_load`` holds it where it was measured (the probe of gathered rows: 16 bytes a thread, rows in
random order). In a profile without it the latency is a TMA load's of as many bytes from the same memory, for the way
there and back is the same, and a warp's instruction holds the memory pipeline for 4 cycles: 32 lanes of 16 bytes at the
128 bytes a cycle of an SM (CUDA C++ Programming Guide, "Shared memory"). Narrower copies need more instructions, not
shorter ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from warpplan.kernels.compiler.analysis.capture import Body, Captured, producer_slice
from warpplan.kernels.compiler.analysis.copies.bank_conflicts import PASS_BYTES
from warpplan.kernels.compiler.analysis.copies.producer_size import WARP, producer_registers
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.costs import CostTable, OperationCost

CYCLES = 4.0
"""Of the memory pipeline for one instruction of a warp. Doubled: a GEMM whose A is gathered is bound by its copies."""
WIDE = 16
"""Bytes of one copy as they were measured."""


def copy_cost(work: LoopWork, costs: CostTable, source: str, passes: float = 1.0) -> tuple[OperationCost, float, bool]:
    """The probe's cost of the tile ``work`` from ``source``, "l2" or "dram", the cycles that issuing it takes, and
    whether they are estimated; ``passes`` are those of its writes through the banks for every 128 bytes, one a cycle.
    Raises :class:`MissingCosts` where the profile has no load of tiles at all."""
    size, copies = work.parts[0].size, work.parts[1].size
    instructions = -(-copies // WARP)
    # What was measured holds one pass.
    written = passes * size / PASS_BYTES if passes > 1 else 0.0
    try:
        found = costs.lookup("gather_load", size, source=source)
    except MissingCosts:
        return costs.lookup("tma_load", size, source=source), max(written, CYCLES * instructions), True
    assert found.issue is not None
    issue = max(written, found.issue.p50 * max(1.0, copies * WIDE / size))
    return found, issue, copies * WIDE != size


def copies_of(bodies: Iterable[Body]) -> list[int]:
    """The copies of each tile that ``bodies`` copy."""
    return [work.parts[1].size for body in bodies for work in body.of_kind("copy_load")]


def registers_of_producer(captured: Captured) -> int:
    """Registers a thread of the producer that ``captured`` has when it is specialised."""
    return producer_registers(copies_of((captured.body, *captured.loops)))


def lookups(loop: Body) -> frozenset[str]:
    """What is read through pointers for the addresses of copies, and what its own addresses need: an iteration ahead,
    as :mod:`~...lowering.slices.early_lookups` writes it and Triton's own pipeline does. None of a loop that does not
    count."""
    if loop.kind != "scf.for" or not loop.of_kind("copy_load"):
        return frozenset()
    needed = {work.id for work in loop.of_kind("load")} & producer_slice(loop)
    while True:
        more = {flow.src for flow in loop.flows if flow.dst in needed and not flow.distance} - needed
        if not more:
            return frozenset(needed)
        needed |= more

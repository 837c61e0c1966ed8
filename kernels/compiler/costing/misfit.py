"""Why no scheme fits a kernel whose loops load through TMA: registers or shared memory, by how much, and what takes
them."""

from __future__ import annotations

from collections.abc import Sequence

from warpplan.kernels.compiler.analysis.capture import Body, Captured, Obstacle
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.costing.loop_graph import BASE_REGISTERS, Shape, registers_for
from warpplan.kernels.compiler.costing.pressure import (
    live_at_once,
    live_registers,
    shared_bytes,
    slot_bytes,
    staged_bytes,
)
from warpplan.planner.values.device import Device

LEAST_SLOTS = 1
"""Slots of a ring with which shared memory is short of whatever else is done."""
NAMED = 4
"""Values that a message names at most, the largest."""


def misfit(captured: Captured, shapes: Sequence[Shape], device: Device) -> Obstacle:
    """What keeps every one of ``shapes`` from fitting ``captured``: of the shape and loop that come nearest, the
    registers of a thread and the tiles that take most of them, or the shared memory of rings of one slot; "the solver
    found no schedule in its time" where both fit."""
    loops = captured.loading
    needed = shared_bytes(captured, (LEAST_SLOTS,) * len(loops))
    if needed > device.smem_bytes_per_block:
        loop = max(loops, key=slot_bytes)
        staged = max(staged_bytes(body, alone=True) for body in (captured.body, *captured.loops))
        why = (
            f"one slot of each ring takes {needed:,} bytes of shared memory, of {device.smem_bytes_per_block:,}: "
            f"{slot_bytes(loop):,} are loaded in an iteration, {slot_bytes(captured.body):,} outside of loops, "
            f"{staged:,} are on their way to an operand or a store; a smaller tile fits"
        )
        return _at(_first_product(loop), why, loop)
    shape, loop, over = min(
        ((s, max(loops, key=lambda one: live_registers(one, s)), _excess(captured, s, device)) for s in shapes),
        key=lambda found: found[2],
    )
    if over <= 0:
        return _at(_first_product(loop), "the solver found no schedule within its time", loop)
    live = sorted(live_at_once(loop, shape), key=lambda found: -found[1])[:NAMED]
    tiles = ", ".join(f"{work.id} {registers}" for work, registers in live)
    why = (
        f"{shape.consumers} x {shape.warps} warps need {live_registers(loop, shape) + BASE_REGISTERS} registers a "
        f"thread, of {registers_for(shape, device)}: {tiles}; a smaller tile fits"
    )
    return _at(next((work for work, _ in live if work.kind == "dot"), _first_product(loop)), why, loop)


def _excess(captured: Captured, shape: Shape, device: Device) -> int:
    """Registers a thread that are missing."""
    most = max(live_registers(loop, shape) for loop in captured.loading)
    return most + BASE_REGISTERS - registers_for(shape, device)


def _first_product(loop: Body) -> LoopWork:
    return next(iter(loop.of_kind("dot")), loop.work[0])


def _at(work: LoopWork, reason: str, loop: Body) -> Obstacle:
    return Obstacle(reason, work.names[0], work.line, loop.id)

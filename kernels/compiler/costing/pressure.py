"""What a loop keeps in registers and shared memory under a scheme: quick bounds before anything is solved."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from warpplan.kernels.compiler.analysis.capture import Body, Captured
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import RING_KINDS
from warpplan.kernels.compiler.costing.deferred_loops import as_issued
from warpplan.kernels.compiler.costing.loop_graph import THREADS, Shape, early_vectors, lookahead_product

BARRIER_BYTES = 1_024
"""Shared memory set aside for the barriers of all rings: 16 bytes a slot, kept apart from the tiles by the tiles'
alignment."""


def live_registers(loop: Body, shape: Shape) -> int:
    """The most registers a thread that values of ``loop`` take at once, its operations run in order, beside the tiles
    from outside that it keeps."""
    threads = 32 * THREADS * shape.warps
    loop = as_issued(loop, shape)
    rows, others = loop.held_bits
    held = -(-rows // (threads * shape.consumers)) - (-others // threads)
    return held + sum(registers for _, registers in live_at_once(loop, shape))


def live_at_once(loop: Body, shape: Shape) -> list[tuple[LoopWork, int]]:
    """The work of ``loop`` whose values are live where most are, each with the registers a thread that they take.

    A value lives from its operation until its last reader, which may write into its registers, around the end of the
    iteration where that is in the next (RULES.md, rule 5).
    """
    loop = as_issued(loop, shape)
    count = len(loop.work)
    early = early_vectors(loop) if shape.specialized else frozenset()
    lookahead = lookahead_product(loop) if shape.specialized and shape.in_flight else None
    at = {work.id: i for i, work in enumerate(loop.work)}
    spans = []
    for work in loop.work:
        first = at[work.id]
        # What is issued an iteration early takes its registers from the beginning of the iteration before.
        begin = -count if work.id == lookahead or work.id in early else first
        for value, registers in _registers(work, shape):
            ends = [
                at[f.dst] + count * f.distance - 1 for f in loop.flows
                if f.src == work.id and f.kind == "data" and (not value or value in f.values)
            ]  # fmt: skip
            spans.append((begin, max([first, *ends]), registers, work))
    return most_at_once(spans, count)


def most_at_once(spans: Sequence[tuple[int, int, int, LoopWork]], count: int) -> list[tuple[LoopWork, int]]:
    """Of values (begin, end, registers, work) that live from a moment of an iteration of ``count`` to another, those
    that are live where most are, with the registers of all their copies."""
    found: list[tuple[LoopWork, int]] = []
    for moment in range(count):
        live = [(work, size * _copies(start, end, moment, count)) for start, end, size, work in spans]
        if sum(size for _, size in live) > sum(size for _, size in found):
            found = [(work, size) for work, size in live if size]
    return found


def shared_bytes(
    captured: Captured, depths: tuple[int, ...], *, consumers: int = 1, warps: int = 0, storing: bool = False,
    alone: bool = False,
) -> int:  # fmt: skip
    """Shared memory of a block with rings of ``depths`` slots, one entry a loop of ``captured.loading``: rings, tiles
    loaded outside of them and through pointers, those that TMA writes and, ``storing``, those that it writes in place
    of stores through pointers, the largest tile on its way to an operand, a store or another layout, barriers.
    ``warps`` are those of each of ``consumers``, where not as many as ``captured`` has. ``alone``: as Triton has it
    without partitions, where what TMA writes lies in memory that others take next.

    Loops after one another that load alike, with as many slots, go on with the same rings. What TMA writes has memory
    of its own in loops and in walks over the grid; that is counted for plans that do not walk, too.
    """
    total = slot_bytes(captured.body)
    rings: set[tuple[object, ...]] = set()
    for loop, depth in zip(captured.loading, depths, strict=True):
        within = any(other.id == loop.parent for other in captured.loading)
        ring = (depth, loads_alike(loop), loop.id if within else "")
        if ring not in rings:
            rings.add(ring)
            total += slot_bytes(loop) * depth
    written = {tile for body in (captured.body, *captured.loops) for tile in _written(body)}
    if not alone:
        total += sum(size for _, size in written)
    if storing:
        total += captured.stored_bytes
    # What is copied before a loop is dead after it, and of what one copies the first when the next one comes.
    threads = max(1.0, consumers * warps / captured.warps) if captured.warps else 1.0
    inside = [
        staged_bytes(loop, consumers, threads, alone=alone) + max(_copied_bytes(loop), default=0)
        for loop in captured.loops
    ]
    before = sum(_copied_bytes(captured.body)) + max(inside, default=0)
    kinds = {"tma_store", "store"} if storing and not captured.stores_left else {"tma_store"}
    after = staged_bytes(captured.body, consumers, threads, alone=alone, written_by=kinds)
    return total + max(before, after) + BARRIER_BYTES


def staged_bytes(
    body: Body, consumers: int = 1, threads: float = 1.0, *, alone: bool = False,
    written_by: Collection[str] = ("tma_store",),
) -> int:  # fmt: skip
    """Tiles of ``body`` on their way: those of operands, which each of ``consumers`` has whole where they are not its
    rows, or the largest that changes its layout. Work of the kinds ``written_by`` takes its tile in any layout, so a
    change of layout in front of it takes none. What compiled kernels take is within 1 KB of it, or less where only
    registers are stored. A tile that changes its layout may go piece by piece; by ``threads`` times as many threads as
    captured, each of which holds less of it, in pieces that are at most that much larger. ``alone``: tiles that TMA
    writes count, one for all of a size and shape; else they have memory of their own."""
    held = [w.parts[0].size * (1 if w.rows else consumers) for w in body.of_kind("shared_store")]
    held += [size for _, size in _written(body)] if alone else []
    written = {work.id for work in body.of_kind(*written_by)}
    moved = [
        min(work.parts[0].size, math.ceil(work.scratch_bytes * threads) or work.parts[0].size)
        for work in body.of_kind("convert_layout")
        if not {flow.dst for flow in body.flows if flow.src == work.id} <= written
    ]  # fmt: skip
    return max(sum(held), max(moved, default=0))


def _written(body: Body) -> set[tuple[tuple[int, ...], int]]:
    """Shape and bytes of the tiles that TMA writes to memory."""
    return {(work.shape, work.parts[0].size) for work in body.of_kind("tma_store")}


def loads_alike(loop: Body) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """Equal for loops whose rings are filled alike, by TMA or by copies, with tiles of the same shapes and sizes."""
    return tuple((load.kind, load.shape, load.buffer_bytes) for load in loop.of_kind(*RING_KINDS))


def _copied_bytes(body: Body) -> list[int]:
    """Bytes of each operand that ``body`` loads through pointers and copies to shared memory."""
    return [work.buffer_bytes for work in body.of_kind("load")]


def slot_bytes(loop: Body) -> int:
    """Bytes that one iteration loads into rings."""
    return sum(work.buffer_bytes for work in loop.of_kind(*RING_KINDS))


def _registers(work: LoopWork, shape: Shape) -> list[tuple[str, int]]:
    """Each value that ``work`` leaves, with its registers a thread; "" for all of them where they are not told
    apart."""
    if work.buffer_bytes:
        return []
    threads = 32 * THREADS * shape.warps * (shape.consumers if work.rows else 1)
    values = work.results or (("", work.register_bits),)
    return [(value, -(-bits // threads)) for value, bits in values]


def _copies(start: int, end: int, moment: int, count: int) -> int:
    """How many copies of a value that lives in [start, end] are live at ``moment`` of an iteration of ``count``."""
    return (end - moment) // count - -(-(start - moment) // count) + 1

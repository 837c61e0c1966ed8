"""Gathered rows into a ring's slot by cp.async: what a producer of four warps without TMA does for [rows, 64] boxes.

Each warp copies 16 bytes a thread, four rows of 128 bytes an instruction, into shared memory under the 128-byte
swizzle; every thread arrives on the slot's mbarrier when its copies have landed. Rows come in random order from a
matrix of 4096 16-bit columns; their indices are in registers before the copy, as when a tile reads its own once.
latency    first copy → the full barrier's wait returns, nothing else in flight.
occupancy  cycles a box in steady state with 192 KB in flight: the slope between two lengths of a walk along K.
issue      cycles from before the first copy to after the arrive.
"l2": a matrix of 16 MB that was just read. "dram": rows never touched since L2 was flushed by reading.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.triton_compat import async_copy, gl, gluon, mbarrier, thread_barrier
from warpplan.kernels.triton_types import JitFunction
from warpplan.profiler.probes.harness.cases import Case, Live, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, idle, probe_kernel, record, wait_for
from warpplan.profiler.probes.harness.sampling import (
    MOST_BLOCKS,
    Record,
    Samples,
    cost,
    flush_l2,
    out_elements,
    quantiles,
    sample,
    slope,
)
from warpplan.profiler.probes.points import Point
from warpplan.profiler.probes.tma import BOX_COLUMNS, COLUMNS, DRAM_ROWS, IN_FLIGHT_BYTES, L2_ROWS, MATRIX_COLUMNS

WARPS = 4
REGISTERS = 96
"""Registers a thread of the producer: 256 rows are 16 row pointers a thread, 32 registers, beside the loop's own."""
SHORT, LONG = 16, 60
"""Boxes of the two walks along K: both begin with empty slots, and neither leaves the matrix's 64 boxes a row."""


@gluon.constexpr_function
def _copy_layout():
    """16 bytes a thread, the widest cp.async; eight threads a row of 64 elements."""
    return gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])


@gluon.jit
def _rows(indices, first, mask, BOX_ROWS: gl.constexpr):
    """The matrix rows of the box that starts at index ``first``; here before anything timed begins."""
    return wait_for(gl.load(indices + ((first + gl.arange(0, BOX_ROWS, gl.SliceLayout(1, _copy_layout()))) & mask)))


@gluon.jit
def _pointers(matrix, rows, column, MATRIX_COLUMNS: gl.constexpr, BOX_COLUMNS: gl.constexpr):
    columns = column + gl.arange(0, BOX_COLUMNS, gl.SliceLayout(0, _copy_layout()))
    return matrix + rows.to(gl.int64)[:, None] * MATRIX_COLUMNS + columns[None, :]


@gluon.jit
def _copy(slot, bar, pointers):
    async_copy.async_copy_global_to_shared(slot, pointers)
    async_copy.mbarrier_arrive(bar, increment_count=False)


@gluon.jit
def _gather_once(matrix, indices, out, ring, bars, reps, stride, spread, mask, MATRIX_COLUMNS: gl.constexpr):
    BOX: gl.constexpr = ring.shape
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        rows = _rows(indices, (pid * spread + r) * BOX[1], mask, BOX[1])
        thread_barrier()
        start = clock()
        nothing = clock()
        _copy(ring.index(0), bars.index(0), _pointers(matrix, rows, (r & 63) * BOX[2], MATRIX_COLUMNS, BOX[2]))
        issued = clock()
        mbarrier.wait(bars.index(0), r & 1)
        arrived = clock()
        record(out, pid * reps + r, 0, 3, nothing - start)
        record(out, pid * reps + r, 1, 3, issued - nothing)
        record(out, pid * reps + r, 2, 3, arrived - nothing)


@gluon.jit
def _gather_many(matrix, indices, out, ring, bars, reps, inner, stride, spread, mask, MATRIX_COLUMNS: gl.constexpr):
    """Each repetition walks ``inner`` boxes along K of rows of its own, and waits for a slot's copies to refill it."""
    BOX: gl.constexpr = ring.shape
    pid = gl.program_id(0)
    slot = 0
    phase = 1  # of the round before the first, which counts as complete
    for r in range(active_repetitions(reps, stride)):
        rows = _rows(indices, (pid * spread + r) * BOX[1], mask, BOX[1])
        pointers = _pointers(matrix, rows, 0, MATRIX_COLUMNS, BOX[2])
        thread_barrier()
        start = clock()
        for _ in range(inner):
            mbarrier.wait(bars.index(slot), phase)
            _copy(ring.index(slot), bars.index(slot), pointers)
            pointers += BOX[2]
            slot += 1
            wrapped = (slot == BOX[0]).to(gl.int32)
            phase = phase ^ wrapped
            slot = slot * (1 - wrapped)
        record(out, pid * reps + r, 0, 1, clock() - start)
    for _ in range(BOX[0]):
        mbarrier.wait(bars.index(slot), phase)
        slot += 1
        wrapped = (slot == BOX[0]).to(gl.int32)
        phase = phase ^ wrapped
        slot = slot * (1 - wrapped)


@gluon.jit
def _slots(SLOTS: gl.constexpr, BOX_ROWS: gl.constexpr, BOX_COLUMNS: gl.constexpr, THREADS: gl.constexpr):
    """A ring of bf16 boxes and its barriers, on which every thread of the producer arrives."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BOX_ROWS, BOX_COLUMNS], gl.bfloat16)
    ring = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, BOX_ROWS, BOX_COLUMNS], LAYOUT)
    bars = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(SLOTS):
        mbarrier.init(bars.index(s), count=THREADS)
    return ring, bars


@probe_kernel
def gather_latency(matrix, indices, out, reps, stride, spread, mask, MATRIX_COLUMNS: gl.constexpr,
                   BOX_ROWS: gl.constexpr, BOX_COLUMNS: gl.constexpr, WARPS: gl.constexpr,
                   REGISTERS: gl.constexpr):  # fmt: skip
    ring, bars = _slots(1, BOX_ROWS, BOX_COLUMNS, 32 * WARPS)
    gl.warp_specialize(
        [
            (idle, ()),
            (_gather_once, (matrix, indices, out, ring, bars, reps, stride, spread, mask, MATRIX_COLUMNS)),
        ],
        [WARPS],
        [REGISTERS],
    )


@probe_kernel
def gather_rate(matrix, indices, out, reps, inner, stride, spread, mask, MATRIX_COLUMNS: gl.constexpr,
                BOX_ROWS: gl.constexpr, BOX_COLUMNS: gl.constexpr, WARPS: gl.constexpr, REGISTERS: gl.constexpr,
                SLOTS: gl.constexpr):  # fmt: skip
    ring, bars = _slots(SLOTS, BOX_ROWS, BOX_COLUMNS, 32 * WARPS)
    gl.warp_specialize(
        [
            (idle, ()),
            (_gather_many, (matrix, indices, out, ring, bars, reps, inner, stride, spread, mask, MATRIX_COLUMNS)),
        ],
        [WARPS],
        [REGISTERS],
    )


def _matrix_rows(point: Point) -> int:
    return DRAM_ROWS if point.text("source") == "dram" else L2_ROWS


def _box_rows(point: Point) -> int:
    return point.number("bytes") // (2 * BOX_COLUMNS)


def _case(kernel: JitFunction, point: Point, *numbers: str, **constants: int) -> Case:
    rows = _matrix_rows(point)
    shape = {"MATRIX_COLUMNS": MATRIX_COLUMNS, "BOX_ROWS": _box_rows(point), "BOX_COLUMNS": BOX_COLUMNS}
    return Case(
        kernel,
        (
            ("matrix", Pointer("bfloat16", rows * MATRIX_COLUMNS)),
            ("indices", Pointer("int32", rows, "permutation")),
            ("out", Pointer("int32", out_elements(COLUMNS))),
            *((name, "i32") for name in numbers),
        ),
        (*shape.items(), ("WARPS", WARPS), ("REGISTERS", REGISTERS), *constants.items()),
        4,
    )


def cases(point: Point) -> tuple[Case, ...]:
    slots = IN_FLIGHT_BYTES // point.number("bytes")
    return (
        _case(gather_latency, point, "reps", "stride", "spread", "mask"),
        _case(gather_rate, point, "reps", "inner", "stride", "spread", "mask", SLOTS=slots),
    )


def indexing(point: Point) -> dict[str, int]:
    """Where blocks find their boxes' rows: the blocks' first boxes spread over all of the matrix, so that the few that
    work share none."""
    rows = _matrix_rows(point)
    return {"spread": max(1, rows // _box_rows(point) // MOST_BLOCKS), "mask": rows - 1}


def measure(point: Point) -> Iterator[Record]:
    where = indexing(point)
    latency, rate = (case.live() for case in cases(point))
    dram = point.text("source") == "dram"

    def launched(live: Live, columns: int, **numbers: int) -> Samples:
        """Cycles of boxes that are all in L2, read by a first launch, or none of them."""
        if dram:
            flush_l2()
        else:
            sample(live, columns, **where, **numbers)
        return sample(live, columns, **where, **numbers)

    alone = launched(latency, COLUMNS)
    short, long = (launched(rate, 1, inner=boxes)[:, 0] for boxes in (SHORT, LONG))
    overhead = float(np.median(alone[:, 0]))
    yield cost(
        point.kind,
        point.parameters,
        latency=quantiles(alone[:, 2] - overhead),
        occupancy=quantiles(slope(long, short, LONG - SHORT)),
        issue=quantiles(alone[:, 1] - overhead),
    )

"""What one warp group does with a [64, n] tile and shared memory: loads, stores, and an epilogue's two ways out.

Timed as in ``arithmetic``: a loop between two clock reads, less what only makes the loop honest.
latency    one operation's cycles until its result is in registers, visible to the asynchronous proxy, or, of a ragged
           store, until its shared bytes may be written again.
occupancy  cycles an operation in steady state: the slope between two loop lengths.
issue      the cycles the warps themselves are busy.

``epilogue_store`` converts an fp32 accumulator to bf16 and stores it in the layout that a TMA store reads; its latency
includes the proxy fence and the barrier before the store may start, its occupancy does not. ``ragged_store`` takes the
place of ``tma_store`` where a group of rows ends: plain masked stores of a staged bf16 tile of which half the rows are
valid, with the barrier before it. ``shared_load`` includes an exclusive-or per 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.device.epilogue import store_rows
from warpplan.kernels.triton_compat import fence_async_shared, gl, thread_barrier
from warpplan.profiler.probes.arithmetic import (
    ELEMENTWISE,
    Loop,
    arithmetic_case,
    entry,
    float_case,
    keep,
    tile_case,
    tile_columns,
    tile_layout,
    tile_offsets,
    unrolled,
)
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record, wait_for
from warpplan.profiler.probes.harness.sampling import MOST_BLOCKS, Record, out_elements, quantiles
from warpplan.profiler.probes.points import ROWS, Point

STORES = 4
"""Stores an iteration, each to a buffer of its own: only the next iteration needs a barrier."""
FENCED = "epilogue_fenced"
CHUNKS = 16
"""Chunks of the output matrix that a block's ragged stores go to in turn; a matrix row is one chunk's."""
VALID_ROWS = ROWS // 2
"""Rows of a ragged chunk that are stored: groups end anywhere, so half of them on average."""


@probe_kernel
def epilogue(out, data, sink, reps, inner, stride, scale, shift, ROWS: gl.constexpr, N: gl.constexpr,
             OPERATION: gl.constexpr):  # fmt: skip
    """Renew an fp32 tile, convert it to bf16 and store it to one of four staging buffers in turn."""
    TILE: gl.constexpr = tile_layout(N)
    STAGING: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, N], gl.bfloat16)
    s0 = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING)
    s1 = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING)
    s2 = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING)
    s3 = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING)
    offsets = tile_offsets(ROWS, N, TILE)
    x = gl.load(data + offsets)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        x = wait_for(x)
        start = clock()
        for _ in range(inner):
            if OPERATION == "epilogue_fenced":
                x = x * scale + shift
                s0.store(x.to(gl.bfloat16))
                fence_async_shared()
                thread_barrier()
            else:
                x = x * scale + shift
                s0.store(x.to(gl.bfloat16))
                x = x * scale + shift
                s1.store(x.to(gl.bfloat16))
                x = x * scale + shift
                s2.store(x.to(gl.bfloat16))
                x = x * scale + shift
                s3.store(x.to(gl.bfloat16))
        x = wait_for(x)
        record(out, pid * reps + r, 0, 1, clock() - start)
    rows = gl.sum(x, 1)
    rows += gl.sum(s0.load(TILE).to(gl.float32), 1) + gl.sum(s1.load(TILE).to(gl.float32), 1)
    rows += gl.sum(s2.load(TILE).to(gl.float32), 1) + gl.sum(s3.load(TILE).to(gl.float32), 1)
    keep(sink, rows, TILE, ROWS)


@probe_kernel
def shared_load(out, data, sink, reps, inner, stride, step, ROWS: gl.constexpr, N: gl.constexpr):
    """Read int32 tiles, 16 bytes a thread and access, from four buffers in turn; ``step`` is 1, told at run time."""
    TILE: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, N], gl.int32)
    offsets = tile_offsets(ROWS, N, TILE)
    x = gl.load(data + offsets)
    ring = gl.allocate_shared_memory(gl.int32, [4, ROWS, N], SHARED)
    for s in gl.static_range(4):
        ring.index(s).store(x)
    slot = 0
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        x = wait_for(x)
        start = clock()
        for _ in range(inner):
            x = x ^ ring.index(slot).load(TILE)
            slot = (slot + step) & 3
        x = wait_for(x)
        record(out, pid * reps + r, 0, 1, clock() - start)
    keep(sink, gl.sum(x, 1), TILE, ROWS)


@probe_kernel
def shared_store(out, data, sink, reps, inner, stride, step, ROWS: gl.constexpr, N: gl.constexpr):
    """Write int32 tiles, 16 bytes a thread and access, to four buffers in turn: four stores an iteration."""
    TILE: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, N], gl.int32)
    offsets = tile_offsets(ROWS, N, TILE)
    x = gl.load(data + offsets)
    s0 = gl.allocate_shared_memory(gl.int32, [ROWS, N], SHARED, x)
    s1 = gl.allocate_shared_memory(gl.int32, [ROWS, N], SHARED, x)
    s2 = gl.allocate_shared_memory(gl.int32, [ROWS, N], SHARED, x)
    s3 = gl.allocate_shared_memory(gl.int32, [ROWS, N], SHARED, x)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        x = wait_for(x)
        start = clock()
        for _ in range(inner):
            x = x + step
            s0.store(x)
            x = x + step
            s1.store(x)
            x = x + step
            s2.store(x)
            x = x + step
            s3.store(x)
        x = wait_for(x)
        record(out, pid * reps + r, 0, 1, clock() - start)
    rows = gl.sum(s0.load(TILE), 1) + gl.sum(s1.load(TILE), 1) + gl.sum(s2.load(TILE), 1) + gl.sum(s3.load(TILE), 1)
    keep(sink, rows, TILE, ROWS)


@probe_kernel
def ragged_store(out, result, reps, inner, stride, rows, ROWS: gl.constexpr, N: gl.constexpr, CHUNKS: gl.constexpr):
    """Store the first ``rows`` rows of a staged chunk; ``result`` is a bf16 matrix [blocks · CHUNKS · ROWS, N]."""
    STAGING: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, N], gl.bfloat16)
    TILE: gl.constexpr = tile_layout(N)
    staging = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING, gl.zeros([ROWS, N], gl.bfloat16, TILE))
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        thread_barrier()
        start = clock()
        for i in range(inner):
            row = (pid * CHUNKS + (i & (CHUNKS - 1))) * ROWS
            thread_barrier()
            store_rows(staging, row, 0, result, N, row + rows, N, ROWS, N, False)
        thread_barrier()
        record(out, pid * reps + r, 0, 1, clock() - start)


def _ragged_case(columns: int) -> Case:
    return Case(
        ragged_store,
        (
            ("out", Pointer("int32", out_elements())),
            ("result", Pointer("bfloat16", MOST_BLOCKS * CHUNKS * ROWS * columns)),
            *((name, "i32") for name in ("reps", "inner", "stride", "rows")),
        ),
        (("ROWS", ROWS), ("N", columns), ("CHUNKS", CHUNKS)),
        4,
    )


def cases(point: Point) -> tuple[Case, ...]:
    if point.kind in ("shared_load", "shared_store"):
        kernel = shared_load if point.kind == "shared_load" else shared_store
        return (tile_case(kernel, point.number("bytes") // (4 * ROWS), "int32", (("step", "i32"),)),)
    columns = tile_columns(point)
    if point.kind == "ragged_store":
        return (_ragged_case(columns),)
    return (
        float_case(epilogue, columns, "epilogue_store"),
        float_case(epilogue, columns, FENCED),
        arithmetic_case(columns, ELEMENTWISE),
    )


def measure(point: Point) -> Iterator[Record]:
    every = cases(point)
    if point.kind == "shared_store":
        # A store has no result to wait for; what waits for it is a barrier.
        yield entry(point, None, quantiles(Loop(every[0], STORES, step=1).steady))
    elif point.kind == "epilogue_store":
        plain, fenced = Loop(every[0], STORES), Loop(every[1], 1)
        base = Loop(every[2], unrolled(tile_columns(point)))
        renew = np.median(base.steady)
        latency = quantiles(fenced.first - np.median(base.first))
        yield entry(point, latency, quantiles(plain.steady - renew), quantiles(fenced.steady - renew))
    else:
        numbers = {"step": 1} if point.kind == "shared_load" else {"rows": VALID_ROWS}
        loop = Loop(every[0], 1, **numbers)
        yield entry(point, quantiles(loop.first), quantiles(loop.steady))

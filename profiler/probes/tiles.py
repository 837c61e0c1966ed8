"""What one warp group does to a [64, n] tile: shared memory traffic and arithmetic in registers.

Every kernel times a loop of ``inner`` operations between two clock reads; each operation depends on the one before, so
nothing can be hoisted or dropped. What only makes the loop honest (a multiply-add that renews the tile) is measured
by the same loop without the operation and taken off.
latency    one operation's cycles until its result is in registers, or visible to the asynchronous proxy.
occupancy  cycles an operation in steady state: the slope between two loop lengths.
issue      the cycles the warps themselves are busy: for arithmetic they are the unit, so it equals the occupancy.

``epilogue_store`` converts an fp32 accumulator to bf16 and stores it in the layout that a TMA store reads; its latency
includes the proxy fence and the barrier before the store may start, its occupancy does not. ``convert`` includes a
quarter of an instruction an element that consumes the result, ``shared_load`` an exclusive-or per 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.triton_compat import fence_async_shared, gl, gluon, thread_barrier
from warpplan.kernels.triton_types import JitFunction
from warpplan.planner.values.costs import Quantiles
from warpplan.profiler.probes.cases import Case, Pointer
from warpplan.profiler.probes.device_code import active_repetitions, clock, probe_kernel, record, wait_for
from warpplan.profiler.probes.points import ROWS, Point
from warpplan.profiler.probes.sampling import Record, Samples, cost, out_elements, quantiles, sample, slope

INNER = 33
STORES = 4
"""Stores an iteration, each to a buffer of its own: only the next iteration needs a barrier."""
ELEMENTWISE = "elementwise"
FENCED = "epilogue_fenced"


@gluon.constexpr_function
def _tile_layout(columns):
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.jit
def _offsets(ROWS: gl.constexpr, N: gl.constexpr, LAYOUT: gl.constexpr):
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, N, gl.SliceLayout(0, LAYOUT))
    return rows[:, None] * N + columns[None, :]


@gluon.jit
def _keep(sink, rows, LAYOUT: gl.constexpr, ROWS: gl.constexpr):
    """Write one value a row, so that what led to it is computed; few registers, or the loop would spill."""
    gl.store(sink + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)), rows)


@probe_kernel
def arithmetic(out, data, sink, reps, inner, stride, scale, shift, ROWS: gl.constexpr, N: gl.constexpr,
               OPERATION: gl.constexpr, UNROLL: gl.constexpr):  # fmt: skip
    """fp32 tiles in the accumulator's layout, UNROLL operations an iteration; OPERATION "elementwise" is the bare
    multiply-add that renews the tile."""
    TILE: gl.constexpr = _tile_layout(N)
    offsets = _offsets(ROWS, N, TILE)
    x = gl.load(data + offsets)
    best = gl.max(x, 1)
    total = gl.sum(x, 1)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        x = wait_for(x)
        start = clock()
        for _ in range(inner):
            for _ in gl.static_range(UNROLL):
                x = gl.exp2(x) if OPERATION == "exp2" else x * scale + shift
                if OPERATION == "row_max":
                    best = gl.maximum(best, gl.max(x, 1))
                if OPERATION == "row_sum":
                    total = total + gl.sum(x, 1)
                if OPERATION == "convert":
                    _consume_bfloat16(x.to(gl.bfloat16))
        x = wait_for(x)
        best = wait_for(best)
        total = wait_for(total)
        record(out, pid * reps + r, 0, 1, clock() - start)
    _keep(sink, gl.sum(x, 1) + best + total, TILE, ROWS)


@gluon.jit
def _consume_bfloat16(y):
    """Need the value of four packed pairs at a time: two three-input logic operations and a trap never taken."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; lop3.b32 t, $4, $5, $6, 0x96; xor.b32 t, t, $7;"
        " setp.eq.b32 p, t, 0x7fbadbad; @p trap; mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $7; }",
        "=r,=r,=r,=r,r,r,r,r",
        [y],
        dtype=gl.bfloat16,
        is_pure=False,
        pack=8,
    )


@probe_kernel
def epilogue(out, data, sink, reps, inner, stride, scale, shift, ROWS: gl.constexpr, N: gl.constexpr,
             OPERATION: gl.constexpr):  # fmt: skip
    """Renew an fp32 tile, convert it to bf16 and store it to one of four staging buffers in turn."""
    TILE: gl.constexpr = _tile_layout(N)
    STAGING: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, N], gl.bfloat16)
    s0 = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING)
    s1 = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING)
    s2 = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING)
    s3 = gl.allocate_shared_memory(gl.bfloat16, [ROWS, N], STAGING)
    offsets = _offsets(ROWS, N, TILE)
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
    _keep(sink, rows, TILE, ROWS)


@probe_kernel
def shared_load(out, data, sink, reps, inner, stride, step, ROWS: gl.constexpr, N: gl.constexpr):
    """Read int32 tiles, 16 bytes a thread and access, from four buffers in turn; ``step`` is 1, told at run time."""
    TILE: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, N], gl.int32)
    offsets = _offsets(ROWS, N, TILE)
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
    _keep(sink, gl.sum(x, 1), TILE, ROWS)


@probe_kernel
def shared_store(out, data, sink, reps, inner, stride, step, ROWS: gl.constexpr, N: gl.constexpr):
    """Write int32 tiles, 16 bytes a thread and access, to four buffers in turn: four stores an iteration."""
    TILE: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, N], gl.int32)
    offsets = _offsets(ROWS, N, TILE)
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
    _keep(sink, rows, TILE, ROWS)


def _case(
    kernel: JitFunction, columns: int, dtype: str, numbers: tuple[tuple[str, str], ...], **constants: str | int
) -> Case:
    return Case(
        kernel,
        (
            ("out", Pointer("int32", out_elements())),
            ("data", Pointer(dtype, ROWS * columns, "normal" if dtype == "float32" else "zeros")),
            ("sink", Pointer(dtype, ROWS)),
            ("reps", "i32"),
            ("inner", "i32"),
            ("stride", "i32"),
            *numbers,
        ),
        (("ROWS", ROWS), ("N", columns), *constants.items()),
        4,
    )


def _float_case(kernel: JitFunction, columns: int, operation: str, **constants: int) -> Case:
    return _case(kernel, columns, "float32", (("scale", "fp32"), ("shift", "fp32")), OPERATION=operation, **constants)


def _arithmetic(columns: int, operation: str) -> Case:
    return _float_case(arithmetic, columns, operation, UNROLL=_unroll(columns))


def _unroll(columns: int) -> int:
    """Operations an iteration, so that the loop's own branch and counter are small beside small tiles."""
    return max(1, 128 // columns)


def cases(point: Point) -> tuple[Case, ...]:
    if point.kind in ("shared_load", "shared_store"):
        kernel = shared_load if point.kind == "shared_load" else shared_store
        return (_case(kernel, point.number("bytes") // (4 * ROWS), "int32", (("step", "i32"),)),)
    columns = _columns(point)
    base = _arithmetic(columns, ELEMENTWISE)
    if point.kind == "epilogue_store":
        return (
            _float_case(epilogue, columns, "epilogue_store"),
            _float_case(epilogue, columns, FENCED),
            base,
        )
    if point.kind in (ELEMENTWISE, "exp2"):
        return (_arithmetic(columns, point.kind),)
    return _arithmetic(columns, point.kind), base


class _Loop:
    """Samples of one kernel's loop at 0, 1 and many iterations of ``operations`` each."""

    def __init__(self, case: Case, operations: int) -> None:
        live = case.live()
        numbers = {"step": 1} if "step" in dict(case.arguments) else {"scale": 0.5, "shift": 0.25}

        def run(inner: int) -> Samples:
            return sample(live, inner=inner, **numbers)[:, 0]

        empty, one, many = run(0), run(1), run(INNER)
        self.steady = slope(many, one, (INNER - 1.0) * operations)
        """Cycles an operation when the loop is long."""
        self.first = slope(one, empty, 1.0) - (operations - 1) * np.median(self.steady)
        """Cycles of one operation until its result is there."""


def measure(point: Point) -> Iterator[Record]:
    every = cases(point)
    if point.kind == "shared_load":
        loop = _Loop(every[0], 1)
        yield _entry(point, quantiles(loop.first), quantiles(loop.steady))
    elif point.kind == "shared_store":
        # A store has no result to wait for; what waits for it is a barrier.
        yield _entry(point, None, quantiles(_Loop(every[0], STORES).steady))
    elif point.kind == "epilogue_store":
        plain, fenced, base = _Loop(every[0], STORES), _Loop(every[1], 1), _Loop(every[2], _unroll(_columns(point)))
        renew = np.median(base.steady)
        latency = quantiles(fenced.first - np.median(base.first))
        yield _entry(point, latency, quantiles(plain.steady - renew), quantiles(fenced.steady - renew))
    else:
        unroll = _unroll(_columns(point))
        loop = _Loop(every[0], unroll)
        first, steady = loop.first, loop.steady
        if len(every) == 2:
            base = _Loop(every[1], unroll)
            first, steady = first - np.median(base.first), steady - np.median(base.steady)
        yield _entry(point, quantiles(first), quantiles(steady))


def _entry(point: Point, latency: Quantiles | None, occupancy: Quantiles, issue: Quantiles | None = None) -> Record:
    return cost(point.kind, point.parameters, latency=latency, occupancy=occupancy, issue=issue or occupancy)


def _columns(point: Point) -> int:
    return point.number("elements") // ROWS

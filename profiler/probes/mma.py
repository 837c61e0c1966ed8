"""mma.sync m16n8k16, what tiles of fewer than 64 rows are multiplied by: products, and reads of their operands.

``mma`` is one step of K, 32 bytes, of a [64, n] tile: each of four warps adds 16 rows to n / 8 accumulators in turn.
``ldmatrix`` reads a [64, k] tile as its first operand out of 128-byte swizzled shared memory, every byte by one warp;
as in ``shared_load`` of :mod:`~warpplan.profiler.probes.tiles` an exclusive-or per 4 bytes is included.
latency    one read until it is in registers; of a step none: the next one on the same sums follows at the occupancy.
occupancy  cycles a step, or read, in a long chain: few accumulators wait for their own sums.
issue      as the occupancy: the warps that issue these instructions are held by them.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpplan.kernels.triton_compat import gl, gluon, mma_v2
from warpplan.profiler.probes.arithmetic import Loop, entry, keep, tile_offsets
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record, wait_for
from warpplan.profiler.probes.harness.sampling import Record, out_elements, quantiles
from warpplan.profiler.probes.points import ROWS, Point

K = 16
"""Of one instruction on 16-bit operands: 32 bytes."""
CHAIN = 8
"""Steps of K an iteration, so that the loop's own branch and counter are small beside them."""
READ_BYTES = 2**14
"""Of ``ldmatrix``, read an iteration or more, for the same reason."""
SLOTS = 4
"""Buffers that are read in turn."""


@gluon.constexpr_function
def _accumulator():
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1], instr_shape=[16, 8])


@gluon.constexpr_function
def _loaded():
    return gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])


@probe_kernel
def mma(out, data, sink, reps, inner, stride, ROWS: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
        CHAIN: gl.constexpr):  # fmt: skip
    """``inner`` · CHAIN steps [ROWS, K] · [K, N], one after the other on the same sums."""
    ACC: gl.constexpr = _accumulator()
    LEFT: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, ACC, 2)
    a = gl.convert_layout(gl.load(data + tile_offsets(ROWS, K, _loaded())), LEFT)
    b = gl.convert_layout(gl.load(data + tile_offsets(K, N, _loaded())), RIGHT)
    acc = gl.zeros([ROWS, N], gl.float32, ACC)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        acc = wait_for(acc)
        start = clock()
        for _ in range(inner):
            for _ in gl.static_range(CHAIN):
                acc = mma_v2(a, b, acc)
        acc = wait_for(acc)
        record(out, pid * reps + r, 0, 1, clock() - start)
    keep(sink, gl.sum(acc, 1), ACC, ROWS)


@probe_kernel
def ldmatrix(out, data, sink, reps, inner, stride, step, ROWS: gl.constexpr, N: gl.constexpr, SLOTS: gl.constexpr,
             UNROLL: gl.constexpr):  # fmt: skip
    """Read int32 tiles, as many bytes as two 16-bit elements have, from SLOTS buffers in turn; ``step`` is 1, told at
    run time."""
    ACC: gl.constexpr = _accumulator()
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, ACC, 1)
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    tile = gl.load(data + tile_offsets(ROWS, N, _loaded()))
    ring = gl.allocate_shared_memory(gl.int32, [SLOTS, ROWS, N], SHARED)
    for s in gl.static_range(SLOTS):
        ring.index(s).store(tile)
    x = gl.convert_layout(tile, OPERAND)
    slot = 0
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        x = wait_for(x)
        start = clock()
        for _ in range(inner):
            for _ in gl.static_range(UNROLL):
                x = x ^ ring.index(slot).load(OPERAND)
                slot = (slot + step) & (SLOTS - 1)
        x = wait_for(x)
        record(out, pid * reps + r, 0, 1, clock() - start)
    keep(sink, gl.sum(x, 1), OPERAND, ROWS)


def _case(point: Point) -> Case:
    numbers = [(name, "i32") for name in ("reps", "inner", "stride")]
    if point.kind == "mma":
        n, dtype = point.number("n"), point.text("dtype")
        data, sums = Pointer(dtype, max(ROWS, n) * K, "normal"), Pointer("float32", ROWS)
        constants = {"ROWS": ROWS, "N": n, "K": K, "CHAIN": CHAIN}
        kernel = mma
    else:
        words = point.number("bytes") // (4 * ROWS)
        data, sums = Pointer("int32", ROWS * words), Pointer("int32", ROWS)
        constants = {"ROWS": ROWS, "N": words, "SLOTS": SLOTS, "UNROLL": _unrolled(point)}
        numbers.append(("step", "i32"))
        kernel = ldmatrix
    buffers = (("out", Pointer("int32", out_elements())), ("data", data), ("sink", sums))
    return Case(kernel, (*buffers, *numbers), tuple(constants.items()), 4)


def _unrolled(point: Point) -> int:
    return max(1, READ_BYTES // point.number("bytes"))


def cases(point: Point) -> tuple[Case, ...]:
    return (_case(point),)


def measure(point: Point) -> Iterator[Record]:
    if point.kind == "mma":
        yield entry(point, None, quantiles(Loop(_case(point), CHAIN).steady))
    else:
        loop = Loop(_case(point), _unrolled(point), step=1)
        yield entry(point, quantiles(loop.first), quantiles(loop.steady))

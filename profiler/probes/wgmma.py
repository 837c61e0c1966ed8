"""wgmma m64nNk16 (k32 for fp8): a warp group's 64 rows, N columns, operands under the widest swizzle that fits.

occupancy  cycles an instruction in a long chain of asynchronous ones, 16 to a wait, from the slope between two lengths.
latency    issue → ``wait(0)`` of one group of four instructions (128 bytes of K), less three occupancies.
issue      cycles the warps need to issue one of those four.
``wgmma_pair``: a K step of ``n`` columns by two accumulators, of the largest power of two and of the rest; cycles of
both.
``wgmma_two_groups``: two warp groups with their own rows share the SM's tensor cores; cycles an instruction of either.
``wgmma_transposed``: ``operands`` ("a", "b" or "ab") lie in shared memory with the reduction dimension outermost, as
[K, M] and [K, N]; only 16-bit types can.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.device.block import accumulator_widths
from warpplan.kernels.triton_compat import gl, gluon, warpgroup_mma, warpgroup_mma_wait
from warpplan.kernels.triton_types import JitFunction
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record
from warpplan.profiler.probes.harness.sampling import Record, cost, out_elements, quantiles, sample, slope
from warpplan.profiler.probes.points import Point

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
SWIZZLE_BYTES = 128
PER_GROUP = 4
"""Instructions of one Gluon multiply: 128 bytes of K, 32 an instruction."""
CHAIN = 4
SHORT, LONG = 4, 36
COLUMNS = 3


@gluon.constexpr_function
def _accumulator(columns, warps, item_bits):
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[warps, 1], instr_shape=[16, columns, 256 // item_bits]
    )


@gluon.jit
def _operand(data, ROWS: gl.constexpr, K: gl.constexpr):
    """Random data in shared memory: what a tensor core draws depends on its bits."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [gl.num_warps(), 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, K, gl.SliceLayout(0, LAYOUT))
    dtype: gl.constexpr = data.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, K], dtype)
    values = gl.load(data + rows[:, None] * K + columns[None, :])
    return gl.allocate_shared_memory(dtype, [ROWS, K], SHARED, values)


@gluon.jit
def _left(data, M: gl.constexpr, K: gl.constexpr, ACC: gl.constexpr, LIES: gl.constexpr):
    """A as [M, K]: in registers, or in shared memory where it lies as [M, K] or, transposed, as [K, M]."""
    if LIES == "transposed":
        return _operand(data, K, M).permute((1, 0))
    elif LIES == "register":
        return _operand(data, M, K).load(gl.DotOperandLayout(0, ACC, 32 // data.dtype.element_ty.primitive_bitwidth))
    else:
        return _operand(data, M, K)


@gluon.jit
def _right(data, N: gl.constexpr, K: gl.constexpr, LIES: gl.constexpr):
    """B as [K, N], in shared memory where it lies as [N, K] or, transposed, as [K, N]."""
    if LIES == "transposed":
        return _operand(data, K, N)
    else:
        return _operand(data, N, K).permute((1, 0))


@probe_kernel
def chain(out, data, sink, reps, inner, stride, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, CHAIN: gl.constexpr,
          A_LIES: gl.constexpr, B_LIES: gl.constexpr):  # fmt: skip
    """``inner`` · CHAIN multiplies of [M, K] · [N, K]ᵀ, at most CHAIN of them in flight beyond the wait."""
    dtype: gl.constexpr = data.dtype.element_ty
    ACC: gl.constexpr = _accumulator(N, gl.num_warps(), dtype.primitive_bitwidth)
    a = _left(data, M, K, ACC, A_LIES)
    b = _right(data, N, K, B_LIES)
    acc = gl.zeros([M, N], gl.float32, ACC)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        for _ in range(inner):
            flying = acc
            for _ in gl.static_range(CHAIN):
                flying = warpgroup_mma(a, b, flying, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[flying])
        acc = warpgroup_mma_wait(0, deps=[acc])
        record(out, pid * reps + r, 0, 1, clock() - start)
    _keep(sink, acc, M, N, ACC)


@probe_kernel
def pair_chain(out, data, sink, reps, inner, stride, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
               CHAIN: gl.constexpr, A_LIES: gl.constexpr, B_LIES: gl.constexpr):  # fmt: skip
    """:func:`chain` of multiplies by the wider part of N columns and by the rest, in turn."""
    BITS: gl.constexpr = data.dtype.element_ty.primitive_bitwidth
    WIDE: gl.constexpr = accumulator_widths(N)[0]
    NARROW: gl.constexpr = N - WIDE
    MAIN: gl.constexpr = _accumulator(WIDE, gl.num_warps(), BITS)
    REST: gl.constexpr = _accumulator(NARROW, gl.num_warps(), BITS)
    a = _left(data, M, K, MAIN, A_LIES)
    b = _right(data, WIDE, K, B_LIES)
    c = _right(data, NARROW, K, B_LIES)
    main = gl.zeros([M, WIDE], gl.float32, MAIN)
    rest = gl.zeros([M, NARROW], gl.float32, REST)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        for _ in range(inner):
            for _ in gl.static_range(CHAIN):
                main = warpgroup_mma(a, b, main, is_async=True)
                rest = warpgroup_mma(a, c, rest, is_async=True)
            main, rest = warpgroup_mma_wait(2, deps=[main, rest])
        main, rest = warpgroup_mma_wait(0, deps=[main, rest])
        record(out, pid * reps + r, 0, 1, clock() - start)
    _keep(sink, main, M, WIDE, MAIN)
    _keep(sink, rest, M, NARROW, REST)


@probe_kernel
def single(out, data, sink, reps, stride, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
           A_LIES: gl.constexpr, B_LIES: gl.constexpr):  # fmt: skip
    """One multiply of [M, K] · [N, K]ᵀ at a time."""
    dtype: gl.constexpr = data.dtype.element_ty
    ACC: gl.constexpr = _accumulator(N, gl.num_warps(), dtype.primitive_bitwidth)
    a = _left(data, M, K, ACC, A_LIES)
    b = _right(data, N, K, B_LIES)
    acc = gl.zeros([M, N], gl.float32, ACC)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        nothing = clock()
        flying = warpgroup_mma(a, b, acc, is_async=True)
        issued = clock()
        acc = warpgroup_mma_wait(0, deps=[flying])
        done = clock()
        record(out, pid * reps + r, 0, 3, nothing - start)
        record(out, pid * reps + r, 1, 3, issued - nothing)
        record(out, pid * reps + r, 2, 3, done - nothing)
    _keep(sink, acc, M, N, ACC)


@gluon.jit
def _keep(sink, acc, M: gl.constexpr, N: gl.constexpr, ACC: gl.constexpr):
    rows = gl.arange(0, M, gl.SliceLayout(1, ACC))
    columns = gl.arange(0, N, gl.SliceLayout(0, ACC))
    gl.store(sink + rows[:, None] * N + columns[None, :], acc)


def _case(
    kernel: JitFunction, n: int, dtype: str, lies: tuple[str, str], groups: int, *numbers: str, **constants: int
) -> Case:
    rows, k = 64 * groups, SWIZZLE_BYTES // ITEM_BYTES[dtype]
    return Case(
        kernel,
        (
            ("out", Pointer("int32", out_elements(COLUMNS))),
            ("data", Pointer(dtype, max(rows, n) * k, "normal")),
            ("sink", Pointer("float32", rows * n)),
            *((name, "i32") for name in numbers),
        ),
        (("M", rows), ("N", n), ("K", k), *constants.items(), ("A_LIES", lies[0]), ("B_LIES", lies[1])),
        4 * groups,
    )


def chain_case(n: int, dtype: str, lies: tuple[str, str] = ("shared", "shared"), groups: int = 1) -> Case:
    """``lies``: where A and B are: "shared", "transposed" in shared memory, or A in "register"."""
    return _case(chain, n, dtype, lies, groups, "reps", "inner", "stride", CHAIN=CHAIN)


def _lies(point: Point) -> tuple[str, str]:
    if point.kind != "wgmma_transposed":
        return point.text("a"), "shared"
    operands = point.text("operands")
    return ("transposed" if "a" in operands else "shared"), ("transposed" if "b" in operands else "shared")


def cases(point: Point) -> tuple[Case, ...]:
    n, dtype, lies = point.number("n"), point.text("dtype"), _lies(point)
    if point.kind == "wgmma_two_groups":
        return (chain_case(n, dtype, lies, groups=2),)
    if point.kind == "wgmma_pair":
        return (_case(pair_chain, n, dtype, lies, 1, "reps", "inner", "stride", CHAIN=CHAIN),)
    return chain_case(n, dtype, lies), _case(single, n, dtype, lies, 1, "reps", "stride")


def measure(point: Point) -> Iterator[Record]:
    live = [case.live() for case in cases(point)]
    groups = live[0].case.num_warps // 4
    extra = (LONG - SHORT) * CHAIN * PER_GROUP * groups
    short = sample(live[0], inner=SHORT)[:, 0]
    steady = slope(sample(live[0], inner=LONG)[:, 0], short, extra)
    if len(live) == 1:
        yield cost(point.kind, point.parameters, latency=None, occupancy=quantiles(steady), issue=None)
        return
    cycles = sample(live[1], COLUMNS)
    overhead = float(np.median(cycles[:, 0]))
    alone = cycles[:, 2] - overhead - (PER_GROUP - 1) * float(np.median(steady))
    yield cost(
        point.kind,
        point.parameters,
        latency=quantiles(alone),
        occupancy=quantiles(steady),
        issue=quantiles((cycles[:, 1] - overhead) / PER_GROUP),
    )

"""Arithmetic of one warp group on a [64, n] fp32 tile in the accumulator's layout.

Every kernel times a loop of ``inner`` operations between two clock reads; each operation depends on the one before, so
nothing can be hoisted or dropped. What only makes the loop honest (a multiply-add that renews the tile) is measured
by the same loop without the operation and taken off.
latency    one operation's cycles until its result is in registers.
occupancy  cycles an operation in steady state: the slope between two loop lengths.
issue      the cycles the warps themselves are busy: for arithmetic they are the unit, so it equals the occupancy.

``convert`` is to bf16, ``convert_fp8`` to float8_e4m3fn, ``pack_fp8`` to the same as attention packs its weights; they
include what consumes the result: a quarter of an instruction an element. ``promote`` adds a block-scaled product to the
accumulator over all of K: one multiply-add an element, by its row's scale times the scale of the block of columns.
``activation`` is what a fused epilogue applies before it rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.attention_fwd.fp8.gluon import pack_columns
from warpplan.kernels.device.activations import activate
from warpplan.kernels.triton_compat import gl, gluon
from warpplan.kernels.triton_types import JitFunction
from warpplan.planner.values.costs import Quantiles
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record, wait_for
from warpplan.profiler.probes.harness.sampling import Record, Samples, cost, out_elements, quantiles, sample, slope
from warpplan.profiler.probes.points import ROWS, Point

INNER = 33
ELEMENTWISE = "elementwise"
RENEWAL = {"scale": 0.5, "shift": 0.25}
"""The multiply-add that renews a tile: its values stay finite however often."""


@gluon.constexpr_function
def tile_layout(columns):
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.jit
def tile_offsets(ROWS: gl.constexpr, N: gl.constexpr, LAYOUT: gl.constexpr):
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, N, gl.SliceLayout(0, LAYOUT))
    return rows[:, None] * N + columns[None, :]


@gluon.jit
def keep(sink, rows, LAYOUT: gl.constexpr, ROWS: gl.constexpr):
    """Write one value a row, so that what led to it is computed; few registers, or the loop would spill."""
    gl.store(sink + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)), rows)


@probe_kernel
def arithmetic(out, data, sink, reps, inner, stride, scale, shift, ROWS: gl.constexpr, N: gl.constexpr,
               OPERATION: gl.constexpr, UNROLL: gl.constexpr):  # fmt: skip
    """fp32 tiles in the accumulator's layout, UNROLL operations an iteration; OPERATION "elementwise" is the bare
    multiply-add that renews the tile."""
    TILE: gl.constexpr = tile_layout(N)
    offsets = tile_offsets(ROWS, N, TILE)
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
                if OPERATION == "convert_fp8":
                    _consume_fp8(x.to(gl.float8e4nv))
                if OPERATION == "pack_fp8":
                    _consume_packed(pack_columns(x))
        x = wait_for(x)
        best = wait_for(best)
        total = wait_for(total)
        record(out, pid * reps + r, 0, 1, clock() - start)
    keep(sink, gl.sum(x, 1) + best + total, TILE, ROWS)


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


@gluon.jit
def _consume_fp8(y):
    """Need the value of two packed quadruples at a time: one logic operation and a trap never taken."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; xor.b32 t, $2, $3;"
        " setp.eq.b32 p, t, 0x7fbadbad; @p trap; mov.b32 $0, $2; mov.b32 $1, $3; }",
        "=r,=r,r,r",
        [y],
        dtype=gl.float8e4nv,
        is_pure=False,
        pack=8,
    )


@gluon.jit
def _consume_packed(y):
    """The same of quadruples that are packed already."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; xor.b32 t, $2, $3;"
        " setp.eq.b32 p, t, 0x7fbadbad; @p trap; mov.b32 $0, $2; mov.b32 $1, $3; }",
        "=r,=r,r,r",
        [y],
        dtype=gl.int32,
        is_pure=False,
        pack=2,
    )


@probe_kernel
def activation(out, data, sink, reps, inner, stride, scale, shift, ROWS: gl.constexpr, N: gl.constexpr,
               OPERATION: gl.constexpr, UNROLL: gl.constexpr):  # fmt: skip
    """Renew an fp32 tile, apply the activation function OPERATION and round to bf16, UNROLL times an iteration. Nothing
    but the renewal depends on the iteration before, as in an epilogue: the assembler orders dependent activations
    element by element, and each then waits for its own arithmetic."""
    TILE: gl.constexpr = tile_layout(N)
    x = gl.load(data + tile_offsets(ROWS, N, TILE))
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        x = wait_for(x)
        start = clock()
        for _ in range(inner):
            for _ in gl.static_range(UNROLL):
                x = x * scale + shift
                _consume_bfloat16(activate(x, OPERATION).to(gl.bfloat16))
        x = wait_for(x)
        record(out, pid * reps + r, 0, 1, clock() - start)
    keep(sink, gl.sum(x, 1), TILE, ROWS)


@probe_kernel
def promotion(out, data, sink, reps, inner, stride, scale, shift, ROWS: gl.constexpr, N: gl.constexpr,
              OPERATION: gl.constexpr, UNROLL: gl.constexpr):  # fmt: skip
    """Add a scaled partial product to an accumulator, UNROLL times an iteration, each time by new scales."""
    TILE: gl.constexpr = tile_layout(N)
    partial = gl.load(data + tile_offsets(ROWS, N, TILE))
    acc = gl.zeros([ROWS, N], gl.float32, TILE)
    factors = gl.load(data + gl.arange(0, ROWS, gl.SliceLayout(1, TILE)))
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        acc = wait_for(acc)
        start = clock()
        for _ in range(inner):
            for _ in gl.static_range(UNROLL):
                factors = factors * scale + shift
                acc = acc + partial * factors[:, None]
        acc = wait_for(acc)
        record(out, pid * reps + r, 0, 1, clock() - start)
    keep(sink, gl.sum(acc, 1), TILE, ROWS)


def tile_case(
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


def float_case(kernel: JitFunction, columns: int, operation: str, **constants: int) -> Case:
    return tile_case(
        kernel, columns, "float32", (("scale", "fp32"), ("shift", "fp32")), OPERATION=operation, **constants
    )


def arithmetic_case(columns: int, operation: str, kernel: JitFunction = arithmetic) -> Case:
    return float_case(kernel, columns, operation, UNROLL=unrolled(columns))


def unrolled(columns: int) -> int:
    """Operations an iteration, so that the loop's own branch and counter are small beside small tiles."""
    return max(1, 128 // columns)


class Loop:
    """Samples of one kernel's loop at 0, 1 and many iterations of ``operations`` each."""

    def __init__(self, case: Case, operations: int, **numbers: float) -> None:
        live = case.live()

        def run(inner: int) -> Samples:
            return sample(live, inner=inner, **(numbers or RENEWAL))[:, 0]

        empty, one, many = run(0), run(1), run(INNER)
        self.steady = slope(many, one, (INNER - 1.0) * operations)
        """Cycles an operation when the loop is long."""
        self.first = slope(one, empty, 1.0) - (operations - 1) * np.median(self.steady)
        """Cycles of one operation until its result is there."""


def entry(point: Point, latency: Quantiles | None, occupancy: Quantiles, issue: Quantiles | None = None) -> Record:
    return cost(point.kind, point.parameters, latency=latency, occupancy=occupancy, issue=issue or occupancy)


def cases(point: Point) -> tuple[Case, ...]:
    columns = tile_columns(point)
    base = arithmetic_case(columns, ELEMENTWISE)
    if point.kind == "promote":
        return (arithmetic_case(columns, point.kind, promotion),)
    if point.kind == "activation":
        return arithmetic_case(columns, point.text("function"), activation), arithmetic_case(columns, "convert")
    if point.kind in (ELEMENTWISE, "exp2"):
        return (arithmetic_case(columns, point.kind),)
    return arithmetic_case(columns, point.kind), base


def measure(point: Point) -> Iterator[Record]:
    every = cases(point)
    operations = unrolled(tile_columns(point))
    loop = Loop(every[0], operations)
    first, steady = loop.first, loop.steady
    if len(every) == 2:
        base = Loop(every[1], operations)
        first, steady = first - np.median(base.first), steady - np.median(base.steady)
    yield entry(point, quantiles(first), quantiles(steady))


def tile_columns(point: Point) -> int:
    """The columns of a [64, n] tile of the point's ``elements``."""
    return point.number("elements") // ROWS

"""8-bit elements widened to 16-bit floats, as a product whose weights are quantised needs them; one warp group.

A tile is renewed, four elements to a word, widened by what Triton compiles the conversion to, and used. Renewing and
using are measured by the same loop without the conversion, on tiles of 8 and of 16 bits, and taken off.
latency    one tile until it is widened.
occupancy  cycles a tile in steady state: the slope between two lengths of the loop; ``issue`` is the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.triton_compat import gl, gluon
from warpplan.profiler.probes.arithmetic import Loop, entry, tile_offsets
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record
from warpplan.profiler.probes.harness.sampling import Record, out_elements, quantiles
from warpplan.profiler.probes.points import ROWS, Point

RENEWED, RENEWED_WIDE, USED_WIDE = "renewed", "renewed_wide", "used_wide"
"""What the loop does beside a conversion: renew 8-bit elements; renew 16-bit ones; renew and use those."""


@gluon.constexpr_function
def _layout():
    """Eight elements a thread that lie together, as copies of 16 bytes and operands of products have them."""
    return gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])


@gluon.jit
def _renewed(x):
    """Other elements, at an addition a word of four 8-bit ones."""
    return gl.inline_asm_elementwise(
        "add.u32 $0, $1, 0x01010101;", "=r,r", [x], dtype=gl.int8, is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def _renewed_wide(x):
    return gl.inline_asm_elementwise(
        "add.u32 $0, $1, 0x00010001;", "=r,r", [x], dtype=gl.int16, is_pure=False, pack=2
    )  # fmt: skip


@gluon.jit
def _used(x):
    """Need the value of eight words of two 16-bit elements: four logic operations and a trap never taken."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; lop3.b32 t, $8, $9, $10, 0x96; lop3.b32 t, t, $11, $12, 0x96;"
        " lop3.b32 t, t, $13, $14, 0x96; xor.b32 t, t, $15; setp.eq.b32 p, t, 0x7fbadbad; @p trap;"
        " mov.b32 $0, $8; mov.b32 $1, $9; mov.b32 $2, $10; mov.b32 $3, $11;"
        " mov.b32 $4, $12; mov.b32 $5, $13; mov.b32 $6, $14; mov.b32 $7, $15; }",
        "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r,r,r,r",
        [x],
        dtype=x.dtype,
        is_pure=False,
        pack=16,
    )


@gluon.jit
def _widened(x, FROM: gl.constexpr, TO: gl.constexpr):
    if FROM == "fp8":
        x = x.to(gl.float8e4nv, bitcast=True)
    return x.to(gl.float16) if TO == "float16" else x.to(gl.bfloat16)


@probe_kernel
def widening(out, data, sink, reps, inner, stride, ROWS: gl.constexpr, N: gl.constexpr, FROM: gl.constexpr,
             TO: gl.constexpr, UNROLL: gl.constexpr):  # fmt: skip
    """UNROLL tiles an iteration; FROM may be what the loop does without a conversion."""
    offsets = tile_offsets(ROWS, N, _layout())
    x = gl.load(data + offsets)
    wide = x.to(gl.int16)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        for _ in range(inner):
            for _ in gl.static_range(UNROLL):
                if FROM == "renewed":
                    x = _renewed(x)
                elif FROM == "renewed_wide":
                    wide = _renewed_wide(wide)
                elif FROM == "used_wide":
                    wide = _renewed_wide(wide)
                    _used(wide)
                else:
                    x = _renewed(x)
                    _used(_widened(x, FROM, TO))
        record(out, pid * reps + r, 0, 1, clock() - start)
    gl.store(sink + offsets, (x.to(gl.int16) + wide).to(gl.int8))


def _case(columns: int, source: str, to: str = "") -> Case:
    return Case(
        widening,
        (
            ("out", Pointer("int32", out_elements())),
            ("data", Pointer("int8", ROWS * columns)),
            ("sink", Pointer("int8", ROWS * columns)),
            *((name, "i32") for name in ("reps", "inner", "stride")),
        ),
        (("ROWS", ROWS), ("N", columns), ("FROM", source), ("TO", to), ("UNROLL", _unrolled(columns))),
        4,
    )


def _unrolled(columns: int) -> int:
    """Tiles an iteration, so that the loop's own branch and counter are small beside small ones."""
    return max(1, 256 // columns)


def cases(point: Point) -> tuple[Case, ...]:
    columns = point.number("elements") // ROWS
    _, source, to = point.kind.split("_")
    return (_case(columns, source, to), *(_case(columns, what) for what in (RENEWED, RENEWED_WIDE, USED_WIDE)))


def measure(point: Point) -> Iterator[Record]:
    operations = _unrolled(point.number("elements") // ROWS)
    whole, renewed, renewed_wide, used_wide = (Loop(case, operations) for case in cases(point))

    def others(of: str) -> float:
        first, second, third = (np.median(getattr(loop, of)) for loop in (renewed, used_wide, renewed_wide))
        return float(first + second - third)

    yield entry(
        point, quantiles(whole.first - others("first")), quantiles(whole.steady - others("steady"))
    )  # fmt: skip

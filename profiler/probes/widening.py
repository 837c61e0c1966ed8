"""8-bit elements widened to 16-bit floats, as a product whose weights are quantised needs them; one warp group.

A tile is widened by what Triton compiles the conversion to, and the pairs of words that come out are folded into the
words of the next tile: an exclusive-or for four elements, which is counted as what uses the result. What is taken off
is the loop, and a tile's words taken apart and put together once an iteration.
latency    one tile until it is widened.
occupancy  cycles a tile in steady state: the slope between two lengths of the loop; ``issue`` is the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.triton_compat import gl, gluon
from warpplan.profiler.probes.arithmetic import Loop, entry, tile_offsets
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record, wait_for
from warpplan.profiler.probes.harness.sampling import Record, out_elements, quantiles
from warpplan.profiler.probes.points import ROWS, Point

KEPT = "kept"
"""The loop without a conversion: its steps undo each other in pairs, which ptxas sees."""


@gluon.constexpr_function
def _layout():
    """Eight elements a thread that lie together, as copies of 16 bytes and operands of products have them."""
    return gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])


@gluon.jit
def _kept(x):
    """Other elements, and the same again after a second time."""
    return gl.inline_asm_elementwise(
        "xor.b32 $0, $1, 0x01010101;", "=r,r", [x], dtype=gl.int8, is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def _folded(x):
    """The words of 16-bit elements, exclusive-or'd by pairs to words of 8-bit ones."""
    return gl.inline_asm_elementwise(
        "xor.b32 $0, $1, $2;", "=r,r,r", [x], dtype=gl.int8, is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def _widened(x, FROM: gl.constexpr, TO: gl.constexpr):
    if FROM == "fp8":
        x = x.to(gl.float8e4nv, bitcast=True)
    return x.to(gl.float16) if TO == "float16" else x.to(gl.bfloat16)


@probe_kernel
def widening(out, data, sink, reps, inner, stride, ROWS: gl.constexpr, N: gl.constexpr, FROM: gl.constexpr,
             TO: gl.constexpr, UNROLL: gl.constexpr):  # fmt: skip
    """UNROLL tiles an iteration; FROM may be "kept"."""
    offsets = tile_offsets(ROWS, N, _layout())
    x = gl.load(data + offsets)
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        for _ in range(inner):
            for _ in gl.static_range(UNROLL):
                x = _kept(x) if FROM == "kept" else _folded(_widened(x, FROM, TO))
        x = wait_for(x, 4)
        record(out, pid * reps + r, 0, 1, clock() - start)
    gl.store(sink + offsets, x)


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
    """Tiles an iteration, an even number: from one iteration to the next a tile's words are taken apart and put
    together, which is no part of a conversion."""
    return 1024 // columns


def cases(point: Point) -> tuple[Case, ...]:
    columns = point.number("elements") // ROWS
    _, source, to = point.kind.split("_")
    return _case(columns, source, to), _case(columns, KEPT)


def measure(point: Point) -> Iterator[Record]:
    operations = _unrolled(point.number("elements") // ROWS)
    whole, kept = (Loop(case, operations) for case in cases(point))
    first, steady = (quantiles(getattr(whole, of) - np.median(getattr(kept, of))) for of in ("first", "steady"))
    yield entry(point, first, steady)

"""Loads into registers that are used at once: tiles of fp32, a block's scales or a row's factors.

``global_load`` is of four warps that read consecutive words of ``bytes``, one a thread or more, at most 16 bytes a
thread and instruction.
latency    issue → every word is in its register, nothing else in flight.
"l2": memory that was just read. "dram": lines never touched since L2 was flushed by reading.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.triton_compat import gl, gluon, thread_barrier
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record
from warpplan.profiler.probes.harness.sampling import (
    MOST_BLOCKS,
    REPETITIONS,
    Record,
    cost,
    flush_l2,
    out_elements,
    quantiles,
    sample,
)
from warpplan.profiler.probes.points import Point

COLUMNS = 2
"""Of a sample: the clock's own cycles, and a load's with them."""
LINE_BYTES = 128
"""Of L2 (CUDA C++ Programming Guide, "Device Memory Accesses"): smaller tiles lie as far apart."""


@gluon.constexpr_function
def _words(count):
    """One word a thread, four of a tile that has them."""
    return gl.BlockedLayout([4 if count >= 512 else 1], [32], [4], [0])


@gluon.jit
def _tile(data, index, WORDS: gl.constexpr, APART: gl.constexpr):
    return gl.load(data + index.to(gl.int64) * APART + gl.arange(0, WORDS, _words(WORDS)))


@gluon.constexpr_function
def _check(count):
    """PTX that needs the values of ``count`` words at once, and hands them on: a trap never taken."""
    names = [f"${count + i}" for i in range(count)]
    folded = " ".join(f"xor.b32 t, t, {name};" for name in names[1:])
    kept = " ".join(f"mov.b32 ${i}, {name};" for i, name in enumerate(names))
    test = "setp.eq.b32 p, t, 0x7fbadbad; @p trap;"
    return "{ .reg .pred p; .reg .b32 t; mov.b32 t, " + names[0] + "; " + folded + " " + test + " " + kept + " }"


@gluon.constexpr_function
def _registers(count):
    return ",".join(["=r"] * count + ["r"] * count + ["~{memory}"])


@gluon.jit
def _arrived(x, COUNT: gl.constexpr):
    """Block until all COUNT words of each thread are there; a check a word would have each load wait for the last."""
    return gl.inline_asm_elementwise(
        _check(COUNT), _registers(COUNT), [x], dtype=x.dtype, is_pure=False, pack=COUNT
    )  # fmt: skip


@probe_kernel
def global_load(out, data, sink, reps, stride, spread, WORDS: gl.constexpr, APART: gl.constexpr):
    pid = gl.program_id(0)
    total = gl.zeros([WORDS], gl.int32, _words(WORDS))
    for r in range(active_repetitions(reps, stride)):
        index = pid * spread + r
        thread_barrier()
        start = clock()
        nothing = clock()
        x = _tile(data, index, WORDS, APART)
        x = _arrived(x, WORDS // 128)
        arrived = clock()
        total = total ^ x
        record(out, pid * reps + r, 0, 2, nothing - start)
        record(out, pid * reps + r, 1, 2, arrived - nothing)
    gl.store(sink + gl.arange(0, WORDS, _words(WORDS)), total)


def cases(point: Point) -> tuple[Case, ...]:
    words = point.number("bytes") // 4
    apart = max(words, LINE_BYTES // 4)
    buffers = (
        ("out", Pointer("int32", out_elements(COLUMNS))),
        ("data", Pointer("int32", MOST_BLOCKS * REPETITIONS * apart)),
        ("sink", Pointer("int32", words)),
    )
    numbers = tuple((name, "i32") for name in ("reps", "stride", "spread"))
    return (Case(global_load, (*buffers, *numbers), (("WORDS", words), ("APART", apart)), 4),)


def measure(point: Point) -> Iterator[Record]:
    (live,) = (case.live() for case in cases(point))
    if point.text("source") == "dram":
        flush_l2()
    else:
        sample(live, COLUMNS, spread=REPETITIONS)
    cycles = sample(live, COLUMNS, spread=REPETITIONS)
    alone = cycles[:, 1] - float(np.median(cycles[:, 0]))
    yield cost(point.kind, point.parameters, latency=quantiles(alone), occupancy=None, issue=None)

"""Loads into registers that are used at once: tiles of fp32, a block's scales or a row's factors, one word a thread or
more.

``global_load`` is of four warps that read consecutive words of ``bytes``, at most 16 bytes a thread and instruction.
latency    issue → every word is in its register, nothing else in flight.
occupancy  cycles a tile where eight are in flight: the slope between two lengths of a walk.
issue      cycles from before the load to after the last instruction of one was issued.
"l2": a megabyte a block, four times its L1, that was just read. "dram": lines never touched since L2 was flushed by
reading.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.triton_compat import gl, gluon, thread_barrier
from warpplan.profiler.probes.harness.cases import Case, Live, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record, wait_for
from warpplan.profiler.probes.harness.sampling import (
    MOST_BLOCKS,
    REPETITIONS,
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

COLUMNS = 3
FLIGHT = 8
"""Tiles that are asked for before the first is used."""
SHORT, LONG = 1, 9
"""Walks in flights, of tiles that no other walk reads."""
L2_BYTES = 2**20
LINE_BYTES = 128
"""Of L2 (CUDA C++ Programming Guide, "Device Memory Accesses"): smaller tiles lie as far apart."""


@gluon.constexpr_function
def _words(count):
    """One word a thread, four of a tile that has them."""
    return gl.BlockedLayout([4 if count >= 512 else 1], [32], [4], [0])


@gluon.jit
def _tile(data, index, WORDS: gl.constexpr, APART: gl.constexpr):
    return gl.load(data + index.to(gl.int64) * APART + gl.arange(0, WORDS, _words(WORDS)))


@gluon.jit
def _arrived(x):
    """As :func:`wait_for`, four words at a time where a thread has them."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; lop3.b32 t, $4, $5, $6, 0x96; xor.b32 t, t, $7; setp.eq.b32 p, t, 0x7fbadbad;"
        " @p trap; mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $7; }",
        "=r,=r,=r,=r,r,r,r,r,~{memory}",
        [x],
        dtype=x.dtype,
        is_pure=False,
        pack=4,
    )


@probe_kernel
def tile_once(out, data, sink, reps, stride, spread, WORDS: gl.constexpr, APART: gl.constexpr):
    pid = gl.program_id(0)
    total = gl.zeros([WORDS], gl.int32, _words(WORDS))
    for r in range(active_repetitions(reps, stride)):
        index = pid * spread + r
        thread_barrier()
        start = clock()
        nothing = clock()
        x = _tile(data, index, WORDS, APART)
        issued = clock()
        x = _arrived(x) if WORDS >= 512 else wait_for(x)
        arrived = clock()
        total = total ^ x
        record(out, pid * reps + r, 0, 3, nothing - start)
        record(out, pid * reps + r, 1, 3, issued - nothing)
        record(out, pid * reps + r, 2, 3, arrived - nothing)
    gl.store(sink + gl.arange(0, WORDS, _words(WORDS)), total)


@probe_kernel
def tile_walk(out, data, sink, reps, inner, stride, spread, mask, WORDS: gl.constexpr, APART: gl.constexpr,
              FLIGHT: gl.constexpr):  # fmt: skip
    """Each repetition adds up ``inner`` flights of tiles, of ``mask`` + 1 in a block's turn."""
    pid = gl.program_id(0)
    total = gl.zeros([WORDS], gl.int32, _words(WORDS))
    index = 0
    for r in range(active_repetitions(reps, stride)):
        thread_barrier()
        start = clock()
        for _ in range(inner):
            for i in gl.static_range(FLIGHT):
                total = total ^ _tile(data, pid * spread + index + i, WORDS, APART)
            index = (index + FLIGHT) & mask
        total = wait_for(total)
        record(out, pid * reps + r, 0, 1, clock() - start)
    gl.store(sink + gl.arange(0, WORDS, _words(WORDS)), total)


def _words_of(point: Point) -> int:
    return point.number("bytes") // 4


def _apart(point: Point) -> int:
    """Words from one tile to the next."""
    return max(_words_of(point), LINE_BYTES // 4)


def tiles_a_block(point: Point) -> int:
    """Tiles that a block has for itself: a power of two, as many as the longest walk's from DRAM."""
    if point.text("source") == "l2":
        return L2_BYTES // (4 * _apart(point))
    return 1 << (REPETITIONS * LONG * FLIGHT - 1).bit_length()


def cases(point: Point) -> tuple[Case, ...]:
    words, apart = _words_of(point), _apart(point)
    buffers = (
        ("out", Pointer("int32", out_elements(COLUMNS))),
        ("data", Pointer("int32", MOST_BLOCKS * tiles_a_block(point) * apart)),
        ("sink", Pointer("int32", words)),
    )
    constants = (("WORDS", words), ("APART", apart))

    def numbers(*names: str) -> tuple[tuple[str, str], ...]:
        return tuple((name, "i32") for name in names)

    walked = numbers("reps", "inner", "stride", "spread", "mask")
    return (
        Case(tile_once, (*buffers, *numbers("reps", "stride", "spread")), constants, 4),
        Case(tile_walk, (*buffers, *walked), (*constants, ("FLIGHT", FLIGHT)), 4),
    )


def measure(point: Point) -> Iterator[Record]:
    once, walk = (case.live() for case in cases(point))
    dram, spread = point.text("source") == "dram", tiles_a_block(point)

    def launched(live: Live, columns: int, **numbers: int) -> Samples:
        """Cycles of tiles that are all in L2, read by a first launch, or none of them."""
        if dram:
            flush_l2()
        else:
            sample(live, columns, spread=spread, **numbers)
        return sample(live, columns, spread=spread, **numbers)

    alone = launched(once, COLUMNS)
    short, long = (launched(walk, 1, inner=flights, mask=spread - 1)[:, 0] for flights in (SHORT, LONG))
    overhead = float(np.median(alone[:, 0]))
    yield cost(
        point.kind,
        point.parameters,
        latency=quantiles(alone[:, 2] - overhead),
        occupancy=quantiles(slope(long, short, (LONG - SHORT) * FLIGHT)),
        issue=quantiles(alone[:, 1] - overhead),
    )

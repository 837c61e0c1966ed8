"""Loads into registers that are used at once: tiles of fp32, a block's scales or a row's factors, one word a thread or
more.

``global_load`` is of four warps that read consecutive words of ``bytes``, at most 16 bytes a thread and instruction.
latency    issue → every word is in its register, nothing else in flight.
occupancy  cycles a tile where eight are in flight: the slope between two lengths of a walk.
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

COLUMNS = 2
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
def tile_once(out, data, sink, reps, stride, spread, WORDS: gl.constexpr, APART: gl.constexpr):
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
        latency=quantiles(alone[:, 1] - overhead),
        occupancy=quantiles(slope(long, short, (LONG - SHORT) * FLIGHT)),
        issue=None,
    )

"""Loads into registers that are used at once: tiles of fp32, a block's scales or a row's factors, one word a thread or
more.

``global_load`` is of four warps that read consecutive words of ``bytes``, at most 16 bytes a thread and instruction.
latency    issue → every word is in its register, nothing else in flight.
occupancy  cycles a tile where eight are in flight: the slope between two lengths of a walk.
issue      cycles from before the load to after the last instruction of one was issued.
"l2": memory that was just read. "dram": lines never touched since L2 was flushed by reading.
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
LINE_BYTES = 128
"""Of L2 (CUDA C++ Programming Guide, "Device Memory Accesses"): smaller tiles lie as far apart."""


@gluon.constexpr_function
def _words(count):
    """One word a thread, four of a tile that has them."""
    return gl.BlockedLayout([4 if count >= 512 else 1], [32], [4], [0])


@gluon.jit
def _tile(data, index, WORDS: gl.constexpr, APART: gl.constexpr):
    return gl.load(data + index.to(gl.int64) * APART + gl.arange(0, WORDS, _words(WORDS)))


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
        x = wait_for(x)
        arrived = clock()
        total = total ^ x
        record(out, pid * reps + r, 0, 3, nothing - start)
        record(out, pid * reps + r, 1, 3, issued - nothing)
        record(out, pid * reps + r, 2, 3, arrived - nothing)
    gl.store(sink + gl.arange(0, WORDS, _words(WORDS)), total)


@probe_kernel
def tile_walk(out, data, sink, reps, inner, stride, spread, WORDS: gl.constexpr, APART: gl.constexpr,
              FLIGHT: gl.constexpr):  # fmt: skip
    """Each repetition adds up ``inner`` flights of tiles of its own."""
    pid = gl.program_id(0)
    total = gl.zeros([WORDS], gl.int32, _words(WORDS))
    index = pid * spread
    for r in range(active_repetitions(reps, stride)):
        thread_barrier()
        start = clock()
        for _ in range(inner):
            for i in gl.static_range(FLIGHT):
                total = total ^ _tile(data, index + i, WORDS, APART)
            index += FLIGHT
        total = wait_for(total)
        record(out, pid * reps + r, 0, 1, clock() - start)
    gl.store(sink + gl.arange(0, WORDS, _words(WORDS)), total)


def _words_of(point: Point) -> int:
    return point.number("bytes") // 4


def _apart(point: Point) -> int:
    """Words from one tile to the next."""
    return max(_words_of(point), LINE_BYTES // 4)


def _tiles_a_block() -> int:
    """The longest walk's."""
    return REPETITIONS * LONG * FLIGHT


def cases(point: Point) -> tuple[Case, ...]:
    words, apart = _words_of(point), _apart(point)
    buffers = (
        ("out", Pointer("int32", out_elements(COLUMNS))),
        ("data", Pointer("int32", MOST_BLOCKS * _tiles_a_block() * apart)),
        ("sink", Pointer("int32", words)),
    )
    constants = (("WORDS", words), ("APART", apart))

    def numbers(*names: str) -> tuple[tuple[str, str], ...]:
        return tuple((name, "i32") for name in names)

    return (
        Case(tile_once, (*buffers, *numbers("reps", "stride", "spread")), constants, 4),
        Case(
            tile_walk, (*buffers, *numbers("reps", "inner", "stride", "spread")), (*constants, ("FLIGHT", FLIGHT)), 4
        ),
    )  # fmt: skip


def measure(point: Point) -> Iterator[Record]:
    once, walk = (case.live() for case in cases(point))
    dram, spread = point.text("source") == "dram", _tiles_a_block()

    def launched(live: Live, columns: int, **numbers: int) -> Samples:
        """Cycles of tiles that are all in L2, read by a first launch, or none of them."""
        if dram:
            flush_l2()
        else:
            sample(live, columns, spread=spread, **numbers)
        return sample(live, columns, spread=spread, **numbers)

    alone = launched(once, COLUMNS)
    short, long = (launched(walk, 1, inner=flights)[:, 0] for flights in (SHORT, LONG))
    overhead = float(np.median(alone[:, 0]))
    yield cost(
        point.kind,
        point.parameters,
        latency=quantiles(alone[:, 2] - overhead),
        occupancy=quantiles(slope(long, short, (LONG - SHORT) * FLIGHT)),
        issue=quantiles(alone[:, 1] - overhead),
    )

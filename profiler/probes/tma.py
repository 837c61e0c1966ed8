"""TMA copies of [rows, 64] boxes of 16-bit elements under the 128-byte swizzle, issued by a partition of one warp.

latency    expect → copy → the full barrier's wait returns, nothing else in flight. A store: copy → its shared bytes
           may be written again (``cp.async.bulk.wait_group.read``). ``tma_reduce``: the same of boxes of fp32 that are
           added to what is there.
occupancy  cycles a box in steady state with 192 KB in flight and one barrier per 16 KB: the unit and its port to L2.
issue      cycles from before the expect to after the copy instruction.
"l2": boxes of a matrix of 16 MB that was just read. "dram": boxes never touched since L2 was flushed by reading.
A matrix row is 4096 elements, as in a GEMM of that K: boxes follow each other along the row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.triton_compat import gl, gluon, mbarrier, tma_load, tma_reduce_add, tma_store, tma_store_wait
from warpplan.profiler.probes.harness.cases import Box, Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, idle, probe_kernel, record
from warpplan.profiler.probes.harness.sampling import Record, Samples, cost, flush_l2, out_elements, quantiles, sample
from warpplan.profiler.probes.points import Point

MATRIX_COLUMNS = 4096
BOX_COLUMNS = 64
L2_ROWS = 2048
DRAM_ROWS = 131_072
IN_FLIGHT_BYTES = 192 * 1024
BARRIER_BYTES = 16 * 1024
INNER = 96
COLUMNS = 3
STORES = ("tma_store", "tma_reduce")


@gluon.jit
def box_at(index, mask, BOX_ROWS: gl.constexpr):
    """Row and column of a box; there are ``mask`` + 1 of them."""
    wrapped = index & mask
    return (wrapped >> 6) * BOX_ROWS, (wrapped & 63) * 64


@gluon.jit
def _load_once(desc, out, smem, bar, reps, stride, first, spread, mask):
    BOX_ROWS: gl.constexpr = desc.block_type.shape[0]
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        row, column = box_at(first + pid * spread + r, mask, BOX_ROWS)
        start = clock()
        nothing = clock()
        mbarrier.expect(bar, desc.block_type.nbytes)
        tma_load(desc, [row, column], bar, smem)
        issued = clock()
        mbarrier.wait(bar, r & 1)
        arrived = clock()
        record(out, pid * reps + r, 0, 3, nothing - start)
        record(out, pid * reps + r, 1, 3, issued - nothing)
        record(out, pid * reps + r, 2, 3, arrived - nothing)


@probe_kernel
def load_latency(desc, out, reps, stride, first, spread, mask):
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_type.shape, desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    gl.warp_specialize([(idle, ()), (_load_once, (desc, out, smem, bar, reps, stride, first, spread, mask))], [1], [40])


@gluon.jit
def _issue_group(desc, smem, bars, slot, index, mask, GROUP: gl.constexpr):
    mbarrier.expect(bars.index(slot), desc.block_type.nbytes * GROUP)
    for g in gl.static_range(GROUP):
        row, column = box_at(index + g, mask, desc.block_type.shape[0])
        tma_load(desc, [row, column], bars.index(slot), smem.index(slot * GROUP + g))


@gluon.jit
def _load_many(
    desc, out, smem, bars, reps, inner, stride, spread, step, mask, GROUP: gl.constexpr, SLOTS: gl.constexpr
):
    pid = gl.program_id(0)
    index = pid * spread
    for s in gl.static_range(SLOTS):
        _issue_group(desc, smem, bars, s, index, mask, GROUP)
        index += step
    slot = 0
    phase = 0
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        for _ in range(inner):
            mbarrier.wait(bars.index(slot), phase)
            _issue_group(desc, smem, bars, slot, index, mask, GROUP)
            index += step
            slot += 1
            wrapped = (slot == SLOTS).to(gl.int32)
            phase = phase ^ wrapped
            slot = slot * (1 - wrapped)
        record(out, pid * reps + r, 0, 1, clock() - start)
    for _ in gl.static_range(SLOTS):
        mbarrier.wait(bars.index(slot), phase)
        slot += 1
        wrapped = (slot == SLOTS).to(gl.int32)
        phase = phase ^ wrapped
        slot = slot * (1 - wrapped)


@probe_kernel
def load_rate(desc, out, reps, inner, stride, spread, step, mask, GROUP: gl.constexpr, SLOTS: gl.constexpr):
    BOX: gl.constexpr = desc.block_type.shape
    smem = gl.allocate_shared_memory(desc.dtype, [SLOTS * GROUP, BOX[0], BOX[1]], desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(SLOTS):
        mbarrier.init(bars.index(s), count=1)
    gl.warp_specialize(
        [
            (idle, ()),
            (_load_many, (desc, out, smem, bars, reps, inner, stride, spread, step, mask, GROUP, SLOTS)),
        ],
        [1],
        [40],
    )


@gluon.jit
def _store_once(desc, out, smem, reps, stride, spread, mask, ADDS: gl.constexpr):
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        row, column = box_at(pid * spread + r, mask, desc.block_type.shape[0])
        start = clock()
        nothing = clock()
        if ADDS:
            tma_reduce_add(desc, [row, column], smem)
        else:
            tma_store(desc, [row, column], smem)
        issued = clock()
        tma_store_wait(0)
        released = clock()
        record(out, pid * reps + r, 0, 3, nothing - start)
        record(out, pid * reps + r, 1, 3, issued - nothing)
        record(out, pid * reps + r, 2, 3, released - nothing)


@probe_kernel
def store_latency(desc, out, reps, stride, spread, mask, ADDS: gl.constexpr):
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_type.shape, desc.layout)
    gl.warp_specialize([(idle, ()), (_store_once, (desc, out, smem, reps, stride, spread, mask, ADDS))], [1], [40])


@gluon.jit
def _store_many(desc, out, smem, reps, inner, stride, spread, mask, SLOTS: gl.constexpr, ADDS: gl.constexpr):
    pid = gl.program_id(0)
    index = pid * spread
    slot = 0
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        for _ in range(inner):
            tma_store_wait(SLOTS - 1)
            row, column = box_at(index, mask, desc.block_type.shape[0])
            if ADDS:
                tma_reduce_add(desc, [row, column], smem.index(slot))
            else:
                tma_store(desc, [row, column], smem.index(slot))
            index += 1
            slot += 1
            slot = slot * (slot != SLOTS).to(gl.int32)
        record(out, pid * reps + r, 0, 1, clock() - start)
    tma_store_wait(0)


@probe_kernel
def store_rate(desc, out, reps, inner, stride, spread, mask, SLOTS: gl.constexpr, ADDS: gl.constexpr):
    BOX: gl.constexpr = desc.block_type.shape
    smem = gl.allocate_shared_memory(desc.dtype, [SLOTS, BOX[0], BOX[1]], desc.layout)
    gl.warp_specialize(
        [(idle, ()), (_store_many, (desc, out, smem, reps, inner, stride, spread, mask, SLOTS, ADDS))], [1], [40]
    )


def _rows(box_bytes: int, element_bytes: int = 2) -> int:
    return box_bytes // (element_bytes * BOX_COLUMNS)


def box_of(box_bytes: int, rows: int, ctas: int = 1) -> Box:
    """Boxes of ``box_bytes`` over a matrix of ``rows``, which a cluster of ``ctas`` CTAs holds whole."""
    return Box("bfloat16", rows, MATRIX_COLUMNS, (_rows(box_bytes), BOX_COLUMNS), ctas=ctas)


def _sums_box(box_bytes: int) -> Box:
    """fp32, as what is reduced; as many boxes, so that the matrix has as many bytes."""
    return Box("float32", L2_ROWS // 2, MATRIX_COLUMNS, (_rows(box_bytes, 4), BOX_COLUMNS))


def boxes(box_bytes: int, rows: int) -> int:
    """How many boxes the matrix has; a power of two."""
    return rows // _rows(box_bytes) * (MATRIX_COLUMNS // BOX_COLUMNS)


def _numbers(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "i32") for name in names)


def load_cases(box_bytes: int, rows: int) -> tuple[Case, Case]:
    """The latency and the rate kernel for one box size over a matrix of ``rows`` rows."""
    group = max(1, BARRIER_BYTES // box_bytes)
    slots = IN_FLIGHT_BYTES // (group * box_bytes)
    desc = ("desc", box_of(box_bytes, rows))
    latency = Case(
        load_latency,
        (
            desc,
            ("out", Pointer("int32", out_elements(COLUMNS))),
            *_numbers("reps", "stride", "first", "spread", "mask"),
        ),
        (),
        4,
    )
    rate = Case(
        load_rate,
        (
            desc,
            ("out", Pointer("int32", out_elements())),
            *_numbers("reps", "inner", "stride", "spread", "step", "mask"),
        ),
        (("GROUP", group), ("SLOTS", slots)),
        4,
    )
    return latency, rate


def store_cases(box_bytes: int, adds: bool) -> tuple[Case, Case]:
    """The latency and the rate kernel of stores, or of reductions that add."""
    slots = IN_FLIGHT_BYTES // box_bytes
    desc = ("desc", _sums_box(box_bytes) if adds else box_of(box_bytes, L2_ROWS))
    out = Pointer("int32", out_elements(COLUMNS))
    latency = Case(
        store_latency, (desc, ("out", out), *_numbers("reps", "stride", "spread", "mask")), (("ADDS", adds),), 4
    )
    rate = Case(
        store_rate,
        (desc, ("out", out), *_numbers("reps", "inner", "stride", "spread", "mask")),
        (("SLOTS", min(slots, 12)), ("ADDS", adds)),
        4,
    )
    return latency, rate


def cases(point: Point) -> tuple[Case, ...]:
    size = point.number("bytes")
    if point.kind in STORES:
        return store_cases(size, point.kind == "tma_reduce")
    return load_cases(size, L2_ROWS if point.text("source") == "l2" else DRAM_ROWS)


def measure(point: Point) -> Iterator[Record]:
    size = point.number("bytes")
    latency, rate = (case.live() for case in cases(point))
    if point.kind in STORES:
        mask = boxes(size, L2_ROWS) - 1
        where = {"spread": 17, "mask": mask}
        sample(latency, COLUMNS, **where)
        cycles = sample(latency, COLUMNS, **where)
        steady = sample(rate, inner=INNER, **where)[:, 0] / INNER
        yield _entry(point, cycles, steady)
        return
    dram = point.text("source") == "dram"
    mask = boxes(size, DRAM_ROWS if dram else L2_ROWS) - 1
    group = int(dict(rate.case.constants)["GROUP"])
    spread = (mask + 1) // 128 if dram else 17
    if dram:
        flush_l2()
    else:
        sample(latency, COLUMNS, first=0, spread=spread, mask=mask)
    cycles = sample(latency, COLUMNS, first=0, spread=spread, mask=mask)
    inner = INNER // group
    # Each of the 4 SMs walks 48 · 96 boxes, 151 MB at most; their starts lie 277 MB apart, so none is read twice.
    if dram:
        flush_l2()
    else:
        sample(rate, inner=inner, spread=spread, step=group, mask=mask)
    steady = sample(rate, inner=inner, spread=spread, step=group, mask=mask)[:, 0] / (inner * group)
    yield _entry(point, cycles, steady)


def _entry(point: Point, cycles: Samples, steady: Samples) -> Record:
    overhead = float(np.median(cycles[:, 0]))
    return cost(
        point.kind,
        point.parameters,
        latency=quantiles(cycles[:, 2] - overhead),
        occupancy=quantiles(steady),
        issue=quantiles(cycles[:, 1] - overhead),
    )

"""Clusters of two CTAs: TMA copies that land in both, and hand-offs from one to the other. Needs Triton 3.9.

``tma_multicast``, of boxes as in :mod:`warpplan.profiler.probes.tma`, out of L2 or DRAM into the shared memory of both:
latency    in the CTA that copies: expect → copy → its own full barrier's wait returns, nothing else in flight.
occupancy  cycles a box in steady state with 192 KB in flight in each CTA.
issue      cycles from before the expect to after the copy instruction.
``handoff(scope=cluster)``: latency is half of a round trip in which warp groups of both CTAs arrive at a barrier of the
first and a warp there, which waits for them, arrives at a barrier of each. Clocks of two SMs do not compare, so the one
way is not measured alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from warpplan.kernels.device.rings import allocate_barriers, init_ring
from warpplan.kernels.triton_compat import gl, gluon, mbarrier, tma_load
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, idle, probe_kernel, record
from warpplan.profiler.probes.harness.sampling import (
    Record,
    Samples,
    cost,
    flush_l2,
    out_elements,
    quantiles,
    sample,
)
from warpplan.profiler.probes.points import Point
from warpplan.profiler.probes.tma import (
    DRAM_ROWS,
    IN_FLIGHT_BYTES,
    INNER,
    L2_ROWS,
    box_at,
    box_of,
    boxes,
)

CTAS = 2
COLUMNS = 3
OPTIONS = (("num_ctas", CTAS),)


@gluon.jit
def _copy_once(desc, out, smem, full, taken, reps, stride, first, spread, mask):
    BOX_ROWS: gl.constexpr = desc.block_type.shape[0]
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        row, column = box_at(first + pid * spread + r, mask, BOX_ROWS)
        # Both CTAs have seen the last box: the next one may land on it.
        mbarrier.wait(taken, (r & 1) ^ 1)
        start = clock()
        nothing = clock()
        mbarrier.expect(full, desc.block_type.nbytes)
        tma_load(desc, [row, column], full, smem, multicast=True)
        issued = clock()
        mbarrier.wait(full, r & 1)
        arrived = clock()
        mbarrier.arrive(taken, count=1)
        record(out, pid * reps + r, 0, 3, nothing - start)
        record(out, pid * reps + r, 1, 3, issued - nothing)
        record(out, pid * reps + r, 2, 3, arrived - nothing)


@probe_kernel
def copy_latency(desc, out, reps, stride, first, spread, mask):
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_type.shape, desc.layout)
    full = allocate_barriers(1, gl.num_ctas())
    taken = allocate_barriers(1, gl.num_ctas(), True)
    init_ring(full, taken, 1, 1)
    copies = (desc, out, smem, full.index(0), taken.index(0), reps, stride, first, spread, mask)
    gl.warp_specialize([(idle, ()), (_copy_once, copies)], [1], [40])


@gluon.jit
def _copy_many(desc, out, smem, full, taken, reps, inner, stride, spread, mask, SLOTS: gl.constexpr):
    pid = gl.program_id(0)
    index = 0
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        for _ in range(inner):
            slot = index % SLOTS
            turn = index // SLOTS
            if turn > 0:
                mbarrier.wait(full.index(slot), (turn - 1) & 1)
                mbarrier.arrive(taken.index(slot), count=1)
            mbarrier.wait(taken.index(slot), (turn & 1) ^ 1)
            mbarrier.expect(full.index(slot), desc.block_type.nbytes)
            row, column = box_at(pid * spread + index, mask, desc.block_type.shape[0])
            tma_load(desc, [row, column], full.index(slot), smem.index(slot), multicast=True)
            index += 1
        record(out, pid * reps + r, 0, 1, clock() - start)
    # Nothing may land in, or arrive at, a CTA that has ended.
    for left in range(gl.maximum(index - SLOTS, 0), index):
        mbarrier.wait(full.index(left % SLOTS), left // SLOTS & 1)


@probe_kernel
def copy_rate(desc, out, reps, inner, stride, spread, mask, SLOTS: gl.constexpr):
    BOX: gl.constexpr = desc.block_type.shape
    smem = gl.allocate_shared_memory(desc.dtype, [SLOTS, BOX[0], BOX[1]], desc.layout)
    full = allocate_barriers(SLOTS, gl.num_ctas())
    taken = allocate_barriers(SLOTS, gl.num_ctas(), True)
    init_ring(full, taken, SLOTS, 1)
    copies = (desc, out, smem, full, taken, reps, inner, stride, spread, mask, SLOTS)
    gl.warp_specialize([(idle, ()), (_copy_many, copies)], [1], [64])


@gluon.jit
def _call(out, called, answered, reps, stride):
    pid = gl.program_id(0)
    for r in range(active_repetitions(reps, stride)):
        start = clock()
        mbarrier.arrive(called, count=1)
        mbarrier.wait(answered, r & 1)
        record(out, pid * reps + r, 0, 1, clock() - start)


@gluon.jit
def _answer(called, answered, reps, stride):
    for r in range(active_repetitions(reps, stride)):
        mbarrier.wait(called, r & 1)
        mbarrier.arrive(answered, count=1, from_cta=0)


@probe_kernel
def round_trip(out, reps, stride):
    called = allocate_barriers(1, gl.num_ctas(), True)
    answered = allocate_barriers(1, gl.num_ctas())
    init_ring(called, answered, 1, 1)
    call = (out, called.index(0), answered.index(0), reps, stride)
    answer = (called.index(0), answered.index(0), reps, stride)
    gl.warp_specialize([(_call, call), (_answer, answer)], [1], [40])


def cases(point: Point) -> tuple[Case, ...]:
    out = ("out", Pointer("int32", out_elements(COLUMNS)))
    if point.kind == "handoff":
        return (Case(round_trip, (out, ("reps", "i32"), ("stride", "i32")), (), 4, OPTIONS),)
    size = point.number("bytes")
    desc = ("desc", box_of(size, L2_ROWS if point.text("source") == "l2" else DRAM_ROWS, CTAS))
    numbers = tuple((name, "i32") for name in ("reps", "stride", "first", "spread", "mask"))
    rates = tuple((name, "i32") for name in ("reps", "inner", "stride", "spread", "mask"))
    return (
        Case(copy_latency, (desc, out, *numbers), (), 4, OPTIONS),
        Case(copy_rate, (desc, out, *rates), (("SLOTS", IN_FLIGHT_BYTES // size),), 4, OPTIONS),
    )


def measure(point: Point) -> Iterator[Record]:
    if point.kind == "handoff":
        (live,) = (case.live() for case in cases(point))
        trips = sample(live)[:, 0]
        yield cost("handoff", point.parameters, latency=quantiles(trips / 2), occupancy=None, issue=None)
        return
    latency, rate = (case.live() for case in cases(point))
    size, dram = point.number("bytes"), point.text("source") == "dram"
    mask = boxes(size, DRAM_ROWS if dram else L2_ROWS) - 1
    spread = (mask + 1) // 128 if dram else 17
    found = [
        _warm_or_cold(dram, lambda: sample(latency, COLUMNS, first=0, spread=spread, mask=mask)),
        _warm_or_cold(dram, lambda: sample(rate, inner=INNER, spread=spread, mask=mask)),
    ]
    overhead = float(np.median(found[0][:, 0]))
    yield cost(
        point.kind,
        point.parameters,
        latency=quantiles(found[0][:, 2] - overhead),
        occupancy=quantiles(found[1][:, 0] / INNER),
        issue=quantiles(found[0][:, 1] - overhead),
    )


def _warm_or_cold(cold: bool, run: Callable[[], Samples]) -> Samples:
    """What ``run`` measures with its boxes in L2, or with none there."""
    if cold:
        flush_l2()
    else:
        run()
    return run()

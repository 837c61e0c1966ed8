"""Hand-offs: through an mbarrier between partitions of one block, and of partial sums between blocks.

Of partitions, by ping-pong: each of two arrives at the other's barrier and waits at its own, so a waiter always waits
before the arrive comes. Both stamp the SM's one cycle counter.
latency  before the arrive → after the wait on the other side (a partition of several warps syncs before it arrives).
issue    cycles the arriving partition is blocked by its arrive.
``barrier_ready``: the issue cycles of a wait that finds its phase complete, for a warp and for a warp group.

``fix_up``, of stream-K's partial sums: a block on every SM at once stores a tile of fp32 elements for the block after
it, arrives at its counter, waits for the block before it, and adds that block's tile to its own.
latency  before the store → the sum is in registers, with what neighbours start apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpplan.kernels.device.stream_k import add_partial_sums, arrive, store_partial_sums, wait_for_arrivals
from warpplan.kernels.triton_compat import gl, gluon, mbarrier
from warpplan.profiler.probes.harness.cases import Case, Pointer
from warpplan.profiler.probes.harness.device_code import active_repetitions, clock, probe_kernel, record, wait_for
from warpplan.profiler.probes.harness.sampling import (
    FEW_SMS,
    MOST_BLOCKS,
    REPETITIONS,
    WARM_REPETITIONS,
    Record,
    Samples,
    cost,
    out_elements,
    quantiles,
    sm_count,
)
from warpplan.profiler.probes.points import ROWS, Point

COLUMNS = 4


@gluon.jit
def _serve(stamps, mine, other, n, reps):
    """Arrive at ``other``, then wait at ``mine``. Stamps: nothing, arrive begins, arrive issued, answer seen."""
    base = stamps + gl.program_id(0) * reps * 4
    for r in range(n):
        start = clock()
        nothing = clock()
        mbarrier.arrive(other, count=1)
        issued = clock()
        mbarrier.wait(mine, r & 1)
        seen = clock()
        gl.store(base + r * 4, nothing - start)
        gl.store(base + r * 4 + 1, nothing)
        gl.store(base + r * 4 + 2, issued)
        gl.store(base + r * 4 + 3, seen)


@gluon.jit
def _return(stamps, mine, other, n, reps):
    """Wait at ``mine``, wait again (now ready), arrive at ``other``. Stamps: ball seen, again, arrive issued."""
    base = stamps + gl.program_id(0) * reps * 4
    for r in range(n):
        mbarrier.wait(mine, r & 1)
        seen = clock()
        mbarrier.wait(mine, r & 1)
        again = clock()
        mbarrier.arrive(other, count=1)
        issued = clock()
        gl.store(base + r * 4, seen)
        gl.store(base + r * 4 + 1, again)
        gl.store(base + r * 4 + 2, issued)


@probe_kernel
def ping_pong(server, returner, reps, stride, SERVER_IS_WORKER: gl.constexpr, WORKER_WARPS: gl.constexpr):
    """``server`` and ``returner`` are int64 stamps [blocks · reps, 4]."""
    to_server = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    to_returner = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(to_server, count=1)
    mbarrier.init(to_returner, count=1)
    n = active_repetitions(reps, stride)
    if SERVER_IS_WORKER:
        gl.warp_specialize(
            [
                (_return, (returner, to_returner, to_server, n, reps)),
                (_serve, (server, to_server, to_returner, n, reps)),
            ],
            [WORKER_WARPS],
            [64],
        )
    else:
        gl.warp_specialize(
            [
                (_serve, (server, to_server, to_returner, n, reps)),
                (_return, (returner, to_returner, to_server, n, reps)),
            ],
            [WORKER_WARPS],
            [64],
        )


@probe_kernel
def exchange(out, sums, counters, reps, ROWS: gl.constexpr, N: gl.constexpr, WARPS: gl.constexpr):
    """``sums`` has two tiles a block, written in turn: the next block may still read the last one. ``counters`` are
    zero before and after. All blocks must be resident: each waits for the one before it, the first for the last."""
    TILE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, N, 16])
    tile = gl.zeros([ROWS, N], gl.float32, TILE)
    pid = gl.program_id(0)
    before = (pid + gl.num_programs(0) - 1) % gl.num_programs(0)
    for r in range(reps):
        while gl.atomic_add(counters + pid, 0, sem="acquire", scope="gpu") == 1:
            pass
        tile = wait_for(tile)
        start = clock()
        store_partial_sums(tile, 2 * pid + (r & 1), sums, 1, 0, 1, 0)
        arrive(counters + pid)
        wait_for_arrivals(counters + before, 1)
        slot = 2 * before + (r & 1)
        tile = add_partial_sums(tile, slot, slot + 1, 1, sums, 1, 0, 1, 0)
        tile = wait_for(tile)
        record(out, pid * reps + r, 0, 1, clock() - start)


def _exchange_case(elements: int) -> Case:
    """A tile as wide as 64 rows make it, up to 256 columns, and then of two warp groups."""
    columns = min(256, elements // ROWS)
    rows = elements // columns
    return Case(
        exchange,
        (
            ("out", Pointer("int32", out_elements())),
            ("sums", Pointer("float32", 2 * MOST_BLOCKS * elements)),
            ("counters", Pointer("int32", MOST_BLOCKS)),
            ("reps", "i32"),
        ),
        (("ROWS", rows), ("N", columns), ("WARPS", rows // 16)),
        rows // 16,
    )


def cases(point: Point) -> tuple[Case, ...]:
    if point.kind == "fix_up":
        return (_exchange_case(point.number("elements")),)
    scope = point.text("scope")
    stamps = Pointer("int64", 160 * REPETITIONS * COLUMNS)
    return (
        Case(
            ping_pong,
            (("server", stamps), ("returner", stamps), ("reps", "i32"), ("stride", "i32")),
            (("SERVER_IS_WORKER", scope == "warp_to_group"), ("WORKER_WARPS", 4 if scope == "group_to_group" else 1)),
            4,
        ),
    )


def measure(point: Point) -> Iterator[Record]:
    yield from _measure_exchange(point) if point.kind == "fix_up" else _measure_ping_pong(point)


def _measure_exchange(point: Point) -> Iterator[Record]:
    import torch

    live, blocks = cases(point)[0].live(), sm_count()
    live.launch(blocks, reps=REPETITIONS)
    torch.cuda.synchronize()
    cycles = live.buffers["out"][: blocks * REPETITIONS].cpu().numpy().reshape(blocks, REPETITIONS)
    latency = quantiles(cycles[:, WARM_REPETITIONS:].reshape(-1).astype(np.float64))
    yield cost("fix_up", point.parameters, latency=latency, occupancy=None, issue=None)


def _measure_ping_pong(point: Point) -> Iterator[Record]:
    import torch

    live = cases(point)[0].live()
    blocks = sm_count()
    stride = max(1, blocks // FEW_SMS)
    live.launch(blocks, reps=REPETITIONS, stride=stride)
    torch.cuda.synchronize()

    def stamps(name: str) -> Samples:
        rows = live.buffers[name][: blocks * REPETITIONS * COLUMNS].cpu().numpy().reshape(blocks, REPETITIONS, COLUMNS)
        worked: Samples = rows[::stride, WARM_REPETITIONS:].reshape(-1, COLUMNS)
        return worked

    server, returner = stamps("server"), stamps("returner")
    overhead = float(np.median(server[:, 0]))
    scope = point.text("scope")
    yield cost(
        "handoff",
        point.parameters,
        latency=quantiles(returner[:, 0] - server[:, 1] - overhead),
        occupancy=None,
        issue=quantiles(server[:, 2] - server[:, 1] - overhead),
    )
    if scope != "group_to_group":
        # The returner is the group of warp_to_group and the warp of group_to_warp.
        waiter = "group" if scope == "warp_to_group" else "warp"
        ready = quantiles(returner[:, 1] - returner[:, 0] - overhead)
        yield cost("barrier_ready", (("scope", waiter),), latency=None, occupancy=None, issue=ready)

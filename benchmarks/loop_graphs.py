"""Loop bodies to solve: attention, GEMM, fused epilogues and layer norm, for Hopper and for Blackwell.

``python benchmarks/loop_graphs.py --out DIR`` writes each as a graph-1 file, to be read by ``warpplan solve``.

**Hopper's costs** are the medians of the embedded profile of an H200, an operation's ``spread`` its p90 − p50; what is
not in the profile is derived below, each with its rate and source. **Blackwell's costs are estimates**: rates of the
vendor's documents for tcgen05 and tensor memory, the H200's medians for what did not change (special functions,
arithmetic, TMA, hand-off); nothing of them was measured on a Blackwell GPU.

An operation is one tile's worth of work: all wgmma of one product, one pass over a tile in registers. Tile arithmetic
is done by one warp group at the rate of the whole SM, so its warps are busy for as long as the unit is.

Accumulators that stay in tensor memory for the whole loop are no ring: their columns are taken off ``tmem_columns``,
and tokens order those who update them in place.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from warpplan.planner import codec
from warpplan.planner.device import B200, H200
from warpplan.planner.graph import Architecture, Dependence, DependenceGraph, Limits, Operation
from warpplan.profiler.embedded import embedded

PROFILE = embedded(H200.name)
WARP_GROUP = 4
THREADS = 128
"""Of a warp group."""
TMA_ALIGNMENT = 1_024
"""A tile swizzled by 128 bytes repeats every 1,024 (CUDA Driver API, ``CUtensorMapSwizzle``)."""
SHARED_BYTES_PER_CYCLE = 128
"""Shared memory's rate on Hopper and on Blackwell (CUDA C++ Best Practices Guide; FlashAttention-4, §2)."""


@dataclass(frozen=True)
class Cost:
    """In SM cycles, as :class:`Operation` has them."""

    latency: int
    occupancy: int
    issue: int
    spread: int = 0


def measured(kind: str, size: int = 0, **text: str) -> Cost:
    """The H200's medians. A latency or occupancy that the profile lacks is the issue time."""
    cost = PROFILE.costs.lookup(kind, size, **text)
    issue = round(cost.issue.p50) if cost.issue else 0
    occupancy = round(cost.occupancy.p50) if cost.occupancy else issue
    latency = round(cost.latency.p50) if cost.latency else occupancy
    spread = round(cost.latency.p90 - cost.latency.p50) if cost.latency else 0
    return Cost(latency, occupancy, issue, spread)


def together(*parts: Cost) -> Cost:
    """Passes over one tile, one after the other."""
    return Cost(*(sum(getattr(part, name.name) for part in parts) for name in fields(Cost)))


def wgmma(rows: int, n: int, k: int, *, a: str = "shared", dtype: str = "bfloat16") -> Cost:
    """A [rows, n] product over k: wgmma m64 of 32 bytes of k each, back to back, without waiting for the last."""
    cost = PROFILE.costs.lookup("wgmma", n, dtype=dtype, a=a)
    count = rows // 64 * k * (1 if dtype.startswith("float8") else 2) // 32
    occupancy = round(count * cost.occupancy.p50)
    tail = round(cost.latency.p50 - cost.occupancy.p50)
    return Cost(occupancy + tail, occupancy, min(occupancy, round(count * cost.issue.p50)))


def tcgen05(n: int, k: int, *, a: str = "shared", element: int = 2) -> Cost:
    """A [128, n] product over k. Estimates: 8,192 bf16 operations a cycle and SM (2.25 PFLOP/s of the B200's data sheet
    over 148 SMs), twice that in fp8, so n / 2 cycles for 32 bytes of k, but no faster than shared memory brings the
    operands; wgmma's tail (pipeline latency); 8 cycles for the one thread that issues an instruction."""
    count = k * element // 32
    operands = (128 * 32 if a == "shared" else 0) + n * 32
    occupancy = count * max(n // 2, operands // SHARED_BYTES_PER_CYCLE)
    tail = PROFILE.costs.lookup("wgmma", 256, dtype="bfloat16", a="shared")
    return Cost(occupancy + round(tail.latency.p50 - tail.occupancy.p50), occupancy, 8 * count)


def tensor_memory(elements: int, element: int = 4) -> Cost:
    """tcgen05.ld or .st of a tile by one warp group. Estimates: each warp moves one 32-bit register of its 32 lanes a
    cycle (512 bytes a cycle and SM), after as long as a load from shared memory takes; the warps wait for it."""
    cycles = elements * element // 512
    return Cost(cycles + SHARED_LATENCY, cycles, cycles)


SHARED_LATENCY = 30
"""Cycles of one load from shared memory on Hopper (Luo et al. 2024, "Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture via Microbenchmarking", table of memory latencies)."""
STATISTIC = measured("elementwise", 1_024)
"""One number a row: the least that was measured."""
STATISTIC_SFU = Cost(latency=40, occupancy=16, issue=16)
"""One special function a row, done by 256 or fewer lanes at 16 a cycle and SM (CUDA C++ Programming Guide, arithmetic
throughput); the latency is MUFU's and the conversions around it."""
ROW_LOAD = replace(measured("tma_load", 4_096, source="l2"), occupancy=8)
"""A row of a few hundred bytes: as long on the way as the smallest tile, but hardly any of the unit's time."""


def pointer_access(size: int, *, store: bool = False) -> Cost:
    """Loads or stores of ``size`` bytes by one warp group through the cache: the SM's share of the L2 rate measured, a
    load as long on its way as the smallest TMA load; 16 bytes a thread and instruction, 4 cycles each to issue."""
    ceilings = dict(PROFILE.ceilings)
    share = ceilings["l2_bytes_per_s"].p50 / H200.sm_count / ceilings["clock_hz_idle"].p50
    occupancy, issue = round(size / share), 4 * -(-size // (16 * THREADS))
    return Cost(occupancy + (0 if store else measured("tma_load", 4_096, source="l2").latency), occupancy, issue)


def gelu(elements: int) -> tuple[Cost, Cost, Cost]:
    """x · sigmoid of a cubic in x: three multiply-adds, an exponential, a reciprocal folded into two multiply-adds."""
    pass_ = measured("elementwise", elements)
    return together(pass_, pass_, pass_), measured("exp2", elements), together(pass_, pass_)


class Loop:
    """A loop body under construction."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.ops: list[Operation] = []
        self.edges: list[Dependence] = []

    def add(self, name: str, unit: str | None, cost: Cost, *reads: str | tuple[str, int], **more: object) -> str:
        """An operation and its data edges; a read is a name, or (name, distance)."""
        self.ops.append(Operation(name, unit, cost.latency, cost.occupancy, cost.issue, spread=cost.spread, **more))
        for read in reads:
            source, distance = (read, 0) if isinstance(read, str) else read
            self.edges.append(Dependence(source, name, distance))
        return name

    def load(self, name: str, size: int, cost: Cost | None = None) -> str:
        """TMA fills a buffer, from L2."""
        return self.add(name, "TMA", cost or measured("tma_load", size, source="l2"), buffer_bytes=size,
                        alignment=TMA_ALIGNMENT if cost is None else 128)  # fmt: skip

    def tile(self, name: str, unit: str, cost: Cost, *reads: str | tuple[str, int], registers: int = 0,
             warps: int = WARP_GROUP, **more: object) -> str:  # fmt: skip
        """Work of a warp group (or of ``warps``) on its tile."""
        return self.add(name, unit, cost, *reads, registers=registers, min_warps=warps, **more)

    def order(self, source: str, destination: str, distance: int = 0, latency: int | None = None) -> None:
        self.edges.append(Dependence(source, destination, distance, "token", latency))

    def carry(self, name: str, latency: int | None = None) -> None:
        """The value is updated by every iteration."""
        self.edges.append(Dependence(name, name, 1, "data", latency))

    def graph(self, name: str, partitions: int, clones: int = 1, tmem_columns: int = 512) -> DependenceGraph:
        """``clones`` copies are told apart by the digit that ends their operations' names."""
        handoff = [
            PROFILE.costs.lookup("handoff", scope=s) for s in ("warp_to_group", "group_to_warp", "group_to_group")
        ]
        crossing = (measured("shared_store", 16_384).occupancy + measured("shared_load", 16_384).occupancy) / 16
        wait, arrive = measured("barrier_ready", scope="group").issue, measured("handoff", scope="group_to_group").issue
        limits = Limits(
            max_partitions=partitions,
            smem_bytes=(B200 if self.architecture == "blackwell" else H200).smem_bytes_per_block,
            registers=H200.registers_per_sm,
            handoff_cycles=round(max(h.latency.p50 for h in handoff)),
            handoff_cycles_per_kb=round(crossing),
            barrier_cycles=round((wait + arrive) / 2),
            tmem_columns=tmem_columns,
            base_registers=24,
            architecture=self.architecture,
        )
        copies = tuple(tuple(op.id for op in self.ops if op.id.endswith(str(i))) for i in range(clones))
        return DependenceGraph(
            f"{name.split()[0]} {self.architecture} {' '.join(name.split()[1:])}",
            tuple(self.ops), tuple(self.edges), limits, clones=copies if clones > 1 else (),
        )  # fmt: skip


# Attention forward: one iteration is a block of keys; a clone is another block of queries.


def attention_forward_hopper(d: int, n: int, clones: int, *, causal: bool = False) -> DependenceGraph:
    """64 rows of queries a clone; scores, weights and output in registers, the weights multiplied from there."""
    loop, rows = Loop("hopper"), 64
    k, v = loop.load("load_k", n * d * 2), loop.load("load_v", n * d * 2)
    for i in range(clones):
        scores = loop.tile(f"qk{i}", "TENSOR", wgmma(rows, n, d), k, registers=rows * n // THREADS)
        alpha, weights = _softmax(loop, i, scores, rows, n, rows * n // THREADS, 2, causal=causal)
        packed = loop.tile(f"convert{i}", "ALU", measured("convert", rows * n), weights, registers=n // 4)
        wide = rows * d // THREADS
        out = f"pv{i}"
        scaled = loop.tile(f"correct{i}", "ALU", measured("elementwise", rows * d), alpha, (out, 1), registers=wide)
        loop.tile(out, "TENSOR", wgmma(rows, d, n, a="register"), packed, v, scaled, registers=wide)
    name = f"attention-forward d{d} n{n} x{clones}{' causal' if causal else ''}"
    return loop.graph(name, 2 + clones, clones)


def attention_forward_blackwell(
    d: int, n: int, clones: int, *, causal: bool = False, emulated: float = 0.0
) -> DependenceGraph:
    """128 rows of queries a clone; scores and weights in tensor memory, output too, rescaled there in place.

    ``emulated`` is the share of exponentials done by polynomial on the ALU (FlashAttention-4, §3: about 10 operations).
    """
    loop, rows = Loop("blackwell"), 128
    k, v = loop.load("load_k", n * d * 2), loop.load("load_v", n * d * 2)
    for i in range(clones):
        scores = loop.add(f"qk{i}", "TENSOR", tcgen05(n, d), k, buffer_bytes=rows * n * 4, memory="tmem")
        here = loop.tile(f"load_s{i}", "LSU", tensor_memory(rows * n), scores, registers=n)
        alpha, weights = _softmax(loop, i, here, rows, n, n, 1, causal=causal, emulated=emulated)
        # Converted and written a few columns at a time: no register of its own.
        packing = together(measured("convert", rows * n), tensor_memory(rows * n, 2))
        packed = loop.tile(f"store_p{i}", "ALU", packing, *weights.split(), buffer_bytes=rows * n * 2, memory="tmem")
        out = f"pv{i}"
        touch = together(tensor_memory(rows * d), STATISTIC, tensor_memory(rows * d))
        scaled = loop.tile(f"correct{i}", "LSU", touch, alpha, registers=32)
        loop.add(out, "TENSOR", tcgen05(d, n, a="tmem"), packed, v)
        loop.order(out, scaled, 1)
        loop.order(scaled, out)
    share = f" emulated{round(100 * emulated)}" if emulated else ""
    name = f"attention-forward d{d} n{n} x{clones}{' causal' if causal else ''}{share}"
    return loop.graph(name, 3 + clones, clones, tmem_columns=512 - clones * d)


def _softmax(
    loop: Loop, i: int, scores: str, rows: int, n: int, registers: int, per_thread: int, *, causal: bool,
    emulated: float = 0.0,
) -> tuple[str, str]:  # fmt: skip
    """Online softmax of one tile: names of the correction factor and of the weights (two where some are emulated)."""
    size = rows * n
    if causal:
        compare_and_select = together(measured("elementwise", size), measured("elementwise", size))
        scores = loop.tile(f"mask{i}", "ALU", compare_and_select, scores, registers=registers)
    maximum = loop.tile(f"max{i}", "ALU", measured("row_max", size), scores, registers=per_thread)
    loop.carry(maximum)
    alpha = loop.tile(f"alpha{i}", "SFU", STATISTIC_SFU, maximum, (maximum, 1), registers=per_thread)
    slow = size - round(emulated * size)
    weights = [loop.tile(f"exp{i}", "SFU", measured("exp2", slow), scores, maximum, registers=registers * slow // size)]
    if emulated:
        polynomial = together(*10 * [measured("elementwise", size - slow)])
        rest = registers - registers * slow // size
        weights.append(loop.tile(f"exp_alu{i}", "ALU", polynomial, scores, maximum, registers=rest))
    total = loop.tile(f"sum{i}", "ALU", measured("row_sum", size), *weights, alpha, registers=per_thread)
    loop.carry(total)
    return alpha, " ".join(weights)


# Attention backward: one iteration is a block of m queries; keys and values stay, a clone is another block of them.


def attention_backward_hopper(d: int, m: int, clones: int, *, causal: bool = False) -> DependenceGraph:
    """64 rows of keys a clone. Scores are transposed, so that P and dS feed dV and dK from registers; dS also goes
    through shared memory, where each clone multiplies all of it by its share of K's columns into dQ."""
    loop, rows = Loop("hopper"), 64
    q, do, lse, delta = _backward_loads(loop, d, m)
    tile, size, accumulator = rows * m // THREADS, rows * m, rows * d // THREADS
    stored = []
    for i in range(clones):
        scores = loop.tile(f"s{i}", "TENSOR", wgmma(rows, m, d), q, registers=tile)
        grads = loop.tile(f"dp{i}", "TENSOR", wgmma(rows, m, d), do, registers=tile)
        if causal:
            compare_and_select = together(measured("elementwise", size), measured("elementwise", size))
            scores = loop.tile(f"mask{i}", "ALU", compare_and_select, scores, registers=tile)
        p = loop.tile(f"exp{i}", "SFU", measured("exp2", size), scores, lse, registers=tile)
        packed = loop.tile(f"convert_p{i}", "ALU", measured("convert", size), p, registers=tile // 2)
        into_v = wgmma(rows, d, m, a="register")
        loop.carry(loop.tile(f"dv{i}", "TENSOR", into_v, packed, do, registers=accumulator), into_v.occupancy)
        twice = together(measured("elementwise", size), measured("elementwise", size))
        ds = loop.tile(f"ds{i}", "ALU", twice, p, grads, delta, registers=tile)
        low = loop.tile(f"convert_ds{i}", "ALU", measured("convert", size), ds, registers=tile // 2)
        loop.carry(loop.tile(f"dk{i}", "TENSOR", into_v, low, q, registers=accumulator), into_v.occupancy)
        stored.append(
            loop.tile(f"store_ds{i}", "LSU", _fenced_store(size * 2), low, buffer_bytes=size * 2,
                      alignment=TMA_ALIGNMENT)
        )  # fmt: skip
    for i in range(clones):
        dq = loop.tile(f"dq{i}", "TENSOR", wgmma(m, d // clones, rows * clones), *stored,
                       registers=m * d // clones // THREADS)  # fmt: skip
        _reduce_dq(loop, i, dq, m * d // clones * 4)
    name = f"attention-backward d{d} m{m} x{clones}{' causal' if causal else ''}"
    return loop.graph(name, 2 + clones, clones)


def attention_backward_blackwell(d: int, m: int, *, causal: bool = False) -> DependenceGraph:
    """128 rows of keys; eight warps share the scores' tile. S, P, dP and dQ take turns in tensor memory."""
    loop, rows, warps = Loop("blackwell"), 128, 8
    q, do, lse, delta = _backward_loads(loop, d, m)
    size, tile = rows * m, rows * m // (2 * THREADS)
    half = {"registers": tile, "warps": warps}
    s = loop.add("s", "TENSOR", tcgen05(m, d), q, buffer_bytes=size * 4, memory="tmem")
    dp = loop.add("dp", "TENSOR", tcgen05(m, d), do, buffer_bytes=size * 4, memory="tmem")
    scores = loop.tile("load_s", "LSU", tensor_memory(size), s, **half)
    if causal:
        compare_and_select = together(measured("elementwise", size), measured("elementwise", size))
        scores = loop.tile("mask", "ALU", compare_and_select, scores, **half)
    p = loop.tile("exp", "SFU", measured("exp2", size), scores, lse, **half)
    packing = together(measured("convert", size), tensor_memory(size, 2))
    packed = loop.tile("store_p", "ALU", packing, p, warps=warps, buffer_bytes=size * 2, memory="tmem")
    into_v = tcgen05(d, m, a="tmem")
    dv = loop.add("dv", "TENSOR", into_v, packed, do)
    loop.order(dv, dv, 1, into_v.occupancy)
    grads = loop.tile("load_dp", "LSU", tensor_memory(size), dp, **half)
    twice = together(measured("elementwise", size), measured("elementwise", size))
    ds = loop.tile("ds", "ALU", twice, p, grads, delta, **half)
    low = loop.tile("convert_ds", "ALU", measured("convert", size), ds, registers=tile // 2, warps=warps)
    stored = loop.tile("store_ds", "LSU", _fenced_store(size * 2), low, warps=warps, buffer_bytes=size * 2,
                       alignment=TMA_ALIGNMENT)  # fmt: skip
    into_k = tcgen05(d, m)
    dk = loop.add("dk", "TENSOR", into_k, stored, q)
    loop.order(dk, dk, 1, into_k.occupancy)
    # tcgen05 of 64 rows takes as long as of 128, in 64 of the lanes.
    dq = loop.add("dq", "TENSOR", tcgen05(d, rows), stored, buffer_bytes=m * d * 4, memory="tmem", lanes=min(m, 128))
    out = loop.tile("load_dq", "LSU", tensor_memory(m * d), dq, registers=m * d // THREADS // 2)
    _reduce_dq(loop, 0, out, m * d * 4)
    name = f"attention-backward d{d} m{m}{' causal' if causal else ''}"
    return loop.graph(name, 5, tmem_columns=512 - 2 * d)


def _backward_loads(loop: Loop, d: int, m: int) -> tuple[str, str, str, str]:
    q, do = loop.load("load_q", m * d * 2), loop.load("load_do", m * d * 2)
    return q, do, loop.load("load_lse", m * 4, ROW_LOAD), loop.load("load_delta", m * 4, ROW_LOAD)


def _fenced_store(size: int) -> Cost:
    """Registers to shared memory for the asynchronous proxy: the store, and the wait until it may be read."""
    store, fenced = measured("shared_store", size), measured("epilogue_store", size // 2)
    return Cost(fenced.latency, store.occupancy, store.issue)


def _reduce_dq(loop: Loop, i: int, dq: str, size: int) -> None:
    """fp32 to shared memory, and from there added into global memory; a reduction costs what a store does."""
    staged = loop.tile(f"stage_dq{i}", "LSU", _fenced_store(size), dq, buffer_bytes=size, alignment=TMA_ALIGNMENT)
    loop.add(f"reduce_dq{i}", "TMA", measured("tma_store", size), staged)


# GEMM: one iteration is a block of k.


def gemm_hopper(m: int, n: int, k: int, clones: int, boxes: int = 1) -> DependenceGraph:
    """bf16: each clone multiplies its rows of A by all of B, which comes in ``boxes`` loads."""
    loop, rows = Loop("hopper"), m // clones
    b = [loop.load(f"load_b_{'abcd'[j]}", n // boxes * k * 2) for j in range(boxes)]
    for i in range(clones):
        a, cost = loop.load(f"load_a{i}", rows * k * 2), wgmma(rows, n, k)
        mma = loop.tile(f"mma{i}", "TENSOR", cost, a, *b, registers=rows * n // THREADS)
        loop.carry(mma, cost.occupancy)
    return loop.graph(f"gemm bf16 {m}x{n}x{k} x{clones}", 1 + clones, clones)


def gemm_hopper_scaled(m: int, n: int, clones: int) -> DependenceGraph:
    """fp8 with a scale for each 128 of k: each product is scaled and added to the fp32 sum on the ALU."""
    loop, rows, k = Loop("hopper"), m // clones, 128
    b, scale_b = loop.load("load_b", n * k), loop.load("load_scale_b", 4 * n, ROW_LOAD)
    for i in range(clones):
        a, scale_a = loop.load(f"load_a{i}", rows * k), loop.load(f"load_scale_a{i}", 4 * rows, ROW_LOAD)
        registers = rows * n // THREADS
        mma = loop.tile(f"mma{i}", "TENSOR", wgmma(rows, n, k, dtype="float8_e4m3fn"), a, b, registers=registers)
        scales = loop.tile(f"scale{i}", "ALU", STATISTIC, scale_a, scale_b, registers=2)
        add = loop.tile(f"add{i}", "ALU", measured("elementwise", rows * n), mma, scales, registers=registers)
        loop.carry(add)
    return loop.graph(f"gemm fp8-scaled {m}x{n}x{k} x{clones}", 2 + clones, clones)


def gemm_blackwell(m: int, n: int, k: int, clones: int, boxes: int = 1) -> DependenceGraph:
    """bf16: 128 rows a clone, accumulators in tensor memory."""
    loop = Loop("blackwell")
    b = [loop.load(f"load_b_{'abcd'[j]}", n // boxes * k * 2) for j in range(boxes)]
    for i in range(clones):
        a, cost = loop.load(f"load_a{i}", 128 * k * 2), tcgen05(n, k)
        mma = loop.add(f"mma{i}", "TENSOR", cost, a, *b)
        loop.order(mma, mma, 1, cost.occupancy)
    return loop.graph(f"gemm bf16 {m}x{n}x{k} x{clones}", 1 + clones, clones, 512 - clones * n)


def gemm_blackwell_scaled(n: int, k: int) -> DependenceGraph:
    """fp8 with a scale for each 32 of k (mxfp8), copied from shared to tensor memory by tcgen05.cp on the tensor core's
    path, at shared memory's rate: 128 rows of 4 bytes, in four columns, for each 128 of k."""
    loop, blocks = Loop("blackwell"), k // 128
    copy = Cost(SHARED_LATENCY + 4 * 128 * blocks // SHARED_BYTES_PER_CYCLE, 4 * blocks, 8 * blocks)
    loads = [loop.load("load_a", 128 * k), loop.load("load_b", n * k)]
    scales = []
    for side, rows in (("a", 128), ("b", n)):
        scale = loop.load(f"load_scale_{side}", rows * k // 32, ROW_LOAD)
        width = rows // 128 * 4 * 4 * blocks
        scales.append(
            loop.add(f"copy_scale_{side}", "TENSOR", copy, scale, buffer_bytes=128 * width, memory="tmem")
        )  # fmt: skip
    cost = tcgen05(n, k, element=1)
    mma = loop.add("mma", "TENSOR", cost, *loads, *scales)
    loop.order(mma, mma, 1, cost.occupancy)
    return loop.graph(f"gemm mxfp8 128x{n}x{k}", 3, tmem_columns=512 - n)


# Fused epilogue: one iteration is a tile of a persistent GEMM, its short loop over k unrolled.

BLOCK_K = 64


def fused_hopper(
    n: int, blocks: int, clones: int, *, activation: bool = False, residual: bool = False
) -> DependenceGraph:
    """64 rows of the tile a clone, accumulators and epilogue in its registers."""
    loop, rows = Loop("hopper"), 64
    b = [loop.load(f"load_b_{'abcdefgh'[j]}", n * BLOCK_K * 2) for j in range(blocks)]
    for i in range(clones):
        mma, cost = "", wgmma(rows, n, BLOCK_K)
        for j in range(blocks):
            a = loop.load(f"load_a_{'abcdefgh'[j]}{i}", rows * BLOCK_K * 2)
            name = f"mma_{'abcdefgh'[j]}{i}"
            loop.tile(name, "TENSOR", cost, a, b[j], registers=rows * n // THREADS)
            if mma:
                loop.edges.append(Dependence(mma, name, latency=cost.occupancy))
            mma = name
        _epilogue(loop, i, mma, rows, n, WARP_GROUP, activation=activation, residual=residual)
    parts = ["bias", *(["gelu"] if activation else []), *(["residual"] if residual else [])]
    return loop.graph(f"fused-epilogue {'+'.join(parts)} {64 * clones}x{n}x{BLOCK_K * blocks} x{clones}", 2 + clones,
                      clones)  # fmt: skip


def fused_blackwell(n: int, blocks: int, *, activation: bool = False, residual: bool = False) -> DependenceGraph:
    """128 rows; the accumulator is a ring in tensor memory, which the first product opens and the epilogue frees. Eight
    warps share the epilogue, half of the columns each group."""
    loop, rows, warps = Loop("blackwell"), 128, 8
    first, mma, cost = "", "", tcgen05(n, BLOCK_K)
    for j in range(blocks):
        a, b = loop.load(f"load_a_{j}", rows * BLOCK_K * 2), loop.load(f"load_b_{j}", n * BLOCK_K * 2)
        name, buffer = f"mma_{j}", {} if mma else {"buffer_bytes": rows * n * 4, "memory": "tmem"}
        loop.add(name, "TENSOR", cost, a, b, **buffer)
        if mma:
            loop.order(mma, name, latency=cost.occupancy)
        first, mma = first or name, name
    here = loop.tile("load_acc", "LSU", tensor_memory(rows * n), first, registers=n // 2, warps=warps)
    loop.order(mma, here)
    _epilogue(loop, 0, here, rows, n, warps, activation=activation, residual=residual)
    parts = ["bias", *(["gelu"] if activation else []), *(["residual"] if residual else [])]
    return loop.graph(f"fused-epilogue {'+'.join(parts)} {rows}x{n}x{BLOCK_K * blocks}", 5)


def _epilogue(
    loop: Loop, i: int, value: str, rows: int, n: int, warps: int, *, activation: bool, residual: bool
) -> None:
    size, registers = rows * n, rows * n // (32 * warps)
    full = {"registers": registers, "warps": warps}
    row = loop.load(f"load_bias{i}", n * 4, ROW_LOAD)
    value = loop.tile(f"bias{i}", "ALU", measured("elementwise", size), value, row, **full)
    if activation:
        cubic, exponential, product = gelu(size)
        inner = loop.tile(f"gelu_in{i}", "ALU", cubic, value, **full)
        curve = loop.tile(f"gelu_exp{i}", "SFU", exponential, inner, **full)
        value = loop.tile(f"gelu_out{i}", "ALU", product, value, curve, **full)
    if residual:
        skip, half = loop.load(f"load_residual{i}", size * 2), {"registers": registers // 2, "warps": warps}
        read = loop.tile(f"read_residual{i}", "LSU", measured("shared_load", size * 2), skip, **half)
        value = loop.tile(f"residual{i}", "ALU", measured("elementwise", size), value, read, **full)
    staged = loop.tile(f"stage{i}", "LSU", measured("epilogue_store", size), value, warps=warps,
                       buffer_bytes=size * 2, alignment=TMA_ALIGNMENT)  # fmt: skip
    loop.add(f"store{i}", "TMA", measured("tma_store", size * 2), staged)


# Layer norm: one iteration is a block of rows, by pointers or by TMA.


def layer_norm_forward(
    architecture: Architecture, size: int, clones: int = 1, *, tma: bool = False, activation: bool = False
) -> DependenceGraph:
    """``size`` elements of bf16 a clone; mean, then variance, then weight and bias."""
    loop, wide = Loop(architecture), size // THREADS
    pass_ = measured("elementwise", size)
    for i in range(clones):
        x = _block(loop, "x", i, size, tma=tma)
        total = loop.tile(f"sum{i}", "ALU", measured("row_sum", size), x, registers=2)
        mean = loop.tile(f"mean{i}", "ALU", STATISTIC, total, registers=2)
        centred = loop.tile(f"centre{i}", "ALU", pass_, x, mean, registers=wide)
        squares = loop.tile(f"squares{i}", "ALU", together(pass_, measured("row_sum", size)), centred, registers=2)
        rstd = loop.tile(f"rstd{i}", "SFU", STATISTIC_SFU, squares, registers=2)
        scaled = loop.tile(f"scale{i}", "ALU", pass_, centred, rstd, registers=wide)
        # Weight and bias of the columns, fp32, stay in shared memory.
        weight = loop.tile(f"read_weight{i}", "LSU", measured("shared_load", 4_096), registers=8)
        value = loop.tile(f"affine{i}", "ALU", pass_, scaled, weight, registers=wide)
        if activation:
            cubic, exponential, product = gelu(size)
            inner = loop.tile(f"gelu_in{i}", "ALU", cubic, value, registers=wide)
            curve = loop.tile(f"gelu_exp{i}", "SFU", exponential, inner, registers=wide)
            value = loop.tile(f"gelu_out{i}", "ALU", product, value, curve, registers=wide)
        _write(loop, "y", i, value, size, tma=tma)
    how = f"{'tma' if tma else 'pointers'}{' gelu' if activation else ''}"
    return loop.graph(f"layer-norm-forward {how} {size} x{clones}", 2 + clones, clones)


def layer_norm_backward(
    architecture: Architecture, size: int, clones: int = 1, *, tma: bool = False
) -> DependenceGraph:
    """dx of a block of rows; the sums of dw and db stay in registers."""
    loop, wide = Loop(architecture), size // THREADS
    pass_ = measured("elementwise", size)
    for i in range(clones):
        x, dy = _block(loop, "x", i, size, tma=tma), _block(loop, "dy", i, size, tma=tma)
        statistics = loop.tile(f"load_statistics{i}", "LSU", pointer_access(512), registers=4)
        weight = loop.tile(f"read_weight{i}", "LSU", measured("shared_load", 4_096), registers=8)
        normal = loop.tile(f"normal{i}", "ALU", pass_, x, statistics, registers=wide)
        loop.carry(loop.tile(f"db{i}", "ALU", pass_, dy, registers=wide // 8))
        loop.carry(loop.tile(f"dw{i}", "ALU", pass_, dy, normal, registers=wide // 8))
        weighted = loop.tile(f"weighted{i}", "ALU", pass_, dy, weight, registers=wide)
        product = together(pass_, measured("row_sum", size))
        both = loop.tile(f"sum_product{i}", "ALU", product, normal, weighted, registers=2)
        one = loop.tile(f"sum{i}", "ALU", measured("row_sum", size), weighted, registers=2)
        inside = loop.tile(f"combine{i}", "ALU", together(pass_, pass_), normal, both, one, weighted, registers=wide)
        dx = loop.tile(f"dx{i}", "ALU", pass_, inside, statistics, registers=wide)
        _write(loop, "dx", i, dx, size, tma=tma)
    return loop.graph(f"layer-norm-backward {'tma' if tma else 'pointers'} {size} x{clones}", 2 + clones, clones)


def _block(loop: Loop, name: str, i: int, size: int, *, tma: bool) -> str:
    """A block of rows in registers, two bf16 each."""
    if not tma:
        return loop.tile(f"load_{name}{i}", "LSU", pointer_access(2 * size), registers=size // THREADS // 2)
    tile = loop.load(f"load_{name}{i}", 2 * size)
    return loop.tile(f"read_{name}{i}", "LSU", measured("shared_load", 2 * size), tile, registers=size // THREADS // 2)


def _write(loop: Loop, name: str, i: int, value: str, size: int, *, tma: bool) -> None:
    if tma:
        staged = loop.tile(f"stage_{name}{i}", "LSU", measured("epilogue_store", size), value, buffer_bytes=2 * size,
                           alignment=TMA_ALIGNMENT)  # fmt: skip
        loop.add(f"store_{name}{i}", "TMA", measured("tma_store", 2 * size), staged)
        return
    packed = loop.tile(f"convert_{name}{i}", "ALU", measured("convert", size), value, registers=size // THREADS // 2)
    loop.tile(f"store_{name}{i}", "LSU", pointer_access(2 * size, store=True), packed)


def graphs() -> dict[str, DependenceGraph]:
    """Every loop body, by name."""
    bodies = (
        attention_forward_hopper(64, 128, 1),
        attention_forward_hopper(128, 128, 1, causal=True),
        attention_forward_hopper(128, 128, 2),
        attention_forward_hopper(64, 128, 3),
        attention_forward_blackwell(64, 128, 1),
        attention_forward_blackwell(128, 128, 1, causal=True, emulated=0.25),
        attention_forward_blackwell(128, 128, 2),
        attention_forward_blackwell(64, 128, 2, emulated=0.25),
        attention_backward_hopper(128, 64, 1),
        attention_backward_hopper(128, 64, 2),
        attention_backward_hopper(64, 128, 2, causal=True),
        attention_backward_hopper(64, 64, 2),
        attention_backward_blackwell(64, 64),
        attention_backward_blackwell(64, 128, causal=True),
        attention_backward_blackwell(128, 128),
        gemm_hopper(128, 256, 64, 2),
        gemm_hopper(192, 128, 64, 3, boxes=2),
        gemm_hopper_scaled(128, 128, 2),
        gemm_blackwell(128, 256, 64, 1, boxes=4),
        gemm_blackwell(256, 128, 64, 2, boxes=2),
        gemm_blackwell_scaled(256, 128),
        fused_hopper(128, 2, 1),
        fused_hopper(128, 3, 2, activation=True),
        fused_hopper(128, 4, 2, activation=True, residual=True),
        fused_blackwell(128, 4),
        fused_blackwell(128, 4, activation=True),
        fused_blackwell(64, 8, activation=True, residual=True),
        layer_norm_forward("hopper", 8_192),
        layer_norm_forward("hopper", 8_192, 2, tma=True, activation=True),
        layer_norm_backward("hopper", 4_096, 2),
        layer_norm_forward("blackwell", 8_192, 2),
        layer_norm_backward("blackwell", 8_192, tma=True),
    )
    return {body.name: body for body in bodies}


def file_name(name: str) -> str:
    return name.replace(" ", "-") + ".json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the graph files")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, graph in graphs().items():
        (folder / file_name(name)).write_text(json.dumps(codec.to_json(graph), indent=1) + "\n")
        print(f"{folder / file_name(name)}: {len(graph.ops)} operations, {len(graph.edges)} edges")


if __name__ == "__main__":
    main()

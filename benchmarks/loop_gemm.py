"""Loops of GEMM, and of GEMM with a fused epilogue."""

from __future__ import annotations

from loop_costs import (
    ROW_LOAD,
    SHARED_BYTES_PER_CYCLE,
    SHARED_LATENCY,
    STATISTIC,
    THREADS,
    TMA_ALIGNMENT,
    WARP_GROUP,
    Cost,
    Loop,
    gelu,
    measured,
    tcgen05,
    tensor_memory,
    wgmma,
)

from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph

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

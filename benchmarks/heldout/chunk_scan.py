"""Mamba-2's state-space duality (Dao and Gu 2024): the loops over k of mamba_ssm's ``_chunk_scan_fwd_kernel`` and
``_chunk_state_fwd_kernel``, the loop over chunks of its ``_state_passing_fwd_kernel``, and the loop over chunks of
CUTLASS's fused Blackwell SSD (example 112), where the state is carried from chunk to chunk."""

from __future__ import annotations

from random import Random

from loop_costs import STATISTIC, STATISTIC_SFU, THREADS, measured, pointer_access, tensor_memory, together
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph


def chunk_scan(architecture: Architecture, draw: Random) -> DependenceGraph:
    build = draw.choice((scan, state, fused, fused, passing))
    return build(VariedLoop(architecture, draw), draw)


def scan(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """acc += ((C Bᵀ) · exp(dA_m − dA_k) · dt_k, masked) x, over the chunk's blocks of k; C Bᵀ comes from memory."""
    k = draw.choice((32, 64))
    n, clones = draw.choice(((64, 1), (64, 2), (128, 2), (64, 3)) if loop.hopper else ((64, 1), (128, 1), (64, 2)))
    causal = draw.random() < 0.6
    x = loop.fill("load_x", k * n * 2)
    decay, dt = loop.row("load_da", k * 4), loop.row("load_dt", k * 4)
    for i in range(clones):
        size = loop.rows * k
        here = loop.read(f"read_cb{i}", size, loop.fill(f"load_cb{i}", size * 2))
        differences = loop.passes(f"difference{i}", size, 1, decay)
        factor = loop.exponential(f"decay{i}", size, differences)
        wide = loop.passes(f"multiply{i}", size, 3, here, factor, dt)  # as fp32, times decay, times dt
        if causal:
            wide = loop.passes(f"mask{i}", size, 2, wide)
        packed = loop.fed(f"convert{i}", size, wide)
        loop.accumulate(loop.product(f"mma{i}", loop.rows, n, k, packed, x, a="register", resident=True))
    name = f"chunk-scan scan{' causal' if causal else ''} n{n} k{k} x{clones}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * n)


def state(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """acc += xᵀ (B · exp(dA_last − dA_k) · dt_k), over the chunk's blocks of k: B goes through registers and back."""
    k = draw.choice((64, 128))
    n, clones = draw.choice(((64, 1), (128, 1), (64, 2), (128, 2)) if loop.hopper else ((64, 1), (128, 1), (64, 2)))
    b = loop.fill("load_b", k * n * 2)
    decay, dt = loop.row("load_da", k * 4), loop.row("load_dt", k * 4)
    weight = loop.tile("weight", "SFU", STATISTIC_SFU, decay, dt, registers=2)
    here = loop.read("read_b", k * n, b)
    scaled = loop.passes("scale_b", k * n, 1, here, weight, half=True)
    kept = loop.keep("keep_b", k * n, scaled)
    for i in range(clones):
        x = loop.fill(f"load_x{i}", loop.rows * k * 2)
        loop.accumulate(loop.product(f"mma{i}", loop.rows, n, k, x, kept, resident=True))
    return loop.finish(f"chunk-scan state n{n} k{k} x{clones}", 3 + clones, clones, 512 - clones * n)


def fused(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """One iteration is a chunk: within it as attention with decays for weights, between chunks through the state, which
    fades and is added to. y may have D · x added."""
    chunk, heads = loop.rows, 64
    size, states = draw.choice((64, 128)) if loop.hopper else 128, draw.random() < 0.5
    direct = draw.random() < 0.5
    b, c = loop.fill("load_b", chunk * size * 2), loop.fill("load_c", chunk * size * 2)
    x = loop.fill("load_x", chunk * heads * 2)
    decay = loop.row("load_da", chunk * 4)
    # Within the chunk.
    scores = loop.fetched("cb", chunk, chunk, size, c, b)
    factor = loop.exponential("decay", chunk * chunk, loop.passes("difference", chunk * chunk, 1, decay))
    packed = loop.fed("convert", chunk * chunk, loop.passes("weigh", chunk * chunk, 2, scores, factor))
    # The state as the last chunk left it, in shared memory to be multiplied with, and faded to be added to.
    whole = size * heads
    if loop.hopper:
        faded = loop.passes("fade", whole, 1, ("state", 1), decay)
        half = loop.tile("convert_s", "ALU", measured("convert", whole), ("state", 1), registers=whole // 256)
    else:
        here = loop.tile("fetch_state", "LSU", tensor_memory(whole), registers=whole // THREADS)
        loop.order("state", here, 1)
        half = loop.tile("convert_s", "ALU", measured("convert", whole), here, registers=whole // 256)
        back = together(measured("elementwise", whole), tensor_memory(whole))
        faded = loop.tile("fade", "LSU", back, here, decay, registers=8)
    kept = loop.keep("keep_s", whole, half)
    if states:
        loop.add("write_s", "TMA", measured("tma_store", whole * 2), kept)
    between = loop.fetched("inter", chunk, heads, size, c, kept)
    row = loop.tile("exp_row", "SFU", STATISTIC_SFU, decay, registers=2)
    before = loop.passes("scale_y", chunk * heads, 1, between, row)
    if loop.hopper:
        y = loop.product("intra", chunk, heads, chunk, packed, x, before, a="register")
    else:
        y = loop.passes("add_y", chunk * heads, 1, loop.fetched("intra", chunk, heads, chunk, packed, x, a="register"),
                        before)  # fmt: skip
    # B, weighted by what is left of each step at the chunk's end.
    weighed = loop.passes("weigh_b", chunk * size, 1, loop.read("read_b", chunk * size, b), decay, half=True)
    b_kept = loop.keep("keep_b", chunk * size, weighed)
    if loop.hopper:
        loop.product("state", size, heads, chunk, b_kept, x, faded)
    else:
        loop.product("state", size, heads, chunk, b_kept, x, resident=True)
        loop.accumulate("state")
        loop.order(faded, "state")
    if direct:
        y = loop.passes("direct", chunk * heads, 1, y, loop.read("read_x", chunk * heads, x))
    loop.put("y", chunk * heads, y)
    name = f"chunk-scan fused n{size}{' states' if states else ''}{' direct' if direct else ''}"
    return loop.finish(name, 5, tmem_columns=512 - heads)


def passing(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """s ← exp(dA) s + new, element by element; each chunk's s is written before it."""
    size = draw.choice((2_048, 4_096, 8_192))
    clones, tma = draw.choice((1, 2, 3)), draw.random() < 0.5
    for i in range(clones):
        decay = loop.tile(f"load_da{i}", "LSU", pointer_access(32), warps=1, registers=1)
        factor = loop.tile(f"exp{i}", "SFU", STATISTIC_SFU, decay, registers=1)
        if tma:
            new = loop.read(f"read_new{i}", size, loop.fill(f"load_new{i}", size * 4, source="dram"), element=4)
        else:
            new = loop.tile(f"load_new{i}", "LSU", pointer_access(size * 4), registers=size // THREADS)
        running = loop.passes(f"update{i}", size, 1, factor, new, (f"update{i}", 1))
        if tma:
            loop.put(f"s{i}", size, running, element=4)
        else:
            loop.tile(f"store{i}", "LSU", pointer_access(size * 4, store=True), running)
        loop.tile(f"advance{i}", "ALU", STATISTIC, (f"advance{i}", 1), registers=2)
        loop.order(f"advance{i}", f"load_da{i}", 1)
    return loop.finish(f"chunk-scan passing {'tma' if tma else 'pointers'} {size} x{clones}", 2 + clones, clones)

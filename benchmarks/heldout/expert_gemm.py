"""Mixture of experts: the loop over k of vLLM's ``fused_moe_kernel`` (Triton) and of DeepGEMM's grouped GEMM
(``fp8_gemm_nt_grouped``), and the loop over tiles of a persistent grouped GEMM (Triton's tutorial 08, CUTLASS example
57). Rows of tokens are gathered by index: by cp.async on Hopper, by TMA's gather4 on Blackwell."""

from __future__ import annotations

from random import Random

from loop_costs import ROW_LOAD, STATISTIC, STATISTIC_SFU, TMA_ALIGNMENT, measured, pointer_access, together
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph


def expert_gemm(architecture: Architecture, draw: Random) -> DependenceGraph:
    build = draw.choice((gate_and_up, scaled_blocks, tiles))
    return build(VariedLoop(architecture, draw), draw)


def gather(loop: VariedLoop, name: str, size: int, *reads: str) -> str:
    """Rows of tokens into shared memory, ``reads`` the registers with their indices."""
    if loop.hopper:
        return loop.tile(name, "LSU", pointer_access(size), *reads, buffer_bytes=size, alignment=TMA_ALIGNMENT)
    return loop.fill(name, size, *reads)


def gate_and_up(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """One iteration is a block of k of both projections of a gated MLP, which share the tokens."""
    k = draw.choice((64, 128))
    n, clones = draw.choice(((64, 1), (64, 2), (128, 1), (96, 2), (64, 3)) if loop.hopper
                            else ((64, 1), (128, 1), (64, 2), (128, 2)))  # fmt: skip
    boxes = draw.choice((1, 2)) if k == 64 else 1
    weights = {
        side: [loop.fill(f"load_w.{side}-{box}", n // boxes * k * 2, source="dram") for box in "ab"[:boxes]]
        for side in ("gate", "up")
    }
    for i in range(clones):
        tokens = gather(loop, f"gather{i}", loop.rows * k * 2)
        for side, loads in weights.items():
            loop.product(f"mma.{side}{i}", loop.rows, n, k, tokens, *loads, resident=True)
            loop.accumulate(f"mma.{side}{i}")
    name = f"expert-gemm gate+up n{n} k{k} x{clones}{' boxes' if boxes > 1 else ''}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * 2 * n)


def scaled_blocks(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """fp8 with a scale for each 128 of k: each block's product is scaled and added to the sum in registers."""
    blocks = draw.choice((1, 1, 2))
    n, clones = draw.choice(((64, 1), (128, 1), (128, 2), (64, 2)) if loop.hopper else ((64, 1), (64, 2), (128, 1)))
    k, letters = 128, "ab"[:blocks]
    weights = {j: loop.fill(f"load_w.{j}", n * k, source="dram") for j in letters}
    scales = {j: loop.row(f"load_scale.{j}", 4 * n) for j in letters}
    for i in range(clones):
        total = f"add.{letters[-1]}{i}"
        before: str | tuple[str, int] = (total, 1)
        for j in letters:
            tokens = gather(loop, f"gather.{j}{i}", loop.rows * k)
            rows = loop.tile(f"gather_scale.{j}{i}", "LSU", pointer_access(512), registers=2)
            both = loop.tile(f"scale.{j}{i}", "ALU", STATISTIC, rows, scales[j], registers=2)
            result = loop.fetched(f"mma.{j}{i}", loop.rows, n, k, tokens, weights[j], dtype="float8_e4m3fn")
            before = loop.passes(f"add.{j}{i}", loop.rows * n, 1, result, both, before)
    return loop.finish(f"expert-gemm fp8 n{n} k{k * blocks} x{clones}", 2 + clones, clones)


def tiles(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """One iteration is a tile of the down projection, its short loop over k unrolled: the tile's expert and its tokens'
    indices are looked up first, the rows are weighted by the router and added to the output where they came from."""
    n, blocks, clones = draw.choice(((128, 2, 1), (128, 3, 1), (128, 2, 2), (64, 4, 2)) if loop.hopper
                                    else ((64, 2, 1), (128, 2, 1), (128, 3, 1), (64, 2, 2)))  # fmt: skip
    activated, k = draw.random() < 0.5, 64
    expert = loop.tile("read_expert", "LSU", pointer_access(32), warps=1, registers=1)
    weights = [loop.fill(f"load_w.{'abcd'[j]}", n * k * 2, expert, source="dram") for j in range(blocks)]
    for i in range(clones):
        size, names = loop.rows * n, [f"mma.{'abcd'[j]}{i}" for j in range(blocks)]
        index = loop.tile(f"read_index{i}", "LSU", pointer_access(512), registers=1)
        for j, product in enumerate(names):
            tokens = gather(loop, f"gather.{'abcd'[j]}{i}", loop.rows * k * 2, index)
            loop.product(product, loop.rows, n, k, tokens, weights[j], resident=j > 0)
        loop.accumulate(*names, carried=False)
        value = names[-1]
        if not loop.hopper:
            # The first product opens the ring in tensor memory, the last one's end is waited for.
            value = loop.fetch(f"acc{i}", size, names[0])
            loop.order(names[-1], value)
        router = loop.tile(f"read_router{i}", "LSU", pointer_access(512), index, registers=1)
        value = loop.passes(f"weigh{i}", size, 1, value, router)
        if activated:
            curve = together(measured("exp2", size), STATISTIC_SFU)
            curved = loop.tile(f"silu{i}", "SFU", curve, value, registers=size // 128)
            value = loop.passes(f"silu_out{i}", size, 2, value, curved)
        staged = loop.keep(f"stage{i}", size, value)
        scattered = together(measured("tma_store", size * 2), ROW_LOAD)
        loop.add(f"scatter{i}", "TMA", scattered, staged, index)
    name = f"expert-gemm tile{' silu' if activated else ''} n{n} k{k * blocks} x{clones}"
    return loop.finish(name, 3 + clones, clones)

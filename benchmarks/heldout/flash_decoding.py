"""Flash decoding: the loop over a split's key blocks of FlashDecoding (Dao et al. 2023), of FlashInfer's paged
``BatchDecodeWithPagedKVCache`` and of TensorRT-LLM's XQA. Few queries (the heads of a group) meet long keys from DRAM.
On Hopper the heads fill one wgmma's rows; each clone has key blocks and statistics of its own, merged after the loop.
On Blackwell keys are the rows and heads the columns: the softmax then runs across lanes, by way of shared memory."""

from __future__ import annotations

from random import Random

from loop_costs import STATISTIC, STATISTIC_SFU, measured, pointer_access, tensor_memory, together
from varied_loop import VariedLoop

from heldout.attention_parts import softcapped, weighted_sum
from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph


def flash_decoding(architecture: Architecture, draw: Random) -> DependenceGraph:
    loop = VariedLoop(architecture, draw)
    return _rows_of_heads(loop, draw) if loop.hopper else _rows_of_keys(loop, draw)


def _blocks(loop: VariedLoop, i: int, n: int, d: int, *, quantised: bool) -> tuple[str, str]:
    """Keys and values of a page as bf16 in shared memory: as they come, or converted from fp8 through registers."""
    page = loop.tile(f"read_page{i}", "LSU", pointer_access(32), warps=1, registers=1)
    blocks = []
    for side in ("k", "v"):
        tile = loop.fill(f"load_{side}{i}", n * d * (1 if quantised else 2), page, source="dram")
        if quantised:
            raw = loop.read(f"read_{side}{i}", n * d, tile, element=1)
            convert = measured("convert", n * d)
            wide = loop.tile(f"widen_{side}{i}", "ALU", convert, raw, registers=n * d // 256)
            tile = loop.keep(f"keep_{side}{i}", n * d, wide)
        blocks.append(tile)
    return blocks[0], blocks[1]


def _rows_of_heads(loop: VariedLoop, draw: Random) -> DependenceGraph:
    quantised = draw.random() < 0.4
    d, n, clones = draw.choice(((64, 64, 2), (128, 64, 1), (128, 64, 2), (64, 128, 1)) if quantised
                               else ((64, 64, 3), (64, 128, 2), (128, 64, 2), (128, 128, 1), (128, 128, 2),
                                     (256, 64, 1)))  # fmt: skip
    capped = draw.random() < 0.3 and clones < 3
    for i in range(clones):
        k, v = _blocks(loop, i, n, d, quantised=quantised)
        scores = loop.fetched(f"qk{i}", loop.rows, n, d, k)
        if capped:
            scores = softcapped(loop, i, scores, loop.rows * n)
        weighted_sum(loop, i, scores, v, d, n)
    parts = f"{' fp8' if quantised else ''}{' capped' if capped else ''}"
    return loop.finish(f"flash-decoding d{d} n{n} x{clones}{parts}", 2 + clones, clones)


def _rows_of_keys(loop: VariedLoop, draw: Random) -> DependenceGraph:
    quantised = draw.random() < 0.4
    heads, clones = draw.choice(((16, 1), (16, 2), (32, 1), (32, 2), (64, 1), (64, 2)))
    n, d = 128, 64 if quantised or clones > 1 else draw.choice((64, 128))
    capped, size = draw.random() < 0.3 and not (quantised and clones > 1), 128 * heads
    for i in range(clones):
        k, v = _blocks(loop, i, n, d, quantised=quantised)
        scores = loop.fetched(f"kq{i}", n, heads, d, k)
        if capped:
            scores = softcapped(loop, i, scores, size)
        # Each warp's maxima and sums of its 32 keys meet those of the others in shared memory.
        exchange = together(measured("shared_store", 4_096), measured("shared_load", 4_096), STATISTIC)
        most = loop.tile(f"max{i}", "ALU", measured("row_max", size), scores, registers=heads // 16)
        maximum = loop.tile(f"exchange{i}", "LSU", exchange, most, registers=heads // 16)
        loop.carry(maximum)
        alpha = loop.tile(f"alpha{i}", "SFU", STATISTIC_SFU, maximum, (maximum, 1), registers=heads // 16)
        weights = loop.exponential(f"exp{i}", size, scores, maximum)
        total = loop.tile(f"sum{i}", "ALU", measured("row_sum", size), weights, alpha, registers=heads // 16)
        loop.carry(total)
        half = loop.tile(f"convert{i}", "ALU", measured("convert", size), weights, registers=max(1, heads // 2))
        kept = loop.keep(f"keep_p{i}", size, half)
        touch = together(tensor_memory(d * heads), STATISTIC, tensor_memory(d * heads))
        scaled = loop.tile(f"correct{i}", "LSU", touch, alpha, registers=heads)
        loop.product(f"vp{i}", d, heads, n, kept, v, resident=True)
        loop.rescaled_first(scaled, f"vp{i}")
    parts = f"{' fp8' if quantised else ''}{' capped' if capped else ''}"
    return loop.finish(f"flash-decoding d{d} heads{heads} x{clones}{parts}", 3 + clones, clones, 512 - clones * heads)

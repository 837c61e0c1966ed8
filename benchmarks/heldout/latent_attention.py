"""Multi-head latent attention: the loop over pairs of key blocks of FlashMLA's decoding kernel (DeepSeek 2025,
``sm90/decode/dense/splitkv_mla.cuh``, the "seesaw" schedule), of CUTLASS's Blackwell MLA (example 77,
``sm100_fmha_mla_tma_warpspecialized``) and the prefill loop of FlashAttention-3 with 192 dimensions of keys and 128 of
values. In decoding the values are the first 512 of the 576 dimensions of the keys: the very same
buffers on Hopper, loaded once more in their own layout on Blackwell."""

from __future__ import annotations

from random import Random

from loop_costs import STATISTIC, STATISTIC_SFU, THREADS, measured, tensor_memory, together
from varied_loop import VariedLoop

from heldout.attention_parts import softcapped, weighted_sum
from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph

LATENT, ROPE = 512, 64


def latent_attention(architecture: Architecture, draw: Random) -> DependenceGraph:
    loop = VariedLoop(architecture, draw)
    if draw.random() < 0.4:
        return prefill(loop, draw)
    return seesaw(loop, draw) if loop.hopper else decode_blackwell(loop, draw)


def prefill(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """Keys come as 128 dimensions of their own and 64 that all heads share, in two products."""
    n, clones = draw.choice(((64, 1), (64, 2), (128, 1), (128, 2), (96, 2)) if loop.hopper
                            else ((64, 1), (64, 2), (128, 1)))  # fmt: skip
    causal, capped = draw.random() < 0.5, draw.random() < 0.2
    own, shared = loop.fill("load_k", n * 128 * 2), loop.fill("load_rope", n * ROPE * 2)
    v = loop.fill("load_v", n * 128 * 2)
    for i in range(clones):
        size = loop.rows * n
        first = loop.product(f"qk.a{i}", loop.rows, n, 128, own)
        scores = loop.product(f"qk.b{i}", loop.rows, n, ROPE, shared, resident=True)
        loop.accumulate(first, scores, carried=False)
        if not loop.hopper:
            here = loop.fetch(f"s{i}", size, first)
            loop.order(scores, here)
            scores = here
        if capped:
            scores = softcapped(loop, i, scores, size)
        if causal:
            scores = loop.passes(f"mask{i}", size, 2, scores)
        weighted_sum(loop, i, scores, v, 128, n)
    parts = f"{' causal' if causal else ''}{' capped' if capped else ''}"
    return loop.finish(f"latent-attention prefill n{n} x{clones}{parts}", 3 + clones, clones, 512 - clones * 128)


def seesaw(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """64 heads; an iteration has two blocks of keys. One warp group scores the first and keeps the output's left half,
    the other scores the second and keeps the right half; each hands its weights to the other in shared memory, and both
    halves follow one running maximum."""
    n = draw.choice((32, 64))
    boxes = draw.choice((1, 2, 3))
    size, half = 64 * n, LATENT // 2
    keys = {
        block: [loop.fill(f"load_k.{block}{box}", n * (LATENT + ROPE) // boxes * 2, source="dram")
                for box in "rst"[:boxes]]
        for block in "ab"
    }  # fmt: skip
    # The running maximum goes from one warp group to the other in shared memory; each keeps the sum of its own weights.
    maximum: str | tuple[str, int] = ("share_max.b", 1)
    outs: dict[str, str | tuple[str, int]] = {side: (f"pv.b-{side}", 1) for side in ("left", "right")}
    for block in "ab":
        scores = loop.product(f"qk.{block}", 64, n, LATENT + ROPE, *keys[block])
        most = loop.tile(f"max.{block}", "ALU", measured("row_max", size), scores, maximum, registers=2)
        alpha = loop.tile(f"alpha.{block}", "SFU", STATISTIC_SFU, most, maximum, registers=2)
        maximum = loop.tile(f"share_max.{block}", "LSU", measured("shared_store", 4_096), most, buffer_bytes=4 * 64,
                            alignment=128)  # fmt: skip
        weights = loop.exponential(f"exp.{block}", size, scores, most)
        total = f"sum.{block}"
        loop.tile(total, "ALU", measured("row_sum", size), weights, alpha, (total, 1), registers=2)
        packed = loop.tile(f"convert.{block}", "ALU", measured("convert", size), weights,
                           registers=size // 2 // THREADS)  # fmt: skip
        kept = loop.keep(f"keep.{block}", size, packed)
        for side in ("left", "right"):
            scaled = loop.passes(f"correct.{block}-{side}", 64 * half, 1, alpha, outs[side])
            outs[side] = loop.product(f"pv.{block}-{side}", 64, half, n, kept, *keys[block], scaled)
    return loop.finish(f"latent-attention seesaw n{n} boxes{boxes}", 4)


def decode_blackwell(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """128 heads. Each of two blocks of a cluster has 256 of the output's columns in tensor memory; weights go back to
    tensor memory, or to shared memory as in the two-block product."""
    n, boxes = draw.choice((64, 128)), draw.choice((1, 2, 3))
    through_shared, size = draw.random() < 0.5, 128 * n
    keys = [loop.fill(f"load_k.{box}", n * (LATENT + ROPE) // boxes * 2 // 2, source="dram") for box in "rst"[:boxes]]
    values = loop.fill("load_v", n * LATENT // 2 * 2, source="dram")
    products = []
    for part, dims in (("a", 256), ("b", 256), ("c", ROPE)):
        products.append(loop.product(f"qk.{part}", 128, n, dims, *keys, resident=part != "a"))
    loop.accumulate(*products, carried=False)
    scores = loop.fetch("s", size, products[0])
    loop.order(products[-1], scores)
    maximum = loop.tile("max", "ALU", measured("row_max", size), scores, registers=1)
    loop.carry(maximum)
    alpha = loop.tile("alpha", "SFU", STATISTIC_SFU, maximum, (maximum, 1), registers=1)
    weights = loop.exponential("exp", size, scores, maximum)
    total = loop.tile("sum", "ALU", measured("row_sum", size), weights, alpha, registers=1)
    loop.carry(total)
    if through_shared:
        half = loop.tile("convert", "ALU", measured("convert", size), weights, registers=size // 2 // THREADS)
        packed = loop.keep("keep_p", size, half)
    else:
        packed = loop.fed("convert", size, weights)
    # The output's 256 columns in two halves, each rescaled by a warp group of its own and then added to.
    for side in ("left", "right"):
        touch = together(tensor_memory(128 * 128), STATISTIC, tensor_memory(128 * 128))
        scaled = loop.tile(f"correct.{side}", "LSU", touch, alpha, registers=32)
        loop.product(f"pv.{side}", 128, 128, n, packed, values, a="shared" if through_shared else "register",
                     resident=True)  # fmt: skip
        loop.rescaled_first(scaled, f"pv.{side}")
    how = "shared" if through_shared else "tmem"
    return loop.finish(f"latent-attention decode n{n} boxes{boxes} {how}", 5, tmem_columns=512 - LATENT // 2)

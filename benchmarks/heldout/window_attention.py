"""Sliding-window attention: the main loop over key blocks of FlashAttention-3 (``mainloop_fwd_sm90_tma_gmma_ws.hpp``,
Shah et al. 2024) and of CUTLASS's Blackwell FMHA (example 77) with a window on both sides, as Mistral, Gemma 2 and
gpt-oss call them: every block is masked at both ends, scores may be soft-capped, keys may come by a page table."""

from __future__ import annotations

from random import Random

from loop_costs import pointer_access
from varied_loop import VariedLoop

from heldout.attention_parts import softcapped, weighted_sum
from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph

HOPPER = ((64, 128, 3), (64, 192, 2), (96, 128, 2), (128, 64, 3), (128, 128, 2), (128, 176, 1), (256, 64, 2),
          (256, 80, 1))  # fmt: skip
"""Head dimension, keys of a block, clones: FlashAttention-3's ``tile_size_fwd_sm90`` and smaller ones."""
BLACKWELL = ((64, 64, 2), (64, 128, 1), (64, 128, 2), (96, 128, 1), (128, 64, 2), (128, 128, 1), (128, 128, 2))


def window_attention(architecture: Architecture, draw: Random) -> DependenceGraph:
    loop = VariedLoop(architecture, draw)
    d, n, clones = draw.choice(HOPPER if loop.hopper else BLACKWELL)
    capped, paged = draw.random() < 0.4, draw.random() < 0.4
    emulated = draw.choice((0.0, 0.0, 0.25)) if not loop.hopper else 0.0
    # The page's number is in a register of the warp that starts TMA; the table is read before.
    page = [loop.tile("read_page", "LSU", pointer_access(128), warps=1, registers=1)] if paged else []
    k, v = loop.fill("load_k", n * d * 2, *page), loop.fill("load_v", n * d * 2, *page)
    for i in range(clones):
        size = loop.rows * n
        scores = loop.fetched(f"qk{i}", loop.rows, n, d, k)
        if capped:
            scores = softcapped(loop, i, scores, size)
        scores = loop.passes(f"window{i}", size, 3, scores)  # two comparisons and a selection
        weighted_sum(loop, i, scores, v, d, n, emulated)
    parts = f"{' capped' if capped else ''}{' paged' if paged else ''}{' emulated' if emulated else ''}"
    columns = 512 - clones * d
    return loop.finish(f"window-attention d{d} n{n} x{clones}{parts}", 2 + clones, clones, columns)

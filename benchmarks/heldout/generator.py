"""All held-out loops, in a fixed order: the same number of each family for Hopper and for Blackwell, alternately.

A loop's family, number and :data:`SEED` decide everything that is drawn; they were fixed before any of these loops was
solved for the first time (``tests/test_loop_splits.py`` pins their digest), and no constant of the planner may be
chosen with them.
"""

from __future__ import annotations

from varied_loop import Family, numbered

from heldout.chunk_scan import chunk_scan
from heldout.convolution import convolution
from heldout.dequantised_gemm import dequantised_gemm
from heldout.expert_gemm import expert_gemm
from heldout.flash_decoding import flash_decoding
from heldout.latent_attention import latent_attention
from heldout.linear_attention import linear_attention
from heldout.split_k import split_k
from heldout.window_attention import window_attention
from warpplan.planner.values.dependence_graph import DependenceGraph

SEED = 20_261_123
EACH = 24
"""Loops of a family."""
FAMILIES: dict[str, Family] = {
    "window-attention": window_attention,
    "linear-attention": linear_attention,
    "expert-gemm": expert_gemm,
    "dequantised-gemm": dequantised_gemm,
    "split-k": split_k,
    "convolution": convolution,
    "flash-decoding": flash_decoding,
    "latent-attention": latent_attention,
    "chunk-scan": chunk_scan,
}


def heldout_loops() -> dict[str, DependenceGraph]:
    """Every held-out loop, by name."""
    found = (heldout_loop(family, number) for family in FAMILIES for number in range(EACH))
    return {graph.name: graph for graph in found}


def heldout_loop(family: str, number: int) -> DependenceGraph:
    return numbered(FAMILIES[family], family, number, SEED)

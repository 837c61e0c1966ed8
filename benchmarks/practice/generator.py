"""All practice loops, in a fixed order: the same number of each family for Hopper and for Blackwell, alternately.

They are of other kernels than the held-out loops and varied in the same way (``varied_loop.py``), so what the search
does with them says more of an unseen loop than the 32 training loops do; its models and constants may be chosen so.
"""

from __future__ import annotations

from varied_loop import Family, numbered

from practice.dense_products import complex_gemm, fourier, gated_mlp, low_rank, normed_gemm
from practice.product_chains import differential_attention, loss_backward, mlp_backward, newton_schulz
from practice.row_passes import linear_loss, optimiser, sigmoid_attention
from warpplan.planner.values.dependence_graph import DependenceGraph

SEED = 20_261_126
EACH = 16
"""Loops of a family."""
FAMILIES: dict[str, Family] = {
    "gated-mlp": gated_mlp,
    "linear-loss": linear_loss,
    "normed-gemm": normed_gemm,
    "low-rank": low_rank,
    "optimiser": optimiser,
    "complex-gemm": complex_gemm,
    "fourier": fourier,
    "sigmoid-attention": sigmoid_attention,
    "differential-attention": differential_attention,
    "newton-schulz": newton_schulz,
    "loss-backward": loss_backward,
    "mlp-backward": mlp_backward,
}


def practice_loops() -> dict[str, DependenceGraph]:
    """Every practice loop, by name."""
    found = (practice_loop(family, number) for family in FAMILIES for number in range(EACH))
    return {graph.name: graph for graph in found}


def practice_loop(family: str, number: int) -> DependenceGraph:
    return numbered(FAMILIES[family], family, number, SEED)

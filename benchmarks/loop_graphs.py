"""The training loops: attention, GEMM, fused epilogues and layer norm, for Hopper and for Blackwell.

The constants of the planner's search were chosen on them, so they say how fast the search can be made, not how fast it
is on a loop that it has never seen: for that there are the held-out loops (``heldout/``). They are frozen, and
``tests/test_loop_splits.py`` pins their digest.

Where their costs come from is said in ``loop_costs.py``; ``loop_splits.py`` writes them as files.

An operation is one tile's worth of work: all wgmma of one product, one pass over a tile in registers. Tile arithmetic
is done by one warp group at the rate of the whole SM, so its warps are busy for as long as the unit is.

Accumulators that stay in tensor memory for the whole loop are no ring: their columns are taken off ``tmem_columns``,
and tokens order those who update them in place.
"""

from __future__ import annotations

from loop_attention import (
    attention_backward_blackwell,
    attention_backward_hopper,
    attention_forward_blackwell,
    attention_forward_hopper,
)
from loop_gemm import (
    fused_blackwell,
    fused_hopper,
    gemm_blackwell,
    gemm_blackwell_scaled,
    gemm_hopper,
    gemm_hopper_scaled,
)
from loop_layer_norm import layer_norm_backward, layer_norm_forward

from warpplan.planner.values.dependence_graph import DependenceGraph


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

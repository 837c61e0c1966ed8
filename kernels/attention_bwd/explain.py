"""What explaining a choice of attention backward configuration needs of this kernel: its best unlike candidates and
their loops."""

from __future__ import annotations

from warpplan.kernels.attention_bwd.graph import loop_graph, plan_candidate
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig
from warpplan.kernels.attention_bwd.work import loop_cycles, loop_of
from warpplan.planner.predict.alternatives import RankedLoop
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device


def ranked_loop(config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable) -> RankedLoop:
    """The loop over query rows of ``config`` with its plan. Raises :class:`MissingCosts` naming what the profile
    lacks."""
    epilogue = loop_cycles(loop_of(config), dtype, device, costs)["epilogue_cycles"]
    outcome = plan_candidate(config, dtype, device, costs)
    return RankedLoop(loop_graph(config, dtype, device, costs), outcome, round(epilogue))


def block_name(config: AttentionBwdConfig) -> str:
    """What tells block structures apart, in words."""
    c = config
    parts = [f"{c.keys} keys x {c.rows} rows", "dQ reduced" if c.dq == "reduce" else "dQ by a kernel of its own"]
    if not c.ds_in_registers:
        parts.append("dS in shared memory")
    parts.append(f"depth {c.depth}")
    if c.ctas_per_sm > 1:
        parts.append(f"{c.ctas_per_sm} CTAs an SM")
    if c.packed:
        parts.append("packed")
    return ", ".join(parts)

"""What explaining a choice of attention configuration needs of this kernel: its best unlike candidates, their loops."""

from __future__ import annotations

from warpplan.kernels.attention_fwd.graph import loop_graph, plan_candidate
from warpplan.kernels.attention_fwd.space import AttentionConfig
from warpplan.kernels.attention_fwd.work import loop_cycles, loop_of
from warpplan.planner.predict.alternatives import RankedLoop
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device


def ranked_loop(config: AttentionConfig, dtype: str, device: Device, costs: CostTable) -> RankedLoop:
    """The loop over keys of ``config`` with its plan. Raises :class:`MissingCosts` naming what the profile lacks."""
    epilogue = loop_cycles(loop_of(config), dtype, device, costs)["epilogue_cycles"]
    outcome = plan_candidate(config, dtype, device, costs)
    return RankedLoop(loop_graph(config, dtype, device, costs), outcome, round(epilogue))


def block_name(config: AttentionConfig) -> str:
    """What tells block structures apart, in words."""
    c = config
    parts = [f"{c.consumers} x {c.rows} rows x {c.columns} keys", "lookahead" if c.lookahead else "serial"]
    if c.pingpong:
        parts.append("ping-pong")
    if c.q_in_registers:
        parts.append("Q in registers")
    parts.append(f"depth {c.depth}")
    if c.staging == "q":
        parts.append("staging in Q")
    return ", ".join(parts)

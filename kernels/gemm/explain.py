"""What explaining a choice of GEMM configuration needs of this kernel: its best unlike candidates, and their loops."""

from __future__ import annotations

import numpy as np

from warpplan.kernels.gemm.candidates import tabulate
from warpplan.kernels.gemm.graph import loop_graph, plan_candidate
from warpplan.kernels.gemm.space import GemmConfig, tuning
from warpplan.kernels.gemm.work import calibrated_constants, calibrations, epilogue_cycles, solve_table, work
from warpplan.planner.predict.alternatives import Columns, RankedCandidates, RankedLoop
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

MEASURED_COLUMNS = ("ii_cycles", "prologue_cycles", "epilogue_cycles", "drain_cycles", "dram_latency_cycles")
"""Columns of the time model's work that follow from measured costs."""


def race(
    configs: tuple[GemmConfig, ...], shape: tuple[int, ...], dtype: str, device: Device, profile: Profile, kernel: str,
    layout: str = "nt",
) -> RankedCandidates:  # fmt: skip
    """``configs``, one of each block structure and best first, as what an explanation compares; ``kernel`` is the name
    under which their time model is calibrated."""
    m, n, k = shape
    table = tabulate(configs, [0] * len(configs), device)
    asked, _ = work(solve_table(dtype, device, profile.costs, table), dtype, device, (m, n, k), layout)

    def loop(row: int, costs: CostTable) -> Columns:
        solved = solve_table(dtype, device, costs, tabulate([configs[row]], [0], device))
        return {name: float(getattr(solved, name)[0]) for name in MEASURED_COLUMNS}

    return RankedCandidates(
        tuple(block_name(config) for config in configs),
        tuple(tuning(config) for config in configs),
        asked.take(np.arange(len(configs))),
        dtype,
        profile,
        calibrated_constants(profile, calibrations(kernel, dtype, any(c.promoted for c in configs)), asked.structures),
        loop,
    )


def ranked_loop(config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> RankedLoop:
    """The main loop of ``config``, solved. Raises :class:`MissingCosts` naming what the profile lacks."""
    graph = loop_graph(config, dtype, device, costs)
    outcome = plan_candidate(config, dtype, device, costs)
    return RankedLoop(graph, outcome, round(epilogue_cycles(config, dtype, costs)))


def block_name(config: GemmConfig) -> str:
    """What tells block structures apart, in words."""
    c = config
    parts = [f"{c.scheme} {c.block_m}x{c.block_n}x{c.block_k}", f"{c.consumer_warps} warps", f"depth {c.depth}"]
    if c.ctas_per_sm > 1:
        parts.append(f"{c.ctas_per_sm} blocks an SM")
    if c.epilogue_split > 1:
        parts.append(f"epilogue in {c.epilogue_split}")
    if c.staging == "ring":
        parts.append("staging in the ring")
    return ", ".join(parts)

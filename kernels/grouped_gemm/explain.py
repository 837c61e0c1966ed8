"""What explaining a choice of grouped GEMM configuration needs: its best unlike candidates, and their loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from warpplan.kernels.gemm.explain import MEASURED_COLUMNS, block_name
from warpplan.kernels.gemm.explain import ranked_loop as gemm_ranked_loop
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.gemm.work import solve_table
from warpplan.kernels.grouped_gemm.candidates import tabulated
from warpplan.kernels.grouped_gemm.distribution import GroupedShape
from warpplan.kernels.grouped_gemm.graph import plan_candidate
from warpplan.kernels.grouped_gemm.space import tuning
from warpplan.kernels.grouped_gemm.work import constants, work
from warpplan.planner.predict.alternatives import Columns, RankedCandidates, RankedLoop
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile


def race(
    configs: tuple[GemmConfig, ...], shape: GroupedShape, dtype: str, device: Device, profile: Profile
) -> RankedCandidates:
    """``configs``, one of each block structure and best first, as what an explanation compares."""
    asked, _ = work(solve_table(dtype, device, profile.costs, tabulated(configs, device)), dtype, device, shape)

    def loop(row: int, costs: CostTable) -> Columns:
        solved = solve_table(dtype, device, costs, tabulated([configs[row]], device))
        return {name: float(getattr(solved, name)[0]) for name in MEASURED_COLUMNS}

    return RankedCandidates(
        tuple(block_name(config) for config in configs),
        tuple(tuning(config) for config in configs),
        asked.take(np.arange(len(configs))),
        dtype,
        profile,
        constants(profile, dtype, shape.scales, asked.structures),
        loop,
    )


def ranked_loop(config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> RankedLoop:
    """The main loop of ``config``, solved. Raises :class:`MissingCosts` naming what the profile lacks."""
    loop = gemm_ranked_loop(config, dtype, device, costs)
    return replace(loop, outcome=plan_candidate(config, dtype, device, costs))

"""What explaining a choice of GEMM configuration needs of this kernel: its best unlike candidates, and their loops."""

from __future__ import annotations

import numpy as np

from warpplan.kernels.gemm.candidates import tabulate
from warpplan.kernels.gemm.graph import loop_graph, plan_candidate
from warpplan.kernels.gemm.kernel import Gemm, _constants
from warpplan.kernels.gemm.space import GemmConfig, config_of, tuning
from warpplan.kernels.gemm.work import epilogue_cycles, solve_table, structure, work
from warpplan.planner.predict.alternatives import Columns, RankedCandidates, RankedLoop
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

_COLUMNS = ("ii_cycles", "prologue_cycles", "epilogue_cycles", "drain_cycles", "dram_latency_cycles")
"""Columns of ``planner.predict.time_model.DeviceWork`` that follow from measured costs."""


def race(
    shape: tuple[int, ...], dtype: str, device: Device, profile: Profile, *, contenders: int = 5
) -> RankedCandidates:
    """The best candidate of each of the ``contenders`` best block structures, best first.

    Raises what :meth:`Gemm.ranked` raises.
    """
    best: dict[str, GemmConfig] = {}
    for config, _ in Gemm().ranked(shape, dtype, device, profile):
        if len(best) == contenders:
            break
        best.setdefault(structure(config), config)
    configs = tuple(best.values())
    m, n, k = shape
    table = tabulate(configs, [0] * len(configs), device)
    asked, _ = work(solve_table(dtype, device, profile.costs, table), dtype, device, (m, n, k))

    def loop(row: int, costs: CostTable) -> Columns:
        solved = solve_table(dtype, device, costs, tabulate([configs[row]], [0], device))
        return {name: float(getattr(solved, name)[0]) for name in _COLUMNS}

    return RankedCandidates(
        tuple(_name(config) for config in configs),
        tuple(tuning(config) for config in configs),
        asked.take(np.arange(len(configs))),
        dtype,
        profile,
        _constants(profile, asked.structures),
        loop,
    )


def loop(config: TuningConfig, dtype: str, device: Device, profile: Profile) -> RankedLoop:
    """The main loop behind ``config``, solved. Raises :class:`MissingCosts` naming what the profile lacks."""
    candidate, costs = config_of(config), profile.costs
    graph = loop_graph(candidate, dtype, device, costs)
    outcome = plan_candidate(candidate, dtype, device, costs)
    return RankedLoop(graph, outcome, round(epilogue_cycles(candidate, dtype, costs)))


def _name(config: GemmConfig) -> str:
    c = config
    parts = [f"{c.scheme} {c.block_m}x{c.block_n}x{c.block_k}", f"{c.consumer_warps} warps", f"depth {c.depth}"]
    if c.ctas_per_sm > 1:
        parts.append(f"{c.ctas_per_sm} blocks an SM")
    if c.epilogue_split > 1:
        parts.append(f"epilogue in {c.epilogue_split}")
    if c.staging == "ring":
        parts.append("staging in the ring")
    return ", ".join(parts)

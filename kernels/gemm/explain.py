"""What explaining a choice of GEMM configuration needs of this kernel: its best unlike candidates, and their loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from warpplan.kernels.gemm.candidates import CandidateTable, tabulate
from warpplan.kernels.gemm.graph import loop_graph
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.gemm.work import SolvedTable, calibrated_constants, epilogue_cycles
from warpplan.planner.predict.alternatives import RankedCandidates, RankedLoop, compared
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig


def race(
    configs: tuple[GemmConfig, ...],
    dtype: str,
    device: Device,
    profile: Profile,
    names: tuple[str, ...],
    tuned: Callable[[GemmConfig], TuningConfig],
    solve: Callable[[CandidateTable, CostTable], SolvedTable],
    ask: Callable[[SolvedTable], DeviceWork],
) -> RankedCandidates:
    """``configs``, one of each block structure and best first, as what an explanation compares; ``names`` are those
    under which their time model may be calibrated, ``tuned`` is how a candidate is handed out. ``solve`` and ``ask``
    give a table's loops and its work."""

    def asked(some: tuple[GemmConfig, ...], costs: CostTable) -> DeviceWork:
        return ask(solve(tabulate(some, [0] * len(some), device), costs)).take(np.arange(len(some)))

    constants_of = partial(calibrated_constants, profile, names)
    return compared(configs, asked, block_name, tuned, constants_of, dtype, profile)


def ranked_loop(config: GemmConfig, outcome: Outcome, dtype: str, device: Device, costs: CostTable) -> RankedLoop:
    """The main loop of ``config``, whose plan is ``outcome``. Raises :class:`MissingCosts` naming what the profile
    lacks."""
    graph = loop_graph(config, dtype, device, costs)
    return RankedLoop(graph, outcome, round(epilogue_cycles(config, dtype, costs)))


def block_name(config: GemmConfig) -> str:
    """What tells block structures apart, in words."""
    c = config
    parts = [f"{c.scheme} {c.block_m}x{c.block_n}x{c.block_k}", f"{c.consumer_warps} warps", f"depth {c.depth}"]
    if c.ctas_per_sm > 1:
        parts.append(f"{c.ctas_per_sm} blocks an SM")
    if c.cluster > 1:
        parts.append(f"clusters of {c.cluster} blocks")
    if c.epilogue_split > 1:
        parts.append(f"epilogue in {c.epilogue_split}")
    if c.staging == "ring":
        parts.append("staging in the ring")
    if c.stream_k:
        parts.append("stream-K")
    if c.launch_dependents:
        parts.append("next launch early")
    return ", ".join(parts)

"""The plan of a tile's loop: gemm's (:mod:`warpplan.kernels.gemm.graph`), for a group's tile is the tile of a product.
Only what the partitions have of registers differs."""

from __future__ import annotations

from dataclasses import replace

from warpplan.kernels.gemm.graph import plan_candidate as plan_gemm
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.grouped_gemm.space import PRODUCER_REGISTERS, consumer_registers
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome


def plan_candidate(config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> Outcome:
    """The plan of ``config``: its scheme's partitions and its depth, with the smallest interval that they allow. Raises
    :class:`MissingCosts` naming what the profile lacks."""
    outcome = plan_gemm(config, dtype, device, costs)
    if outcome.plan is None:
        return outcome
    partitions = tuple(
        replace(p, registers=PRODUCER_REGISTERS if p.name == "producer" else consumer_registers(config))
        for p in outcome.plan.partitions
    )
    return replace(outcome, plan=replace(outcome.plan, partitions=partitions))

"""What a fused epilogue asks of the device beside the product: arithmetic in every tile's epilogue, and a residual."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from warpplan.kernels.gemm.space import RESULT_BYTES, ROW_ALIGNMENT_BYTES, GemmConfig
from warpplan.kernels.gemm.work import SolvedTable
from warpplan.kernels.gemm_bias_act.space import FusedEpilogue
from warpplan.planner.errors import MissingCosts
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostTable

OPERATIONS = {"none": (0, 0), "relu": (2, 0), "gelu": (10, 1), "gelu_tanh": (5, 2), "silu": (3, 2)}
"""(multiply-adds and their like, exponentials and reciprocals) an element, as
:mod:`warpplan.kernels.device.activations` computes it. SwiGLU is a SiLU and a multiply for each pair of columns."""


def add_epilogue(solved: SolvedTable, epilogue: FusedEpilogue, costs: CostTable) -> SolvedTable:
    """``solved`` with what ``epilogue`` adds to each row's. Raises :class:`MissingCosts`."""
    blocks: dict[tuple[int, ...], float] = {}
    added = []
    for config in solved.table.configs:
        key = (config.block_m, config.block_n, config.consumer_rows, config.epilogue_split)
        if key not in blocks:
            blocks[key] = epilogue_cycles(config, epilogue, costs)
        added.append(blocks[key])
    return replace(solved, epilogue_cycles=solved.epilogue_cycles + np.array(added))


def epilogue_cycles(config: GemmConfig, epilogue: FusedEpilogue, costs: CostTable) -> float:
    """Cycles that ``epilogue`` adds to that of one tile.

    Consumers that share a tile finish it together and share the SM's arithmetic, which costs were measured for one warp
    group alone: the tile's elements count, whoever has them. A residual's chunk arrives while the activation is
    computed. Raises :class:`MissingCosts` naming what the profile lacks.
    """
    elements = config.block_m * config.block_n
    arithmetic = activation_cycles(epilogue.activation, elements, costs)
    kept = elements // 2 if epilogue.halves else elements
    added = 0.0
    if epilogue.bias:
        added += _occupied(costs, "elementwise", elements)
    if epilogue.residual:
        added += _occupied(costs, "elementwise", kept)
        chunk = kept * RESULT_BYTES // config.epilogue_split
        cost = costs.lookup("tma_load", chunk, source="dram")
        if cost.latency is None:
            raise MissingCosts(["tma_load(source=dram) latency"])
        added += config.epilogue_split * max(0.0, cost.latency.p50 - arithmetic / config.epilogue_split)
    return arithmetic + added


def activation_cycles(activation: str, elements: int, costs: CostTable) -> float:
    """Cycles of ``activation`` on ``elements``: as measured, or else by its operations."""
    if activation == "swiglu":
        half = elements // 2
        return activation_cycles("silu", half, costs) + _occupied(costs, "elementwise", half)
    if activation == "none":
        return 0.0
    if any(e.kind == "activation" and ("function", activation) in e.parameters for e in costs.entries):
        return _occupied(costs, "activation", elements, function=activation)
    adds, exponentials = OPERATIONS[activation]
    cycles = adds * _occupied(costs, "elementwise", elements)
    return cycles + (exponentials * _occupied(costs, "exp2", elements) if exponentials else 0.0)


def add_traffic(work: DeviceWork, solved: SolvedTable, epilogue: FusedEpilogue, shape: tuple[int, ...]) -> DeviceWork:
    """``work`` of the product of ``shape`` with the bytes of C and of a residual, and how rows of C are stored."""
    m, n, _ = shape
    columns = n // 2 if epilogue.halves else n
    c_bytes = float(m * columns * RESULT_BYTES)
    extra = c_bytes - float(m * n * RESULT_BYTES) + (c_bytes if epilogue.residual else 0.0)
    plain = float(columns * RESULT_BYTES % ROW_ALIGNMENT_BYTES != 0)
    return replace(work, dram_bytes=work.dram_bytes + extra, plain_elements=plain * solved.thread_elements)


def _occupied(costs: CostTable, kind: str, elements: int, **text: str) -> float:
    """Cycles that ``elements`` keep the arithmetic units busy."""
    cost = costs.lookup(kind, elements, **text)
    if cost.occupancy is None:
        raise MissingCosts([f"{kind} occupancy"])
    return cost.occupancy.p50

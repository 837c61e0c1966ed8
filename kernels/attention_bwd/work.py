"""What the candidates of attention backward ask of the device, for one shape: the input of
:mod:`warpplan.planner.predict.time_model`. A unit is a tile of keys, an iteration a block of query rows; what the
kernel of dQ adds is counted in the units and iterations of the first. All plans have three kernels, of which the model
counts one launch; the statistics' and the conversion's bytes are in its DRAM term.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.attention_bwd.graph import reduction_cost, sustained_ii, sustained_query_ii
from warpplan.kernels.attention_bwd.space import ELEMENT_BYTES, STATISTIC_BYTES, AttentionBwdConfig
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.work import SUMMED_RANGES, distinct_names, measured_latency
from warpplan.kernels.gemm.work import L2_RESIDENT
from warpplan.kernels.grouped_gemm.work import busiest_trips
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PRODUCTS = 2.5
"""Times the forward pass's two products: Q · Kᵀ, dO · Vᵀ, and one for each gradient."""

HANDED_OUT = 1 << 14
"""Units that are handed out to CTAs one by one in the model, some milliseconds of planning. Of more, one is less than a
hundredth of what an H200's CTA does."""


def family(config: AttentionBwdConfig) -> str:
    """The name under which constants of like blocks are calibrated."""
    return f"{config.dq}{config.keys}x{config.ctas_per_sm}{'' if config.persistent else '-once'}"


def structure(config: AttentionBwdConfig) -> str:
    slopes = "" if config.ds_in_registers else "-ss"
    return f"{family(config)}-D{config.head_dim}r{config.rows}-d{config.depth}{slopes}"


def row_blocks(shape: AttentionShape, keys: int, rows: int) -> Ints:
    """Blocks of ``rows`` queries of one head that each tile of ``keys`` keys runs through."""
    key = np.arange(0, shape.k_length, keys, dtype=np.int64)
    shift = shape.k_length - shape.q_length
    first, end = np.zeros_like(key), np.full_like(key, shape.q_length)
    if shape.right is not None:
        first = np.maximum(key - shape.right - shift, 0)
    if shape.left is not None:
        end = np.minimum(np.minimum(key + keys, shape.k_length) + shape.left - shift, shape.q_length)
    return np.asarray(-(-np.maximum(end - first, 0) // rows))


def head_blocks(shape: AttentionShape, keys: int, rows: int) -> tuple[int, Ints]:
    """(heads of K and V that are alike, blocks of each tile of one): the tiles of packed sequences follow each
    other."""
    if not shape.packed:
        return shape.batch * shape.kv_heads, row_blocks(shape, keys, rows)
    return shape.kv_heads, np.concatenate(
        [np.tile(row_blocks(one, keys, rows), count) for count, one in shape.sequences]
    )  # fmt: skip


@lru_cache(maxsize=1024)
def loop_cycles(config: AttentionBwdConfig, dtype: str, device: Device, costs: CostTable) -> dict[str, float]:
    """The measured columns of ``config``, which no field that orders units changes. Raises :class:`MissingCosts`."""
    c, element = config, ELEMENT_BYTES[dtype]

    def latency(kind: str, size: int, **text: str) -> float:
        return measured_latency(costs.lookup(kind, size, **text), kind)

    gradients = c.keys * c.head_dim
    flush = latency("tma_store", 2 * c.held_bytes(element))
    reduced = 0.0
    if c.dq == "reduce":
        reduced = measured_latency(reduction_cost(costs, c.reduced_bytes), "tma_reduce")
    return {
        "ii_cycles": float(sustained_ii(c, dtype, device, costs)),
        "query_ii_cycles": 0.0 if c.dq == "reduce" else float(sustained_query_ii(c, dtype, device, costs)),
        "prologue_cycles": latency("tma_load", c.held_bytes(element), source="l2"),
        "epilogue_cycles": latency("elementwise", gradients) + 2 * latency("epilogue_store", gradients) + flush,
        "drain_cycles": max(flush, reduced),
        "dram_latency_cycles": latency("tma_load", c.slot_bytes(element), source="dram"),
    }


def work(
    configs: Sequence[AttentionBwdConfig], shape: AttentionShape, dtype: str, device: Device, costs: CostTable
) -> DeviceWork:
    """Each of ``configs`` as :class:`DeviceWork` for ``shape``. Raises :class:`MissingCosts`."""
    element, sharers = ELEMENT_BYTES[dtype], shape.heads // shape.kv_heads
    solved = [loop_cycles(loop_of(c), dtype, device, costs) for c in configs]
    families, family_of = distinct_names(family, configs)
    structures, structure_of = distinct_names(structure, configs)
    made = [head_blocks(shape, c.keys, c.rows) for c in configs]
    key_heads, blocks = made[0][0], [sharers * each for _, each in made]

    def column(value: Callable[[AttentionBwdConfig], float]) -> Floats:
        return np.array([value(c) for c in configs], dtype=np.float64)

    def measured(name: str) -> Floats:
        return np.array([cycles[name] for cycles in solved], dtype=np.float64)

    separate = column(lambda c: float(c.dq == "separate"))
    units = np.array([key_heads * len(b) for b in blocks], dtype=np.float64)
    passes = np.array([max(1, key_heads * int(b.sum())) for b in blocks], dtype=np.float64)
    queries = np.array([_query_passes(c, shape) for c in configs], dtype=np.float64)
    slots = column(lambda c: 2.0 * c.slot_bytes(element) + (c.reduced_bytes if c.dq == "reduce" else 0.0))
    blocks_per_sm = column(lambda c: c.ctas_per_sm)
    zeros = np.zeros(len(configs))
    return DeviceWork(
        flops=PRODUCTS * shape.flops,
        families=families,
        structures=structures,
        family=family_of,
        structure=structure_of,
        executed_flops=passes * column(_block_flops) * (4.0 + (1.0 - separate)) + queries * column(_block_flops) * 3.0,
        loaded_bytes=(passes + queries) * slots + units * column(lambda c: 2.0 * c.held_bytes(element)),
        rounds=np.ceil(units / (device.sm_count * blocks_per_sm)),
        trips=np.array([_busiest(c, key_heads, b, device) for c, b in zip(configs, blocks, strict=True)], float),
        iterations=passes / units,
        # The kernel of dQ runs behind this one: its loop counts as a longer interval.
        ii_cycles=measured("ii_cycles") + measured("query_ii_cycles") * queries / passes,
        load_bytes=slots * (1.0 + queries / passes),
        unaligned=zeros,
        slots_in_flight=column(lambda c: c.depth - 1.0),
        blocks_per_sm=blocks_per_sm,
        active_sms=np.minimum(units, device.sm_count),
        prologue_cycles=measured("prologue_cycles") * (1.0 + separate),
        epilogue_cycles=measured("epilogue_cycles"),
        drain_cycles=measured("drain_cycles") * (1.0 + separate),
        plain_elements=zeros,
        overlapped=column(lambda c: float(c.ctas_per_sm > 1)),
        refilled=column(lambda c: float(not c.persistent)),
        dram_bytes=np.array([_dram_bytes(c, shape, element, device) for c in configs]),
        dram_latency_cycles=measured("dram_latency_cycles"),
        filled_bytes=zeros,
        group_rows=zeros,
        split_k=np.ones(len(configs)),
        split_rounds=zeros,
        reduced_bytes=zeros,
        reduction_trips=zeros,
        narrow=zeros,
        streamed=zeros,
        fix_up_cycles=zeros,
        launch_dependents=zeros,
        early_part=zeros,
    )


def moved_bytes(shape: AttentionShape, element_bytes: int) -> float:
    """Q, K, V, O, dO and the gradients moved once, O and dO once more for the statistics."""
    keys = sum(count * one.k_length for count, one in shape.sequences)
    return (5.0 * shape.heads * shape.q_rows + 4.0 * shape.kv_heads * keys) * shape.head_dim * element_bytes


def _dram_bytes(config: AttentionBwdConfig, shape: AttentionShape, element: int, device: Device) -> float:
    """What is moved once, the fp32 dQ among it where it is reduced, and what L2 forgets: every tile of keys runs
    through the rows of Q, dO and the fp32 dQ of its head. The tiles of a head that run at one time read them together,
    and those that follow find in L2 what all heads that run with it leave there."""
    reduces = config.dq == "reduce"
    once = moved_bytes(shape, element) + reduces * 3.0 * _query_elements(shape) * STATISTIC_BYTES
    rows = _query_elements(shape) * (2.0 * element + reduces * 2.0 * STATISTIC_BYTES)
    key_heads, blocks = head_blocks(shape, config.keys, config.rows)
    length = shape.q_rows * shape.kv_heads / key_heads
    resident = min(config.ctas_per_sm * device.sm_count, key_heads * len(blocks))
    heads = min(key_heads, max(config.head_group, resident / len(blocks)))
    tiles = resident / heads
    # Of a head's rows a window leaves those around the tiles that run.
    part = min(1.0, float(blocks.max() * config.rows + tiles * config.keys) / length)
    forgotten = min(1.0, max(0.0, rows * part * heads / key_heads / (L2_RESIDENT * device.l2_bytes) - 1.0))
    turns = max(1.0, float(blocks.sum() * config.rows) / length / tiles)
    return once + rows * (turns - 1.0) * forgotten


def loop_of(config: AttentionBwdConfig) -> AttentionBwdConfig:
    """``config`` without what its loop does not depend on: candidates of one loop have the same."""
    return replace(config, persistent=True, head_group=1)


def _query_elements(shape: AttentionShape) -> float:
    return float(shape.heads * shape.q_rows * shape.head_dim)


def _block_flops(config: AttentionBwdConfig) -> float:
    """Of one product of a tile with a block."""
    return 2.0 * config.keys * config.rows * config.head_dim


def _query_passes(config: AttentionBwdConfig, shape: AttentionShape) -> int:
    """Iterations of the kernel of dQ; 0 where there is none."""
    if config.dq != "separate":
        return 0
    passes = sum(count * int(one.blocks(config.keys, config.rows).sum()) for count, one in shape.sequences)
    return shape.heads * passes


def _busiest(config: AttentionBwdConfig, key_heads: int, blocks: Ints, device: Device) -> int:
    """Blocks of rows of the busiest CTA: units go round the persistent CTAs in order; where each has a CTA of its own
    the hardware hands them out in that order to whoever is free."""
    tiles = len(blocks)
    resident = min(config.ctas_per_sm * device.sm_count, key_heads * tiles)
    if (blocks == blocks[0]).all():
        return max(1, -(-key_heads * tiles // resident) * int(blocks[0]))
    bands = np.full(-(-key_heads // config.head_group), config.head_group, dtype=np.int64)
    bands[-1] = key_heads - config.head_group * (len(bands) - 1)
    if len(bands) * tiles > SUMMED_RANGES:
        return int(-(-key_heads * blocks.sum() // resident) + blocks.max())
    repeated, trips = np.repeat(bands, tiles), np.tile(blocks, len(bands))
    if not config.persistent:
        return max(1, handed_out_trips(tuple(repeated.tolist()), tuple(trips.tolist()), resident))
    return max(1, busiest_trips(repeated, trips, resident))


@lru_cache(maxsize=256)
def handed_out_trips(units: tuple[int, ...], iterations: tuple[int, ...], resident: int) -> int:
    """Loop iterations of the busiest of ``resident`` CTAs where each of the units, ``units``\\ [g] of
    ``iterations``\\ [g], goes to the first that is free: list scheduling (Graham 1966, "Bounds for certain
    multiprocessing anomalies"). Of more than :data:`HANDED_OUT` units the mean and half the longest, half his bound."""
    total = sum(count * trips for count, trips in zip(units, iterations, strict=True))
    if sum(units) > HANDED_OUT:
        return -(-total // resident) + max(iterations) // 2
    done = [0] * resident
    for count, trips in zip(units, iterations, strict=True):
        for _ in range(count):
            heapreplace(done, done[0] + trips)
    return max(done)

"""What the candidates of the attention forward kernel ask of the device, for one shape: the input of
:mod:`warpplan.planner.predict.time_model`. A unit is a tile of queries, an iteration a block of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.fp8.value_pass import KEY_STEP, value_pass_cycles
from warpplan.kernels.attention_fwd.graph import conversion, sustained_ii
from warpplan.kernels.attention_fwd.space import ELEMENT_BYTES, AttentionConfig
from warpplan.kernels.gemm.space import RESULT_BYTES
from warpplan.kernels.gemm.work import L2_RESIDENT
from warpplan.kernels.grouped_gemm.work import busiest_trips
from warpplan.planner.errors import MissingCosts
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostTable, OperationCost
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

Config = TypeVar("Config")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SUMMED_RANGES = 1 << 16
"""Ranges of like units up to which the busiest CTA's are summed up exactly. Of more, each is a small part of what a CTA
does: it is taken to have its share and one longest unit."""


def family(config: AttentionConfig) -> str:
    """The name under which constants of like blocks are calibrated."""
    order = "pingpong" if config.pingpong else "lookahead" if config.lookahead else "serial"
    return f"{order}{config.consumers}x{config.rows}{'' if config.persistent else '-once'}"


def structure(config: AttentionConfig) -> str:
    c = config
    query = "-qr" if c.q_in_registers else ""
    return f"{family(c)}-D{c.head_dim}n{c.columns}-d{c.depth}{c.staging}{query}"


@lru_cache(maxsize=1024)
def loop_cycles(config: AttentionConfig, dtype: str, device: Device, costs: CostTable) -> dict[str, float]:
    """The measured columns of ``config``, which no field that orders units changes. Raises :class:`MissingCosts`."""
    c, element = config, ELEMENT_BYTES[dtype]

    def latency(kind: str, size: int, **text: str) -> float:
        return measured_latency(costs.lookup(kind, size, **text), kind)

    scores, output = c.rows * c.columns, c.rows * c.head_dim
    flush = latency("tma_store", c.tile_rows * c.head_dim * RESULT_BYTES)
    # The first block's softmax has no product of its own consumer beside it where products are issued ahead.
    kinds = ("row_max", "exp2", "row_sum", conversion(dtype, costs))
    softmax = sum(latency(kind, scores) for kind in kinds) if c.lookahead else 0.0
    store = latency("elementwise", output) + latency("epilogue_store", output)
    return {
        "ii_cycles": float(sustained_ii(c, dtype, device, costs)),
        "prologue_cycles": latency("tma_load", c.tile_bytes(element), source="l2"),
        # A store from bytes of its own drains under the next unit.
        "epilogue_cycles": softmax + store + (flush if c.staging == "q" else 0.0),
        "drain_cycles": flush,
        "dram_latency_cycles": latency("tma_load", c.slot_bytes(element), source="dram"),
    }


def work(
    configs: Sequence[AttentionConfig], shape: AttentionShape, dtype: str, device: Device, profile: Profile
) -> DeviceWork:
    """Each of ``configs`` as :class:`DeviceWork` for ``shape``. The pass that transposes an 8-bit V is a launch before
    the kernel's, for which all blocks wait. Raises :class:`MissingCosts`."""
    element = ELEMENT_BYTES[dtype]
    solved = [loop_cycles(loop_of(c), dtype, device, profile.costs) for c in configs]
    families, family_of = distinct_names(family, configs)
    structures, structure_of = distinct_names(structure, configs)
    sequences = shape.sequences
    # By configuration and kind of sequence: the blocks of each tile of a head.
    step = KEY_STEP if element == 1 else 1
    blocks = [[one.blocks(c.tile_rows, c.columns, step) for _, one in sequences] for c in configs]
    heads = [shape.heads * count for count, _ in sequences]

    def column(value: Callable[[AttentionConfig], float]) -> Floats:
        return np.array([value(c) for c in configs], dtype=np.float64)

    def measured(name: str) -> Floats:
        return np.array([cycles[name] for cycles in solved], dtype=np.float64)

    units = np.array([np.dot(heads, [len(b) for b in kinds]) for kinds in blocks], dtype=np.float64)
    passes = np.array([np.dot(heads, [b.sum() for b in kinds]) for kinds in blocks], dtype=np.float64)
    resident = np.minimum(units, device.sm_count)
    slots = column(lambda c: 2 * c.slot_bytes(element))
    zeros = np.zeros(len(configs))
    waited = value_pass_cycles(shape, profile) if element == 1 else 0.0
    return DeviceWork(
        flops=shape.flops,
        families=families,
        structures=structures,
        family=family_of,
        structure=structure_of,
        executed_flops=4.0 * passes * column(lambda c: c.tile_rows * c.columns * c.head_dim),
        loaded_bytes=passes * slots + units * column(lambda c: c.consumers * c.tile_bytes(element)),
        rounds=np.ceil(units / device.sm_count),
        trips=np.array([_busiest(c, shape, b, device) for c, b in zip(configs, blocks, strict=True)], dtype=np.float64),
        iterations=passes / units,
        ii_cycles=measured("ii_cycles"),
        load_bytes=slots,
        unaligned=zeros,
        slots_in_flight=column(lambda c: c.depth - 1.0),
        blocks_per_sm=np.ones(len(configs)),
        active_sms=resident,
        prologue_cycles=measured("prologue_cycles"),
        epilogue_cycles=measured("epilogue_cycles"),
        drain_cycles=measured("drain_cycles"),
        plain_elements=zeros,
        overlapped=zeros,
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
        fix_up_cycles=zeros + waited,
        launch_dependents=zeros,
        early_part=zeros,
    )


def loop_of(config: AttentionConfig) -> AttentionConfig:
    """``config`` without what its loop does not depend on: candidates of one loop have the same."""
    return replace(config, persistent=True, head_group=1)


def _busiest(config: AttentionConfig, shape: AttentionShape, blocks: Sequence[Ints], device: Device) -> int:
    """Blocks of keys of the busiest CTA. Units go round the SMs in order; where each has a CTA of its own the hardware
    hands them out in that order to whoever is free, and the busiest has one of the longest more than the mean at most
    (Graham 1966, "Bounds for certain multiprocessing anomalies"), half of it on average."""
    units, trips = [], []
    for (count, one), its in zip(shape.sequences, blocks, strict=True):
        # Heads of unlike sequences are in bands of their own, and so are those of packed ones.
        bands = _bands(shape.heads if shape.packed else shape.batch_heads, config.head_group)
        repeated = count if shape.packed else 1
        if (its == its[0]).all():
            units.append(np.array([shape.heads * count * len(its)]))
            trips.append(its[:1])
            continue
        # The longest tiles come first where the mask is bounded on the right.
        order = its[::-1] if one.right is not None else its
        units.append(np.tile(np.repeat(bands, len(its)), repeated))
        trips.append(np.tile(order, len(bands) * repeated))
    each, iterations = np.concatenate(units), np.concatenate(trips)
    resident = min(device.sm_count, int(each.sum()))
    if (iterations != iterations[0]).any() and not config.persistent:
        return int(-(-(each @ iterations) // resident) + iterations.max() // 2)
    if len(each) > SUMMED_RANGES:
        return int(-(-(each @ iterations) // resident) + iterations.max())
    return busiest_trips(each, iterations, resident)


def _bands(heads: int, group: int) -> Ints:
    """Heads of each band of ``group``."""
    bands = np.full(-(-heads // group), group, dtype=np.int64)
    bands[-1] = heads - group * (len(bands) - 1)
    return bands


def _dram_bytes(config: AttentionConfig, shape: AttentionShape, element: int, device: Device) -> float:
    """Compulsory traffic, plus the keys that L2 forgets: those of the heads that run at once are read anew by each wave
    of their tiles, and reach DRAM by the part that exceeds the resident L2."""
    again = 0.0
    for count, one in shape.sequences:
        tiles = -(-one.q_length // config.tile_rows)
        heads = shape.heads if shape.packed else shape.heads * count
        together = min(heads, max(config.head_group, -(-device.sm_count // max(tiles, 1))))
        key_heads = -(-together * shape.kv_heads // shape.heads)
        keys = 2.0 * one.k_length * shape.head_dim * element
        forgotten = min(1.0, max(0.0, key_heads * keys / (L2_RESIDENT * device.l2_bytes) - 1.0))
        waves = max(1.0, together * tiles / device.sm_count)
        again += count * shape.kv_heads * keys * (waves - 1.0) * forgotten
    return shape.moved_bytes(element) + again


def distinct_names(
    name: Callable[[Config], str], configs: Sequence[Config]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """(the distinct names in order, the index of each configuration's)."""
    listed = [name(c) for c in configs]
    distinct = {text: i for i, text in enumerate(dict.fromkeys(listed))}
    return tuple(distinct), np.array([distinct[text] for text in listed], dtype=np.int64)


def measured_latency(cost: OperationCost, kind: str) -> float:
    if cost.latency is None:
        raise MissingCosts([f"{kind} latency"])
    return cost.latency.p50

"""What the candidates of the decoding attention kernel ask of the device, for one shape: the input of
:mod:`warpplan.planner.predict.time_model`. A unit is a split of a key head's keys, an iteration a block of keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.attention_decode.space import MAX_SPLITS, DecodeConfig, violations
from warpplan.kernels.attention_fwd.graph import sustained_ii
from warpplan.kernels.attention_fwd.space import ELEMENT_BYTES, MAX_DEPTH
from warpplan.planner.errors import MissingCosts
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

Floats = NDArray[np.float64]

WAVES = (1, 2, 4)
"""Blocks for each SM that splitting may make."""
SHALLOWER = 4
"""Ring slots beside the deepest ring: how many copies DRAM needs in flight is not known before a measurement."""
SUM_BYTES = 4
"""Of an element that a split leaves, fp32."""


@dataclass(frozen=True)
class DecodeShape:
    """``queries`` of each of ``heads`` in each of ``batch`` sequences, over ``keys`` of ``kv_heads``; the last query
    stands at the last key."""

    batch: int
    heads: int
    keys: int
    head_dim: int
    kv_heads: int
    queries: int = 1

    @property
    def rows(self) -> int:
        """Of the tile of a key head."""
        return self.heads // self.kv_heads * self.queries

    @property
    def flops(self) -> float:
        """Of both products: 4 · D for each pair of a query and a key that it sees."""
        seen = sum(max(self.keys - before, 0) for before in range(self.queries))
        return 4.0 * self.batch * self.heads * self.head_dim * seen

    def moved_bytes(self, element_bytes: int) -> float:
        """K, V, Q and O, each moved once."""
        rows = 2.0 * self.kv_heads * self.keys + 2.0 * self.heads * self.queries
        return self.batch * rows * self.head_dim * element_bytes


@lru_cache(maxsize=32)
def structures(head_dim: int, dtype: str, device: Device) -> tuple[DecodeConfig, ...]:
    """Every valid block, with the deepest rings that fit and with :data:`SHALLOWER` ones, without splits.

    All with lookahead: blocks without it were slower in 77 of 78 pairs that differ in nothing else, and 0.06 % faster
    in one (training shapes of ``benchmarks/results/kernels_exhaustive_h200_attention_decode.json``)."""
    found: list[DecodeConfig] = []
    for columns in (64, 128):
        made = (DecodeConfig(head_dim, columns, depth) for depth in range(MAX_DEPTH, 1, -1))
        fitting = [config for config in made if not violations(config, dtype, device)]
        found += [config for config in fitting if config is fitting[0] or config.depth == SHALLOWER]
    return tuple(found)


def candidates(shape: DecodeShape, dtype: str, device: Device) -> tuple[DecodeConfig, ...]:
    """The configurations considered for ``shape``, in a fixed order: no split, and numbers of splits around those that
    give each SM a whole number of blocks."""
    found: list[DecodeConfig] = []
    for base in structures(shape.head_dim, dtype, device):
        most = min(MAX_SPLITS, -(-shape.keys // base.columns))
        units = shape.batch * shape.kv_heads
        filling = {
            splits
            for waves in WAVES
            for splits in (waves * device.sm_count // units, -(-waves * device.sm_count // units))
        }
        found += [replace(base, splits=splits) for splits in sorted({1} | {s for s in filling if 1 < s <= most})]
    return tuple(found)


def family(config: DecodeConfig) -> str:
    """The name under which constants of like blocks are calibrated."""
    return f"decode-{'lookahead' if config.lookahead else 'serial'}"


def structure(config: DecodeConfig) -> str:
    return f"{family(config)}-D{config.head_dim}n{config.columns}-d{config.depth}"


@lru_cache(maxsize=1024)
def loop_cycles(config: DecodeConfig, dtype: str, device: Device, costs: CostTable) -> dict[str, float]:
    """The measured columns of ``config``, which its splits do not change. Raises :class:`MissingCosts`."""
    block, element = config.attention, ELEMENT_BYTES[dtype]

    def latency(kind: str, size: int, **text: str) -> float:
        found = costs.lookup(kind, size, **text).latency
        if found is None:
            raise MissingCosts([f"{kind} latency"])
        return found.p50

    scores, output = block.rows * block.columns, block.rows * block.head_dim
    softmax = sum(latency(kind, scores) for kind in ("row_max", "exp2", "row_sum", "convert"))
    return {
        "ii_cycles": float(sustained_ii(block, dtype, device, costs)),
        "prologue_cycles": latency("tma_load", block.tile_bytes(element), source="l2"),
        "epilogue_cycles": softmax + latency("elementwise", output) + latency("epilogue_store", output),
        "dram_latency_cycles": latency("tma_load", block.slot_bytes(element), source="dram"),
    }


def work(
    configs: Sequence[DecodeConfig], shape: DecodeShape, dtype: str, device: Device, profile: Profile
) -> DeviceWork:
    """Each of ``configs`` as :class:`DeviceWork` for ``shape``. The kernel that combines splits is one launch more,
    after the first one's end, and reads what they left. Raises :class:`MissingCosts`."""
    element = ELEMENT_BYTES[dtype]
    solved = [loop_cycles(replace(c, splits=1), dtype, device, profile.costs) for c in configs]
    ceilings = dict(profile.ceilings)
    missing = [f"ceiling {name}" for name in ("launch_us", "clock_hz_idle") if name not in ceilings]
    if missing:
        raise MissingCosts(missing)
    launch_cycles = ceilings["launch_us"].p50 * ceilings["clock_hz_idle"].p50 * 1e-6
    names = [structure(c) for c in configs]
    families = tuple(dict.fromkeys(map(family, configs)))
    structures_ = tuple(dict.fromkeys(names))

    def column(value: Callable[[DecodeConfig], float]) -> Floats:
        return np.array([value(c) for c in configs], dtype=np.float64)

    def measured(name: str) -> Floats:
        return np.array([cycles[name] for cycles in solved], dtype=np.float64)

    splits = column(lambda c: c.splits)
    units = shape.batch * shape.kv_heads * splits
    blocks = column(lambda c: math.ceil(math.ceil(shape.keys / c.splits) / c.columns))
    rounds = np.ceil(units / device.sm_count)
    slots = column(lambda c: 2 * c.attention.slot_bytes(element))
    several = (splits > 1).astype(np.float64)
    parts = several * units * shape.rows * shape.head_dim * SUM_BYTES
    rows = shape.batch * shape.heads * shape.queries
    zeros, ones = np.zeros(len(configs)), np.ones(len(configs))
    return DeviceWork(
        flops=shape.flops,
        families=families,
        structures=structures_,
        family=np.array([families.index(family(c)) for c in configs], dtype=np.int64),
        structure=np.array([structures_.index(name) for name in names], dtype=np.int64),
        executed_flops=4.0 * units * blocks * column(lambda c: c.attention.rows * c.columns * c.head_dim),
        loaded_bytes=units * blocks * slots + 2.0 * parts,
        rounds=rounds,
        trips=rounds * blocks,
        iterations=blocks,
        ii_cycles=measured("ii_cycles"),
        load_bytes=slots,
        unaligned=zeros,
        slots_in_flight=column(lambda c: c.depth - 1.0),
        blocks_per_sm=ones,
        active_sms=np.minimum(units, device.sm_count),
        prologue_cycles=measured("prologue_cycles"),
        epilogue_cycles=measured("epilogue_cycles"),
        drain_cycles=several * launch_cycles,
        plain_elements=zeros,
        overlapped=zeros,
        refilled=ones,
        # What splits leave is written, and read by the next kernel from L2.
        dram_bytes=shape.moved_bytes(element) + zeros,
        dram_latency_cycles=measured("dram_latency_cycles"),
        filled_bytes=zeros,
        group_rows=zeros,
        split_k=splits,
        split_rounds=several,
        reduced_bytes=several * np.ceil(rows / device.sm_count) * splits * shape.head_dim * SUM_BYTES,
        reduction_trips=zeros,
        narrow=zeros,
        streamed=zeros,
        fix_up_cycles=zeros,
        launch_dependents=zeros,
        early_part=zeros,
    )

"""The time of a vector addition from measured ceilings.

With B elements a block, f the SM clock, S SMs, R resident blocks of each, II and the pass from the block's graph:

    launch  = the measured time of an empty kernel
    latency = ⌈blocks / (S · R)⌉ · pass / f       each place on an SM runs its blocks one after the other
    issue   = ⌈blocks / S⌉ · II / f               what the busiest SM's way to memory is held
    dram    = 3 · N · element bytes / measured copy rate
    time    = launch + max(latency, pass / f + max(issue, dram))

The first stores follow one pass after the first loads; from then on the slower of the two rates decides. Nothing here
is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.vector_add.graph import interval_cycles, pass_graph
from warpplan.kernels.vector_add.space import ACCESS_BYTES, ELEMENT_BYTES, VectorAddConfig
from warpplan.planner.errors import MissingCosts
from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

PARTS = ("launch", "latency", "issue", "dram")
"""What can bound the kernel, in the words of ``Prediction.bound_by``."""
OPERANDS = 3
"""x and y are read, the sum is written."""
CEILINGS = ("clock_hz_idle", "copy_bytes_per_s", "launch_us")


@dataclass(frozen=True)
class Ceilings:
    """What the model needs of a profile."""

    clock_hz: float
    copy_bytes_per_s: float
    launch_us: float

    @classmethod
    def of(cls, profile: Profile) -> Ceilings:
        """Raises :class:`MissingCosts` naming the ceilings that the profile lacks."""
        have = dict(profile.ceilings)
        missing = [f"ceiling {name}" for name in CEILINGS if name not in have]
        if missing:
            raise MissingCosts(missing)
        return cls(*(have[name].p50 for name in CEILINGS))


def predict(config: VectorAddConfig, length: int, dtype: str, device: Device, profile: Profile) -> Prediction:
    """What ``config`` should take for ``length`` elements. Raises :class:`MissingCosts`."""
    ceilings, element = Ceilings.of(profile), ELEMENT_BYTES[dtype]
    graph = pass_graph(config, dtype, device, profile.costs)
    us_per_cycle = 1e6 / ceilings.clock_hz
    ops = graph.by_id
    pass_us = (ops["load_y"].latency + ops["add"].latency + ops["store"].issue) * us_per_cycle
    blocks = -(-length // config.block_size)
    waves = -(-blocks // (device.sm_count * config.resident_blocks(device)))
    latency = waves * pass_us
    issue = -(-blocks // device.sm_count) * interval_cycles(graph) * us_per_cycle
    dram = OPERANDS * length * element / ceilings.copy_bytes_per_s * 1e6
    time_us = ceilings.launch_us + max(latency, pass_us + max(issue, dram))
    parts = tuple(zip(PARTS, (ceilings.launch_us, latency, issue, dram), strict=True))
    return Prediction(time_us, length / time_us * 1e-6, max(parts, key=lambda part: part[1])[0], parts)


def tie_breaks(configs: tuple[VectorAddConfig, ...], dtype: str) -> tuple[NDArray[np.float64], ...]:
    """Between equal times: threads that use whole 16-byte accesses, then the more threads."""
    element = ELEMENT_BYTES[dtype]
    narrow = [float(c.elements_per_thread * element < ACCESS_BYTES) for c in configs]
    return np.array(narrow), np.array([-float(c.num_warps) for c in configs])

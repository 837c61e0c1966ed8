"""Work of candidates that belong to no kernel, for tests of the time model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.predict.time_model import DeviceWork, Rates

RATES = Rates(
    clock_hz=2e9,
    l2_bytes_per_s=5e12,
    l2_bytes_per_cycle_per_sm=64.0,
    dram_bytes_per_s=4e12,
    tensor_flops=8e14,
    launch_us=2.0,
)


def works(rows: int = 1, **columns: Any) -> DeviceWork:
    """``rows`` equal candidates of one family and structure, but for ``columns``: numbers or arrays."""

    def floats(value: float) -> NDArray[np.float64]:
        return np.full(rows, value, dtype=np.float64)

    base = DeviceWork(
        flops=2.0 * 1024**3,
        families=("one",),
        structures=("only",),
        family=np.zeros(rows, dtype=np.int64),
        structure=np.zeros(rows, dtype=np.int64),
        executed_flops=floats(2.0 * 1024**3),
        loaded_bytes=floats(4e7),
        rounds=floats(2),
        trips=floats(64),
        iterations=floats(32),
        ii_cycles=floats(500),
        load_bytes=floats(48e3),
        slots_in_flight=floats(3),
        blocks_per_sm=floats(1),
        active_sms=floats(132),
        prologue_cycles=floats(900),
        epilogue_cycles=floats(1500),
        drain_cycles=floats(700),
        unaligned=floats(0),
        plain_elements=floats(0),
        overlapped=floats(0),
        refilled=floats(0),
        dram_bytes=floats(6e6),
        dram_latency_cycles=floats(1200),
        filled_bytes=floats(0),
        group_rows=floats(0),
        split_k=floats(1),
        split_rounds=floats(0),
        reduced_bytes=floats(0),
        reduction_trips=floats(0),
        narrow=floats(0),
        streamed=floats(0),
        fix_up_cycles=floats(0),
        launch_dependents=floats(0),
        early_part=floats(0),
    )
    arrays = {n: floats(v) if np.isscalar(v) and n != "flops" else v for n, v in columns.items()}
    return replace(base, **arrays)

"""Kernel time from solved loops and the memory system, for many candidates at once.

The model. A persistent grid gives each resident block ``rounds`` units of work (tiles, or K splits of tiles), each of
``iterations`` loop iterations. With f the SM clock::

    tensor   = trips · II / f, trips = rounds · iterations, II as solved at the ring's depth
    l2       = trips · slot bytes / the block's share of the L2 rate, more where box rows straddle cache lines or fill
               half a line, where a group of the tile order spans many rows, and where neighbours in the tile order
               are not at the same K block: in streams of K, and where an early launch scatters blocks
    latency  = trips · (DRAM latency / f + its bytes' part of the l2 term) / (depth − 1)
                                     (Little's law; one slot is always being multiplied, the others are on their way)
    dram     = ramp + bytes that must come from or go to DRAM / measured rate + zeros that TMA fills in / L2 rate
    power    = (FLOP, L2 and DRAM bytes, each weighted by the energy it takes) / sustained tensor rate
    overhead = (start + prologue + rounds · exposed + drain + fix-up) / f + split rounds · split-K's reduction
    time     = launch + overhead + ‖ ‖ ‖tensor, l2, latency‖, power ‖, dram ‖ − what an early launch saves

``exposed`` is what a unit's epilogue adds: all of it where the same warps multiply next; half of what exceeds the main
loop where a second consumer, or a second block on the SM, multiplies meanwhile; and the ring's refill too where one
partition does everything. The p-norms, each with its own p, stand for what neither a maximum (perfect overlap) nor a
sum (none) describes. Zeros are those of boxes that reach beyond the matrix: tiles of 64 rows for 1 to 32 take 10 to
45 % longer than the bytes from DRAM say (``benchmarks/results/gemm_exhaustive_h200_train.json``), and the fit charges
them at the L2's measured rate. A block with ranges of split tiles in several rounds reduces in each: it waits once for
others, then for L2 as often as it loads partial sums, then for their bytes. Where a kernel lets the launch that follows
begin early, each of its launches in a row takes less by a constant. Of the next launch's blocks, a part finds room
beside this one's; the others begin when and where this one's end. Where there are both, launches were seen to take up
to 1.25 times as long (``early_launch_<card>.json``): a likely reason, not verified, is that neighbours in the tile
order no longer ask for the same lines at the same time, and the model charges L2 for it. The p of the norms and the
other constants below are fitted on training shapes (``profiler.fit``); everything else is measured or solved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.profile import Profile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TERMS = ("tensor", "l2", "latency", "dram", "power", "overhead")
"""What can bound a kernel, in the words of ``Prediction.bound_by``."""

GLOBAL_DEFAULTS: Mapping[str, float] = {
    "block_norm": 6.0,
    "power_norm": 4.0,
    "memory_norm": 6.0,
    "launch_scale": 1.0,
    "early_launch_us": 0.0,
    "l2_scale": 1.0,
    "dram_scale": 1.0,
    "dram_ramp_us": 1.0,
    "power_scale": 1.0,
    "energy_l2": 0.1,
    "energy_dram": 0.1,
    "latency_scale": 1.0,
    "transfer_scale": 0.0,
    "crooked_scale": 1.0,
    "narrow_scale": 0.0,
    "refill_scale": 1.0,
    "drain_scale": 1.0,
    "prologue_scale": 1.0,
    "split_us": 1.0,
    "split_scale": 1.0,
    "split_trip_us": 0.0,
    "fill_scale": 1.0,
    "order_l2": 0.0,
    "scatter_l2": 0.0,
    "stream_l2": 0.0,
}
FAMILY_DEFAULTS: Mapping[str, float] = {
    "tensor_scale": 1.0,
    "iteration_cycles": 0.0,
    "unit_cycles": 0.0,
    "exposed": 1.0,
    "start_cycles": 0.0,
    "plain_cycles": 20.0,
}


LAUNCHES = "launches"
"""The calibration of anyone's kernels, in embedded profiles gemm's at the time when what ranks them was compared with
timed launches."""
FEW_GROUP_ROWS = 1024.0
"""Rows that a group of the tile order spans without more L2 traffic; each doubling beyond it adds ``order_l2`` of it.

SMs that ask for a line at the same time share a request. Of one product an H100 read 106 and 109 million sectors
through L2 in groups of 1024 and 512 rows, 146 million in groups of 2048 (``benchmarks/results/l2_traffic_h100.json``).
Twice the constant would leave groups of 2048 rows without a penalty, which take 1.1 times as long there
(``power_h100.json``). On an H200 larger groups cost 3 % at most (``power_h200.json``): its own fits have 0 here, and
calibrations that take what power costs from the H100 take the H100's with it."""


@dataclass(frozen=True)
class Prediction:
    """``parts`` are (term, microseconds) pairs before they are combined; ``bound_by`` is the largest one's name."""

    time_us: float
    tflops: float
    bound_by: str
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class DeviceWork:
    """What each candidate asks of the device: float64 arrays with one element a candidate.

    Cycles are SM cycles. ``family`` and ``structure`` index ``families`` and ``structures``, the names under which
    constants and residuals are calibrated. ``load_bytes`` and ``ii_cycles`` are of one loop iteration of one block.
    ``narrow`` is what boxes load less than with rows of whole cache lines, as a part of what they load: TMA copies row
    by row.
    ``group_rows`` are the result's rows in a group of the tile order, 0 where there is none.
    ``rounds`` and ``trips`` are the units and the loop iterations of the busiest block, ``iterations`` those of one
    unit. ``plain_elements`` are a thread's outputs that leave without TMA; ``unaligned`` is 1 where rows are
    no whole cache lines; ``overlapped`` and ``refilled`` are 1 where another consumer hides the epilogue and where each
    unit starts with an empty ring. ``filled_bytes`` are those of ``loaded_bytes`` that lie beyond the matrix, which TMA
    fills with zeros. ``split_rounds`` of the ``rounds`` are ranges of split tiles, at whose end the partial sums of a
    tile are written, each by its block, and read by one that waits ``reduction_trips`` times: ``reduced_bytes`` in all.
    ``fix_up_cycles``, measured, are what a block of a stream waits for the partial sums of others, or a kernel for one
    that runs before it; ``streamed`` is 1 where K is a stream. ``launch_dependents`` is 1 where the next launch may
    begin before this one ends; ``early_part`` of the blocks of one like it then find room at once.
    """

    flops: float
    families: tuple[str, ...]
    structures: tuple[str, ...]
    family: Ints
    structure: Ints
    executed_flops: Floats
    loaded_bytes: Floats
    rounds: Floats
    trips: Floats
    iterations: Floats
    ii_cycles: Floats
    load_bytes: Floats
    unaligned: Floats
    narrow: Floats
    group_rows: Floats
    slots_in_flight: Floats
    blocks_per_sm: Floats
    active_sms: Floats
    prologue_cycles: Floats
    epilogue_cycles: Floats
    drain_cycles: Floats
    plain_elements: Floats
    overlapped: Floats
    refilled: Floats
    dram_bytes: Floats
    dram_latency_cycles: Floats
    filled_bytes: Floats
    split_k: Floats
    split_rounds: Floats
    reduced_bytes: Floats
    reduction_trips: Floats
    fix_up_cycles: Floats
    streamed: Floats
    launch_dependents: Floats
    early_part: Floats

    def take(self, rows: Ints) -> DeviceWork:
        """The chosen rows alone."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen: dict[str, Any] = {name: v[rows] for name, v in values.items() if isinstance(v, np.ndarray)}
        return replace(self, **chosen)


@dataclass(frozen=True)
class Rates:
    """The ceilings that the model needs, from a profile."""

    clock_hz: float
    l2_bytes_per_s: float
    l2_bytes_per_cycle_per_sm: float
    dram_bytes_per_s: float
    tensor_flops: float
    launch_us: float

    @classmethod
    def of(cls, profile: Profile, dtype: str) -> Rates:
        """Raises :class:`MissingCosts` naming the ceilings that the profile lacks."""
        have = dict(profile.ceilings)
        tensor = f"tensor_flops_{dtype}"
        needed = ("clock_hz_idle", "l2_bytes_per_s", "read_bytes_per_s", tensor, "launch_us")
        missing = [f"ceiling {name}" for name in needed if name not in have]
        if missing:
            raise MissingCosts(missing)
        return cls(
            have["clock_hz_idle"].p50, have["l2_bytes_per_s"].p50, TMA_BYTES_PER_CYCLE, have["read_bytes_per_s"].p50,
            have[tensor].p50, have["launch_us"].p50,
        )  # fmt: skip


MOST_SAVED = 0.5
"""Of a launch's time, by an early launch: what remains is work. Of 102 rows none saved more than 0.15 of it
(``benchmarks/results/early_launch_<card>.json``)."""
TMA_BYTES_PER_CYCLE = 64.0
"""The widest an SM's port to L2 can be (Hopper whitepaper: 64 bytes a clock and SM)."""


def constant_names(families: tuple[str, ...]) -> tuple[str, ...]:
    """Every fitted constant but the structure residuals."""
    return (*GLOBAL_DEFAULTS, *(f"{name}.{family}" for family in families for name in FAMILY_DEFAULTS))


def launch_constants(profile: Profile) -> dict[str, float]:
    """The norms and scales for kernels that have no calibration of their own: of the profile's calibration
    :data:`LAUNCHES`, else of gemm's, else the defaults. A gemm that is calibrated anew leaves other kernels' ranks."""
    found = profile.calibration(LAUNCHES) or profile.calibration("gemm")
    fitted = dict(found.constants) if found is not None else {}
    return {name: fitted.get(name, default) for name, default in GLOBAL_DEFAULTS.items()}


def terms(work: DeviceWork, rates: Rates, constants: Mapping[str, float]) -> tuple[Floats, Floats]:
    """The six parts in µs as an array [len(TERMS), candidates], and the predicted times in µs."""

    def of_family(name: str) -> Floats:
        values = [constants.get(f"{name}.{f}", FAMILY_DEFAULTS[name]) for f in work.families]
        return np.array(values, dtype=np.float64)[work.family]

    def of_all(name: str) -> float:
        return constants.get(name, GLOBAL_DEFAULTS[name])

    us_per_cycle = 1e6 / rates.clock_hz
    trips = work.trips
    ii = work.ii_cycles * of_family("tensor_scale") + of_family("iteration_cycles")
    tensor = trips * ii * us_per_cycle
    share = np.minimum(
        rates.l2_bytes_per_s / work.active_sms, rates.l2_bytes_per_cycle_per_sm * rates.clock_hz
    ) / work.blocks_per_sm  # fmt: skip
    lines = 1.0 + of_all("crooked_scale") * work.unaligned + of_all("narrow_scale") * work.narrow
    crowded = np.log2(np.maximum(work.group_rows / FEW_GROUP_ROWS, 1.0))
    scattered = work.launch_dependents * 4.0 * work.early_part * (1.0 - work.early_part)
    alone = of_all("scatter_l2") * scattered + of_all("stream_l2") * work.streamed
    requests = lines * (1.0 + of_all("order_l2") * crowded + alone)
    l2 = of_all("l2_scale") * requests * trips * work.load_bytes / share * 1e6
    arrival = of_all("latency_scale") * trips * work.dram_latency_cycles * us_per_cycle + of_all("transfer_scale") * l2
    latency = arrival / work.slots_in_flight
    filled = of_all("fill_scale") * work.filled_bytes / rates.l2_bytes_per_s * 1e6
    dram = of_all("dram_ramp_us") + of_all("dram_scale") * work.dram_bytes / rates.dram_bytes_per_s * 1e6 + filled
    power = of_all("power_scale") * (
        work.executed_flops / rates.tensor_flops
        + of_all("energy_l2") * work.loaded_bytes / rates.l2_bytes_per_s
        + of_all("energy_dram") * work.dram_bytes / rates.dram_bytes_per_s
    ) * 1e6  # fmt: skip
    epilogue = of_family("exposed") * work.epilogue_cycles + of_family("unit_cycles")
    epilogue = epilogue + of_family("plain_cycles") * work.plain_elements
    hidden = np.maximum(0.0, epilogue - work.iterations * ii) / 2
    refill = of_all("refill_scale") * work.refilled * work.prologue_cycles
    exposed = np.where(work.overlapped > 0, hidden, epilogue) + refill
    ends = of_family("start_cycles") + of_all("prologue_scale") * work.prologue_cycles
    ends = ends + of_all("drain_scale") * work.drain_cycles
    ends = ends + np.where(work.overlapped > 0, epilogue - hidden, 0.0)
    overhead = (ends + work.rounds * exposed + work.fix_up_cycles) * us_per_cycle
    reduction = of_all("split_scale") * work.reduced_bytes / rates.l2_bytes_per_cycle_per_sm * us_per_cycle
    reduction = reduction + of_all("split_trip_us") * work.reduction_trips
    overhead = overhead + work.split_rounds * (of_all("split_us") + reduction)
    parts = np.stack([tensor, l2, latency, dram, power, overhead])
    block = _norm(of_all("block_norm"), tensor, l2, latency)
    body = _norm(of_all("memory_norm"), _norm(of_all("power_norm"), block, power), dram)
    residual = np.array([constants.get(f"structure.{s}", 0.0) for s in work.structures])[work.structure]
    time_us = of_all("launch_scale") * rates.launch_us + (overhead + body) * np.exp(residual)
    saved_us = np.minimum(work.launch_dependents * of_all("early_launch_us"), MOST_SAVED * time_us)
    return parts, time_us - saved_us


def _norm(p: float, *terms_us: Floats) -> Floats:
    stacked = np.stack(terms_us)
    largest = stacked.max(axis=0)
    return np.asarray(largest * ((stacked / largest) ** p).sum(axis=0) ** (1.0 / p))


def predictions(work: DeviceWork, parts: Floats, time_us: Floats, rows: Ints) -> tuple[Prediction, ...]:
    """The chosen rows as values."""
    return tuple(
        Prediction(
            float(time_us[r]),
            work.flops / float(time_us[r]) * 1e-6,
            TERMS[int(np.argmax(parts[:, r]))],
            tuple(zip(TERMS, map(float, parts[:, r]), strict=True)),
        )
        for r in rows.tolist()
    )

"""The time of one launch of a kernel as Triton compiles it, without a partition: pure, from facts and a profile.

    interval(x) = ‖ max(serial, x · busy) + turn, x · bytes / the SM's share of L2, latency / slots in flight ‖_p
    block(x)    = start + prologue(x) + first copy + Σ trips · interval(x) + epilogue(x)
    SM          = ⌊q / b⌋ · block(b) + block(q mod b)        q blocks for the busiest SM, b of them resident, x together
    time        = launch + ‖ SM, power, DRAM ‖

A loop that loads, but copies nothing ahead and multiplies nothing, is as busy as with :data:`WAITING_WARPS` more.
A prologue and an epilogue last what one block takes, or the busiest unit of all x where that is longer.

The norms, and the scales of latency, L2, DRAM and power, are the residual constants that were fitted on TMA GEMMs
(:mod:`warpplan.planner.predict.time_model`); what is said below to be chosen by hand was chosen on kernels that load
through pointers. Predictions are meant for ranking configurations of one kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from warpplan.kernels.compiler.costing.loop_graph import THREADS
from warpplan.kernels.compiler.costing.pipelined.block_time import BlockPrice, LoopPrice, block_price
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts
from warpplan.planner.predict.time_model import TMA_BYTES_PER_CYCLE, Prediction, launch_constants
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

BLOCK_START_CYCLES = 600.0
"""From a block's launch to its first instruction's end, index arithmetic aside. Estimated, in the range of what was
fitted for pipelined GEMMs (``start_cycles.pipelined4`` and ``pipelined8``). Doubled: small tiles rank lower."""
IDLE_BLOCK_CYCLES = 400.0
"""Of a block that reads one number and returns. Estimated. Doubled: launches with many such blocks look slower, alike
for every configuration of one tile."""
PLAIN_REGISTERS = 40
"""A thread's counters and constants beside its tiles and addresses, as fitted for pipelined GEMMs; kernels compiled
for the tests are within a fifth of it."""
BARRIER_BYTES = 1_024
"""Shared memory that the driver keeps of each block (CUDA C++ Programming Guide, "Compute Capability 9.x")."""
REGISTER_UNIT = 8
"""Registers a thread are allocated in eights."""
MOST_BLOCKS_PER_SM = 32
TURN_CYCLES = {False: 100.0, True: 500.0}
"""Of an iteration whose products nobody waits for: barriers, descriptors and copies between one product and the next,
which the one still in flight hides for the most part, but not where ptxas serialises them. Fitted by hand to the
training half of the launches in ``benchmarks/results/launch_replay_h200.json``; 400 to 600 do about as well."""
WAITING_WARPS = 4.0
"""Warps added to an SM's own, one a scheduler, in the issue time of a loop that loads and itself multiplies nothing:
few warps cannot hide each other's waits. Chosen by hand on the training rows of the layer norm in
``benchmarks/results/consumers_h200.json``: without, few warps with large tiles rank too high; doubled, they rank too
low."""
SPILL_BYTES_PER_CYCLE = 32.0
"""L1's rate for spilled registers, there and back. Chosen by hand on the training rows of
``benchmarks/results/consumers_h100.json``, where 64 ranks attention that spills too high; 16 to 32 do about as well."""
CRAMPED = 1.4
"""Of a loop whose products and the work between them leave no register free: ptxas computes addresses and masks again
and again, and cannot reorder. Chosen by hand on the training rows of ``benchmarks/results/consumers_h100.json``:
attention at the limit takes 1.3 to 1.55 times its price, elsewhere 0.9 to 1.2."""
LEAST_SLOTS = 0.7
"""Slots in flight of a loop that copies one iteration ahead into the slot that its product still reads. Chosen by hand
on ``benchmarks/results/moe_samples_h100.json``; 0.5 ranks loops of two stages too low, 1 those of large tiles too
high."""
REFILLED = 0.25
"""Slots of a loop whose wgmma nobody waits for that are being filled beside ``stages`` − 2: none where a wgmma lasts as
long as an iteration, one where it is over at once. Chosen by hand on the training rows of
``benchmarks/results/consumers_h200.json`` and ``consumers_h100.json``: with 0 three stages are priced 4 to 8 % too high
beside four; doubled, 1 % too low."""
COPIED_L2 = 1.5
"""Time for a loop's bytes out of L2 over TMA's, where threads copy them: a warp's copies ask for whole lines, but
neighbouring SMs ask apart. Chosen by hand on the same rows: 1 ranks large tiles with few stages too high."""
USUAL_DISTINCT = 0.55
"""Different bytes over those that neighbouring blocks load, in products launched in groups of rows: the constants
above were chosen on these."""
SHARED_GAIN = 0.2
"""Part of a copy's time out of L2 that is saved where every byte is asked for by many neighbours at a time. Chosen by
hand on the training rows of ``fused_moe_up`` in ``benchmarks/results/consumers_h200.json`` and ``consumers_h100.json``.
Doubled: the same choices; launch orders differ more, as they do when measured, but products of matrices are priced up
to 5 % less well."""
ELEMENT_RATE = {"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e4m3fn", "f16": "float16", "i8": "float8_e4m3fn"}
"""Whose sustained tensor rate stands for an element's; bfloat16's for the others."""


@dataclass(frozen=True)
class LaunchFacts:
    """How a kernel is launched, and what that asks of memory.

    ``blocks`` are programs that work, ``idle_blocks`` those that return at once; ``trips`` the iterations of each loop
    of the facts in one program, on average, those of loops around it multiplied in. ``registers``, ``spill_bytes`` (a
    thread) and ``shared_bytes`` (a block) as compiled, or ``None`` where estimates have to do; ``serialized`` whether
    ptxas makes every wgmma wait for the one before (its warning C7510), which nothing else tells. ``dram_bytes`` must
    come from or go to device memory, ``cold`` is the part of loads that L2 does not have, ``loaded`` the part of a
    loop's tiles that masks let through, ``distinct_share`` the different bytes over all bytes that
    neighbouring blocks load.
    """

    blocks: float
    trips: tuple[float, ...]
    stages: int
    idle_blocks: float = 0.0
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    serialized: bool = False
    dram_bytes: float = 0.0
    cold: float = 1.0
    loaded: float = 1.0
    distinct_share: float = USUAL_DISTINCT


@dataclass(frozen=True)
class LaunchTime:
    """``parts`` are (term, µs) before they are combined; ``resident`` blocks on an SM, ``rounds`` of them one after the
    other. ``fits`` is false where not even one block does: the time is then infinite."""

    time_us: float
    bound_by: str
    parts: tuple[tuple[str, float], ...]
    resident: int
    rounds: float
    fits: bool = True

    def prediction(self, flops: float) -> Prediction:
        """The same in the planner's words; ``flops`` of the whole launch."""
        return Prediction(self.time_us, flops / self.time_us * 1e-6, self.bound_by, self.parts)


def launch_time(facts: KernelFacts, launch: LaunchFacts, profile: Profile, device: Device) -> LaunchTime:
    """The predicted time of ``launch``. Deterministic; raises
    :class:`~warpplan.planner.errors.MissingCosts` where the profile lacks what nothing can stand for."""
    return LaunchModel(facts, profile, device).time(launch)


def estimated_registers(facts: KernelFacts) -> int:
    """Registers a thread before any limit."""
    return PLAIN_REGISTERS + facts.live_registers


def ring_bytes(facts: KernelFacts, stages: int) -> int:
    """Shared memory of a block whose loops copy ``stages`` deep: wgmma reads a slot while the others fill, mma.sync has
    moved its operands to registers and has one slot less (Triton 3.6 to 3.9)."""
    total = 0
    for loop in facts.loops:
        slots = max(1, stages if loop.uses_wgmma else stages - 1)
        total += loop.ring_bytes * slots
    return max(total + facts.kept_bytes, facts.staged_bytes)


class LaunchModel:
    """One kernel priced once, for launches of many shapes and depths."""

    def __init__(self, facts: KernelFacts, profile: Profile, device: Device) -> None:
        self.facts, self.profile, self.device = facts, profile, device
        self.constants = launch_constants(profile)
        have = {name: rate.p50 for name, rate in profile.ceilings}
        # Published rates of an H100 where a profile has no ceilings: 5.5 TB/s of L2, 3.35 TB/s of DRAM.
        self.clock_hz = have.get("clock_hz_idle", device.boost_clock_hz)
        self.l2_bytes_per_s = have.get("l2_bytes_per_s", 5.5e12)
        self.dram_bytes_per_s = have.get("read_bytes_per_s", 3.35e12)
        self.launch_us = have.get("launch_us", 1.0)
        self.tensor_flops = {n.removeprefix("tensor_flops_"): v for n, v in have.items() if "tensor_flops" in n}

    @cached_property
    def price(self) -> BlockPrice:
        return block_price(self.facts, self.profile)

    def time(self, launch: LaunchFacts) -> LaunchTime:
        """The predicted time of ``launch``."""
        resident = self.resident(launch)
        if not resident:
            return LaunchTime(math.inf, "shared memory", (), 0, 0.0, False)
        sms = self.device.sm_count
        most = max(1, math.ceil(launch.blocks / sms - 1e-9))
        together = min(resident, most)
        active = min(float(sms), max(1.0, launch.blocks))
        whole, left = divmod(most, together)
        cycles = whole * self._block(launch, together, active) + (self._block(launch, left, active) if left else 0.0)
        cycles += launch.idle_blocks / sms / resident * IDLE_BLOCK_CYCLES
        us = 1e6 / self.clock_hz
        c = self.constants
        power = c["power_scale"] * self._flops(launch) / self._sustained * 1e6
        dram = c["dram_ramp_us"] + c["dram_scale"] * launch.dram_bytes / self.dram_bytes_per_s * 1e6
        body = _norm(c["memory_norm"], _norm(c["power_norm"], cycles * us, power), dram)
        parts = (("blocks", cycles * us), ("power", power), ("dram", dram), ("launch", self.launch_us))
        bound = max(parts[:3], key=lambda part: part[1])[0]
        if launch.serialized and bound == "blocks" and any(loop.flying for loop in self.price.loops):
            bound = "serialised wgmma"
        return LaunchTime(body + self.launch_us, bound, parts, together, most / together)

    def resident(self, launch: LaunchFacts) -> int:
        """Blocks on one SM; 0 where shared memory does not hold one."""
        shared = launch.shared_bytes if launch.shared_bytes is not None else ring_bytes(self.facts, launch.stages)
        if shared > self.device.smem_bytes_per_block:
            return 0
        warps = max(1, self.facts.warps)
        registers = launch.registers if launch.registers is not None else self._estimated
        registers = min(self.device.registers_per_thread, -(-registers // REGISTER_UNIT) * REGISTER_UNIT)
        by_registers = self.device.registers_per_sm // (registers * THREADS * warps)
        by_memory = self.device.smem_bytes_per_sm // (shared + BARRIER_BYTES)
        return max(0, min(by_registers, by_memory, self.device.warps_per_sm // warps, MOST_BLOCKS_PER_SM))

    @cached_property
    def _estimated(self) -> int:
        return estimated_registers(self.facts)

    def spilled_bytes(self, launch: LaunchFacts) -> int:
        """Bytes a thread that leave its registers and come back."""
        if launch.spill_bytes is not None:
            return launch.spill_bytes
        return 8 * max(0, self._estimated - self.device.registers_per_thread)

    def _block(self, launch: LaunchFacts, together: int, active: float) -> float:
        """Cycles of ``together`` blocks on one SM, begun and ended together."""
        price = self.price
        spills = self.spilled_bytes(launch) * THREADS * self.facts.warps / SPILL_BYTES_PER_CYCLE
        steady = sum(
            trips * self._interval(loop, launch, together, active, spills)
            for loop, trips in zip(price.loops, launch.trips, strict=True)
        )
        fill = max((self._latency(loop, launch) for loop in price.loops), default=0.0)
        epilogue = max(price.epilogue_cycles, together * price.epilogue_busy)
        # Without a loop what does not fit leaves and comes back once, through the L1 that all blocks share.
        spilled = 0.0 if price.loops else together * spills
        prologue = max(price.prologue_cycles, together * price.prologue_busy)
        return BLOCK_START_CYCLES + prologue + fill + steady + spilled + epilogue

    def _interval(
        self, loop: LoopPrice, launch: LaunchFacts, together: int, active: float, spills: float
    ) -> float:  # fmt: skip
        c = self.constants
        share = min(self.l2_bytes_per_s / active / self.clock_hz, TMA_BYTES_PER_CYCLE)
        transfer = c["l2_scale"] * together * launch.loaded * loop.loaded_bytes / share
        transfer *= COPIED_L2 * _sharing(launch.distinct_share) / _sharing(USUAL_DISTINCT) if loop.copied else 1.0
        serial = loop.serial_cycles * self._cramped(loop, launch) + spills
        if not loop.ring_bytes:
            waiting = WAITING_WARPS / max(1, self.facts.warps) if loop.loaded_bytes and not loop.flops else 0.0
            return _norm(c["block_norm"], max(serial, (together + waiting) * loop.busy_cycles), transfer)
        arrival = c["latency_scale"] * self._latency(loop, launch) + c["transfer_scale"] * transfer
        busy = max(serial, together * (loop.busy_cycles * self._cramped(loop, launch) + spills))
        if loop.wgmma and loop.flying:
            busy += TURN_CYCLES[launch.serialized]
        return _norm(c["block_norm"], busy, transfer, arrival / slots_in_flight(loop, launch.stages))

    def _cramped(self, loop: LoopPrice, launch: LaunchFacts) -> float:
        """What work between products takes over its price, in a loop that waits for them."""
        waits = loop.wgmma and not loop.flying
        full = launch.registers is not None and launch.registers > self.device.registers_per_thread - REGISTER_UNIT
        return CRAMPED if waits and full else 1.0

    def _latency(self, loop: LoopPrice, launch: LaunchFacts) -> float:
        """Of one copy, in the mix of L2 and DRAM."""
        return loop.latency_l2 + launch.cold * (loop.latency_dram - loop.latency_l2)

    def _flops(self, launch: LaunchFacts) -> float:
        return launch.blocks * sum(loop.flops * t for loop, t in zip(self.price.loops, launch.trips, strict=True))

    @cached_property
    def _sustained(self) -> float:
        """The slowest sustained tensor rate of the loops' elements, in FLOP/s."""
        names = {ELEMENT_RATE.get(loop.element, "bfloat16") for loop in self.price.loops if loop.element}
        # The H100's published dense rate for bfloat16 where a profile has none.
        return min((self.tensor_flops.get(name, 989e12) for name in names or {"bfloat16"}), default=989e12)


def slots_in_flight(loop: LoopPrice, stages: int) -> float:
    """Copies that are on their way while one is multiplied: ``stages`` − 1, but where nobody waits for a wgmma its slot
    is refilled only once the next one has begun, and counts as :data:`REFILLED`."""
    return max(LEAST_SLOTS, stages - 2 + REFILLED if loop.wgmma and loop.flying else stages - 1)


def _sharing(distinct_share: float) -> float:
    """Time for a copy out of L2 over that of one which no neighbour asks for, too."""
    return 1.0 - SHARED_GAIN * (1.0 - distinct_share)


def _norm(p: float, *terms: float) -> float:
    largest = max(terms)
    if largest <= 0.0:
        return 0.0
    return float(largest * sum([(term / largest) ** p for term in terms]) ** (1.0 / p))

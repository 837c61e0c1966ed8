"""From one tile's cycles on one SM to the time of a whole launch, in which tiles of unlike sizes compare.

    SM time = waves · tiles of a program · cycles of a tile / clock,  waves = ⌈programs / SMs⌉
    time    = ‖ ‖ SM time, FLOP / sustained tensor rate ‖, bytes of the arguments / DRAM read rate ‖

with the p-norms of :mod:`warpplan.planner.predict.time_model`. Where the grid or a loop's iterations are not known,
those of no other configuration of the kernel are: times are then those of equal work, :data:`NOMINAL_FLOP`, and compare
all the same. :func:`launch_bound` needs Triton's IR alone: no configuration is faster than its products on the tensor
cores and its loads from L2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.operation_kinds import DOTS, LOOPS, TMA_LOADS, Product
from warpplan.kernels.compiler.sizes.gain_model import NOMINAL_TRIPS
from warpplan.kernels.compiler.sizes.loop_trips import Trips
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type
from warpplan.planner.predict.time_model import launch_constants
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

NOMINAL_FLOP = 1e12
"""Work of a launch whose loops cannot be counted. Any number: times of one kernel's configurations scale with it."""
FLOP_PER_CYCLE = 2 * 64 * 32 * 2
"""Of an SM's tensor cores for one-byte operands, 64 rows and 32 bytes of k in n / 2 cycles (H100 whitepaper); divided
by an operand's bytes for wider ones."""
BFLOAT16_BITS = 16
L2_BYTES_PER_S = 5.5e12
"""The H100's published L2 read rate, for a profile without ceilings."""


@dataclass(frozen=True)
class LaunchSize:
    """``programs`` of the grid, 0 where it is not known; ``trips`` of each loop of the kernel, outer before inner;
    ``bytes`` of the tensors that are passed, 0 where they are not known."""

    programs: int
    trips: tuple[Trips | None, ...] = ()
    bytes: int = 0


@dataclass(frozen=True)
class LaunchRates:
    """What bounds a launch beside its loops: ``clock_hz``, L2 bytes a cycle and SM as calibrated, DRAM bytes and FLOP a
    second."""

    clock_hz: float
    l2_bytes_per_cycle: float
    dram_bytes_per_s: float
    tensor_flops: float
    power_norm: float
    memory_norm: float

    @classmethod
    def of(cls, profile: Profile, device: Device, product: Product | None = None) -> LaunchRates:
        """The profile's ceilings; of those that it lacks, the device's published ones, or none where nothing is.
        Operands of ``product`` that were not measured have bfloat16's rate, byte for byte."""
        have = {name: rate.p50 for name, rate in profile.ceilings}
        constants = launch_constants(profile)
        clock = have.get("clock_hz_idle", device.boost_clock_hz)
        dtype = "bfloat16" if product is None else product.dtype
        flops = have.get(f"tensor_flops_{dtype}", math.inf)
        if product is not None and not product.measured:
            flops *= BFLOAT16_BITS / product.element.element_bits
        return cls(
            clock, have.get("l2_bytes_per_s", L2_BYTES_PER_S) / clock / device.sm_count / constants["l2_scale"],
            have.get("read_bytes_per_s", math.inf), flops,
            constants["power_norm"], constants["memory_norm"],
        )  # fmt: skip

    def time_us(self, sm_cycles: float, flop: float, size: LaunchSize) -> float:
        """Of a launch whose busiest SM works for ``sm_cycles``."""
        body = _norm(self.power_norm, sm_cycles / self.clock_hz, flop / self.tensor_flops)
        return 1e6 * _norm(self.memory_norm, body, size.bytes / self.dram_bytes_per_s)


def waves(size: LaunchSize, sms: int) -> float:
    """How many programs the busiest SM runs, one after the other: whole ones where all take alike."""
    alike = all(trips is None or trips.mean == trips.most for trips in size.trips)
    each = size.programs / sms
    return max(1.0, float(math.ceil(each)) if alike else each)


def iterations(trips: Trips | None, size: LaunchSize, sms: int) -> float:
    """Of a loop, for the SM that ends last: where there are more programs than SMs, they even out."""
    if trips is None:
        return float(NOMINAL_TRIPS)
    return float(trips.most) if 0 < size.programs <= sms else trips.mean


def launch_bound(function: IrOperation, size: LaunchSize, profile: Profile, device: Device) -> float:
    """Microseconds that no configuration of the kernel stays below, from its Triton IR alone (helpers inlined): its
    products at the tensor cores' rate and its loaded tiles at L2's, on every SM at once. 0 where it has no product."""
    rates = LaunchRates.of(profile, device)
    work = _Work(size, device.sm_count)
    work.add(function.regions[0], 1.0)
    if not work.flop:
        return 0.0
    cycles = max(work.tensor_cycles, work.bytes / rates.l2_bytes_per_cycle)
    if not (work.counted and size.programs):
        return 1e6 * cycles * NOMINAL_FLOP / (work.flop * device.sm_count) / rates.clock_hz
    return 1e6 * max(1.0, size.programs / device.sm_count) * cycles / rates.clock_hz


class _Work:
    """What one program multiplies and loads: ``counted`` is false where the iterations of one of its loops are not
    known."""

    def __init__(self, size: LaunchSize, sms: int) -> None:
        self.size, self.sms = size, sms
        self.tensor_cycles = self.flop = self.bytes = 0.0
        self.counted = True
        self._loop = 0

    def add(self, region: Region, times: float) -> None:
        for operation in region.operations:
            inside = times
            if operation.name in LOOPS:
                trips = self.size.trips[self._loop] if self._loop < len(self.size.trips) else None
                self._loop += 1
                self.counted &= trips is not None
                inside = times * iterations(trips, self.size, self.sms)
            elif operation.name in DOTS:
                self._product(operation, times)
            elif operation.name in TMA_LOADS or operation.name == "tt.load":
                loaded = parse_type(find_types(operation.signature)[-1]) if "x" in operation.signature else None
                if loaded is not None and loaded.kind == "tensor" and len(loaded.shape) > 1:
                    bits = loaded.element_bits if not loaded.element.startswith("!tt.ptr") else _pointed(loaded.element)
                    self.bytes += times * math.prod(loaded.shape) * bits / 8
            for inner in operation.regions:
                self.add(inner, inside)

    def _product(self, operation: IrOperation, times: float) -> None:
        types = [parse_type(text) for text in find_types(operation.signature)]
        a, result = types[0], types[-1]
        if a is None or result is None:
            return
        flop = 2.0 * math.prod(result.shape) * a.shape[-1]
        self.flop += times * flop
        self.tensor_cycles += times * flop * a.element_bits / 8 / FLOP_PER_CYCLE


def _pointed(element: str) -> int:
    """Bits of what ``!tt.ptr<…>`` points to."""
    inner = parse_type(f"tensor<1x{element[len('!tt.ptr<') : -1]}>")
    return inner.element_bits if inner is not None else 8


def _norm(p: float, *terms: float) -> float:
    largest = max(terms)
    return largest * sum((term / largest) ** p for term in terms) ** (1 / p) if largest > 0 else 0.0

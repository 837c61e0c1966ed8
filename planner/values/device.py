"""What a GPU offers a kernel: units, sizes and limits, from the vendor's documents."""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.planner.errors import UnknownName

UNITS = ("TMA", "TENSOR", "ALU", "SFU", "LSU")


@dataclass(frozen=True)
class Device:
    """One GPU model.

    ``name`` is what ``torch.cuda.get_device_name()`` returns. Sizes are bytes; ``registers_per_sm`` counts 32-bit
    registers; ``capability`` is major·10 + minor. Source: CUDA C++ Programming Guide, "Compute Capabilities",
    and the vendor's data sheets for SM counts, L2 and clocks.
    """

    name: str
    capability: int
    sm_count: int
    smem_bytes_per_block: int
    smem_bytes_per_sm: int
    registers_per_sm: int
    registers_per_thread: int
    warps_per_sm: int
    named_barriers: int
    l2_bytes: int
    dram_bytes: int
    boost_clock_hz: float
    tmem_lanes: int = 0
    tmem_columns: int = 0

    @property
    def has_wgmma(self) -> bool:
        return self.capability == 90


H200 = Device("NVIDIA H200", 90, 132, 232_448, 233_472, 65_536, 255, 64, 16, 60 * 2**20, 141 * 10**9, 1.98e9)
H100 = Device("NVIDIA H100 80GB HBM3", 90, 132, 232_448, 233_472, 65_536, 255, 64, 16, 50 * 2**20, 80 * 10**9, 1.98e9)
B200 = Device(
    "NVIDIA B200", 100, 148, 232_448, 233_472, 65_536, 255, 64, 16, 126 * 2**20, 180 * 10**9, 1.965e9,
    tmem_lanes=128, tmem_columns=512,
)  # fmt: skip

DEVICES = {d.name: d for d in (H200, H100, B200)}


def device(name: str) -> Device:
    """The device called ``name``; :class:`UnknownName` lists the known ones."""
    try:
        return DEVICES[name]
    except KeyError:
        raise UnknownName("device", name, DEVICES) from None

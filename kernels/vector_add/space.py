"""The configurations of the vector addition, and the one function that says which of them are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
BLOCK_SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
WARP_COUNTS = (1, 2, 4, 8)
WARP = 32
MAX_ELEMENTS_PER_THREAD = 32
"""Of two float32 operands these are 64 registers, which compile without a spill (tests compile every candidate)."""
ACCESS_BYTES = 16
"""The widest access of one thread (PTX ISA, "ld.global", vectors of 128 bits)."""
BASE_REGISTERS = 24
"""Addresses and offsets beside the operands: ptxas reports at most that many (tests compare it with the compiler)."""
BLOCKS_PER_SM = 32
"""Resident blocks of an SM (CUDA C++ Programming Guide, "Compute Capabilities", 9.0)."""


@dataclass(frozen=True, order=True)
class VectorAddConfig:
    """One way to run the kernel: a program adds ``block_size`` elements with ``num_warps`` warps."""

    block_size: int
    num_warps: int

    @property
    def elements_per_thread(self) -> int:
        return self.block_size // (WARP * self.num_warps)

    def registers(self, element_bytes: int) -> int:
        """Registers a thread at most: both operands, the sum takes the place of one."""
        return BASE_REGISTERS + 2 * -(-self.elements_per_thread * element_bytes // 4)

    def resident_blocks(self, element_bytes: int, device: Device) -> int:
        """Blocks that are on an SM at once: bound by blocks, warps or registers."""
        registers = self.registers(element_bytes) * WARP * self.num_warps
        return min(BLOCKS_PER_SM, device.warps_per_sm // self.num_warps, device.registers_per_sm // registers)

    def accesses(self, element_bytes: int) -> int:
        """Loads of one operand that a thread issues."""
        return -(-self.elements_per_thread * element_bytes // ACCESS_BYTES)


def violations(config: VectorAddConfig, dtype: str) -> tuple[str, ...]:
    """Why ``config`` cannot run; empty when it can. Devices do not differ in this."""
    return tuple(_violations(config, dtype))


def _violations(config: VectorAddConfig, dtype: str) -> Iterator[str]:
    if dtype not in ELEMENT_BYTES:
        yield f"dtype {dtype}: expected one of {', '.join(ELEMENT_BYTES)}"
    for name, value, allowed in (
        ("BLOCK_SIZE", config.block_size, BLOCK_SIZES),
        ("num_warps", config.num_warps, WARP_COUNTS),
    ):
        if value not in allowed:
            yield f"{name} {value}: expected one of {', '.join(map(str, allowed))}"
            return
    if not 1 <= config.elements_per_thread <= MAX_ELEMENTS_PER_THREAD:
        yield (
            f"{config.block_size} elements over {config.num_warps} warps are {config.elements_per_thread} a thread: "
            f"expected 1 to {MAX_ELEMENTS_PER_THREAD}"
        )


def require_valid(config: VectorAddConfig, dtype: str) -> None:
    """Raise :class:`InvalidConfig` with the first violation, if there is one."""
    found = violations(config, dtype)
    if found:
        raise InvalidConfig(f"invalid vector_add configuration: {found[0]}", field="config", value=repr(config))


def candidates(dtype: str) -> tuple[VectorAddConfig, ...]:
    """Every valid configuration, in a fixed order; a length changes none of them."""
    everything = (VectorAddConfig(block, warps) for block in BLOCK_SIZES for warps in WARP_COUNTS)
    return tuple(config for config in everything if not violations(config, dtype))


def tuning(config: VectorAddConfig) -> TuningConfig:
    """The configuration as Triton's own fields."""
    return TuningConfig.of({"BLOCK_SIZE": config.block_size}, num_warps=config.num_warps, num_stages=1)


def config_of(tuning_config: TuningConfig) -> VectorAddConfig:
    """The inverse of :func:`tuning`; :class:`InvalidConfig` where a field is missing, unknown or of the wrong kind."""
    kwargs = dict(tuning_config.kwargs)
    block_size = kwargs.pop("BLOCK_SIZE", None)
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise InvalidConfig(
            f"vector_add configuration: BLOCK_SIZE is {block_size!r}, a whole number is needed",
            field="BLOCK_SIZE", value=block_size,
        )  # fmt: skip
    config = VectorAddConfig(block_size, tuning_config.num_warps)
    if tuning(config) != tuning_config:
        odd = next(iter(kwargs), "num_stages, num_ctas or maxnreg")
        raise InvalidConfig(f"vector_add configuration: {odd} is not what the launch would use", field=odd)
    return config

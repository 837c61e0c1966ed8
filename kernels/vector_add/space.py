"""The configurations of the vector addition, and the one function that says which of them are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
BLOCK_SIZES = (128, 256, 512, 1024, 2048, 4096)
WARP_COUNTS = (1, 2, 4, 8)
WARP = 32
MAX_ELEMENTS_PER_THREAD = 16
"""With 32 and operands off 16 bytes, ptxas spills (Triton 3.6.0, sm_90; tests compile every candidate both ways)."""
ACCESS_BYTES = 16
"""The widest access of one thread (PTX ISA, "ld.global", vectors of 128 bits)."""
BASE_REGISTERS = 24
ELEMENT_REGISTERS = 6
"""A thread's registers for each of its elements, at most: the operands, and under the mask an address and a predicate.
Tests compare both numbers with what ptxas reports of every candidate (16 elements: 115)."""
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

    @property
    def registers(self) -> int:
        """Registers a thread, at most."""
        return BASE_REGISTERS + ELEMENT_REGISTERS * self.elements_per_thread

    def resident_blocks(self, device: Device) -> int:
        """Blocks that are on an SM at once: bound by blocks, warps or registers."""
        registers = self.registers * WARP * self.num_warps
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

"""How large a converter is: a warp group, whose registers follow from the operands that it makes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

CONVERTER_WARPS = 4
"""Warps of a converter: a warp group, of which ``setmaxnreg`` changes the registers (PTX ISA). Doubled, a block of two
consumers has 20 warps, and a consumer 96 registers to start with."""
LEAST_REGISTERS, MOST_REGISTERS = 56, 168
BASE_REGISTERS = 48
"""Registers a thread for counters, barriers, addresses in shared memory. Chosen by hand."""


def converter_registers(read: Iterable[tuple[int, ...]]) -> int:
    """Registers a thread of a converter that reads tiles of the shapes ``read`` from rings, a multiple of 8: one a
    thread and element of each, which are in 32 bits while they are converted. Above :data:`MOST_REGISTERS` ptxas of
    Triton 3.6.0 spills (4-bit weights with scales and zeros of 64 x 128: 112 bytes a thread)."""
    wanted = BASE_REGISTERS + sum(-(-prod(shape) // (32 * CONVERTER_WARPS)) for shape in read)
    return max(LEAST_REGISTERS, -(-wanted // 8) * 8)

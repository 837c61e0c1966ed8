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


def converter_registers(operands: Iterable[tuple[int, ...]]) -> int:
    """Registers a thread of a converter that makes ``operands``, tiles of these shapes, one after another, a multiple
    of 8: one a thread and element of the largest, which is in 32 bits while it is converted."""
    elements = max(map(prod, operands), default=0)
    wanted = BASE_REGISTERS + -(-elements // (32 * CONVERTER_WARPS))
    return min(MOST_REGISTERS, max(LEAST_REGISTERS, -(-wanted // 8) * 8))

"""How large a producer is: one warp that issues TMA loads, or four that copy addresses which each thread computes."""

from __future__ import annotations

from collections.abc import Iterable

WARP = 32
PRODUCER_WARPS = 4
"""Warps of a producer that works on tensors: a warp group, of which ``setmaxnreg`` changes the registers (PTX ISA)."""
LEAST_REGISTERS = 24
"""Registers a thread of a producer of TMA loads alone, the least that ``setmaxnreg`` takes (PTX ISA): one thread
computes coordinates and issues loads."""
COPY_REGISTERS = 48
"""Registers a thread of a producer that copies, before any address: counters, barriers, strides."""
ADDRESS_REGISTERS = 3
"""Registers of one address and its mask."""
MOST_REGISTERS = 128


def producer_registers(copies: Iterable[int]) -> int:
    """Registers a thread of a producer whose loads need ``copies`` instructions of ``cp.async`` each (all lanes of all
    warps counted), a multiple of 8: an address a thread and instruction is in registers around the loop."""
    each = [-(-count // (WARP * PRODUCER_WARPS)) for count in copies]
    if not each:
        return LEAST_REGISTERS
    return min(MOST_REGISTERS, -(-(COPY_REGISTERS + ADDRESS_REGISTERS * sum(each)) // 8) * 8)

"""How the blocks on one SM, and in each the producer and its consumers, divide 65,536 registers.

All threads of a block start alike, with what the kernel's ``maxnreg`` says, in multiples of 8; then ``setmaxnreg``
takes registers from the producer's warp group for the consumers (PTX ISA, "setmaxnreg").
"""

from __future__ import annotations

from collections.abc import Sequence

REGISTERS_PER_SM = 65_536
WARP = 32
WARP_GROUP = 4
"""Warps that registers are given out for at once: a producer of one warp counts as so many."""
GRANULE = 8
MOST_REGISTERS = 240
"""Registers a thread of a consumer at most: what two consumer warp groups get next to a producer of 24."""
PRODUCER_REGISTERS = 24
"""Registers a thread of a producer that one thread runs, the least that ``setmaxnreg`` takes (PTX ISA)."""


def starting_registers(consumer_warps: int, producer_warps: int = WARP_GROUP, blocks: int = 1) -> int:
    """Registers with which each thread starts where ``blocks`` run on one SM at once. Triton's own choice for one
    (its AllocateWarpGroups pass)."""
    total = consumer_warps + -(-producer_warps // WARP_GROUP) * WARP_GROUP
    return REGISTERS_PER_SM // (blocks * WARP * total) // GRANULE * GRANULE


def consumer_registers(
    consumer_warps: int,
    producer_warps: int = WARP_GROUP,
    blocks: int = 1,
    producer_registers: int = PRODUCER_REGISTERS,
    others: Sequence[tuple[int, int]] = (),
) -> int:
    """Registers a thread of a consumer: what a producer of ``producer_registers`` a thread leaves, and ``others`` of
    (warps, registers a thread), in equal parts, at most :data:`MOST_REGISTERS`."""
    producer_warps = -(-producer_warps // WARP_GROUP) * WARP_GROUP
    beside = producer_warps + sum(warps for warps, _ in others)
    start = starting_registers(consumer_warps, beside, blocks)
    taken = producer_registers * producer_warps + sum(warps * registers for warps, registers in others)
    left = start * (consumer_warps + beside) - taken
    return min(MOST_REGISTERS, left // consumer_warps // GRANULE * GRANULE)

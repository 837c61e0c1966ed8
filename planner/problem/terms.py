"""The terms that the solver's inequalities are stated in: arcs between starts, uses of ring slots, warps and registers.

An :class:`Arc` is the one kind of inequality between two start times; dependences and rings of known depth both become
arcs, so that one longest-path routine bounds both.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
"""Threads of a warp."""
WARP_COUNTS = (1, 2, 4, 8)
"""Warps that a partition may have."""
WARP_GROUP = 4
"""Warps that registers are allotted to, and that reach all four sub-partitions of an SM."""
REGISTER_COUNTS = tuple(range(24, 241, 8))
"""What ``setmaxnreg`` takes (PTX ISA, "setmaxnreg"), within what the compiler hands out."""


@dataclass(frozen=True)
class Arc:
    """start[``dst``] ≥ start[``src``] + ``cycles`` − II · ``distance``, plus ``handoff`` where partitions differ."""

    src: int
    dst: int
    cycles: int
    handoff: int
    distance: int


@dataclass(frozen=True)
class Use:
    """``consumer`` has left the slot of an operation's ring ``cycles`` after its own start, ``distance`` iterations
    later (plus ``handoff`` when it must tell another partition); ``margin`` is kept beyond it for late arrivals."""

    consumer: int
    cycles: int
    handoff: int
    distance: int
    margin: int


def whole_multiple(size: int, alignment: int) -> int:
    """``size`` rounded up to ``alignment``."""
    return -(-size // alignment) * alignment

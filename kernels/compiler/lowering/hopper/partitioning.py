"""What the lowering for Hopper has to be told: how a kernel is shared out and how deep its rings are."""

from __future__ import annotations

from typing import Protocol


class Partitioning(Protocol):
    """One producer and ``consumers`` partitions of ``warps`` warps. ``in_flight``: products are overlapped with what
    stands around them. ``persistent``: one program an SM walks over the programs of the grid.

    :class:`~warpplan.kernels.compiler.strategy.hopper.HopperStrategy` is one, and says which values are valid.
    """

    @property
    def consumers(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def persistent(self) -> int: ...
    def depth(self, loop: int) -> int:
        """Slots of the rings of loop number ``loop``, counted in the order of the program."""

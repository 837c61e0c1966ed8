"""A specialised block run by the player: a fault of the schedule, or of shared memory, is an exception."""

from __future__ import annotations

import numpy as np
from interpreter import Block, Values

from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.kernels.compiler.ttgir.ir import Module

Deadlock = KernelFault


class Partition(Block):
    """As :class:`Block`, its partitions interleaved by ``seed``."""

    def __init__(
        self, module: Module, arguments: Values, buffers: list[np.ndarray], program: tuple[int, ...], seed: int,
        programs: tuple[int, ...] = (1, 1, 1),
    ) -> None:  # fmt: skip
        super().__init__(module, arguments, buffers, program, programs, seed)

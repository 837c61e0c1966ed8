"""The configurations of the attention forward kernel, and the one function that says which of them are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from warpplan.kernels.gemm.space import LAUNCH_REGISTERS, MAX_REGISTERS, SMEM_RESERVED_BYTES, WARP, WARP_GROUP
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig

AttentionStaging = Literal["own", "q"]

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2}
"""Of Q, K, V and O."""
HEAD_DIMS = (64, 128, 256)
SMEM_OVERHEAD_BYTES = 2_048
"""Barriers, the arguments that warp_specialize hands to its workers, alignment; tests compare it with the compiler."""
PRODUCER_REGISTERS = 24
"""Of a producer thread; a multiple of 8, as ``setmaxnreg`` needs it. What it has, the consumers lack."""
BASE_REGISTERS = 32
"""Of a consumer thread beside its tiles: addresses, phases, maxima and sums, the mask's temporaries. What leaves less
spills (three consumers of 64 rows, D 64, with Q in registers: 16 left), what leaves as much does not: the tests compile
all of the space."""
MAX_DEPTH = 8
MMA_ROWS = 64


@dataclass(frozen=True, order=True)
class AttentionConfig:
    """One way to run the kernel on heads of ``head_dim`` elements.

    A unit of work is ``consumers`` · ``rows`` query rows of one head, ``rows`` a consumer of one warp group; a loop
    iteration takes ``columns`` keys. K and V each have a ring of ``depth`` slots. ``lookahead`` issues Q · Kᵀ of the
    next block before the softmax of this one is used, with P · V; ``pingpong`` lets the consumers issue their products
    by turns. Q stays in shared memory, or ``q_in_registers``. The result leaves through bytes of its ``own`` or through
    those of ``q``. ``persistent`` CTAs, one an SM, take units one after another, else each unit has a CTA.
    ``head_group`` heads run together, so that their keys are in L2 at once.
    """

    head_dim: int
    consumers: int
    rows: int
    columns: int
    depth: int
    lookahead: bool = True
    pingpong: bool = False
    q_in_registers: bool = False
    staging: AttentionStaging = "own"
    persistent: bool = True
    head_group: int = 1

    @property
    def tile_rows(self) -> int:
        """Query rows of a unit of work."""
        return self.consumers * self.rows

    @property
    def total_warps(self) -> int:
        """Warps of a block as the hardware allots them: the consumers', and a warp group for the producer's one."""
        return (self.consumers + 1) * WARP_GROUP

    @property
    def output_registers(self) -> int:
        """fp32 registers of a consumer thread that hold its rows of O."""
        return self.rows * self.head_dim // (WARP_GROUP * WARP)

    @property
    def score_registers(self) -> int:
        """fp32 registers of a consumer thread that hold a block of scores."""
        return self.rows * self.columns // (WARP_GROUP * WARP)

    @property
    def live_registers(self) -> int:
        """Registers of a consumer thread that hold tiles where the most are live: O, scores, and 16-bit weights, those of
        the block before (lookahead) or of this one while they are made; and Q where it is kept in registers."""
        query = self.output_registers // 2 if self.q_in_registers else 0
        return self.output_registers + self.score_registers + self.score_registers // 2 + query

    @property
    def max_registers(self) -> int:
        """Registers a thread at launch (``maxnreg``): the SM's 65,536 over all threads, rounded down to 8."""
        return min(MAX_REGISTERS, 65_536 // (WARP * self.total_warps) // 8 * 8)

    @property
    def consumer_registers(self) -> int:
        """Registers of a consumer thread: what the producer's warp group leaves, in multiples of 8."""
        left = self.max_registers * self.total_warps - PRODUCER_REGISTERS * WARP_GROUP
        return min(MAX_REGISTERS, left // (self.consumers * WARP_GROUP) // 8 * 8)

    def slot_bytes(self, element_bytes: int) -> int:
        """Bytes of one block of K, or of V."""
        return self.columns * self.head_dim * element_bytes

    def tile_bytes(self, element_bytes: int) -> int:
        """Bytes of one consumer's rows of Q, or of O."""
        return self.rows * self.head_dim * element_bytes

    def smem_bytes(self, element_bytes: int) -> int:
        """Shared memory of one block, overhead included (never less than the compiler reports; tested)."""
        tiles = self.consumers * (2 if self.staging == "own" else 1) * self.tile_bytes(element_bytes)
        return tiles + 2 * self.depth * self.slot_bytes(element_bytes) + SMEM_OVERHEAD_BYTES

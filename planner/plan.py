"""What a solver decides: schedule, partitions, channels, buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Placement:
    """Where one operation runs: ``cycle`` = ``phase`` + II · ``stage``, and in which partition (by index)."""

    op: str
    cycle: int
    stage: int
    phase: int
    partition: int


@dataclass(frozen=True)
class Schedule:
    """A modulo schedule; placements in the graph's order. ``ii_cycles`` is the initiation interval."""

    ii_cycles: int
    placements: tuple[Placement, ...]

    @property
    def stages(self) -> int:
        return 1 + max((p.stage for p in self.placements), default=0)


@dataclass(frozen=True)
class Partition:
    """The operations run by one set of warps. ``registers`` per thread, as asked of ``setmaxnreg``."""

    name: str
    warps: int
    registers: int
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Channel:
    """A value that crosses partitions: a ring of ``depth`` buffers with full and empty barriers.

    ``live_cycles`` runs from the producer's issue to the last consumer's release, hand-off included.
    """

    name: str
    producer: int
    consumers: tuple[int, ...]
    slot_bytes: int
    depth: int
    live_cycles: int


@dataclass(frozen=True)
class Buffer:
    """Bytes [``offset``, ``offset`` + ``size``) of shared memory; ``shares_with`` names the ring it reuses, if any."""

    name: str
    offset: int
    size: int
    alignment: int
    shares_with: str | None = None


@dataclass(frozen=True)
class Plan:
    """A whole answer for one loop: who runs what, when, through which buffers."""

    graph: str
    schedule: Schedule
    partitions: tuple[Partition, ...]
    channels: tuple[Channel, ...]
    buffers: tuple[Buffer, ...]
    smem_bytes: int


Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Outcome:
    """A solver's answer. ``bound`` is the proven lower bound of the II; ``reason`` says what binds when infeasible."""

    status: Status
    plan: Plan | None
    bound: int
    seconds: float = 0.0
    reason: str = ""

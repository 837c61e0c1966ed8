"""What a solver decides: schedule, partitions, channels, buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from warpplan.planner.later_fields import LATER, shows_later_fields
from warpplan.planner.values.dependence_graph import Memory


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
    """A ring of ``depth`` slots, named after the operation that fills it, with full and empty barriers where
    ``consumers`` (partitions) are others than ``producer``.

    ``live_cycles`` runs from the producer's issue to the last consumer's release, hand-off included. Every operation
    that writes a buffer has one, and so has a register value that another partition reads.
    """

    name: str
    producer: int
    consumers: tuple[int, ...]
    slot_bytes: int
    depth: int
    live_cycles: int


@dataclass(frozen=True)
class Buffer:
    """Bytes [``offset``, ``offset`` + ``size``) of shared memory, or columns of tensor memory, there of the ``lanes``
    from ``lane`` on. ``shares_with`` names the ring whose slots an extra buffer reuses, if any."""

    name: str
    offset: int
    size: int
    alignment: int
    shares_with: str | None = None
    memory: Memory = "smem"
    lane: int = 0
    lanes: int = 0


@dataclass(frozen=True)
class Reuse:
    """Two single-slot rings have bytes in common: ``after`` of iteration i may be filled only when ``before`` of
    iteration i − ``distance`` has been released (a barrier between the partitions; the distance may be negative)."""

    before: str
    after: str
    distance: int


@dataclass(frozen=True)
class Plan:
    """A whole answer for one loop: who runs what, when, through which buffers."""

    graph: str
    schedule: Schedule
    partitions: tuple[Partition, ...]
    channels: tuple[Channel, ...]
    buffers: tuple[Buffer, ...]
    smem_bytes: int
    reuses: tuple[Reuse, ...] = ()


Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Optimality:
    """A plan whose partitions were given, beside the best of any partitions that the hardware rules allow (the free
    joint problem), in cycles of the initiation interval.

    No assignment of the loop's operations to partitions has an interval below ``bound_cycles``: that is proven.
    ``free_ii_cycles`` is the smallest found, the plan's own where nothing shorter was, and ``free_partitions`` which
    operations share a partition in it, empty where it is the plan's own.
    """

    served_ii_cycles: int
    free_ii_cycles: int
    bound_cycles: int
    free_partitions: tuple[tuple[str, ...], ...] = ()

    @property
    def is_proven(self) -> bool:
        """Whether no partition whatever has a shorter interval than the plan."""
        return self.served_ii_cycles <= self.bound_cycles

    @property
    def predicted_gain(self) -> float:
        """The plan's interval over the best found: above 1 another partition is predicted to be faster."""
        return self.served_ii_cycles / self.free_ii_cycles

    @property
    def gap(self) -> float:
        """By how much the plan's interval exceeds the proven bound, as a share of the bound."""
        return self.served_ii_cycles / self.bound_cycles - 1.0


@shows_later_fields
@dataclass(frozen=True)
class Outcome:
    """A solver's answer. ``bound`` is the proven lower bound of the II; ``reason`` says what binds. ``seconds`` are
    those of the caller's clock where a caller has one, and otherwise CP-SAT's alone. ``optimality`` compares a plan
    whose partitions were given with all other partitions, where somebody has asked.

    "optimal": the plan's interval equals the bound. "feasible": the time limit left a gap. "infeasible": no interval
    has a plan. "unknown": the time limit came before a plan.
    """

    status: Status
    plan: Plan | None
    bound: int
    seconds: float = 0.0
    reason: str = ""
    optimality: Optimality | None = field(default=None, repr=False, metadata=LATER)

    @property
    def gap_cycles(self) -> int | None:
        """Cycles between the plan's interval and the proven bound; ``None`` without a plan."""
        return None if self.plan is None else self.plan.schedule.ii_cycles - self.bound

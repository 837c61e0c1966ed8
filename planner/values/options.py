"""What a caller asks of the solver: limits, pins, given partitions, extra buffers, reported spills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from warpplan.planner.later_fields import LATER, shows_later_fields
from warpplan.planner.values.search_params import SearchParams

FREE_PARTITIONS = 4
"""Partitions that a loop may have where its own are not given: a warp group each, as many as the registers of one SM
allow beside accumulators of 64 rows (RULES.md, rule 5)."""


@dataclass(frozen=True)
class PartitionSpec:
    """A partition that the caller has already dimensioned; ``registers`` per thread."""

    name: str
    warps: int
    registers: int


@dataclass(frozen=True)
class ExtraBuffer:
    """Shared memory besides the rings (barriers, epilogue staging), live all the time.

    ``shares_with`` names the operation whose ring it reuses, from slot ``slot`` on.
    """

    name: str
    size: int
    alignment: int = 8
    shares_with: str | None = None
    slot: int = 0


@dataclass(frozen=True)
class Spill:
    """What ptxas reported: a partition that runs all of ``ops`` needs more than ``registers`` a thread."""

    ops: tuple[str, ...]
    registers: int


SecondObjective = Literal["lives", "makespan"]


@shows_later_fields
@dataclass(frozen=True)
class SolveOptions:
    """What is asked of :func:`warpplan.planner.solve.solve` besides the graph: the plan is a function of both alone.

    ``pinned`` puts operations into partitions by index and ``partitions`` dimensions them; ``depth`` fixes every
    ring's slots (``None``: as few as the live ranges need). ``slack_cycles`` is added to every live range.

    ``among_equals`` is what is made small among schedules of the smallest interval: crossings, lives and starts, or the
    makespan, from an iteration's first start to its last result (as far as the work budget allows, unproven).

    ``work_limit_s`` is the search's work budget in seconds of a slow core. It is counted in CP-SAT's deterministic time
    and in the size of the models built, never by a clock, so that every machine gives the same plan however busy it is.
    ``search`` holds the search's constants and switches: never part of a request, a file or a key.
    (A limit in wall-clock time is no option but a :class:`~warpplan.planner.values.deadline.Deadline` that the caller
    of ``solve`` passes besides them: what it cuts off depends on the machine.)
    """

    work_limit_s: float = 10.0
    depth: int | None = None
    slack_cycles: int = 0
    pinned: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[PartitionSpec, ...] = ()
    extra_buffers: tuple[ExtraBuffer, ...] = ()
    spills: tuple[Spill, ...] = ()
    search: SearchParams = field(default_factory=SearchParams, repr=False)
    among_equals: SecondObjective = field(default="lives", repr=False, metadata=LATER)

"""A plan as the kernel that would run it: each partition's steps in order, what each waits for, where it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Plan


class Release(NamedTuple):
    """Which value's release is waited for: that of ``producer`` of iteration n − ``distance``, or of the loop's last
    where that is beyond it. If its reader does not come any more, until ``written`` cycles after the value is done."""

    producer: int
    distance: int
    written: int


class Wait(NamedTuple):
    """Iteration n waits, from n = ``first`` on, until ``offset`` cycles after ``source`` of iteration n − ``back``; for
    a slot only if that is within the loop, else as ``release`` says.

    ``retired``: after all wgmma groups issued before it, too. ``barrier``: the source is in another partition, so the
    wait lasts until it has run; without, only what was issued already is waited for.
    """

    source: int
    back: int
    first: int
    offset: int
    barrier: bool
    retired: bool
    reason: str
    release: Release | None = None


@dataclass(frozen=True)
class ProgramStep:
    """An operation as its partition runs it: cycles as rule 0 has them, ``before`` and ``after`` its barriers' cycles.

    ``holds`` are (index in the program's units, amount), its unit first; ``in_order``: it retires after all such steps
    that its partition issued before; ``silent``: it takes no issue cycles at all.
    """

    op: str
    partition: int
    holds: tuple[tuple[int, int], ...]
    cycle: int
    rank: int
    latency: int
    occupancy: int
    issue: int
    before: int
    after: int
    waits: tuple[Wait, ...]
    in_order: bool
    silent: bool


@dataclass(frozen=True)
class ProgramRing:
    """``depth`` slots filled by the operation of index ``producer``; ``readers`` by (index, distance, cycles until its
    release is heard elsewhere, cycles from the value's completion until it can be read).

    Slot s takes [``offset`` + s·``stride``, + ``stride``) × [``lane``, ``lane`` + ``lanes``) of ``memory``.
    """

    producer: int
    depth: int
    readers: tuple[tuple[int, int, int, int], ...]
    memory: str
    offset: int
    stride: int
    lane: int
    lanes: int


@dataclass(frozen=True)
class Program:
    """All partitions' programs. ``units`` is (name, capacity) of units, then of shared resources; ``dependences`` are
    (source, destination, distance, cycles from the source's completion) for every edge; ``reuses`` (before, after,
    distance) by ring; ``unguarded`` are operations whose value has no ring or that no barrier tells of one, with the
    words for it."""

    plan: Plan
    graph: DependenceGraph
    steps: tuple[ProgramStep, ...]
    units: tuple[tuple[str, int], ...]
    rings: tuple[ProgramRing, ...]
    dependences: tuple[tuple[int, int, int, int], ...]
    reuses: tuple[tuple[ProgramRing, ProgramRing, int], ...]
    unguarded: tuple[tuple[int, str], ...]

    @cached_property
    def offset(self) -> int:
        """Cycles by which all starts are later than the plan's, for the barrier waits before its first cycle."""
        return max([0, *(step.before - step.cycle for step in self.steps)])

    def planned_cycle(self, step: ProgramStep, iteration: int) -> int:
        return self.offset + step.cycle + self.plan.schedule.ii_cycles * iteration

    def instances(self, members: Iterable[int], trip_count: int) -> Iterator[tuple[int, int]]:
        """(operation, iteration) of ``members`` in the plan's order: by tᵢ + n·II, ties by rank."""
        ii = self.plan.schedule.ii_cycles
        by_phase = sorted((s.cycle % ii, s.rank, i, s.cycle // ii) for i in members for s in (self.steps[i],))
        order = [(i, stage) for _, _, i, stage in by_phase]
        done = 0
        # Interval k of the loop has iteration k - stage of each operation. Intervals with no operation (long
        # latencies leave millions) are skipped.
        for first in sorted({stage for _, stage in order}):
            for k in range(max(done, first), first + trip_count):
                for i, stage in order:
                    if 0 <= k - stage < trip_count:
                        yield i, k - stage
            done = first + trip_count

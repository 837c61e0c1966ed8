"""Happens-before by vector clocks (Lamport 1978; race detection as in FastTrack, Flanagan and Freund 2009).

An agent is a partition, or one asynchronous operation: a copy, a product, a store by TMA. It knows, of every agent, up
to when it comes after it. Two accesses to the same memory, one of them a write, are a race if neither comes after the
other, whatever order they were executed in: a missing wait is found in every schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from warpplan.kernels.compiler.inspection.player.tiles.faults import FaultKind

Clock = dict[int, int]
"""By agent, the latest of its times that are in the past."""
Box = tuple[tuple[int, int], ...]
"""First and one past the last index along each dimension."""


def merge(clock: Clock, other: Clock) -> None:
    """What was in the past of ``other`` is in the past of ``clock``."""
    for agent, time in other.items():
        if time > clock.get(agent, 0):
            clock[agent] = time


class AgentNumbers:
    """Numbers for agents, none twice."""

    def __init__(self) -> None:
        self.last = 0

    def new(self) -> int:
        self.last += 1
        return self.last


@dataclass(frozen=True)
class Actor:
    """Who accesses memory: ``agent`` at a time that ``clock`` holds; ``told`` names it. ``asynchronous``: through the
    async proxy, as wgmma and TMA do (PTX ISA, "Proxies")."""

    agent: int
    clock: Clock
    told: str
    asynchronous: bool = False


@dataclass(eq=False)
class LoggedAccess:
    """An access to a box of memory; a write through the generic proxy is ``fenced`` once a fence came after it."""

    agent: int
    time: int
    box: Box
    told: str
    fenced: bool = True


@dataclass
class AccessLog:
    """The accesses to one allocation that a later one may race with."""

    reads: list[LoggedAccess] = field(default_factory=list)
    writes: list[LoggedAccess] = field(default_factory=list)

    def read(self, box: Box, actor: Actor) -> tuple[FaultKind, str] | None:
        """Note a read; what is wrong with it."""
        found = [write for write in self.writes if _overlap(write.box, box)]
        if not found:
            return "race", f"{actor.told} reads shared memory that nobody has written"
        for write in found:
            if actor.clock.get(write.agent, 0) < write.time:
                return "race", f"{actor.told} reads what {write.told} may still be writing"
            if actor.asynchronous and not write.fenced:
                return "fence", f"{actor.told} reads through the async proxy what {write.told} wrote, without a fence"
        self.reads = [r for r in self.reads if not (r.agent == actor.agent and r.box == box)]
        self.reads.append(LoggedAccess(actor.agent, actor.clock[actor.agent], box, actor.told))
        return None

    def write(self, box: Box, actor: Actor) -> tuple[FaultKind, str] | None:
        """Note a write; what is wrong with it."""
        for kind, accesses in (("reading", self.reads), ("writing", self.writes)):
            for other in accesses:
                if _overlap(other.box, box) and actor.clock.get(other.agent, 0) < other.time:
                    return "race", f"{actor.told} overwrites shared memory that {other.told} may still be {kind}"
        self.reads = [r for r in self.reads if not _within(r.box, box)]
        self.writes = [w for w in self.writes if not _within(w.box, box)]
        time = actor.clock[actor.agent]
        self.writes.append(LoggedAccess(actor.agent, time, box, actor.told, fenced=actor.asynchronous))
        return None

    def fence(self, clock: Clock) -> None:
        """A proxy fence by someone for whom ``clock`` is past."""
        for write in self.writes:
            if not write.fenced and clock.get(write.agent, 0) >= write.time:
                write.fenced = True


def _overlap(a: Box, b: Box) -> bool:
    return all(x[0] < y[1] and y[0] < x[1] for x, y in zip(a, b, strict=True))


def _within(inner: Box, outer: Box) -> bool:
    return all(o[0] <= i[0] and i[1] <= o[1] for i, o in zip(inner, outer, strict=True))

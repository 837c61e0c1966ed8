"""A plan as it runs: every operation of every iteration, cycle by cycle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """One operation of one iteration, in cycles from the loop's start.

    Its partition reaches it at ``ready`` (what it had issued before is done issuing), waits for its barriers and its
    unit until ``start``, is free for the next operation at ``issued``; the unit is free at ``released`` and the result
    usable, in the same partition, at ``done``. ``waited_for`` says what the wait was for: "data" (with the operation
    waited for), "slot" (a ring's free slot), "unit", or nothing.
    """

    op: str
    iteration: int
    partition: int
    unit: str | None
    ready: int
    start: int
    issued: int
    released: int
    done: int
    waited_for: str = ""

    @property
    def wait_cycles(self) -> int:
        return self.start - self.ready


@dataclass(frozen=True)
class Timeline:
    """``spans`` by start, partition and operation; ``cycles`` is when the last result is usable (0 without any)."""

    graph: str
    trip_count: int
    partitions: tuple[str, ...]
    spans: tuple[Span, ...]
    cycles: int

    def of(self, op: str) -> tuple[Span, ...]:
        """The spans of one operation, by iteration."""
        return tuple(sorted((s for s in self.spans if s.op == op), key=lambda s: s.iteration))

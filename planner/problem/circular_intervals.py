"""A resource on the circle of II cycles: intervals that repeat every II cycles, each of an amount, and where one more
fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Circle:
    """One resource over II cycles: intervals that repeat every II cycles, amounts of at most ``capacity`` at a time."""

    def __init__(self, ii: int, capacity: int) -> None:
        self.ii, self.capacity = ii, capacity
        self.held: dict[int, tuple[int, int, int]] = {}
        self.full: dict[int, list[tuple[int, int]]] = {}

    def add(self, op: int, begin: int, cycles: int, amount: int = 1) -> None:
        self.held[op] = (begin % self.ii, cycles, amount)
        self.full.clear()

    def remove(self, op: int) -> None:
        del self.held[op]
        self.full.clear()

    def next_free(self, begin: int, cycles: int, amount: int = 1) -> int | None:
        """The first cycle from ``begin`` on at which ``amount`` is free for ``cycles`` cycles; ``None`` if there is
        none."""
        whole, rest = divmod(cycles, self.ii)
        if whole and self._full(self.capacity - amount * whole + 1):
            return None
        full = self._full(self.capacity - amount * (whole + 1) + 1) if rest else []
        intervals, phase = divmod(begin, self.ii)
        limit = begin + self.ii
        while (at := bisect_left(full, (phase + rest, 0)) - 1) >= 0 and full[at][1] > phase:
            more, phase = divmod(full[at][1], self.ii)
            intervals += more
            if phase + self.ii * intervals >= limit:
                return None
        return phase + self.ii * intervals

    def overlapping(self, begin: int, cycles: int) -> list[int]:
        """The operations that hold some of [``begin``, ``begin`` + ``cycles``)."""
        return [
            op
            for op, (at, held, _) in self.held.items()
            if (at - begin) % self.ii < cycles or (begin - at) % self.ii < held
        ]

    def _full(self, full_level: int) -> list[tuple[int, int]]:
        """Where ``full_level`` or more is held: disjoint [begin, end), ascending, over two rounds of the circle."""
        if full_level not in self.full:
            level, steps = 0, []
            for begin, cycles, amount in self.held.values():
                whole, rest = divmod(cycles, self.ii)
                level += amount * whole
                if rest:
                    end = begin + rest
                    level += amount * (end >= self.ii)
                    steps += [(begin, amount), (end % self.ii, -amount)]
            self.full[full_level] = _at_least(full_level, level, sorted(steps), self.ii)
        return self.full[full_level]


def _at_least(full_level: int, level: int, steps: Sequence[tuple[int, int]], ii: int) -> list[tuple[int, int]]:
    """The segments of two rounds of the circle in which ``level``, changed by each of ``steps``, is ``full_level`` or
    more."""
    segments = []
    since = 0 if level >= full_level else None
    for at, change in steps:
        level += change
        if level >= full_level and since is None:
            since = at
        elif level < full_level and since is not None:
            if at > since:
                segments.append((since, at))
            since = None
    if since is not None and since < ii:
        segments.append((since, ii))
    return segments + [(begin + ii, end + ii) for begin, end in segments]

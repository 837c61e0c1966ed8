"""What the skyline search has learnt: what cannot be placed any more over some sections, however it got there.

A failure is a fact about the sections that it depends on: nothing places what is left over them above floors that
follow from it and from their slack. Orders that place the same pieces meet there again and again, after a restart too.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpplan.planner.packing.line.pieces import bits

Between = tuple[int, int]
"""The valley at which a failure is looked for."""

MASKS = 12
"""Sets of sections that failures are remembered for, in each valley: all are compared at every node."""
MOST = 200_000
"""Failures remembered before all are forgotten: some 100 MB."""


class Failures:
    """``over`` are the pieces (bits) live in each section, ``slack`` what may be wasted there at first."""

    def __init__(self, over: Sequence[int], slack: Sequence[int]) -> None:
        self._over = over
        self._loose = sum(1 << s for s, amount in enumerate(slack) if amount)
        self._found: dict[Between, dict[int, set[tuple[int, ...]]]] = {}
        self._pieces: dict[int, int] = {}
        self._count = 0

    def known(self, valley: Between, todo: int, slack: Sequence[int]) -> int | None:
        """The sections (bits) over which ``todo`` is known to fail, if it is."""
        for sections, left in self._found.get(valley, {}).items():
            if self._left(sections, todo, slack) in left:
                return sections
        return None

    def learn(self, valley: Between, sections: int, todo: int, slack: Sequence[int]) -> None:
        """What is left of ``todo`` over ``sections`` fails."""
        if self._count >= MOST:
            self._found, self._pieces, self._count = {}, {}, 0
        found = self._found.setdefault(valley, {})
        if sections not in found and len(found) == MASKS:
            self._count -= len(found.pop(next(iter(found))))
        found.setdefault(sections, set()).add(self._left(sections, todo, slack))
        self._count += 1

    def _left(self, sections: int, todo: int, slack: Sequence[int]) -> tuple[int, ...]:
        over = self._pieces.get(sections)
        if over is None:
            over = 0
            for s in bits(sections):
                over |= self._over[s]
            self._pieces[sections] = over
        return (todo & over, *(slack[s] for s in bits(sections & self._loose)))

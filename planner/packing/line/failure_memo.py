"""Memory of failures of the skyline search (no-good recording): what is left over some sections and has no place.

Ours. Over one section, floor = capacity - slack - what is left to place, so what is left and the slack say where the
floors are: a failure that depends on some sections only is a fact about these two, however the search got there.
Orders that place the same pieces reach the same failure again, after a restart too.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpplan.planner.packing.pieces import bits
from warpplan.planner.values.packing_params import PackingParams

Between = tuple[int, int]
"""The valley, as its sections [left, right), under which a failure is filed."""


class FailureMemo:
    """``over`` are the pieces (bits) live in each section, ``slack`` the units that may be wasted there at first."""

    def __init__(self, over: Sequence[int], slack: Sequence[int], params: PackingParams) -> None:
        self._params = params
        self._over = over
        self._loose = sum(1 << s for s, amount in enumerate(slack) if amount)
        self._found: dict[Between, dict[int, set[tuple[int, ...]]]] = {}
        self._pieces: dict[int, int] = {}
        self._count = 0

    def known(self, valley: Between, todo: int, slack: Sequence[int]) -> int | None:
        """The sections (bits) over which ``todo`` is known to fail; None where that is not known."""
        for sections, left in self._found.get(valley, {}).items():
            if self._left(sections, todo, slack) in left:
                return sections
        return None

    def learn(self, valley: Between, sections: int, todo: int, slack: Sequence[int]) -> None:
        """Remember that what is left of ``todo`` over ``sections`` cannot be placed."""
        if not self._params.failure_memo:
            return
        if self._count >= self._params.memo_failures:
            self._found, self._pieces, self._count = {}, {}, 0
        found = self._found.setdefault(valley, {})
        if sections not in found and len(found) == self._params.memo_sections:
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

"""The clock's end of a search, given by the caller: the planner reads no clock of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


class TimeUp(Exception):
    """The deadline has passed. Caught by :func:`warpplan.planner.packing.line.line_packing.pack`."""


def _unlimited() -> float:
    return math.inf


@dataclass(frozen=True)
class Deadline:
    """``seconds_left()`` counts down to 0 by the caller's clock; ``limit_s`` is what it began with, for messages."""

    limit_s: float = math.inf
    seconds_left: Callable[[], float] = _unlimited

    def check(self) -> None:
        """Raises :class:`TimeUp` once no time is left. Called in every loop whose length the input decides."""
        if self.seconds_left() <= 0:
            raise TimeUp


FOREVER = Deadline()

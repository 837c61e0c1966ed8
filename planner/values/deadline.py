"""A moment by the caller's clock after which a solve is to end. The planner reads no clock of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


class DeadlineReached(Exception):
    """Ends what is under way inside a solve; ``solve`` itself answers with what is known by then."""


@dataclass(frozen=True)
class Deadline:
    """The moment ``at`` by the clock ``now``, in seconds."""

    at: float
    now: Callable[[], float]

    @classmethod
    def after(cls, seconds: float, now: Callable[[], float]) -> Deadline:
        """``seconds`` from now on by ``now``: ``time.monotonic``, in a service."""
        return cls(now() + seconds, now)

    def remaining_s(self) -> float:
        """Seconds until then; negative once it has passed."""
        return self.at - self.now()

    def check(self) -> None:
        """Raises :class:`DeadlineReached` once the moment has passed."""
        if self.remaining_s() <= 0:
            raise DeadlineReached


def _at_zero() -> float:
    return 0.0


NO_DEADLINE = Deadline(math.inf, _at_zero)
"""Nothing ends by the clock: the answer is the same on every machine."""

"""A moment by the caller's clock after which a solve is to end. The planner reads no clock of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock


class DeadlineReached(Exception):
    """Ends what is under way inside a solve; ``solve`` itself answers with what is known by then."""


class Interruption:
    """Ends a solve from another thread, before its time: its deadline has passed once ``call`` was called."""

    def __init__(self) -> None:
        self.called = False
        self._lock = Lock()
        self._ends: list[Callable[[], None]] = []

    def call(self) -> None:
        """Once is enough for what is under way; what begins at this very moment may need a second time."""
        self.called = True
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            end()

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Within, a call calls ``end`` too."""
        with self._lock:
            self._ends.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


@dataclass(frozen=True)
class Deadline:
    """The moment ``at`` by the clock ``now``, in seconds, or when ``interruption`` is called."""

    at: float
    now: Callable[[], float]
    interruption: Interruption | None = field(default=None, compare=False)

    @classmethod
    def after(cls, seconds: float, now: Callable[[], float]) -> Deadline:
        """``seconds`` from now on by ``now``: ``time.monotonic``, in a service."""
        return cls(now() + seconds, now)

    def remaining_s(self) -> float:
        """Seconds until then; negative once it has passed."""
        if self.interruption is not None and self.interruption.called:
            return 0.0
        return self.at - self.now()

    def check(self) -> None:
        """Raises :class:`DeadlineReached` once the moment has passed."""
        if self.remaining_s() <= 0:
            raise DeadlineReached


def _at_zero() -> float:
    return 0.0


NO_DEADLINE = Deadline(math.inf, _at_zero)
"""Nothing ends by the clock: the answer is the same on every machine."""

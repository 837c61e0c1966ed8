"""Work of other kinds for the background thread, such as whole lists of configurations: a queue, performed one by one
between the trials of single kernels."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from warpplan.kernels.compiler.background.gpu_budget import GpuBudget

HOLD_S = 60.0
"""Seconds for which the kernel of a list that is decided on is not tried by itself. Chosen by hand: a list takes 4 to
11 s, and as long again in a job with long steps."""


class BackgroundJob(Protocol):
    """Raises nothing. ``stopped`` says that it was not performed to its end, and is to be performed again."""

    stopped: bool

    def perform(self, stop: Callable[[], bool]) -> float:
        """Until ``stop`` says so. The seconds for which the GPU was kept busy."""

    def close(self) -> None:
        """It is never performed."""


class BackgroundJobs:
    """The queue, within ``budget``; ``clock`` counts seconds."""

    def __init__(self, budget: GpuBudget, clock: Callable[[], float]) -> None:
        self._budget, self._clock = budget, clock
        self._queue: deque[BackgroundJob] = deque()
        self._launching: deque[None] = deque()  # one for each launch that tunes just now
        self._held: dict[str, float] = {}  # until when kernels are not tried, by their names

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, job: BackgroundJob) -> None:
        self._queue.append(job)

    def hold(self, name: str) -> None:
        """Do not try the kernel called ``name``, for a while: whether it stays in use is not known yet."""
        self._held[name] = self._clock() + HOLD_S

    def release(self, name: str) -> None:
        """Try it, where that is worth it."""
        self._held.pop(name, None)

    def is_held(self, name: str) -> bool:
        return self._held.get(name, 0.0) > self._clock()

    @property
    def is_launching(self) -> bool:
        """Whether a launch is under way that a job waits for."""
        return bool(self._launching)

    @contextlib.contextmanager
    def in_launch(self) -> Iterator[None]:
        """A launch that may take long: meanwhile the thread goes on."""
        self._launching.append(None)
        try:
            yield
        finally:
            self._launching.pop()

    def perform_next(self, stop: Callable[[], bool]) -> bool:
        """Perform the first, where there is one and GPU time for it; whether there was."""
        if not self._queue or not self._budget.has_time:
            return False
        job = self._queue.popleft()
        self._budget.spend(job.perform(stop))
        if job.stopped:
            self._queue.appendleft(job)
        return True

    def close(self) -> None:
        """Close those that are left."""
        while self._queue:
            self._queue.popleft().close()

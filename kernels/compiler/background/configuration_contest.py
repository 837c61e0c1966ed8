"""Two configurations of one tuner's list, compared by the job's own launches, each of which runs one of them.

What one kernel's plan is for :mod:`.watched_kernel`, a configuration is here: other constants, another grid, so that it
is chosen before the launch. Launches of the sizes that both were tried at alternate; all others run the configuration
that Triton chose. Nothing waits, and what fails of ours leaves that one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from warpplan.kernels.compiler.background.launch_comparison import (
    ALTERNATING,
    MOST_PAIRS,
    PATIENCE,
    LaunchComparison,
    LaunchPairs,
)
from warpplan.kernels.compiler.background.launch_events import CudaTimer, LaunchTimer
from warpplan.kernels.compiler.background.watched_kernel import MOST_PENDING, WatchedKernel
from warpplan.kernels.triton_types import CompiledKernel

Times = tuple[float, float]
"""Microseconds of the contender and of the incumbent."""


@dataclass(frozen=True)
class _TimedLaunch:
    planned: bool
    timer: LaunchTimer


class ConfigurationContest:
    """``incumbent`` launches under Triton's choice, ``contender`` under what a trial found faster at ``sizes``.
    ``settled`` is told, once, which won, with the times of both; without times where the launches did not show them:
    ``trusted`` says whether the contender then wins all the same."""

    def __init__(
        self,
        sizes: Hashable,
        *,
        trusted: bool,
        settled: Callable[[bool, Times | None], None],
        capturing: Callable[[], bool],
        timer: Callable[[], LaunchTimer] = CudaTimer,
    ) -> None:
        self._sizes, self._trusted, self._settled = sizes, trusted, settled
        self._capturing, self._timer = capturing, timer
        self._comparison = LaunchComparison(ALTERNATING, LaunchPairs())
        self._pending: list[_TimedLaunch] = []
        self._launches = 0
        self._ready = False  # whether the contender runs its own plan by now
        self._over = False
        self._lock = threading.Lock()

    def launch(
        self, sizes: Hashable, incumbent: Callable[[], CompiledKernel], contender: Callable[[], CompiledKernel]
    ) -> CompiledKernel:
        """Launch one of the two."""
        # Another thread's launch that holds the lock is looked after; this one runs what Triton chose.
        if self._over or not self._lock.acquire(blocking=False):
            return incumbent()
        try:
            planned, timer = self._next(sizes)
            if timer is not None:
                timer.begin()
        except Exception:
            self._end(won=False)
            planned, timer = False, None
        finally:
            self._lock.release()
        ran = contender() if planned else incumbent()
        if planned:
            # What is first launched runs as it is, and is watched until its own plan is found, and compared with it.
            self._ready, was_ready = type(ran) is not WatchedKernel, self._ready
            timer = timer if was_ready and self._ready else None
        if timer is not None:
            try:
                timer.end()
                self._pending.append(_TimedLaunch(planned, timer))
            except Exception:
                self._end(won=False)
        return ran

    def _next(self, sizes: Hashable) -> tuple[bool, LaunchTimer | None]:
        """Whether this launch is the contender's, and what times it."""
        if self._capturing():
            return False, None
        self._collect()
        if self._over:
            return False, None
        self._launches += 1
        # Where the GPU is far behind, what is pending will tell.
        if self._launches >= PATIENCE * ALTERNATING * MOST_PAIRS and not self._pending:
            self._end(won=self._trusted and self._ready)
        if self._over or sizes != self._sizes:
            return False, None
        planned = self._comparison.next_is_planned()
        timed = self._comparison.next_is_timed and len(self._pending) < MOST_PENDING
        return planned, self._timer() if timed else None

    def _collect(self) -> None:
        """The times of launches that the GPU is through with, in their order; and what follows from them."""
        while self._pending:
            elapsed = self._pending[0].timer.elapsed_us()
            if elapsed is None:
                return
            self._comparison.add(planned=self._pending.pop(0).planned, scaled_us=elapsed)
        pairs = self._comparison.pairs
        if pairs.times is not None:
            self._end(won=pairs.won, times=pairs.times)

    def _end(self, *, won: bool, times: Times | None = None) -> None:
        if self._over:
            return
        self._over = True
        self._pending.clear()
        with contextlib.suppress(Exception):  # no failure of ours reaches the job
            self._settled(won, times)

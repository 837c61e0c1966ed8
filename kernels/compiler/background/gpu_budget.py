"""How much of the GPU's time trials may take from a running job."""

from __future__ import annotations

import threading
from collections.abc import Callable

from warpplan.planner.errors import InvalidInput

START_ALLOWANCE_S = 2.0
"""Seconds of GPU time that trials have from the first launch on, beside their share of the job's. Chosen by hand: four
trials of 0.5 s; doubled, a job of a minute may lose 4 s."""
FIRST_ESTIMATE_S = 0.5
"""Seconds of GPU time that a trial is taken for until one has been measured. Chosen by hand."""
MOST_SHARE = 1.0


def require_share(share: float) -> None:
    """Raise :class:`InvalidInput` for a ``share`` of the job's time that is none."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= MOST_SHARE:
        raise InvalidInput(
            f"gpu_share {share!r}: expected a share of the job's time, from 0 to {MOST_SHARE:g}",
            field="gpu_share", value=share,
        )  # fmt: skip


class GpuBudget:
    """``share`` of the time since the first launch, and ``START_ALLOWANCE_S``. ``clock`` counts seconds."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share = float(share)
        self.spent_s = 0.0
        self.trials = 0
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()

    @property
    def allowed_s(self) -> float:
        """What trials may have taken by now; nothing at all for a share of 0."""
        if not self.share:
            return 0.0
        return START_ALLOWANCE_S + self.share * (self._clock() - self._began)

    @property
    def estimate_s(self) -> float:
        """What the next trial is expected to take."""
        return self.spent_s / self.trials if self.trials else FIRST_ESTIMATE_S

    @property
    def has_time(self) -> bool:
        """Whether another trial may begin."""
        return self.spent_s + self.estimate_s <= self.allowed_s

    def spend(self, seconds: float) -> None:
        """Note what a trial took."""
        with self._lock:
            self.spent_s += seconds
            self.trials += 1

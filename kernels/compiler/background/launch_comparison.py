"""Which of two kernels is faster, by the job's own launches: each launch runs one of them, and its result is real.

The two alternate, or every now and then a launch runs the kernel that is not expected to win. A sample is the time of a
launch over its predicted time, so that launches of different sizes in one class compare; medians decide.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from warpplan.kernels.compiler.background.plan_choices import GAIN

LEAST_PAIRS, MOST_PAIRS = 6, 24
"""Launches of each kernel that are timed: at least, and until a difference that is not clear counts. Chosen by hand:
the ratio of two medians of 24 launches that spread by 3 % is off by 1 %; doubled, a class is undecided for twice as
long."""
CLEAR = 0.05
"""Distance of a gain from ``GAIN`` beyond which ``LEAST_PAIRS`` decide. Chosen by hand: twice what medians of six
launches that spread by 3 % are off by."""
ALTERNATING = 2
"""Every second launch runs the kernel as it is while nothing is known from launches."""
SPARSE = 24
"""Launches for each one that runs the kernel as it is, where a plan is carried from other sizes. Chosen by hand: at 24
at most 1 launch in 24 is lost, and 144 launches decide what is clear; halved, twice as many launches are lost."""
PATIENCE = 4
"""Times the launches that a comparison needs after which it is given up: their times do not come, or do not compare."""


@dataclass
class LaunchComparison:
    """``every`` is the number of launches of which one runs the kernel as it is."""

    every: int
    launches: int = 0
    planned: list[float] = field(default_factory=list)
    unplanned: list[float] = field(default_factory=list)

    def next_is_planned(self) -> bool:
        """Which kernel the next launch runs. Counts it."""
        self.launches += 1
        return self.launches % self.every != 0

    @property
    def next_is_timed(self) -> bool:
        """Whether the launch that was just counted is a sample: one that runs the kernel as it is, or the one
        before."""
        return self.launches % self.every in (0, self.every - 1) and self.launches <= self.every * MOST_PAIRS

    def add(self, *, planned: bool, scaled: float) -> None:
        (self.planned if planned else self.unplanned).append(scaled)

    @property
    def gain(self) -> float | None:
        """Median time as it is over median time planned, ``None`` until there are enough."""
        pairs = min(len(self.planned), len(self.unplanned))
        if pairs < LEAST_PAIRS:
            return None
        gain = statistics.median(self.unplanned) / statistics.median(self.planned)
        return gain if pairs >= MOST_PAIRS or abs(gain / GAIN - 1) > CLEAR else None

    @property
    def hopeless(self) -> bool:
        """Whether the samples should have come long ago."""
        return self.launches >= PATIENCE * self.every * MOST_PAIRS

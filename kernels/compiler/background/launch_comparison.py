"""Which of two kernels is faster, by the job's own launches: each launch runs one of them, and its result is real.

The two alternate, or every now and then a launch runs the kernel that is not expected to win. Neighbouring launches of
one class make a pair: the ratio of their times, each over its predicted time, so that launches of different sizes
compare. The median of the ratios decides, once it is two standard errors away from where it would make no difference.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

GAIN = 1.01
"""A plan has to be faster by this factor: less is noise, and the kernel as it is needs no trust."""
KEPT = 1.0
"""A plan that is in use, because it gains at other sizes, stays unless it is shown to be slower."""
LEAST_PAIRS, MOST_PAIRS = 6, 48
"""Pairs of launches: at least, and until the median counts whatever the error. Chosen by hand: the median of 48 ratios
that spread by 4 % is off by 0.7 %; doubled, a kernel that neither gains nor loses is compared for twice as long."""
ERRORS = 2.0
"""Standard errors, and ``GAIN`` − 1, between the median and what it has to reach that settle a comparison before
that."""
DEVIATION = 1.4826
"""Standard deviation over median absolute deviation, of normal errors (Hampel 1974)."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, of normal errors: √(π/2)."""
ALTERNATING = 2
"""Every second launch runs the kernel as it is while nothing is known from launches."""
SPARSE = 24
"""Launches for each one that runs the kernel as it is, where a plan is carried from other sizes. Chosen by hand: at 24
at most 1 launch in 24 is lost, and 144 launches decide what is clear; halved, twice as many launches are lost."""
PATIENCE = 4
"""Times the launches that a comparison needs after which it is given up: their times do not come, or do not compare."""


@dataclass
class LaunchPairs:
    """Times of pairs of launches, planned and as it is, in microseconds at one size. Launches in several threads, and
    of several classes for which one plan was tried, may share it. The plan has to reach ``least``; ``reported`` once
    somebody has acted on it."""

    least: float = GAIN
    pairs: list[tuple[float, float]] = field(default_factory=list)
    launches: int = 0
    reported: bool = False

    @property
    def gain(self) -> float | None:
        """Time as it is over time planned, ``None`` until that is settled."""
        ratios = [unplanned / planned for planned, unplanned in list(self.pairs)]
        if len(ratios) < LEAST_PAIRS:
            return None
        gain = statistics.median(ratios)
        deviation = DEVIATION * statistics.median(abs(ratio - gain) for ratio in ratios)
        error = MEDIAN_ERROR * deviation / len(ratios) ** 0.5
        return gain if len(ratios) >= MOST_PAIRS or abs(gain - self.least) > ERRORS * error + (GAIN - 1) else None

    @property
    def won(self) -> bool:
        """Whether the plan has reached what it has to; also where launches did not show it."""
        gain = self.gain
        return gain is None or gain > self.least

    @property
    def times(self) -> tuple[float, float] | None:
        """Microseconds planned and as it is, once the gain is settled: the latter is the median, and the former what
        that is under the gain."""
        if self.gain is None:
            return None
        unplanned = statistics.median(unplanned for _, unplanned in self.pairs)
        return unplanned / self.gain, unplanned


@dataclass
class LaunchComparison:
    """The launches of one class: of ``every`` so many one runs the kernel as it is. What they show goes to
    ``pairs``."""

    every: int
    pairs: LaunchPairs
    launches: int = 0
    _planned_us: float | None = None

    def next_is_planned(self) -> bool:
        """Which kernel the next launch runs. Counts it."""
        self.launches += 1
        self.pairs.launches += 1
        return self.launches % self.every != 0

    @property
    def next_is_timed(self) -> bool:
        """Whether the launch that was just counted is one of a pair: one that runs the kernel as it is, or the one
        before."""
        return self.launches % self.every in (0, self.every - 1) and len(self.pairs.pairs) < MOST_PAIRS

    def add(self, *, planned: bool, scaled_us: float) -> None:
        """A launch's time, of which those that ran the plan come first."""
        if planned:
            self._planned_us = scaled_us
        elif self._planned_us is not None:
            self.pairs.pairs.append((self._planned_us, scaled_us))
            self._planned_us = None

    @property
    def hopeless(self) -> bool:
        """Whether the pairs should have come long ago."""
        return self.pairs.launches >= PATIENCE * self.every * MOST_PAIRS

"""Which measurements are worth their time: the expected value of information, spent along the concave envelope.

The model. A candidate's true time is its predicted time times e^ε, ε normal with mean 0 and standard deviation
``spread``, independent between candidates: the part of the error that all candidates of a shape share moves no choice.
A shape is launched with its best measured candidate or with the one that is expected to be best, so after the first k
candidates are measured it takes, in expectation::

    V(k) = E[min(best measured, t₁, …, t_k, least expected time of the others)]

V(0) − V(k) is what k measurements gain a launch (value of perfect information, Howard 1966). By Jensen's inequality V
does not grow with k. Over shapes the measurements are ordered by weighted gain a second along the upper concave
envelope of each shape's gains, the greedy of the multiple-choice knapsack's relaxation (Sinha & Zoltners 1979): a
prefix of that order is spent, so that a larger budget measures all that a smaller one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

POINTS = 1024
"""Of the quadrature. The trapezoid's error falls with its square: V differs from that of 8,192 points by less than
10⁻⁵ of a launch (``tests/planner/predict/test_measurement_value.py``). Doubled, ordering takes twice as long."""
TAIL = 8.0
"""Standard deviations below which no candidate is expected: the chance is below 10⁻¹⁵."""
LEAST_GAIN = 1e-5
"""Of a launch's time; a smaller gain is within the error of the quadrature, and is not measured for."""


@dataclass(frozen=True)
class ShapeTimes:
    """What is known of one shape. ``predicted_us`` are its candidates without a measurement, ascending; ``best_us`` is
    the least measured time, ``None`` without one. ``weight`` is how often it is launched beside the others; one more
    measurement takes ``cost_s`` seconds. ``spread`` is the standard deviation of log(time / prediction)."""

    predicted_us: tuple[float, ...]
    best_us: float | None
    spread: float
    cost_s: float
    weight: float = 1.0


@dataclass(frozen=True)
class Measuring:
    """One measurement: candidate number ``candidate`` of shape number ``shape``. ``gain_us`` is what it is expected to
    save a launch, beyond those of the shape before it."""

    shape: int
    candidate: int
    cost_s: float
    gain_us: float


def expected_times_us(times: ShapeTimes) -> NDArray[np.float64]:
    """V(0), V(1), …: the expected time of a launch after each number of measurements, not ascending."""
    predicted = np.asarray(times.predicted_us, dtype=np.float64)
    expected = predicted * np.exp(times.spread**2 / 2.0)
    best = np.inf if times.best_us is None else times.best_us
    # The least expected time of those from number k on: what is chosen where all that was measured is slower.
    left = np.minimum(np.append(expected, np.inf), best)
    if not predicted.size:
        return np.array([best])
    if times.spread == 0.0:
        return np.full(predicted.size + 1, min(left[0], best))
    low = min(predicted[0] * np.exp(-TAIL * times.spread), best)
    values = [float(left[0])]
    # With everything measured and nothing known before, the slowest candidate's tail bounds the minimum.
    high = float(predicted[0] * np.exp(TAIL * times.spread))
    longer = np.ones(POINTS)
    for k in range(1, predicted.size + 1):
        top = min(float(left[k]), high)
        # E[min(t₁…t_k, c)] = ∫ P(all > t) dt from 0 to c; below ``low`` the chance is 1.
        at = np.linspace(low, max(top, low), POINTS)
        z = (np.log(at)[None, :] - np.log(predicted[:k])[:, None]) / times.spread
        longer = np.prod(ndtr(-z), axis=0)
        values.append(low + float(np.trapezoid(longer, at)))
    return np.minimum.accumulate(np.array(values))


def order_measurements(shapes: Sequence[ShapeTimes], most: int) -> tuple[Measuring, ...]:
    """Every measurement that is expected to gain something, at most ``most`` a shape, the most valuable first. Those of
    one shape are in the order of its candidates; equal shapes are in theirs."""
    found: list[tuple[float, int, int, Measuring]] = []
    for number, times in enumerate(shapes):
        kept = ShapeTimes(times.predicted_us[: most + 1], times.best_us, times.spread, times.cost_s, times.weight)
        values = expected_times_us(kept)[: most + 1]
        gains = values[0] - values
        worth = [k for k in range(1, len(values)) if gains[k] - gains[k - 1] > 0.0]
        if not worth or gains[-1] < LEAST_GAIN * values[0] or times.weight == 0.0:
            continue
        start = 0
        while start < worth[-1]:
            ends = range(start + 1, worth[-1] + 1)
            # The steepest chord from here: the next segment of the upper concave envelope.
            end = max(ends, key=lambda k, start=start: ((gains[k] - gains[start]) / (k - start), -k))  # type: ignore[misc]
            slope = times.weight * (gains[end] - gains[start]) / (end - start) / times.cost_s
            for k in range(start, end):
                gain = float(gains[k + 1] - gains[k])
                found.append((-float(slope), number, k, Measuring(number, k, times.cost_s, gain)))
            start = end
    return tuple(entry[3] for entry in sorted(found, key=lambda entry: entry[:3]))


def affordable(order: Sequence[Measuring], budget_s: float) -> tuple[Measuring, ...]:
    """The first of ``order`` that together take at most ``budget_s``. None after the first that does not fit: so a
    larger budget never gains less."""
    totals = list(accumulate(measuring.cost_s for measuring in order))
    return tuple(order[: sum(total <= budget_s for total in totals)])


def expected_gains_us(order: Sequence[Measuring], shapes: int) -> tuple[float, ...]:
    """What ``order`` is expected to save a launch of each shape."""
    gains = [0.0] * shapes
    for measuring in order:
        gains[measuring.shape] += measuring.gain_us
    return tuple(gains)

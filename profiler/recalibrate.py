"""Fit the constants of a profile anew to measured times, and keep them only where that helps on shapes it did not see.

Cross-validation by shape: the shapes are dealt into folds, each fold is predicted with constants fitted to the others,
and what these predictions miss is compared with what the profile's own constants miss on the same shapes. All
configurations of a shape are in one fold, because those of one shape are wrong together.

Readings that fit neither their shape nor their block structure, too fast ones as well as too slow ones, are left out
before anything is fitted or judged: residuals of a median polish (Tukey 1977) that Hampel's identifier (1974) calls
outliers. A fast one would weigh most in the fit, and would be the best time that first choices are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.predict.time_model import Rates, terms
from warpplan.planner.values.profile import Calibration, Profile
from warpplan.profiler.fit import Floats, MeasuredShape, fit, united

FOLDS = 5
"""Parts into which the shapes are dealt. More take longer, and each fold's fit resembles the final one more."""
LEAST_SHAPES = 5
"""Fewer shapes cannot be dealt into folds, and say little about others."""
TOLERANCE = 1e-3
"""Of the loss, what a step has to gain: constants are refitted to predict by a tenth of a per cent, not to be known."""
REGRET_NOISE = 0.002
"""How much slower the first choices may become on unseen shapes, as a part of their time: repeated readings of one
configuration differ as much. Doubled, constants that rank worse could be taken for the sake of better times."""
FIRST_CHOICES = 3
"""Choices of a shape that are judged together. A single one is one reading, and readings differ."""
OUTLIER_SIGMAS = 4.0
"""Standard deviations, estimated from the median absolute deviation, beyond which a reading is an outlier."""
LEAST_OUTLIER = 0.1
"""What an outlier is off by at least, in the logarithm: the time model itself is wrong by as much in places."""
LEAST_COLUMN = 15
"""Readings of a block structure whose median says something of it. Of five readings three are outliers in one of a
hundred structures where a tenth of all are: such a median hides its outliers."""
POLISHES = 2
"""Rounds of the median polish: medians of shapes, then of structures."""
MAD_OF_NORMAL = 0.6745
"""The median absolute deviation of a normal distribution whose standard deviation is 1."""
RESIDUAL_SHRINKAGE = 4.0
"""Measurements as which a structure's old residual counts. Times are mended by the physical constants; residuals that
follow a few readings make first choices worse: on five perturbed profiles (seeds 10 to 14 of
``benchmarks/bench_calibration.py``) the first choice on other shapes moved by +1.7, -0.7, -0.3, +1.5 and +2.4 % of the
best time with 1, by -1.4, -1.7, -0.3, -0.5 and +0.2 % with 4, times being as near. With 16 and 100 it is much as with
4."""

Constants = Callable[[Profile, MeasuredShape], Mapping[str, float]]
"""The constants that the kernel predicts a shape with, under a profile."""


@dataclass(frozen=True)
class Fit:
    """How well a profile predicts measured shapes: ``error`` is the median over shapes of the median of
    |predicted / measured − 1| over a shape's configurations, ``regret`` how much longer the configuration predicted to
    be fastest takes than the fastest, as a geometric mean over shapes."""

    error: float
    regret: float


@dataclass(frozen=True)
class Recalibration:
    """What came of one calibration. ``before`` and ``after`` are on shapes that the constants were not fitted to;
    ``calibration`` is ``None`` where the old one is kept, for ``reason``. ``outliers`` of the ``configurations`` were
    left out."""

    name: str
    shapes: int
    configurations: int
    outliers: int
    before: Fit | None
    after: Fit | None
    calibration: Calibration | None
    reason: str


def recalibrate(
    profile: Profile,
    names: Sequence[str],
    measured: Sequence[MeasuredShape],
    rates: Rates,
    constants: Constants,
    source: str,
) -> Recalibration:
    """Calibrate ``names[0]`` anew; the search begins at the first of ``names`` that ``profile`` has.

    ``source`` says where the times come from. The same measurements give the same constants, in whatever order.
    """
    ordered = sorted(measured, key=lambda m: (float(m.work.flops), repr(m.shape)))
    configurations = sum(len(m.time_us) for m in ordered)
    if len(ordered) < LEAST_SHAPES:
        reason = f"{len(ordered)} shapes were measured, {LEAST_SHAPES} are needed to tell whether it helps on others"
        return Recalibration(names[0], len(ordered), configurations, 0, None, None, None, reason)
    ordered = without_outliers(ordered, rates, [constants(profile, m) for m in ordered])
    outliers = configurations - sum(len(m.time_us) for m in ordered)
    prior = next((found for name in names if (found := profile.calibration(name))), None)

    def fitted(shapes: Sequence[MeasuredShape]) -> tuple[Calibration, Profile]:
        made = fit(
            names[0], shapes, rates, source, prior=prior, tolerance=TOLERANCE, shrinkage=RESIDUAL_SHRINKAGE
        )  # fmt: skip
        return made, with_calibration(profile, made)

    old: list[tuple[float, float]] = []
    new: list[tuple[float, float]] = []
    slower: list[float] = []
    for others, held in folds(ordered):
        made = fitted(others)[1]
        old += [missed(m, rates, constants(profile, m)) for m in held]
        new += [missed(m, rates, constants(made, m)) for m in held]
        slower += [_first(m, rates, constants(made, m)) - _first(m, rates, constants(profile, m)) for m in held]
    before, after = summed_up(old), summed_up(new)
    gained = np.array([o[0] - n[0] for o, n in zip(old, new, strict=True)])
    reason = worse(before, after, gained, float(np.mean(slower)))
    calibration = None if reason else fitted(ordered)[0]
    return Recalibration(names[0], len(ordered), configurations, outliers, before, after, calibration, reason)


def without_outliers(
    measured: Sequence[MeasuredShape], rates: Rates, constants: Sequence[Mapping[str, float]]
) -> list[MeasuredShape]:
    """``measured`` without the readings whose ratio to what ``constants`` predict differs from that of their shape and
    from that of their block structure. Constants that are off move whole shapes and structures: those stay."""
    ratios = [np.log(m.time_us / terms(m.work, rates, c)[1]) for m, c in zip(measured, constants, strict=True)]
    structures = united(measured)
    column = np.concatenate([m.work.structure for m in structures])
    row = np.repeat(np.arange(len(measured)), [len(m.time_us) for m in measured])
    left = np.concatenate(ratios)
    for _ in range(POLISHES):
        left = left - _medians(left, row, 1)
        left = left - _medians(left, column, LEAST_COLUMN)
    sigma = float(np.median(np.abs(left))) / MAD_OF_NORMAL
    kept = np.abs(left) <= max(OUTLIER_SIGMAS * sigma, LEAST_OUTLIER)
    found = []
    for number, m in enumerate(measured):
        rows = np.flatnonzero(kept[row == number])
        found.append(m if rows.size == m.time_us.size else replace(m, work=m.work.take(rows), time_us=m.time_us[rows]))
    return [m for m in found if m.time_us.size]


def _medians(values: Floats, group: NDArray[np.int64], least: int) -> Floats:
    """The median of its group for each of ``values``; 0 in groups of fewer than ``least``."""
    medians = np.zeros(int(group.max()) + 1)
    for number in np.unique(group).tolist():
        mine = values[group == number]
        medians[number] = np.median(mine) if mine.size >= least else 0.0
    return np.asarray(medians[group], dtype=np.float64)


def folds(shapes: Sequence[MeasuredShape]) -> Iterator[tuple[list[MeasuredShape], Sequence[MeasuredShape]]]:
    """Of each fold the shapes of all others, to fit constants to, and its own. Of neighbours each goes to another fold:
    in the order of their work every fold has small and large shapes."""
    for fold in range(FOLDS):
        yield [m for number, m in enumerate(shapes) if number % FOLDS != fold], shapes[fold::FOLDS]


def worse(before: Fit, after: Fit, gained: Floats, slower: float) -> str:
    """Why new constants are no better than those ``before`` on the same shapes: empty where they are. Their times have
    to be nearer, by more than a standard error of what the shapes ``gained`` (Breiman et al. 1984), and their first
    choices, longer by ``slower`` in the logarithm, no slower than readings differ."""
    chance = float(gained.std(ddof=1)) / np.sqrt(gained.size) if gained.size > 1 else np.inf
    if after.error >= before.error or float(gained.mean()) <= chance:
        return f"on unseen shapes the median error would be {after.error:.2%} in place of {before.error:.2%}"
    if slower > REGRET_NOISE:
        return f"on unseen shapes the first {FIRST_CHOICES} choices would take {np.expm1(slower):.2%} longer"
    return ""


def _first(m: MeasuredShape, rates: Rates, constants: Mapping[str, float]) -> float:
    """The mean time of one shape's first choices, as a logarithm."""
    order = np.argsort(terms(m.work, rates, constants)[1], kind="stable")
    return float(np.log(m.time_us[order[:FIRST_CHOICES]]).mean())


def with_calibration(profile: Profile, calibration: Calibration) -> Profile:
    """``profile`` with ``calibration`` in the place of the one of its name."""
    others = tuple(c for c in profile.calibrations if c.kernel != calibration.kernel)
    return replace(profile, calibrations=(*others, calibration))


def missed(m: MeasuredShape, rates: Rates, constants: Mapping[str, float]) -> tuple[float, float]:
    """The median error of one shape's times, and its first choice's time over the best."""
    predicted = terms(m.work, rates, constants)[1]
    error = float(np.median(np.abs(predicted / m.time_us - 1.0)))
    return error, float(m.time_us[int(np.argmin(predicted))] / m.time_us.min())


def summed_up(of_shapes: Sequence[tuple[float, float]]) -> Fit:
    errors, ratios = zip(*of_shapes, strict=True)
    return Fit(float(np.median(errors)), float(np.exp(np.mean(np.log(ratios)))) - 1.0)

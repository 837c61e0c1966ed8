"""Fit the constants of a profile anew to measured times, and keep them only where that helps on shapes it did not see.

Cross-validation by shape: the shapes are dealt into folds, each fold is predicted with constants fitted to the others,
and what these predictions miss is compared with what the profile's own constants miss on the same shapes. All
configurations of a shape are in one fold, because those of one shape are wrong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from warpplan.planner.predict.time_model import Rates, terms
from warpplan.planner.values.profile import Calibration, Profile
from warpplan.profiler.fit import MeasuredShape, fit

FOLDS = 5
"""Parts into which the shapes are dealt. More take longer, and each fold's fit resembles the final one more."""
LEAST_SHAPES = 5
"""Fewer shapes cannot be dealt into folds, and say little about others."""
TOLERANCE = 1e-3
"""Of the loss, what a step has to gain: constants are refitted to predict by a tenth of a per cent, not to be known."""
REGRET_NOISE = 0.002
"""How much slower the first choice may become on unseen shapes, as a part of its time: repeated readings of one
configuration differ as much. Doubled, constants that rank worse could be taken for the sake of better times."""
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
    ``calibration`` is ``None`` where the old one is kept, for ``reason``."""

    name: str
    shapes: int
    configurations: int
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
        return Recalibration(names[0], len(ordered), configurations, None, None, None, reason)
    prior = next((found for name in names if (found := profile.calibration(name))), None)

    def fitted(shapes: Sequence[MeasuredShape]) -> tuple[Calibration, Profile]:
        made = fit(
            names[0], shapes, rates, source, prior=prior, tolerance=TOLERANCE, shrinkage=RESIDUAL_SHRINKAGE
        )  # fmt: skip
        return made, with_calibration(profile, made)

    old: list[tuple[float, float]] = []
    new: list[tuple[float, float]] = []
    for others, held in folds(ordered):
        made = fitted(others)[1]
        old += [missed(m, rates, constants(profile, m)) for m in held]
        new += [missed(m, rates, constants(made, m)) for m in held]
    before, after = summed_up(old), summed_up(new)
    reason = worse(old, new)
    calibration = None if reason else fitted(ordered)[0]
    return Recalibration(names[0], len(ordered), configurations, before, after, calibration, reason)


def folds(shapes: Sequence[MeasuredShape]) -> Iterator[tuple[list[MeasuredShape], Sequence[MeasuredShape]]]:
    """Of each fold the shapes of all others, to fit constants to, and its own. Of neighbours each goes to another fold:
    in the order of their work every fold has small and large shapes."""
    for fold in range(FOLDS):
        yield [m for number, m in enumerate(shapes) if number % FOLDS != fold], shapes[fold::FOLDS]


def worse(old: Sequence[tuple[float, float]], new: Sequence[tuple[float, float]]) -> str:
    """Why constants that miss ``new`` are no better than those that miss ``old`` on the same shapes: empty where they
    are. Their times have to be nearer, and their first choices no slower than readings differ."""
    before, after = summed_up(old), summed_up(new)
    if after.error >= before.error:
        return f"on unseen shapes the median error would be {after.error:.2%} in place of {before.error:.2%}"
    slower = np.log([n[1] for n in new]) - np.log([o[1] for o in old])
    if float(slower.mean()) > REGRET_NOISE:
        return f"on unseen shapes the first choice would be {after.regret:.2%} from the best, not {before.regret:.2%}"
    return ""


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

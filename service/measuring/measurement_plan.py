"""What a GPU's time would gain: candidates, stored times and the model's error as the value of each measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from warpplan.planner.errors import WarpplanError
from warpplan.planner.predict.measurement_value import (
    Measuring,
    ShapeTimes,
    affordable,
    expected_gains_us,
    expected_times_us,
    order_measurements,
)
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.answer_store import Store
from warpplan.service.store.measured_times import SeriesTime
from warpplan.service.store.stored_values import Environment
from warpplan.service.workflow.configure import EVERY_CANDIDATE, Workflow
from warpplan.service.workflow.request import Item

DEFAULT_SPREAD = 0.028
"""Robust standard deviation (1.4826 times the median deviation) of log(measured / predicted time) among the first
:data:`FIRST` candidates of a shape, over the training shapes of ``benchmarks/results/gemm_exhaustive_h200_train.json``
with the embedded profile. What it makes of savings is in ``benchmarks/results/measuring_gain.json``. Doubled, twice as
much is expected of measuring, and shapes whose candidates lie further apart are measured too."""
FIRST = 16
PRIOR_CONFIGS = 20
"""Measured configurations that :data:`DEFAULT_SPREAD` counts as, beside those in the store. Chosen by hand: a handful
of lucky ones must not end measuring."""
MOST_PROBLEMS = 64
"""Stored problems of a kernel that its spread is taken from; each is ranked anew, in some milliseconds."""
START_S, MEASURE_S = 15.0, 3.0
"""Seconds until a child can measure, and of one measurement with its compilation. Chosen by hand, to be planned with:
what is spent is limited by the clock. Doubled, half as much is announced, and as much is measured."""


@dataclass(frozen=True)
class WantedShape:
    """A shape, and how often it is launched beside the others."""

    item: Item
    launches: float = 1.0


@dataclass(frozen=True)
class ShapeForecast:
    """One shape: ``open`` are its candidates without a measurement, best first with their predicted times, scaled to
    what was measured of the shape; ``times`` what they are worth. ``now_us`` is the expected time of a launch."""

    item: Item
    problem: ConfigRequest
    open: tuple[tuple[TuningConfig, float], ...]
    times: ShapeTimes
    now_us: float


@dataclass(frozen=True)
class MeasurementPlan:
    """``order`` is every measurement that gains something, the most valuable first; the first ``announced`` of them fit
    the budget, and ``gains_us`` is what those are expected to save a launch of each shape. ``refused`` are shapes that
    cannot be planned, with the reason; ``spreads`` the model's error by kernel, with the number of stored times it
    comes from."""

    shapes: tuple[ShapeForecast, ...]
    order: tuple[Measuring, ...]
    announced: int
    gains_us: tuple[float, ...]
    refused: tuple[tuple[Item, str], ...]
    spreads: tuple[tuple[str, float, int], ...]


def plan_measurements(
    workflow: Workflow, wanted: Iterable[WantedShape], *, top: int, budget_s: float | None,
    environment: Environment | None = None,
) -> MeasurementPlan:  # fmt: skip
    """What to measure of ``wanted``: at most ``top`` more candidates of each shape. Without ``budget_s`` it is the
    first ``top`` of every shape in turn, whatever they gain.

    Stored times count that were measured in ``environment``, by default each problem's newest. Nothing is run, and the
    same store, profile and shapes give the same plan. Raises :class:`StoreError`.
    """
    shapes: list[ShapeForecast] = []
    refused: list[tuple[Item, str]] = []
    spreads: dict[str, tuple[float, int]] = {}
    for one in wanted:
        try:
            shapes.append(_forecast(workflow, one, top, environment, spreads))
        except WarpplanError as error:
            refused.append((one.item, str(error)))
    known = [shape.times for shape in shapes]
    if budget_s is None:
        order = _in_turn(known, top)
        spent = order
    else:
        order = order_measurements(known, top)
        spent = affordable(order, budget_s - START_S)
    gains = expected_gains_us(spent, len(shapes))
    told = tuple((kernel, spread, count) for kernel, (spread, count) in sorted(spreads.items()))
    return MeasurementPlan(tuple(shapes), order, len(spent), gains, tuple(refused), told)


def _in_turn(known: Sequence[ShapeTimes], top: int) -> tuple[Measuring, ...]:
    found = []
    for number, times in enumerate(known):
        values = expected_times_us(times)
        for k in range(min(top, len(times.predicted_us))):
            found.append(Measuring(number, k, times.cost_s, float(values[k] - values[k + 1])))
    return tuple(found)


def _forecast(
    workflow: Workflow, one: WantedShape, top: int, environment: Environment | None,
    spreads: dict[str, tuple[float, int]],
) -> ShapeForecast:  # fmt: skip
    problem, ranked = workflow.candidates(one.item, EVERY_CANDIDATE)
    store = workflow.store
    times = current(store.times([problem]).get(problem, ()) if store else (), environment)
    measured = {time.config: time.time_us for time in times}
    predicted = {r.config: r.prediction.time_us for r in ranked}
    if problem.kernel not in spreads:
        spreads[problem.kernel] = _spread(workflow, store, problem)
    # What was measured of the shape moves all its predictions alike.
    logs = [math.log(us / predicted[config]) for config, us in measured.items() if config in predicted]
    scale = math.exp(float(np.median(logs))) if logs else 1.0
    unmeasured = [(config, scale * us) for config, us in predicted.items() if config not in measured]
    first = tuple(unmeasured[: top + 1])
    value = ShapeTimes(
        tuple(us for _, us in first), min(measured.values(), default=None), spreads[problem.kernel][0], MEASURE_S,
        one.launches,
    )  # fmt: skip
    return ShapeForecast(one.item, problem, first, value, float(expected_times_us(value)[0]))


def current(times: Sequence[SeriesTime], environment: Environment | None) -> list[SeriesTime]:
    """Those of ``environment``, or of the newest one: unlike ones are not compared."""
    if environment is None and times:
        environment = max(times, key=lambda t: (t.newest, t.environment)).environment
    return [t for t in times if t.environment == environment]


def _spread(workflow: Workflow, store: Store | None, like: ConfigRequest) -> tuple[float, int]:
    """The model's error for the kernel and device of ``like``, and from how many stored times beside the default."""
    if store is None:
        return DEFAULT_SPREAD, 0
    every = sorted(
        store.measurements.every_time(kernel=like.kernel, device=like.device),
        key=lambda t: (t.problem.dtype, t.problem.shape_json),
    )
    residuals: list[float] = []
    groups = [list(group) for _, group in groupby(every, key=lambda t: t.problem)]
    for group in [g for g in groups if len(g) > 1][:MOST_PROBLEMS]:
        problem = group[0].problem
        item = Item(problem.kernel, tuple(problem.shape.items()), problem.dtype, problem.device)
        try:
            predicted = {r.config: r.prediction.time_us for r in workflow.candidates(item, EVERY_CANDIDATE)[1]}
        except WarpplanError:
            continue
        residuals += residuals_of({t.config: t.time_us for t in current(group, None)}, predicted)
    return pooled_spread(residuals), len(residuals)


def residuals_of(measured: Mapping[TuningConfig, float], predicted: Mapping[TuningConfig, float]) -> list[float]:
    """log(measured / predicted) of each configuration, less the shape's median: what may change a choice."""
    logs = [math.log(us / predicted[config]) for config, us in measured.items() if config in predicted]
    if len(logs) < 2:
        return []
    return [log - float(np.median(logs)) for log in logs]


def pooled_spread(residuals: Sequence[float]) -> float:
    """The robust standard deviation of ``residuals``, pooled with :data:`DEFAULT_SPREAD` of :data:`PRIOR_CONFIGS`.
    Robust, because other work ran on some GPUs and some reports are wrong; and because a shape's slow candidates, which
    are predicted worst, are not launched."""
    if not residuals:
        return DEFAULT_SPREAD
    robust = 1.4826 * float(np.median(np.abs(residuals)))
    total = PRIOR_CONFIGS * DEFAULT_SPREAD**2 + len(residuals) * robust**2
    return math.sqrt(total / (PRIOR_CONFIGS + len(residuals)))

"""What measurements are worth: against sampling, and the properties of what is spent."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.predict import measurement_value
from warpplan.planner.predict.measurement_value import (
    ShapeTimes,
    affordable,
    expected_gains_us,
    expected_times_us,
    order_measurements,
)

TIMES = st.floats(1.0, 1e4)
SHAPES = st.builds(
    ShapeTimes,
    st.lists(TIMES, max_size=6).map(lambda times: tuple(sorted(times))),
    st.none() | TIMES,
    st.sampled_from([0.0, 0.01, 0.05, 0.3]),
    st.floats(0.1, 30.0),
    st.sampled_from([0.0, 0.5, 1.0, 100.0]),
).filter(lambda shape: bool(shape.predicted_us) or shape.best_us is not None)


def sampled(times: ShapeTimes, count: int) -> float:
    """V(count) by Monte Carlo: measure, then launch what is best of what is known and expected."""
    generator = np.random.default_rng(7)
    predicted = np.array(times.predicted_us)
    true = predicted * np.exp(times.spread * generator.standard_normal((400_000, predicted.size)))
    expected = predicted * math.exp(times.spread**2 / 2)
    others = min([*expected[count:], times.best_us or math.inf])
    return float(np.minimum(true[:, :count].min(axis=1, initial=math.inf), others).mean())


@pytest.mark.parametrize(
    "times",
    [
        ShapeTimes((10.0, 10.1, 10.5, 12.0), None, 0.05, 1.0),
        ShapeTimes((10.0, 10.1, 10.5, 12.0), 9.9, 0.05, 1.0),
        ShapeTimes((10.0, 20.0), None, 0.3, 1.0),
        ShapeTimes((10.0, 10.0, 10.0), 30.0, 0.2, 1.0),
    ],
)
def test_the_value_is_that_of_sampled_worlds(times: ShapeTimes) -> None:
    values = expected_times_us(times)
    assert len(values) == len(times.predicted_us) + 1
    for count, value in enumerate(values):
        assert value == pytest.approx(sampled(times, count), rel=1e-3)


def test_more_points_change_nothing_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    times = ShapeTimes((10.0, 10.1, 10.5, 12.0, 12.1, 12.1), None, 0.05, 1.0)
    coarse = expected_times_us(times)
    monkeypatch.setattr(measurement_value, "POINTS", 8 * measurement_value.POINTS)
    assert np.max(np.abs(coarse / expected_times_us(times) - 1)) < measurement_value.LEAST_GAIN


@settings(max_examples=200, deadline=None)
@given(SHAPES)
def test_a_measurement_never_costs_a_launch_time(times: ShapeTimes) -> None:
    values = expected_times_us(times)
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values) <= 0)
    assert np.all(values > 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(SHAPES, max_size=5), st.floats(0, 200), st.floats(0, 200), st.integers(1, 6))
def test_the_budget_holds_and_more_of_it_never_gains_less(
    shapes: list[ShapeTimes], budget_s: float, more_s: float, most: int
) -> None:
    order = order_measurements(shapes, most)
    assert order == order_measurements(list(shapes), most)
    spent = affordable(order, budget_s)
    assert sum(m.cost_s for m in spent) <= budget_s + 1e-9
    larger = affordable(order, budget_s + more_s)
    assert larger[: len(spent)] == spent
    before, after = (expected_gains_us(chosen, len(shapes)) for chosen in (spent, larger))
    assert all(a >= b >= 0 for a, b in zip(after, before, strict=True))
    for number, times in enumerate(shapes):
        mine = [m.candidate for m in order if m.shape == number]
        assert mine == list(range(len(mine))), "the candidates of a shape come in their order"
        assert len(mine) <= min(most, len(times.predicted_us))


def test_time_goes_where_it_is_worth_most() -> None:
    close = ShapeTimes((100.0, 100.5, 101.0), None, 0.05, 2.0)
    clear = ShapeTimes((100.0, 160.0, 170.0), None, 0.05, 2.0)
    known = replace(close, best_us=90.0)
    order = order_measurements([clear, known, close], 3)
    assert {m.shape for m in order[:3]} == {2}, "candidates that are close, and none of them measured"
    often = order_measurements([close, replace(close, weight=10.0), replace(close, cost_s=40.0)], 3)
    assert [m.shape for m in often] == [1, 1, 1, 0, 0, 0, 2, 2, 2]
    assert order_measurements([ShapeTimes((100.0, 160.0), None, 0.0, 2.0)], 3) == (), "a model that never errs"
    assert order_measurements([replace(close, weight=0.0)], 3) == (), "a shape that is never launched"


def test_a_first_measurement_that_gains_little_alone_is_taken_for_those_behind_it() -> None:
    """Ten equal candidates behind one: the envelope looks past the first step."""
    steps = order_measurements([ShapeTimes((100.0, 100.0, 100.0), 95.0, 0.05, 1.0)], 3)
    assert [m.candidate for m in steps] == [0, 1, 2]

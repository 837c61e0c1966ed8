"""Which of many measured configurations of a shape are fitted."""

from __future__ import annotations

import numpy as np

from warpplan.service.calibration.calibrate import MOST_CONFIGS, spread_by_time


def test_the_fastest_are_chosen_and_others_spread_over_the_rest() -> None:
    times = np.linspace(10.0, 30.0, 200)
    chosen = spread_by_time(times, times * 1.1)
    assert chosen.size == MOST_CONFIGS
    assert chosen[: MOST_CONFIGS // 2].tolist() == list(range(MOST_CONFIGS // 2))
    assert chosen[-1] == 199
    assert sorted(spread_by_time(times[:40], times[:40])) == list(range(40))


def test_readings_that_are_too_fast_are_not_the_fastest() -> None:
    times = np.linspace(10.0, 30.0, 200)
    wrong = np.arange(0, 200, 10)
    read = times.copy()
    read[wrong] *= 0.5
    chosen = spread_by_time(read, times * 1.1)
    assert np.isin(chosen, wrong).mean() < 0.2

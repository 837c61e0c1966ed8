"""What noise leaves of a ranking, on times that are made up."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import ranking_limits
from gemm_table import SearchedShape, read
from ranking_limits import RankedTimes, shared_memory_bytes, wave_bytes

from warpplan.kernels.gemm.space import GemmConfig


def ranked(noise: float, spread: float = 0.1, count: int = 200) -> RankedTimes:
    random = np.random.default_rng(1)
    true = np.exp(spread * random.standard_normal(count))
    seen = true * np.exp(noise * random.standard_normal(count))
    return RankedTimes("toy", (count,), "train", true, seen, noise)


def test_times_without_noise_can_be_ranked() -> None:
    assert ranked(0.0).tau == 1.0
    assert ranked(0.0).tau_limit() == 1.0


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.06])
def test_the_limit_is_what_the_true_times_reach(noise: float) -> None:
    found = ranked(noise)
    assert found.tau_limit() == pytest.approx(found.tau, abs=0.06)


def test_nothing_can_be_ranked_within_the_noise() -> None:
    assert ranked(0.2, spread=0.0).tau_limit() < 0.2


def test_a_wave_touches_no_fewer_bytes_than_one_tile_and_no_more_than_all() -> None:
    config = GemmConfig("cooperative", 128, 256, 64, 4, 4)
    shape = (8192, 8192, 4096)
    m = SearchedShape(shape, "bfloat16", "train", (config,), np.ones(1))
    all_tiles = config.tiles(shape) * (128 + 256) * shape[2] * 2
    (touched,) = wave_bytes(m, [config])
    assert (8192 + 8192) * shape[2] * 2 < touched < all_tiles
    # Each of two consumers has its 64 rows of A and all 256 columns of B: a third less would be one consumer's.
    assert shared_memory_bytes(m, [config])[0] == config.tiles(shape) * 2 * (64 + 256) * shape[2] * 2


def test_the_noise_of_the_gemm_table_is_that_of_the_recorded_pairs() -> None:
    noise = ranking_limits.gemm_noise(read(), ranking_limits.RESULTS)
    assert noise[True][1] >= 10
    assert 0.005 < noise[True][0] < 0.05
    assert noise[False][0] < noise[True][0]

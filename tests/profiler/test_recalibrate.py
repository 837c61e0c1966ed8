"""Constants fitted anew to readings of which some are wrong: an H200's gemm, with times of the shipped constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from warpplan.kernels import registry
from warpplan.planner.predict.time_model import Rates, terms
from warpplan.planner.values.device import device
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded
from warpplan.profiler.fit import MeasuredShape
from warpplan.profiler.recalibrate import missed, recalibrate, summed_up, with_calibration, without_outliers

GPU, DTYPE = device("NVIDIA H200"), "bfloat16"
PROFILE = embedded(GPU.name)
RATES = Rates.of(PROFILE, DTYPE)
GEMM = registry.kernel("gemm")
NOISE = 0.02
SHAPES = [(m, n, k) for m in (64, 256, 1024, 4096) for n, k in ((1024, 2048), (4096, 4096), (8192, 1024), (2048, 8192))]
OTHERS = [(96, 3072, 5120), (300, 768, 3072), (1500, 5120, 768), (3000, 3072, 3072), (6000, 11008, 768)]


def constants(profile: Profile, m: MeasuredShape) -> Mapping[str, float]:
    return GEMM.time_constants(m.shape, DTYPE, profile, m.work.structures)


def true_times(shapes: list[tuple[int, int, int]], limit: int) -> list[MeasuredShape]:
    """The candidates that rank first, with the times that the shipped constants predict."""
    found = []
    for shape in shapes:
        configs = [ranked.config for ranked in GEMM.rank(shape, DTYPE, GPU, PROFILE, limit=limit)]
        rows, (work,) = GEMM.device_works(configs, [shape], DTYPE, GPU, PROFILE)
        mine = MeasuredShape(shape, work.take(np.array([rows[c] for c in configs])), np.ones(len(configs)))
        found.append(replace(mine, time_us=terms(mine.work, RATES, constants(PROFILE, mine))[1]))
    return found


@pytest.fixture(scope="module")
def seen() -> list[MeasuredShape]:
    return true_times(SHAPES, 30)


@pytest.fixture(scope="module")
def unseen() -> list[MeasuredShape]:
    return true_times(OTHERS, 100)


def read(shapes: list[MeasuredShape], seed: int, part: float, factors: tuple[float, ...]) -> list[MeasuredShape]:
    """``shapes`` as noisy readings, of which a ``part`` is wrong by one of ``factors``."""
    random = np.random.default_rng(seed)

    def noise(size: int) -> np.ndarray:
        return random.normal(1.0, NOISE, size) * np.where(random.random(size) < part, random.choice(factors, size), 1.0)

    return [replace(m, time_us=m.time_us * noise(m.time_us.size)) for m in shapes]


def moved(seed: int) -> Profile:
    """The shipped profile with each of gemm's constants 15 % too large or too small."""
    known = PROFILE.calibration("gemm")
    assert known is not None
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], len(known.constants)).tolist()
    pairs = zip(known.constants, signs, strict=True)
    constants_off = tuple((name, value * (1.0 + 0.15 * sign)) for (name, value), sign in pairs)
    return with_calibration(PROFILE, replace(known, constants=constants_off))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "part", "factors"),
    [(0, 0.1, (0.6,)), (1, 0.1, (5.0, 0.6, 50.0)), (0, 0.02, (20.0,)), (1, 0.0, (1.0,))],
    ids=["fast", "mixed", "few slow", "none"],
)
def test_wrong_readings_make_no_profile_worse(
    seen: list[MeasuredShape], unseen: list[MeasuredShape], seed: int, part: float, factors: tuple[float, ...]
) -> None:
    start = moved(seed)
    done = recalibrate(start, ["gemm"], read(seen, seed, part, factors), RATES, constants, "a test")
    assert done.calibration is not None, done.reason
    made = with_calibration(start, done.calibration)
    before, after = (summed_up([missed(m, RATES, constants(p, m)) for m in unseen]) for p in (start, made))
    assert after.error < 0.5 * before.error
    assert after.regret < before.regret + 0.005
    assert done.outliers == pytest.approx(part * 480, abs=30)


@pytest.mark.slow
def test_what_is_gained_by_chance_is_no_reason_for_new_constants(seen: list[MeasuredShape]) -> None:
    done = recalibrate(PROFILE, ["gemm"], read(seen, 0, 0.1, (5.0, 0.6, 50.0)), RATES, constants, "a test")
    assert done.calibration is None
    assert "median error would be" in done.reason


def test_outliers_are_left_out_and_what_constants_are_off_by_stays(seen: list[MeasuredShape]) -> None:
    """A tenth are wrong; all times of one shape are twice, and all of a structure 1.5 times what is predicted."""
    wrong = np.random.default_rng(3).random((len(seen), 30)) < 0.1
    factor = np.where(np.random.default_rng(4).random(wrong.shape) < 0.5, 0.6, 5.0)
    names = [[m.work.structures[i] for i in m.work.structure.tolist()] for m in seen]
    common = max(sorted({n for of in names for n in of}), key=lambda name: sum(of.count(name) for of in names))
    offs = [np.where([n == common for n in of], 1.5, 1.0) * (2.0 if i == 0 else 1.0) for i, of in enumerate(names)]
    shapes = [
        replace(m, time_us=m.time_us * off * np.where(w, f, 1.0))
        for m, off, w, f in zip(seen, offs, wrong, factor, strict=True)
    ]
    kept = without_outliers(shapes, RATES, [constants(PROFILE, m) for m in seen])
    found = [np.isin(m.time_us, k.time_us) for m, k in zip(shapes, kept, strict=True)]
    assert np.mean(np.concatenate(found)[wrong.ravel()]) < 0.02
    assert np.mean(np.concatenate(found)[~wrong.ravel()]) > 0.98
    again = without_outliers(seen, RATES, [constants(PROFILE, m) for m in seen])
    assert all(a is b for a, b in zip(again, seen, strict=True))

"""Fitting: constants that made the times are found again, and noise, outliers and few measurements do little harm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from warpplan.planner.predict.time_model import DeviceWork, terms
from warpplan.planner.values.profile import Calibration
from warpplan.profiler.fit import BOUNDS, SHRINKAGE, MeasuredShape, fit, fitted_names, united
from warpplan.profiler.recalibrate import TOLERANCE

from ..planner.predict.works import RATES, works

NAMES = fitted_names(("a", "b"))


def inside(name: str, fraction: float) -> float:
    low, high = BOUNDS[name.split(".")[0]]
    return low + fraction * (high - low)


TRUTH = {name: inside(name, (0.1, 0.15, 0.2, 0.25, 0.3)[i % 5]) for i, name in enumerate(NAMES)}
"""Constants that no default knows, each well inside its bounds."""
STRUCTURES = ("x", "y", "z")


def candidates(seed: int, rows: int = 60) -> DeviceWork:
    """Candidates of every kind: some bound by each term, two families, three structures."""
    random = np.random.default_rng(seed)

    def between(low: float, high: float) -> np.ndarray:
        return np.exp(random.uniform(np.log(low), np.log(high), rows))

    rounds, iterations = np.ceil(between(1, 12)), np.ceil(between(4, 256))
    split = random.choice([1.0, 1.0, 2.0, 4.0], rows)
    family = random.integers(0, 2, rows)
    work = works(
        rows,
        executed_flops=between(1e8, 1e12),
        loaded_bytes=between(1e6, 1e10),
        rounds=rounds,
        iterations=iterations,
        trips=rounds * iterations,
        ii_cycles=between(64, 1200),
        load_bytes=between(8e3, 9e4),
        slots_in_flight=np.ceil(between(0.5, 7)),
        prologue_cycles=between(300, 2000),
        epilogue_cycles=between(200, 6000),
        drain_cycles=between(300, 2000),
        unaligned=random.choice([0.0, 1.0], rows),
        plain_elements=random.choice([0.0, 128.0], rows),
        overlapped=random.choice([0.0, 1.0], rows),
        refilled=random.choice([0.0, 1.0], rows),
        dram_bytes=between(1e5, 1e8),
        split_k=split,
        split_rounds=np.where(split > 1, rounds, 0.0),
        filled_bytes=np.where(np.arange(rows) % 4 == 0, 1e7, 0.0),
        reduced_bytes=np.where(split > 1, 2e5 * split, 0.0),
        reduction_trips=np.where(split > 1, random.integers(0, 9, rows), 0.0),
        narrow=random.choice([0.0, 0.0, 0.4], rows),
        streamed=random.choice([0.0, 1.0], rows),
        launch_dependents=(np.arange(rows) % 3 == 0).astype(float),
        early_part=random.choice([0.0, 0.5, 1.0], rows),
    )
    structure = np.where(family > 0, random.integers(1, 3, rows), 0)
    return replace(work, families=("a", "b"), structures=STRUCTURES, family=family, structure=structure)


def measured(shapes: int, constants: dict[str, float], noise: float = 0.0) -> list[MeasuredShape]:
    random = np.random.default_rng(99)
    found = []
    for i in range(shapes):
        work = candidates(i)
        times = terms(work, RATES, constants)[1]
        found.append(MeasuredShape((i + 1, 1, 8), work, times * np.exp(noise * random.standard_normal(len(times)))))
    return found


def errors(constants: dict[str, float], truth: dict[str, float]) -> np.ndarray:
    """Relative errors of the times of work that the fit has not seen."""
    work = candidates(1000)
    return np.abs(terms(work, RATES, constants)[1] / terms(work, RATES, truth)[1] - 1.0)


def test_the_constants_that_made_the_times_are_found():
    calibration = fit("toy", measured(12, TRUTH), RATES, "a table")
    found = dict(calibration.constants)
    ends = {"launch_scale", "start_cycles.a", "start_cycles.b"}
    for name in TRUTH.keys() - ends:
        assert found[name] == pytest.approx(TRUTH[name], rel=1e-2), name
    # A launch and a start both happen once a kernel: only their sum can be known.
    for family in "ab":
        once = [c["launch_scale"] * RATES.launch_us + c[f"start_cycles.{family}"] / 2e3 for c in (found, TRUTH)]
        assert once[0] == pytest.approx(once[1], rel=1e-2)
    assert errors(found, TRUTH).max() < 1e-3
    assert all(abs(found[f"structure.{s}"]) < 1e-3 for s in STRUCTURES)


def test_what_a_calibration_says_of_itself():
    shapes = measured(2, TRUTH)
    calibration = fit("toy", shapes, RATES, "a table")
    assert (calibration.kernel, calibration.source) == ("toy", "a table")
    assert calibration.shapes == ((1, 1, 8), (2, 1, 8))
    assert list(calibration.constants) == sorted(calibration.constants)
    assert {name for name, _ in calibration.constants} == {*TRUTH, *(f"structure.{s}" for s in STRUCTURES)}
    assert all(value == float(f"{value:.6g}") for _, value in calibration.constants)
    assert fit("toy", shapes, RATES, "a table") == calibration


def test_constants_stay_within_their_bounds():
    """A device ten times slower than its ceilings say pushes every constant to its limit, and no further."""
    slow = [replace(m, time_us=10 * m.time_us) for m in measured(3, TRUTH)]
    for name, value in fit("toy", slow, RATES, "").constants:
        if not name.startswith("structure."):
            low, high = BOUNDS[name.split(".")[0]]
            assert low <= value <= high, name


def test_noise_and_outliers_do_little_harm():
    shapes = measured(16, TRUTH, noise=0.02)
    for m in shapes:
        m.time_us[::20] *= 2.0  # one of twenty read in a bad moment
    typical = errors(dict(fit("toy", shapes, RATES, "").constants), TRUTH)
    assert np.median(typical) < 0.02
    assert np.quantile(typical, 0.9) < 0.06


def test_a_structure_keeps_what_the_model_cannot_say():
    truth = {**TRUTH, "structure.y": 0.08, "structure.z": -0.08}
    found = dict(fit("toy", measured(6, truth), RATES, "").constants)
    # Shrunk, so less than what was put in; what both share would be their family's.
    assert 0 < found["structure.y"] < 0.08
    assert -0.08 < found["structure.z"] < 0
    assert abs(found["structure.x"]) < 0.01
    without = {name: value for name, value in found.items() if not name.startswith("structure.")}
    assert np.median(errors(found, truth)) < np.median(errors(without, truth))


def test_a_structure_measured_once_is_hardly_believed():
    few = candidates(0, rows=40)
    few = replace(few, structure=np.where(np.arange(40) == np.flatnonzero(few.family)[0], 1, 2 * few.family))
    times = terms(few, RATES, TRUTH)[1]
    once = few.structure == 1
    assert once.sum() == 1
    found = dict(fit("toy", [MeasuredShape((1, 1, 8), few, np.where(once, 1.2 * times, times))], RATES, "").constants)
    assert abs(found["structure.y"]) <= 0.2 / (1 + SHRINKAGE)


def test_a_structure_never_measured_has_no_constant():
    shapes = [replace(m, work=replace(m.work, structures=(*STRUCTURES, "never"))) for m in measured(2, TRUTH)]
    assert "structure.never" not in dict(fit("toy", shapes, RATES, "").constants)


def test_a_prior_makes_up_for_few_measurements():
    """One noisy shape says little of most constants; something alike that is well known says the rest: in the mean of
    four such shapes."""
    alike = fit("toy", measured(12, {**TRUTH, "structure.y": 0.05}), RATES, "")
    truth = {**TRUTH, "l2_scale": 1.3 * TRUTH["l2_scale"]}

    def missed(prior: Calibration | None) -> float:
        # Without a prior one shape leaves valleys, along which a search to the last digit walks for hundreds of steps.
        found = [
            fit("toy few", [one], RATES, "", prior=prior, tolerance=TOLERANCE) for one in measured(4, truth, noise=0.04)
        ]
        return float(np.mean([np.median(errors(dict(calibration.constants), truth)) for calibration in found]))

    drawn = missed(alike)
    assert drawn < 0.7 * missed(None)
    assert drawn < np.median(errors(dict(alike.constants), truth))


def test_what_is_held_stays_as_the_prior_has_it_while_others_are_fitted():
    """The card's constant and a held one are neither moved nor forgotten: the times were made with them."""
    truth = {**TRUTH, "order_l2": 0.4, "power_scale": 1.3}
    prior = Calibration("toy", tuple({**truth, "l2_scale": 2.0 * truth["l2_scale"]}.items()), (), "a prior")
    found = dict(fit("toy", measured(12, truth), RATES, "", prior=prior, held=("power_scale",)).constants)
    assert (found["order_l2"], found["power_scale"]) == (0.4, 1.3)
    assert found["l2_scale"] == pytest.approx(truth["l2_scale"], rel=0.02)
    assert errors(found, truth).max() < 0.01


def test_a_prior_knows_structures_that_were_not_measured():
    prior = fit("toy", measured(6, {**TRUTH, "structure.y": 0.08}), RATES, "")
    known = dict(prior.constants)
    shapes = [MeasuredShape(m.shape, m.work.take(rows), m.time_us[rows]) for m in measured(2, TRUTH)
              for rows in [np.flatnonzero(m.work.structure != 1)]]  # fmt: skip
    assert dict(fit("toy few", shapes, RATES, "", prior=prior).constants)["structure.y"] == known["structure.y"]


def test_a_prior_knows_families_that_were_not_measured():
    prior = fit("toy", measured(6, TRUTH), RATES, "")
    other = replace(prior, constants=tuple(sorted({**dict(prior.constants), "unit_cycles.other": 321.0}.items())))
    assert dict(fit("toy few", measured(2, TRUTH), RATES, "", prior=other).constants)["unit_cycles.other"] == 321.0


def test_shapes_of_unlike_structures_are_united():
    """Each shape names the families and structures of its own candidates, in its own order."""
    work = candidates(0)
    swapped = replace(
        work, families=("b", "c", "a"), structures=("z", "x", "y"), family=np.array([2, 0])[work.family],
        structure=np.array([1, 2, 0])[work.structure],
    )  # fmt: skip
    times = terms(work, RATES, {**TRUTH, "structure.y": 0.1})[1]
    first, second = united([MeasuredShape((1,), work, times), MeasuredShape((2,), swapped, times)])
    assert first.work.families == second.work.families == ("a", "b", "c")
    assert first.work.structures == second.work.structures == STRUCTURES
    assert np.array_equal(first.work.family, second.work.family)
    assert np.array_equal(first.work.structure, second.work.structure)


def test_nothing_measured():
    with pytest.raises(ValueError, match="no measured shapes to fit"):
        fit("toy", [], RATES, "a table")

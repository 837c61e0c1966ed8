"""The benchmarks that need no GPU: reading the exhaustive table, replaying the ranking against it, fitting to it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import fit_gemm
import gemm_table
import recorded_rankings
import regret
from gemm_shapes import HELDOUT, TRAIN

from warpplan.kernels.gemm.candidates import candidates
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import GemmConfig, config_of
from warpplan.planner.predict.time_model import Rates, terms
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Calibration
from warpplan.profiler.embedded import embedded
from warpplan.profiler.fit import MeasuredShape

SHAPE = (2048, 2048, 2048)
COLUMNS = list(vars(GemmConfig("single", 64, 64, 64, 4, 2)))


def space(shape: tuple[int, int, int]) -> tuple[GemmConfig, ...]:
    """The structures that need no costs to be named, without streams, which need one to be ranked."""
    return tuple(c for c in candidates(shape, "bfloat16", H200) if not c.stream_k)


def ranked(shape: tuple[int, int, int] = SHAPE) -> tuple[tuple[GemmConfig, ...], np.ndarray]:
    """Of the structures of :func:`space`."""
    known = set(space(shape))
    pairs = [(c, us) for c, us in recorded_rankings.gemm_ranking(shape, "bfloat16", embedded(H200.name)) if c in known]
    return tuple(c for c, _ in pairs), np.array([us for _, us in pairs])


def measured(configs: tuple[GemmConfig, ...], times: np.ndarray, shape: tuple[int, int, int] = SHAPE) -> Any:
    return gemm_table.SearchedShape(shape, "bfloat16", "train", configs, times)


def write(path: Path, shapes: dict[tuple[int, int, int], np.ndarray]) -> Path:
    """A table of those shapes with one time a candidate, cuBLAS steady."""
    rows = [
        {
            "kernel": "gemm", "shape": shape, "dtype": "bfloat16", "split": "train", "cublas_us": [20.0, 20.0],
            "configs": [list(vars(c).values()) for c in space(shape)],
            "times_us": [[t, t, t, i % 2] for i, t in enumerate(times.tolist())],
        }
        for shape, times in shapes.items()
    ]  # fmt: skip
    path.write_text(json.dumps({"columns": COLUMNS, "rows": rows}))
    return path


def times_of(shape: tuple[int, int, int]) -> np.ndarray:
    """Predicted times in the order of the candidates."""
    by_config = dict(zip(*ranked(shape), strict=True))
    return np.array([by_config[c] for c in space(shape)])


# The shapes


def test_shapes_that_are_fitted_and_shapes_that_are_judged_are_different_ones():
    assert not set(TRAIN) & set(HELDOUT)
    assert len(set(TRAIN)) == len(TRAIN) >= 12
    assert len(set(HELDOUT)) == len(HELDOUT) >= 12


@pytest.mark.parametrize("shape", TRAIN + HELDOUT, ids=str)
def test_every_shape_can_be_planned(shape):
    sizes = dict(zip(("M", "N", "K"), shape, strict=True))
    assert Gemm().parse_shape(sizes, "bfloat16") == shape
    assert len(candidates(shape, "bfloat16", H200)) > 8


# The table


def test_a_table_is_read_back(tmp_path):
    times = times_of(SHAPE)
    (row,) = gemm_table.read(write(tmp_path / "table.json", {SHAPE: times}))
    assert (row.shape, row.dtype, row.split) == (SHAPE, "bfloat16", "train")
    assert row.configs == space(SHAPE)
    np.testing.assert_allclose(row.time_us, times)


def test_the_cards_drift_is_taken_out():
    """The card slows by half during the search, and cuBLAS with it: the times are those of one card."""
    turns = 40
    slowing = np.linspace(1.0, 1.5, turns)
    times = np.array([[10.0 * s, 9.0, 11.0, i] for i, s in enumerate(slowing)])
    steady = gemm_table.steady_us(times, 20.0 * slowing)
    assert np.ptp(times[:, 0]) > 4
    assert np.ptp(steady) / np.median(steady) < 0.05
    assert np.median(steady) == pytest.approx(np.median(times[:, 0]), rel=0.02)


def test_a_single_bad_reading_of_cublas_changes_nothing():
    cublas = np.full(21, 20.0)
    cublas[10] = 40.0
    times = np.array([[10.0, 9.0, 11.0, i] for i in range(21)])
    np.testing.assert_allclose(gemm_table.steady_us(times, cublas), 10.0)


def test_splits_of_k_are_taken_out_of_a_shape():
    configs = space((64, 4096, 4096))
    times = np.arange(1.0, len(configs) + 1)
    kept = gemm_table.whole(measured(configs, times, (64, 4096, 4096)))
    assert 0 < len(kept.configs) < len(configs)
    assert all(config.split == "none" for config in kept.configs)
    assert [times[configs.index(config)] for config in kept.configs] == kept.time_us.tolist()


# The replay


def test_a_prediction_that_comes_true_has_no_regret():
    row = regret.replay(measured(*ranked()), embedded(H200.name))
    assert row["best_over_chosen"] == row["best_over_best_of_8"] == 1.0
    assert row["kendall_tau"] == pytest.approx(1.0)
    assert row["median_error"] == row["chosen_error"] == 0.0
    assert row["configurations"] == len(space(SHAPE))


def test_a_prediction_that_is_upside_down():
    configs, times = ranked()
    row = regret.replay(measured(configs, times[::-1]), embedded(H200.name))
    assert row["best_over_chosen"] == pytest.approx(times[0] / times[-1])
    assert row["best_over_best_of_8"] == pytest.approx(times[0] / times[-8])
    assert row["kendall_tau"] < -0.95  # equal times are neither


def test_a_best_that_is_ranked_third_is_among_the_first_eight():
    configs, times = ranked()
    times = times.copy()
    times[2] = times[0] / 1.25
    row = regret.replay(measured(configs, times), embedded(H200.name))
    assert row["best_over_chosen"] == pytest.approx(0.8)
    assert row["best_over_best_of_8"] == 1.0
    assert row["chosen_error"] == 0.0


def test_what_was_not_measured_is_left_out():
    configs, times = ranked()
    row = regret.replay(measured(configs[1::2], 2 * times[1::2]), embedded(H200.name))
    assert row["configurations"] == len(configs[1::2])
    assert row["best_over_chosen"] == 1.0
    assert row["median_error"] == pytest.approx(0.5)


def test_summary():
    row = {
        "best_over_chosen": 1.0, "best_over_best_of_8": 1.0, "kendall_tau": 0.8,
        "median_error": 0.1, "chosen_error": 0.2,
    }  # fmt: skip
    worse = row | {"best_over_chosen": 0.64, "kendall_tau": 0.6, "median_error": 0.3}
    summary = regret.summary([row, worse])
    assert summary["shapes"] == 2
    assert summary["best_over_chosen_geomean"] == pytest.approx(0.8)
    assert summary["best_over_chosen_worst"] == 0.64
    assert summary["kendall_tau_median"] == pytest.approx(0.7)
    assert summary["median_error"] == pytest.approx(0.2)


def test_the_command_reports_both_kinds_of_shapes_apart(tmp_path, monkeypatch, capsys):
    tables = [
        write(tmp_path / "train.json", {TRAIN[1]: times_of(TRAIN[1])}),
        write(tmp_path / "heldout.json", {s: times_of(s) for s in HELDOUT[:2]}),
    ]
    monkeypatch.setattr(sys, "argv", ["regret.py", *map(str, tables), "--json"])
    regret.main()
    heldout, train = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert heldout["heldout"]["shapes"] == 2
    assert train["train"]["shapes"] == 1
    assert heldout["heldout"]["best_over_chosen_geomean"] == pytest.approx(1.0)


# The fit


@pytest.fixture
def handed(monkeypatch) -> list[MeasuredShape]:
    """What the command hands to the fit."""
    given: list[MeasuredShape] = []

    def fit(kernel: str, measured: list[MeasuredShape], rates: Rates, source: str) -> Calibration:
        given.extend(measured)
        return Calibration(kernel, (("launch_scale", 2.0),), tuple(m.shape for m in measured), source)

    monkeypatch.setattr(fit_gemm, "fit", fit)
    return given


@pytest.mark.parametrize(("shape", "split"), [(TRAIN[1], "train"), (HELDOUT[0], "heldout")])
def test_a_shape_of_the_table_is_a_row_of_its_own_split(shape, split):
    """What a table says of the split was written before shapes were held out: the lists decide."""
    configs = space(shape)
    found = fit_gemm.as_row(measured(configs, np.ones(len(configs)), shape))
    assert (found.row.sizes, found.row.split) == (shape, split)
    assert tuple(map(config_of, found.configs)) == configs


def test_held_out_shapes_never_reach_the_fit(tmp_path, handed):
    table = write(tmp_path / "table.json", {s: times_of(s) for s in (HELDOUT[0], *TRAIN[1:3], HELDOUT[1])})
    profile = embedded(H200.name)
    fitted = fit_gemm.calibrated(profile, gemm_table.read(table), "a table")
    assert [m.shape for m in handed] == list(TRAIN[1:3])
    calibration = fitted.calibration("gemm")
    assert calibration == Calibration("gemm", (("launch_scale", 2.0),), TRAIN[1:3], "a table")
    others = [c for c in profile.calibrations if c.kernel != "gemm"]
    assert [c for c in fitted.calibrations if c.kernel != "gemm"] == others
    assert (fitted.costs, fitted.ceilings) == (profile.costs, profile.ceilings)


def test_each_time_meets_the_work_of_its_configuration(handed):
    """With times as predicted, the model's times of the works handed on are those times, in their order."""
    profile = embedded(H200.name)
    configs, times = ranked(TRAIN[1])
    shuffled = np.random.default_rng(0).permutation(len(configs))
    table = [measured(tuple(configs[i] for i in shuffled), times[shuffled], TRAIN[1])]
    fit_gemm.calibrated(profile, table, "a table")
    calibration = profile.calibration("gemm")
    constants = dict(calibration.constants) if calibration else {}
    predicted = terms(handed[0].work, Rates.of(profile, "bfloat16"), constants)[1]
    np.testing.assert_allclose(predicted, handed[0].time_us, rtol=1e-12)
    np.testing.assert_array_equal(handed[0].time_us, times[shuffled])

"""The accuracy and the ring-depth benchmarks, as far as they go without a GPU."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import plan_accuracy
import robust_depth
from gemm_shapes import HELDOUT, TRAIN
from results_file import write

from warpplan.kernels.gemm.space import SCHEMES, GemmConfig, violations
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

PROFILE = embedded(H200.name)


def row(predicted: float, measured: float | None, depth: int = 2, **robust: int) -> plan_accuracy.Row:
    config = vars(GemmConfig("single", 128, 128, 64, 8, depth))
    times = {} if measured is None else {"measured_us": measured}
    found = {"kernel": "gemm", "shape": (1, 1, 1), "config": config, "predicted_us": predicted, "loop_us": -predicted}
    return {**found, "bound_by": "power", "robust_depth": robust, **times}


def test_the_shapes_are_nobody_elses():
    assert not set(plan_accuracy.SHAPES) & set(TRAIN + HELDOUT)


@pytest.mark.parametrize("shape", plan_accuracy.SHAPES, ids=str)
def test_plans_differ_in_tile_depth_scheme_and_blocks(shape):
    found = plan_accuracy.plans(shape)
    assert len(set(found)) == len(found) >= 60
    assert {c.scheme for c in found} == set(SCHEMES)
    assert {c.ctas_per_sm for c in found} == {1, 2}
    assert {c.block_k for c in found} == {64, 128}
    for config in found:
        assert violations(config, "bfloat16", H200, shape) == ()
    # Every depth from two to the deepest of each block.
    blocks = Counter(plan_accuracy.block(c) for c in found)
    for block, count in blocks.items():
        depths = sorted(c.depth for c in found if plan_accuracy.block(c) == block)
        assert depths == list(range(2, 2 + count))


def test_the_loop_alone_is_no_longer_than_its_units_take():
    config = GemmConfig("single", 128, 128, 64, 8, 5)
    shape = (4096, 4096, 4096)
    clock = dict(PROFILE.ceilings)["clock_hz_idle"].p50
    rounds, trips = -(-32 * 32 // 132), 64
    least = rounds * trips * 512 / clock * 1e6
    assert least < plan_accuracy.loop_us(config, shape, PROFILE) < 1.1 * least


def test_accuracy_of_what_was_measured():
    rows = [row(10.0, 10.0), row(22.0, 20.0), row(30.0, 40.0), row(1.0, None)]
    found = plan_accuracy.accuracy(rows)
    assert (found["plans"], found["kendall_tau"], found["kendall_tau_loop"]) == (3, 1.0, -1.0)
    assert found["median_error"] == pytest.approx(0.1)


def test_robust_depths_are_compared_with_the_deepest():
    times = {2: 30.0, 3: 20.0, 4: 16.0, 5: 15.0}
    rows = [row(1.0, us, depth, l2=3, dram=9) for depth, us in times.items()]
    found = robust_depth.summary([*rows, row(1.0, None, 6, l2=3, dram=9)])
    assert found["l2"]["geomean"] == pytest.approx(20 / 15, abs=1e-4)
    assert found["dram"]["worst"] == found["best"]["worst"] == 1.0


def test_measured_depths_are_read_back_for_fitting(tmp_path):
    rows = [row(1.0, us, depth, l2=3, dram=9) | {"shape": (64, 8192, 512)} for depth, us in ((2, 30.0), (3, 20.0))]
    write(tmp_path / "depths.json", {"dtype": "bfloat16", "rows": [*rows, row(1.0, None, 4)]})
    (found,) = robust_depth.read(tmp_path / "depths.json")
    assert (found.shape, found.split, found.time_us.tolist()) == ((64, 8192, 512), "train", [30.0, 20.0])
    assert [(c.depth, c.group_m) for c in found.configs] == [(2, 1), (3, 1)]


def test_every_depth_of_a_block_is_predicted():
    shape = robust_depth.SHAPES[0]
    rows = robust_depth.rows_of(shape, PROFILE)
    groups = robust_depth.by_block(rows)
    assert len(groups) == len(robust_depth.BLOCKS) >= 10
    for group in groups:
        assert [r["config"]["depth"] for r in group] == list(range(2, 2 + len(group)))
        assert group[0]["robust_depth"]["l2"] <= group[0]["robust_depth"]["dram"]
    assert all(r["predicted_us"] > 0 for r in rows)


@pytest.mark.parametrize("bench", [plan_accuracy, robust_depth], ids=lambda m: m.__name__)
def test_a_dry_run_lists_the_plans(bench, monkeypatch, capsys):
    monkeypatch.setattr(bench, "SHAPES", ((1024, 1024, 512),))
    phases = ["--phases", "none"] if bench is plan_accuracy else []
    monkeypatch.setattr(sys, "argv", [bench.__name__, "--dry-run", *phases])
    bench.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum("predicted" in line for line in lines) >= 40
    assert "torch" not in bench.__dict__

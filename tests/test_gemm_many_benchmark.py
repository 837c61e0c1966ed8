"""``make bench-gemm-many`` without a GPU: its list, how it goes on, what its report says of rows that are made up."""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_early_launch
import bench_gemm_many
import bench_splits
import gemm_many_report
import many_shapes
from gemm_many_picture import picture
from gemm_shapes import HELDOUT, TRAIN
from kernel_estimates import power_limited
from kernel_plans import planned
from kernel_tables import read_many
from kernel_timing import as_json, row_of
from many_shapes import DrawnShape
from results_file import RESULTS
from time_statistics import least_us

from warpplan.kernels.gemm.space import config_of
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded

SHAPES = many_shapes.read_list()
PROFILE = embedded(H200.name)


def test_the_committed_list_is_the_one_that_was_drawn() -> None:
    """Changed sizes would be other rows than those that were measured."""
    assert many_shapes.LIST.read_text() == many_shapes.as_text(many_shapes.draw())


def test_the_list_has_the_shapes_that_were_promised() -> None:
    assert len(SHAPES) == sum(many_shapes.COUNTS.values()) >= 1000
    assert len({bench_gemm_many.key_of(shape) for shape in SHAPES}) == len(SHAPES)
    assert {1, 16384} <= {shape.tokens for shape in SHAPES}
    assert 1 / 4 < sum(shape.split == "train" for shape in SHAPES) / len(SHAPES) < 2 / 5
    known = {*TRAIN, *HELDOUT}
    assert not [shape for shape in SHAPES if shape.product == "forward" and shape.sizes in known]
    assert all(row_of(json.loads(json.dumps(as_json(shape.row)))) == shape.row for shape in SHAPES)


@pytest.mark.parametrize("field", ["kind", "product", "split"])
def test_a_prefix_has_the_mixture_of_the_whole_list(field: str) -> None:
    for value in {getattr(shape, field) for shape in SHAPES}:
        parts = [sum(getattr(s, field) == value for s in SHAPES[:n]) / n for n in (150, len(SHAPES))]
        assert abs(parts[0] - parts[1]) < 0.04


def test_odd_rows_are_marked() -> None:
    def shape(product: str, *sizes: int) -> DrawnShape:
        return DrawnShape("dense", "made up", product, 8, (sizes[0], sizes[1], sizes[2]), "train")

    assert not shape("forward", 7, 4096, 4096).odd_pitch
    assert shape("forward", 7, 4100, 4096).odd_width
    assert shape("forward", 7, 4104, 4096).odd_pitch
    assert not shape("forward", 7, 4104, 4096).odd_width
    assert not shape("wgrad", 4096, 4096, 777).odd_width
    assert shape("dgrad", 64, 4096, 777).odd_width


def test_what_the_kernel_refuses_is_told() -> None:
    some = [shape for shape in SHAPES if shape.odd_width][:3] + SHAPES[:3]
    plans, refused = bench_gemm_many.plan(some, PROFILE)
    assert len(plans) + len(refused) == len(some)
    assert all("multiple of 16 bytes" in reason for reason in refused.values())


def test_only_rows_with_another_first_choice_are_measured_again() -> None:
    plans, _ = bench_gemm_many.plan(SHAPES[:3], PROFILE)
    earlier = [_row(shape, PROFILE) for shape in plans]
    assert not bench_gemm_many.changed(plans, earlier)
    other = {**earlier[1], "config": {**earlier[1]["config"], "num_warps": 16}}
    wrong = {name: value for name, value in earlier[2].items() if name != "config"}
    assert list(bench_gemm_many.changed(plans, [earlier[0], other, wrong])) == [list(plans)[1]]
    assert not bench_gemm_many.changed(plans, [])


def test_early_launches_are_timed_on_short_training_shapes() -> None:
    """The best specialised kernel without and with an early next launch, and the best kernel of one partition."""
    found = list(islice(bench_early_launch.rows(SHAPES, PROFILE), 10))
    assert len(found) == 10
    for shape, plan in found:
        assert shape.split == "train"
        every = [config_of(config) for config, _ in planned(shape.row, PROFILE).ranked]
        waits, launches, pipelined = (config_of(config) for config, _ in plan.ranked)
        best = next(config for config in every if config.specialized)
        assert (waits, launches) == tuple(replace(best, launch_dependents=early) for early in (False, True))
        assert pipelined == next(config for config in every if not config.specialized)
        assert min(us for _, us in plan.ranked) <= bench_early_launch.LONGEST_US


def test_early_launches_are_summed_up_by_the_time_of_the_kernel_that_waits() -> None:
    names = ("cublas", *bench_early_launch.EARLY, *bench_early_launch.PLAIN)

    def row(us: float, ratio: float, *left_out: str) -> dict[str, Any]:
        times = {name: [us if name == "waits" else ratio * us, 0.0, 0.0] for name in names}
        return {"us": {"graph": times, "stream": {name: t for name, t in times.items() if name not in left_out}}}

    summary = bench_early_launch.summed_up([row(3.5, 0.5), row(3.9, 2.0, "plain"), row(8.0, 3.0)])
    assert summary["3_to_4_us"]["graph"] == {"rows": 2, **dict.fromkeys(names, 1.0)}
    assert summary["3_to_4_us"]["stream"] == {"rows": 1, **dict.fromkeys(names, 0.5), "waits": 1.0}
    assert summary["6_to_9_us"]["graph"]["cublas"] == 3.0
    assert summary.keys() == {"3_to_4_us", "6_to_9_us"}


def test_splits_are_timed_beside_the_best_whole_plans_of_training_shapes() -> None:
    for limited in (False, True):
        found = list(islice(bench_splits.rows(SHAPES, PROFILE, limited), 10))
        assert len(found) == 10
        for shape, plan in found:
            assert shape.split == "train"
            assert power_limited(shape.row) == limited
            best = planned(shape.row, PROFILE).ranked
            split = [r for r in plan.ranked if config_of(r[0]).split != "none"]
            whole = [r for r in plan.ranked if config_of(r[0]).split == "none"]
            assert 0 < len(split) <= bench_splits.SPLITS
            assert all(us <= bench_splits.WITHIN * best[0][1] for _, us in split)
            assert whole == [r for r in best if config_of(r[0]).split == "none"][: bench_splits.WHOLE]


def test_rows_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    settings = bench_gemm_many.settings_of("one GPU", PROFILE, {"torch": "2.11", "triton": "3.6.0"})
    store = bench_gemm_many.resumed(out, settings, fresh=False)
    plans, _ = bench_gemm_many.plan(SHAPES[:2], PROFILE)
    for shape in plans:
        store.add(_row(shape, PROFILE))
    bench_gemm_many.write_rows(store, SHAPES, {}, settings)
    store.partial.unlink()  # the next call is on another machine, and has the results file alone
    assert len(bench_gemm_many.resumed(out, settings, fresh=False).rows()) == 2
    store.partial.unlink()
    for other in ({**settings, "device": "another"}, {**settings, "versions": {"torch": "2.12", "triton": "3.6.0"}}):
        with pytest.raises(SystemExit, match="was measured with"):
            bench_gemm_many.resumed(out, other, fresh=False)
    assert not bench_gemm_many.resumed(out, {**settings, "device": "another"}, fresh=True).rows()


def test_the_report_reads_what_todays_first_choice_took_where_it_was_timed() -> None:
    found = [_row(shape, PROFILE, cublas=2.0) for shape in SHAPES[:4]]
    # Of the first the choice of then was another one, which took half as long; of the last it was not timed at all.
    found[0]["ranked_us"] = [2.0 * us for us in found[0]["ranked_us"]]
    del found[3]["configs"][0], found[3]["ranked_us"][0]
    heldout = [row["split"] == "heldout" for row in found[:3]]
    ratios = [row["peers"]["cublas"] / row["ranked_us"][0] for row in found[:3]]
    got = gemm_many_report.today(found, PROFILE)
    assert got["all"]["shapes"] == 3
    assert got["all"]["cublas_over_first"] == pytest.approx(math.prod(ratios) ** (1 / 3), abs=1e-4)
    assert got.get("heldout", {}).get("shapes", 0) == sum(heldout)


def test_the_last_of_several_processes_to_end_keeps_what_the_others_wrote(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    settings = bench_gemm_many.settings_of("one GPU", PROFILE, {"torch": "2.11", "triton": "3.6.0"})
    first, last = (bench_gemm_many.resumed(out, settings, fresh=False) for _ in range(2))
    for shape in SHAPES[:2]:
        last.add(_row(shape, PROFILE))
    for store in (first, last):
        bench_gemm_many.write_rows(store, SHAPES[:2], {}, settings)
        assert len(json.loads(out.read_text())["rows"]) == 2
    assert not out.with_suffix(".partial.jsonl").exists()


def test_the_report_counts_what_the_rows_say(tmp_path: Path) -> None:
    rows = [
        gemm_many_report.measured(_row(shape, PROFILE, cublas=1.0 + i / 100)) for i, shape in enumerate(SHAPES[1:9])
    ]
    found = gemm_many_report.report(rows)
    assert found["all"]["shapes"] == 8
    assert found["all"]["cublas_over_chosen"]["least"] == 1.0
    assert found["all"]["cublas_over_chosen"]["median"] == pytest.approx(1.035)
    assert found["all"]["best_of_8_over_chosen"] == pytest.approx(0.9)
    assert [goal["met"] for goal in found["goals"]] == [True, True, False]
    assert len(found["worst"]) == 1
    drawn = ElementTree.fromstring(picture([(row.shape, row.cublas) for row in rows]))
    assert len(drawn.findall("{*}circle")) + len(drawn.findall("{*}path")) == 8 + len(many_shapes.COUNTS)


def test_only_shapes_that_former_plans_ran_are_compared_with_them() -> None:
    def rows(shapes: Sequence[DrawnShape], cublas: float) -> list[gemm_many_report.ManyRow]:
        return [gemm_many_report.measured(_row(shape, PROFILE, cublas)) for shape in shapes]

    wide = (SHAPES[1], SHAPES[4])
    now = [replace(row, wide=row.shape in wide, narrow=row.shape in wide) for row in rows(SHAPES[1:5], 1.2)]
    before = rows(SHAPES[3:9], 0.9)
    found = gemm_many_report.since(now, before)
    assert found["wide_first_choices"] == 2
    assert [found[group]["shapes"] for group in ("all", "wide", "narrow")] == [2, 1, 1]
    for group in (found["all"], found["wide"], found["narrow"]):
        assert group["now"]["cublas_over_chosen"] == pytest.approx(1.2)
        assert group["before"]["cublas_over_chosen"] == pytest.approx(0.9)
    assert gemm_many_report.since(now[:1], before)["all"] == {"shapes": 0}


def test_rows_timed_again_stand_in_the_place_of_the_former(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = bench_gemm_many.settings_of("one GPU", PROFILE, {"torch": "2.11", "triton": "3.6.0"})
    former, again = tmp_path / "rows.json", tmp_path / "rows_again.json"
    for out, shapes, cublas in ((former, SHAPES[:4], 0.9), (again, [*SHAPES[1:3], SHAPES[5]], 1.2)):
        store = bench_gemm_many.resumed(out, settings, fresh=False)
        for shape in shapes:
            store.add(_row(shape, PROFILE, cublas))
        bench_gemm_many.write_rows(store, shapes, {}, settings)
    command = ["x", "--rows", former, "--summary", tmp_path / "summary.json", "--picture", tmp_path / "picture.svg"]
    monkeypatch.setattr(sys, "argv", [*map(str, command)])
    gemm_many_report.main()
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["all"]["shapes"] == 5
    assert found["all"]["cublas_over_chosen"]["geomean"] == pytest.approx((0.9**2 * 1.2**3) ** 0.2, abs=1e-4)
    compared = found["again"]["all"]
    assert compared["shapes"] == 2
    assert (compared["before"]["cublas_over_chosen"], compared["now"]["cublas_over_chosen"]) == (0.9, 1.2)


def test_the_least_of_noisy_readings_is_not_too_short() -> None:
    """Eight alike contenders, read with 5 % of noise: the least of their medians is some 3 % below all of them."""
    draw = random.Random(8)
    rows = [[[draw.gauss(100.0, 5.0) for _ in range(4)] for _ in range(8)] for _ in range(200)]
    assert statistics.fmean(min(map(statistics.median, row)) for row in rows) < 97.5
    assert abs(statistics.fmean(map(least_us, rows)) - 100.0) < 0.5
    assert least_us([[9.0, 9.0, 9.0], [10.0, 8.9, 10.0]]) == pytest.approx(9.5)
    assert least_us([[9.0], [8.0]]) == 8.0


def test_constants_are_fitted_to_all_that_was_read_of_a_row() -> None:
    """The H100's files: all eight candidates of each row, the chosen one among them, and later readings of training
    rows beside."""
    path = RESULTS / "gemm_many_h100_before.json"
    found = read_many(path)
    assert {m.row.split for m in found} == {"train", "heldout"}
    assert {power_limited(m.row) for m in found} == {True, False}
    for m, values in zip(found, json.loads(path.read_text())["rows"], strict=True):
        assert list(m.row.sizes) == values["shape"][:3]
        assert m.configs[0].as_dict() == values["config"]
        assert sorted(m.time_us) == sorted(us for us in values["ranked_us"] if us is not None)
    later = RESULTS / "gemm_many_h100_training.json"
    added, merged = read_many(later), {m.row: m for m in read_many(path, later)}
    assert {m.row.split for m in added} == {"train"}
    for m in found:
        more = {config for a in added if a.row == m.row for config in a.configs}
        assert set(merged[m.row].configs) == {*m.configs, *more}
    twice = read_many(path, path)
    assert all((one.time_us == two.time_us).all() for one, two in zip(found, twice, strict=True))


def _row(shape: DrawnShape, profile: Profile, cublas: float = 1.1) -> dict[str, Any]:
    """A row as the GPU would give it, with times that are made up: 10 µs the first, 9 the second of the ranking."""
    plans, _ = bench_gemm_many.plan([shape], profile)
    job = bench_gemm_many.compare_job(shape, plans[shape], {}, math.inf)
    names = list(job["ours"])
    us = {names[0]: 10.0, **dict.fromkeys(names[1:], 9.0), "cublas": 10.0 * cublas}
    times = {name: {"us": value, "low_us": value, "high_us": value} for name, value in us.items()}
    samples = {name: [value] * 3 for name, value in us.items()}
    result = {"times": times, "samples": samples, "error": 0.001, "failed": {}}
    return bench_gemm_many.row_of_result(shape, plans[shape], job, result)

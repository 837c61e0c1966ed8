"""The benchmark of the kernels that training runs, without a GPU: rows, plans, tables, fits, the report."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_clusters
import bench_kernels
import bench_power
import bench_readings
import card_constants
import fit_kernels
import kernel_estimates
import kernel_plans
import kernel_tables
import kernels_report
import settled_fit
from card_constants import CardConstants
from kernel_cases import bench_rows
from kernel_cases.bench_case import COLD_BYTES, MAX_SETS, case_of, like, set_count
from kernel_cases.bench_rows import SPLITS, TABLES, BenchRow, make_row, rows
from kernel_timing import as_json, config_of, floor_us, row_of
from results_file import RESULTS
from row_store import RowStore

from warpplan.kernels import registry
from warpplan.kernels.gemm.space import GemmConfig, violations
from warpplan.planner.predict.time_model import DeviceWork, Rates, terms
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler import recalibrate
from warpplan.profiler.embedded import embedded

FOLDER = Path(__file__).parents[1] / "benchmarks"
EVERY = [row for table in TABLES for split in SPLITS for row in rows(table, split)]
PLAIN = tuple(
    make_row("gemm_layouts", "gemm", s, "bfloat16", "train") for s in ((1024, 1024, 1024), (3072, 2048, 4096))
)
"""Rows of a kernel that is always there."""
RAGGED_CHECKSUMS = [914822, 797082, 82321, 286257, 73976, 51960]
"""Sizes of the ragged held-out rows, each weighted with its place."""


@pytest.fixture(scope="module")
def profile() -> Profile:
    return embedded(H200.name)


@pytest.fixture(scope="module")
def plans(profile: Profile) -> list[kernel_plans.PlannedRow]:
    return [kernel_plans.planned(row, profile) for row in PLAIN]


# The shapes


def test_rows_are_apart() -> None:
    assert len({row.key for row in EVERY}) == len(EVERY)
    for table in TABLES:
        train, heldout = ({(r.sizes, r.options) for r in rows(table, split)} for split in ("train", "heldout"))
        assert not train & heldout


def test_tables_have_the_rows_that_were_promised() -> None:
    forward = [row for row in rows("grouped_gemm", "heldout") if row.option("product") == "forward"]
    assert sum(row.option("sizes") == "balanced" for row in forward) == 11
    assert sum(row.option("sizes") != "balanced" for row in forward) == 6
    assert len(rows("grouped_gemm", "train")) >= 3 * 10
    assert min(len(rows("gemm_fp8", split)) for split in SPLITS) >= 8
    assert len(rows("linear", "heldout")) == 12
    assert {row.option("activation") for row in rows("gemm_bias_act", "heldout")} >= {"relu", "gelu", "silu", "swiglu"}


def test_ragged_sizes_are_the_same_everywhere() -> None:
    """Changed sizes would be other rows than those that were measured."""
    sums = [sum(size * (index + 1) for index, size in enumerate(sizes)) for sizes, _, _ in bench_rows.RAGGED_HELDOUT]
    assert sums == RAGGED_CHECKSUMS
    assert bench_rows.RAGGED_HELDOUT[3][0].count(0) == 16
    assert all(size == 0 or size >= 1 for sizes, _, _ in bench_rows.RAGGED_TRAIN for size in sizes)


@given(st.integers(1, 40), st.integers(0, 5000), st.integers(0, 99))
def test_rows_are_shared_out_without_a_remainder(groups: int, total: int, seed: int) -> None:
    for sizes in (bench_rows.zipf_sizes(groups, total, seed), bench_rows.routed_sizes(groups, total, seed)):
        assert len(sizes) == groups
        assert sum(sizes) == total
        assert min(sizes) >= 0


def test_a_row_survives_json() -> None:
    for row in EVERY:
        assert row_of(json.loads(json.dumps(as_json(row)))) == row


def test_options_at_their_defaults_are_not_said() -> None:
    row = make_row("gemm_layouts", "gemm", (8, 8, 8), "bfloat16", "train", layout="nt")
    assert row.shape == (8, 8, 8)
    assert row.replaced(layout="tn").shape == (8, 8, 8, "layout=tn")
    assert row.option("layout") == "nt"
    with pytest.raises(KeyError, match="no option 'colour'"):
        make_row("gemm_layouts", "gemm", (8, 8, 8), "bfloat16", "train", colour="red")


def test_options_are_those_that_kernels_declare() -> None:
    for name in set(registry.names()) & set(bench_rows.OPTIONS):
        declared = getattr(registry.kernel(name).declaration, "options", ())
        assert {option.name: option.default for option in declared}.items() <= bench_rows.OPTIONS[name].items()


# The cases


def test_every_row_has_work_and_a_peer() -> None:
    for row in EVERY:
        case = case_of(row.table)
        work = case.work(row)
        assert work.flops == pytest.approx(_products(row))
        assert case.peers(row)
        assert 1 <= set_count(work) <= MAX_SETS
        assert set_count(work) == MAX_SETS or set_count(work) * work.moved_bytes >= COLD_BYTES
        assert floor_us(work, row.dtype) > 3


def _products(row: BenchRow) -> float:
    """The FLOP of a row's products, written out."""
    if row.kernel == "attention_decode":
        batch, heads, keys, head_dim = row.sizes
        return 4.0 * batch * heads * head_dim * sum(keys - before for before in range(int(row.option("queries"))))
    if row.kernel not in ("attention_fwd", "attention_bwd", "sdpa"):
        return 2 * math.prod(row.sizes[:3]) * (3 if row.kernel == "linear" else 1)
    batch, heads, length, head_dim = row.sizes
    options = dict(row.options)
    lengths = list(map(int, options["sizes"].split(","))) if "sizes" in options else [length] * batch
    total = 0.0
    for size in lengths:
        keys = np.arange(1, size + 1) if row.option("mask") == "causal" else np.full(size, size)
        if options.get("window", "all") != "all":
            keys = np.minimum(keys, int(options["window"]) + 1)
        total += 4.0 * heads * head_dim * float(keys.sum())
    return total * {"sdpa": 3.5, "attention_bwd": 2.5}.get(row.kernel, 1.0)


def test_the_baselines_are_where_they_belong() -> None:
    for row in rows("grouped_gemm", "heldout"):
        named = case_of(row.table).uncaptured(row)
        assert set(named) == ({"128-row block loop"} if row.option("product") == "forward" else set())
    fused = {row.option("activation"): case_of(row.table).peers(row) for row in rows("gemm_bias_act", "heldout")}
    assert "torch._addmm_activation" in fused["gelu"]
    assert "torch._addmm_activation" not in fused["silu"]
    for row in rows("attention_fwd", "heldout"):
        assert ("cuDNN" in case_of(row.table).peers(row)) == (row.option("window") == "all")


def test_checks_are_small_and_of_the_same_kind() -> None:
    for row in EVERY:
        small = case_of(row.table).check_row(row)
        assert (small.kernel, small.dtype) == (row.kernel, row.dtype)
        if row.kernel not in ("linear", "sdpa"):
            assert max(small.sizes) < 2000
            assert small.sizes[1] % 8 == row.sizes[1] % 8
        if row.kernel == "grouped_gemm":
            assert small.sizes[3] >= row.sizes[3]
            assert sum(map(int, small.option("sizes").split(","))) == small.sizes[0]


@given(st.integers(1, 10**6))
def test_like_keeps_the_alignment(size: int) -> None:
    assert like(size, 784) % 8 == size % 8
    assert 784 <= like(size, 784) < 792


# Plans


def test_plans_survive_their_file(tmp_path: Path, plans: list[kernel_plans.PlannedRow]) -> None:
    others = (("plan for few", plans[0].ranked[3][0]),)
    kept = [replace(plans[0], others=others), plans[1]]
    kernel_plans.save_plans(tmp_path / "t.json", kept)
    found = kernel_plans.load_plans(tmp_path / "t.json")
    assert list(found) == list(PLAIN)
    for plan in kept:
        assert [c for c, _ in found[plan.row].ranked] == [c for c, _ in plan.ranked]
        assert [us for _, us in found[plan.row].ranked] == pytest.approx([us for _, us in plan.ranked], abs=1e-3)
        assert found[plan.row].others == plan.others


def test_a_shortlist_has_the_best_and_some_of_the_rest(plans: list[kernel_plans.PlannedRow]) -> None:
    ranked = [config for config, _ in plans[0].ranked]
    short = kernel_plans.shortlist(plans[0], 20)
    assert len(set(short)) == 20
    assert list(short[:10]) == ranked[:10]
    assert ranked.index(short[-1]) > len(ranked) * 3 // 4
    assert kernel_plans.shortlist(plans[0], 10**6) == tuple(ranked)


def test_what_is_compiled_once(plans: list[kernel_plans.PlannedRow]) -> None:
    configs = [config for config, _ in plans[0].ranked]
    jobs = kernel_estimates.check_jobs([(plans[0], configs)], peers=True)
    assert 8 < len(jobs) < len(configs)
    for job in jobs.values():
        assert config_of(job["config"]).as_dict() == job["config"]


def test_a_row_without_a_kernel_is_told(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    row = BenchRow("gemm_fp8", "imaginary", (8, 8, 8), "bfloat16", "train")
    assert kernel_plans.plan_all([row], profile) == []
    assert "no plan for gemm_fp8 8 8 8" in capsys.readouterr().err


# Tables


def chunk(times: Sequence[Any], peer_us: float = 10.0) -> dict[str, Any]:
    return {"times": list(times), "peer": "cublas", "peer_us": peer_us, "device": "NVIDIA H200"}


def test_drift_of_the_card_is_taken_out(plans: list[kernel_plans.PlannedRow]) -> None:
    configs = [config for config, _ in plans[0].ranked[:60]]
    chunks = [chunk([[us, us, us]] * 12, peer_us=us) for us in (10.0, 10.0, 11.0, 11.0, 11.0)]
    row = kernel_tables.exhaustive_values(plans[0], configs, chunks, 12)
    times = kernel_tables.steady_us(np.array(row["times_us"]), np.array(row["peer_us"]))
    assert times == pytest.approx(np.full(60, 11.0), rel=0.11)
    assert times[-1] == pytest.approx(times[30])


def test_what_has_no_time_is_told(plans: list[kernel_plans.PlannedRow]) -> None:
    configs = [config for config, _ in plans[0].ranked[:6]]
    lost = {"status": "timeout", "reason": "no answer for 60 s: killed"}
    chunks = [chunk([[1.0] * 3, "OutOfResources: shared"]), lost, chunk([[2.0] * 3] * 2)]
    row = kernel_tables.exhaustive_values(plans[0], configs, chunks, 2)
    assert [config_of(values) for values in row["configs"]] == [configs[0], *configs[4:]]
    assert [t[3] for t in row["times_us"]] == [0, 1, 1]
    assert len(row["unmeasured"]) == 3


def test_results_are_resumed_and_written(tmp_path: Path, plans: list[kernel_plans.PlannedRow]) -> None:
    table_row = rows("gemm_layouts", "train")[0]
    plan = replace(plans[0], row=table_row)
    configs = [config for config, _ in plan.ranked[:5]]
    values = kernel_tables.exhaustive_values(plan, configs, [chunk([[5.0 - i] * 3 for i in range(5)])], 12)
    store = kernel_tables.exhaustive_store(tmp_path, "gemm_layouts")
    store.add(values)
    assert kernel_tables.best_configs(tmp_path, table_row)[0] == configs[4]  # the run was interrupted
    kernel_tables.write_tables(tmp_path, {"gemm_layouts": store})
    (searched,) = kernel_tables.read_exhaustive(kernel_tables.exhaustive_path(tmp_path, "gemm_layouts"))
    assert (searched.row, searched.configs) == (table_row, tuple(configs))
    assert kernel_tables.best_configs(tmp_path, table_row)[0] == configs[4]
    store.partial.unlink()
    assert list(kernel_tables.exhaustive_store(tmp_path, "gemm_layouts").rows()) == [table_row.key]
    assert kernel_tables.best_configs(tmp_path, rows("gemm_layouts", "train")[1]) == []


def compared(plan: kernel_plans.PlannedRow, times: dict[str, float], **more: Any) -> dict[str, Any]:
    found = [config for config, _ in plan.ranked[20:21]]
    ours = bench_kernels.contenders(plan, found, {})
    result = {
        "times": {name: {"us": us, "low_us": us, "high_us": us} for name, us in times.items()}, "failed": {},
        "waited": {}, "error": 2e-3, "roofline_us": 8.0, "rates": {"copy_bytes_per_s": 4e12, "flops_per_s": 7e14},
        "flops": 1e9, "moved_bytes": 1e6, "device": "NVIDIA H200",
    }  # fmt: skip
    return kernel_tables.comparison_row(plan, ours, {**result, **more})


def test_contenders_are_named_once(plans: list[kernel_plans.PlannedRow]) -> None:
    ranked = [config for config, _ in plans[0].ranked]
    plan = replace(plans[0], others=(("plan for skewed", ranked[1]),))
    ours = bench_kernels.contenders(plan, [ranked[0], ranked[20], ranked[21]], {})
    assert list(ours) == ["chosen", *(f"rank {i}" for i in range(2, 9)), "found 2", "found 3", "plan for skewed"]
    assert bench_kernels.contenders(kernel_plans.PlannedRow(rows("linear", "heldout")[0], ()), [], {}) == {
        "chosen": {"config": None}
    }


def test_a_row_of_the_comparison(plans: list[kernel_plans.PlannedRow]) -> None:
    row = compared(plans[0], {"chosen": 10.0, "rank 2": 9.0, "found 1": 12.0, "cublas": 11.0})
    assert (row["chosen_us"], row["best_us"], row["best_of_8_us"]) == (10.0, 9.0, 9.0)
    assert row["best_config"] == plans[0].ranked[1][0].as_dict()
    assert row["peers"] == {"cublas": 11.0}
    assert row["others"] == {}
    assert row["predicted_us"] == pytest.approx(plans[0].ranked[0][1], abs=1e-3)


# Fits, on tables that the time model itself made


def made_table(profile: Profile, listed: Sequence[BenchRow], constants: dict[str, float]) -> list[Any]:
    """Searched rows whose times are the model's with these constants."""
    found = []
    for row in listed:
        plan = kernel_plans.planned(row, profile)
        configs = tuple(config for config, _ in plan.ranked)
        work = fit_kernels.device_work(row, configs, profile)
        found.append(kernel_tables.SearchedRow(row, configs, model_us(profile, work, constants)))
    return found


def model_us(profile: Profile, work: DeviceWork, constants: dict[str, float]) -> np.ndarray:
    return terms(work, Rates.of(profile, "bfloat16"), constants)[1]


def test_a_variant_is_learnt_from_few_rows(profile: Profile) -> None:
    gemm = profile.calibration("gemm")
    assert gemm is not None
    truth = {n: v * (1.25 if n.startswith(("l2_scale", "drain_scale")) else 1.0) for n, v in gemm.constants}
    fitted = fit_kernels.Fitted("gemm variant", "gemm", "gemm_layouts")
    table = made_table(profile, PLAIN, truth)
    known = fit_kernels.calibrated(profile, table, fitted, "made by the model", fit_kernels.device_work)
    calibration = known.calibration("gemm variant")
    assert calibration is not None
    assert calibration.shapes == tuple(row.shape for row in PLAIN)
    unseen = [make_row("gemm_layouts", "gemm", (2048, 4096, 2048), "bfloat16", "train")]
    (heldout,) = made_table(profile, unseen, truth)
    work = fit_kernels.device_work(heldout.row, heldout.configs, profile)
    before = np.abs(model_us(profile, work, dict(gemm.constants)) / heldout.time_us - 1)
    after = np.abs(model_us(profile, work, dict(calibration.constants)) / heldout.time_us - 1)
    assert np.median(after) < min(0.02, 0.5 * np.median(before))
    regret, error = fit_kernels.errors(known, table, fitted, fitted.name, fit_kernels.device_work)
    assert regret < 1e-3
    assert error < 0.02


def test_a_calibration_stays_where_a_new_one_chooses_no_better(profile: Profile) -> None:
    """Of times that the model itself makes. What early launches and splits cost is gemm's all the same."""
    gemm = profile.calibration("gemm")
    assert gemm is not None
    fitted = fit_kernels.Fitted("gemm_bias_act", "gemm", "gemm_layouts")
    assert fitted.name in fit_kernels.LAUNCHING
    own = replace(gemm, kernel=fitted.name, constants=tuple(p for p in gemm.constants if p[0] != "early_launch_us"))
    table = made_table(profile, PLAIN, dict(own.constants))
    kept = fit_kernels.better(recalibrate.with_calibration(profile, own), table, fitted, "made by the model")
    assert kept.calibration(fitted.name) == own
    assert fit_kernels.launched_as_gemm(kept).calibration(fitted.name) == replace(own, constants=gemm.constants)
    wrong = replace(own, constants=tuple((n, 3 * v if n.startswith("l2_scale") else v) for n, v in own.constants))
    anew = fit_kernels.better(recalibrate.with_calibration(profile, wrong), table, fitted, "made by the model")
    assert fit_kernels.errors(anew, table, fitted, fitted.name, fit_kernels.device_work)[0] < 1e-3
    found = anew.calibration(fitted.name)
    assert found is not None
    assert found.source == "made by the model"


def test_times_of_a_former_wgrad_are_left_out() -> None:
    """Where its groups end inside of K blocks, and in a table that was read before that changed."""
    path = kernel_tables.exhaustive_path(RESULTS, "grouped_gemm")
    assert json.loads(path.read_text())["date"] < fit_kernels.GROUP_STEPS
    kept, all_rows = fit_kernels.searched(path), kernel_tables.read_exhaustive(path)
    left = {found.row for found in all_rows} - {found.row for found in kept}
    assert left == {found.row for found in all_rows if fit_kernels.ends_inside_blocks(found.row)}
    assert left
    for row in left:
        assert row.option("product") == "wgrad"
        assert any(int(size) % 64 for size in row.option("sizes").split(","))


def test_a_cards_constants_are_learnt_from_settled_rows() -> None:
    truth = CardConstants(order_l2=0.4, power_factor=0.8, energy_l2=0.3)
    read = settled_fit.read_settled(embedded("NVIDIA H100 80GB HBM3"), RESULTS / "power_h100.json", embedded(H200.name))
    made = [
        replace(row, found=replace(row.found, time_us=row.found.time_us * np.exp(row.log_error(truth)))) for row in read
    ]
    half, unseen = made[::2], made[1::2]
    found = card_constants.fitted(half)
    assert max(row.regret(CardConstants()) for row in made) > 0.02
    assert all(row.regret(found) < 0.005 for row in unseen)
    assert all(np.abs(row.log_error(found)).max() < 0.01 for row in unseen)
    # Another card that draws more: its rows show how much, and what L2 draws stays.
    more = replace(truth, power_factor=1.1)
    there = [
        replace(row, found=replace(row.found, time_us=row.found.time_us * np.exp(row.log_error(more)))) for row in made
    ]
    moved = card_constants.with_power(there, found)
    assert moved.power_factor == pytest.approx(1.1 / truth.power_factor * found.power_factor, rel=0.02)
    assert replace(moved, power_factor=0.0) == replace(found, power_factor=0.0)


NEARLY = {"grouped_gemm fp8"}
"""Its regret with power's cost is as near to what it is without as counts as noise: the last digits of a fit, which are
the machine's, decide."""


@pytest.mark.parametrize(
    ("own_settled", "taken"),
    [(True, set(settled_fit.ORDERED) - set(fit_kernels.UNREAD)), (False, {"gemm", "gemm_bias_act"})],
)
def test_what_power_costs_is_taken_from_another_card_where_the_cards_own_rows_do_not_speak_against_it(
    tmp_path: Path, own_settled: bool, taken: set[str]
) -> None:
    for path in RESULTS.glob("*.json"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / settled_fit.TAKEN).unlink()
    if not own_settled:
        kernel_tables.power_path(tmp_path).unlink()
    ships = embedded(H200.name)
    own = settled_fit.own_readings(ships, RESULTS)
    again = settled_fit.settled_elsewhere(own, tmp_path, partial(fit_kernels.own_rows, tables=tmp_path))
    judged = {row["kernel"]: row for row in json.loads((tmp_path / settled_fit.TAKEN).read_text())["rows"]}
    for before, after in ((own.calibration(name), again.calibration(name)) for name in judged):
        assert before is not None
        assert not own_settled or after == ships.calibration(after.kernel)
        row = judged[before.kernel]
        no_worse = row["regret_with"] <= row["regret_without"] + recalibrate.REGRET_NOISE
        assert no_worse == (dict(after.constants) != dict(before.constants)) == ("power costs" in after.source)
    found = {name for name in judged if again.calibration(name) != own.calibration(name)}
    assert found - NEARLY == taken - NEARLY
    assert not own_settled or found == taken


@pytest.mark.parametrize("name", ["grouped_gemm", "grouped_gemm fp8"])
def test_settled_rows_that_judge_a_calibration_hold_what_it_chooses(name: str) -> None:
    own = {found.row.key: found for found in fit_kernels.own_rows(name, RESULTS)}
    settled = kernel_tables.read_sustained(kernel_tables.power_path(RESULTS), *settled_fit.ORDERED[name])
    assert own.keys() == {found.row.key for found in settled}
    plans = kernel_plans.plan_all([found.row for found in own.values()], embedded(H200.name))
    assert all(plan.ranked[0][0] in own[plan.row.key].configs for plan in plans)


def test_rows_of_many_shapes_that_have_settled_are_found_again() -> None:
    read = kernel_tables.read_sustained(RESULTS / "power_h100_later.json", "gemm_many")
    asked = bench_power.asked()
    assert {found.row for found in read} <= set(asked)
    assert {found.row.split for found in read} == {"train"}
    splits = [row.split for row in asked]
    assert splits == sorted(splits, reverse=True)  # training rows first


def test_rows_that_were_read_are_not_read_again(tmp_path: Path, plans: list[kernel_plans.PlannedRow]) -> None:
    store = RowStore(tmp_path / "power.json", ("row",), {})
    store.add({"row": " ".join(plans[0].row.key)})
    assert bench_power.not_read(plans, store) == plans[1:]


def test_the_summary_of_reading_lengths_is_that_of_its_rows() -> None:
    recorded = json.loads((RESULTS / "reading_lengths_h100.json").read_text())
    assert recorded["summary"] == bench_readings.summary(recorded["rows"])
    assert {tuple(row["shape"]) for row in recorded["rows"]} == set(bench_readings.SHAPES)
    assert not {row.sizes for row in rows("linear", "heldout")} & set(bench_readings.SHAPES)


def test_only_training_rows_are_fitted(profile: Profile) -> None:
    heldout = [replace(row, split="heldout") for row in PLAIN]
    table = [kernel_tables.SearchedRow(row, (), np.array([])) for row in heldout]
    with pytest.raises(ValueError, match="no training row"):
        fit_kernels.calibrated(profile, table, fit_kernels.FITTED[0], "t", fit_kernels.device_work)


def test_priors_come_first() -> None:
    known = {"gemm"}
    for fitted in (*fit_kernels.FITTED, *fit_kernels.VARIANTS):
        assert fitted.prior in known
        assert fitted.table in TABLES
        assert any(fitted.counts(row) for row in rows(fitted.table, "train"))
        known.add(fitted.name)


# The report


def test_the_report_of_made_results(tmp_path: Path, profile: Profile, plans: list[kernel_plans.PlannedRow]) -> None:
    listed = rows("linear", "heldout")
    found = [
        compared(kernel_plans.PlannedRow(row, ()), {"chosen": 10.0, "torch": us}, flops=1e9)
        for row, us in zip(listed, [9.0] + [12.0] * 11, strict=True)
    ]
    (tmp_path / "kernels_h200_linear.json").write_text(json.dumps({"rows": found}))
    result = kernels_report.report(tmp_path, profile)
    ratio = result["compared"]["linear"]["heldout"]["ratios"]
    assert ratio["torch"]["least"] == 0.9
    assert ratio["roofline"]["geomean"] == 0.8
    (goal,) = result["goals"]
    assert not goal["met"]  # the mean is well above 1, one row is below 0.95
    kernels_report.print_report(result)


def test_what_waits_for_the_host_is_compared_by_one_clock(plans: list[kernel_plans.PlannedRow]) -> None:
    times = {"chosen": 30.0, "block loop": 90.0}
    waited = {name: {"us": us, "low_us": us, "high_us": us} for name, us in times.items()}
    row = compared(plans[0], {"chosen": 10.0, "cublas": 11.0}, waited=waited)
    found = kernels_report.ratios([row])
    assert (found["cublas"]["geomean"], found["block loop"]["geomean"]) == (1.1, 3.0)
    assert "chosen" not in found


def test_a_failed_plan_misses_its_goals(tmp_path: Path, profile: Profile) -> None:
    listed = rows("linear", "heldout")
    found = [
        compared(kernel_plans.PlannedRow(row, ()), {"torch": 12.0} | ({"chosen": 10.0} if i else {}))
        for i, row in enumerate(listed)
    ]
    (tmp_path / "kernels_h200_linear.json").write_text(json.dumps({"rows": found}))
    result = kernels_report.report(tmp_path, profile)
    assert result["compared"]["linear"]["heldout"]["failed"] == 1
    (goal,) = result["goals"]
    assert goal["measured"] == 1.2
    assert not goal["met"]
    kernels_report.print_report(result)


def test_grouped_rows_count_by_product() -> None:
    rates = {"flops_per_s": 1e15, "copy_bytes_per_s": 4e12}
    base = {"table": "grouped_gemm", "rates": rates, "flops": 1e12, "moved_bytes": 1e9}
    assert kernels_report.groups_of({**base, "shape": [1, 2, 3, 4]}) == ["grouped_gemm forward"]
    assert kernels_report.groups_of({**base, "shape": [1, 2, 3, 4, "product=wgrad"]}) == ["grouped_gemm wgrad"]
    fp8 = {**base, "table": "grouped_gemm_fp8", "shape": [1, 2, 3, 4]}
    assert kernels_report.groups_of(fp8) == ["grouped_gemm_fp8", "grouped_gemm_fp8 compute-bound"]
    assert kernels_report.groups_of({**fp8, "moved_bytes": 1e10}) == ["grouped_gemm_fp8"]


def test_a_replay_of_the_models_own_times_has_no_regret(profile: Profile, plans: list[kernel_plans.PlannedRow]) -> None:
    configs, times = zip(*plans[0].ranked, strict=True)
    found = kernels_report.replay(kernel_tables.SearchedRow(PLAIN[0], configs, np.array(times)), profile)
    assert found["regret"] == pytest.approx(0, abs=1e-9)
    assert found["time_error_median"] == pytest.approx(0, abs=1e-9)


# The command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "bench_kernels.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_dry_run_lists_rows_peers_and_seconds(tmp_path: Path) -> None:
    plans = ("--plans", str(tmp_path))
    assert run("--phase", "plan", "--kernel", "linear", *plans).returncode == 0
    done = run("--dry-run", "--kernel", "linear", *plans, "--workers", "15")
    assert done.returncode == 0
    assert "linear heldout 8192 6144 4096: 0 candidates" in done.stdout
    assert "15 cores" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="would measure where there is a GPU")
def test_without_torch_it_says_so_and_ends(tmp_path: Path) -> None:
    done = run("--phase", "compare", "--kernel", "linear", "--plans", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "torch is not installed" in done.stderr
    assert not (tmp_path / "out").exists()


def test_tuning_configurations_survive_json(plans: list[kernel_plans.PlannedRow]) -> None:
    for config, _ in plans[0].ranked:
        assert isinstance(config, TuningConfig)
        assert config_of(json.loads(json.dumps(config.as_dict()))) == config


# What was measured, where it is committed


@pytest.mark.parametrize("table", TABLES)
def test_committed_rows_are_rows_of_the_tables(table: str) -> None:
    for path_of in (kernel_tables.compare_path, kernel_tables.exhaustive_path):
        path = path_of(RESULTS, table)
        if not path.exists():
            continue
        data = json.loads(path.read_text())
        assert {"bench", "device", "versions", "date", "command", "rows"} <= set(data)
        for row in data["rows"]:
            assert kernel_tables.row_from(row).split == row["split"]


def test_the_committed_summary_is_todays() -> None:
    path = RESULTS / "kernels_summary_h200.json"
    if not path.exists():
        pytest.skip("no summary has been recorded")
    recorded = json.loads(path.read_text())
    today = kernels_report.report(RESULTS, embedded(H200.name))
    assert recorded["compared"] == json.loads(json.dumps(today["compared"]))
    assert recorded["goals"] == json.loads(json.dumps(today["goals"]))


# Clusters


def test_a_twin_has_the_tile_in_each_cta() -> None:
    plain = GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring")
    twin = bench_clusters.twin(plain, "bfloat16")
    assert twin is not None
    assert (twin.cta_rows, twin.block_n, twin.cluster) == (plain.block_m, plain.block_n, 2)
    assert not violations(twin, "bfloat16", H200)
    assert violations(replace(twin, depth=twin.depth + 1), "bfloat16", H200)
    assert bench_clusters.twin(replace(plain, split_k=2), "bfloat16") is None


def test_every_pair_of_the_training_shapes_fits(profile: Profile) -> None:
    (row,) = rows("gemm_fp8", "train")[:1]
    (plan,) = kernel_plans.plan_all([row], profile)
    found = bench_clusters.pairs(plan)
    assert len(found) == bench_clusters.FIRST
    assert all(plain.num_ctas == 1 and cluster.num_ctas == 2 for plain, cluster in found)
    assert len({cluster for _, cluster in found}) == len(found)


def test_a_cluster_gains_what_the_best_of_each_kind_says() -> None:
    row = {"plain_us": [[3.0, 2.9, 3.1], [2.0, 2.0, 2.1]], "cluster_us": ["hung", [1.6, 1.5, 1.7]]}
    assert bench_clusters.gain(row) == pytest.approx(1.25)
    assert bench_clusters.gain({**row, "cluster_us": ["hung"]}) is None

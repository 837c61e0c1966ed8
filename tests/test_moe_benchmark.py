"""The benchmark of fused-MoE tables, as far as it goes without a GPU: its lists, its rows, its figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the benchmark launches Triton kernels")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_moe_samples as samples
import bench_moe_tables as bench
from bench_moe_tables import LAYERS, SEARCHED, TOKENS, TRAINING, text_of
from results_file import RESULTS, read_rows

from warpplan.planner.values.device import H100
from warpplan.service.feeds.moe_facts.tuning_space import GROUPS

DEFAULT = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 4,
}
RANKED = [{**DEFAULT, "BLOCK_SIZE_N": n} for n in (128, 256, 32)]
FOUND = {**DEFAULT, "num_stages": 2}


def result(default: float, first: float, *more: float, searched: int = 0) -> dict[str, Any]:
    configs = [DEFAULT, *RANKED, FOUND]
    times = {text_of(config): us for config, us in zip(configs, (default, first, *more), strict=False)}
    return {
        "status": "ok", "default": DEFAULT, "ranked": RANKED, "times_us": times, "searched": searched, "search_s": 9.0,
        "compare_s": 1.0,
    }  # fmt: skip


def test_five_models_eight_numbers_of_tokens_and_six_searches() -> None:
    assert len(LAYERS) == 5
    assert len(TOKENS) == 8
    assert len(SEARCHED) == 6
    assert {model for model, _ in SEARCHED} <= set(LAYERS)
    assert {tokens for _, tokens in SEARCHED} <= set(TOKENS)


@pytest.mark.parametrize("model", LAYERS)
def test_the_first_predicted_are_of_the_tuning_list_and_in_order(model: str) -> None:
    found = bench.predicted("", model, 128)
    assert len(found) == 4
    assert [round(us, 3) for _, us in found] == sorted(round(us, 3) for _, us in found)
    listed = [{**config, "GROUP_SIZE_M": 0} for config in bench.listed(model, 128)]
    assert all({**config, "GROUP_SIZE_M": 0} in listed for config, _ in found)


def test_a_search_covers_the_list_up_to_groups_and_then_the_other_groups() -> None:
    listed = bench.listed("qwen3-30b-a3b", 8)
    assert len({text_of(config) for config in listed}) == len(listed) == 480
    others = bench.of_other_groups(listed[:2])
    assert len(others) == 2 * (len(GROUPS) - 1)
    assert not {text_of(config) for config in others} & {text_of(config) for config in listed[:2]}


def test_a_row_compares_with_the_default_and_a_searched_one_with_the_best() -> None:
    row = bench.judged("mixtral-8x7b", 8, result(30.0, 20.0, 18.0, 25.0))
    assert (row["default_us"], row["chosen_us"], row["best_of_4_us"], row["default_over_chosen"]) == (30, 20, 18, 1.5)
    assert "best_us" not in row
    row = bench.judged("deepseek-v3", 8, result(30.0, 20.0, 18.0, 25.0, 16.0, searched=392))
    assert (row["best_us"], row["chosen_over_best"], row["best_of_4_over_best"]) == (16.0, 1.25, 1.125)


def test_a_choice_that_does_not_run_makes_the_goal_unmet() -> None:
    good = bench.judged("mixtral-8x7b", 8, result(30.0, 20.0))
    failed = result(30.0, 20.0)
    del failed["times_us"][text_of(RANKED[0])]
    bad = bench.judged("mixtral-8x7b", 32, failed)
    assert bench.summarised([good])["met"]["default_over_chosen"]
    summary = bench.summarised([good, bad, {"status": "crash", "reason": "gone", "shape": ["x"]}])
    assert summary["default_over_chosen"] is None
    assert not summary["met"]["default_over_chosen"]
    assert summary["failed"] == [[["x"], "gone"]]


def test_figures_of_searched_rows_are_regrets() -> None:
    rows = [bench.judged("deepseek-v3", t, result(30.0, 21.0, 20.0, 25.0, 20.0, searched=392)) for t in (8, 128)]
    summary = bench.summarised(rows)
    assert (summary["chosen_over_best"], summary["best_of_4_over_best"]) == (pytest.approx(1.05), pytest.approx(1.0))
    assert summary["met"] == {"default_over_chosen": True, "chosen_over_best": True, "best_of_4_over_best": True}
    assert summary["search_s"] == 18.0


def test_without_a_site_the_benchmark_says_which_file_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the launcher is torch's")
    from consumer_moe import consumer

    from warpplan.planner.errors import InvalidInput

    with pytest.raises(InvalidInput, match=r"utils\.py"):
        consumer(tmp_path)


class TestSamples:
    def test_constants_are_chosen_on_other_layers(self) -> None:
        assert not set(TRAINING) & set(LAYERS)
        shapes = [bench.understood(model)[0] for model in (*TRAINING, *LAYERS)]
        assert len({(s.experts, s.hidden, s.intermediate, s.top_k) for s in shapes}) == len(shapes)

    @pytest.mark.parametrize("model", TRAINING)
    def test_configurations_are_drawn_alike_every_time(self, model: str) -> None:
        found = samples.drawn(model)
        assert found == samples.drawn(model)
        assert len({text_of(config) for config in found}) == len(found) == sum(samples.DRAWN.values())
        assert all(config["BLOCK_SIZE_M"] <= 64 for config in found if samples.suitable(model, 1, config))

    def test_the_ranking_finds_the_best_of_recorded_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = read_rows(RESULTS / "moe_samples_h100.json")
        monkeypatch.setattr(bench, "TARGET", H100)
        bench.chooser.cache_clear()
        try:
            found = [samples.judged(row) for row in rows]
        finally:
            bench.chooser.cache_clear()
        assert len(found) == len(TRAINING) * len(samples.TOKENS)
        assert samples.geometric_mean([one["first"] for one in found]) < 1.02
        assert max(one["first"] for one in found) < 1.11
        assert max(one["best_of_4"] for one in found) < 1.02

"""The benchmark of files for FLA, as far as it goes without torch and FLA: its cases, its rows and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_fla
import fla_cases
from fla_cases import CASES, OPS, SHAPES

RANKING = {
    "key": ["64"], "configs": ["a", "b", "c", "d", "e"], "ranked": [2, 0, 1, 3, 4],
    "predicted_us": {"2": 9.0, "0": 9.5, "1": 10.0, "3": 11.0, "4": 12.0},
}  # fmt: skip
TASK = ("gla_0", "some_kernel")
HELD_OUT = ("kda_5", "other_kernel")


def result(times: dict[str, float], **more: Any) -> dict[str, Any]:
    given = {"configs": RANKING["configs"], "chosen": 2, "failed": {}, "seconds": 1.0, **more}
    return {"status": "ok", "times_us": times, **given}


def test_each_layer_has_as_many_cases_to_train_on_as_are_held_out() -> None:
    assert len(CASES) == len(OPS) * SHAPES
    for op in OPS:
        cases = [case for case in CASES.values() if case.op == op]
        assert [case.split for case in cases] == ["train"] * 3 + ["heldout"] * 3
        assert len({case.shape for case in cases}) == SHAPES


def test_tensors_do_not_fit_the_l2_cache_and_fit_the_gpu() -> None:
    for case in CASES.values():
        batch, length, heads, keys, values = case.shape
        assert batch * length >= 32768
        assert 50e6 < 2 * batch * length * heads * max(keys, values) <= 0.3e9


def test_shapes_are_drawn_alike_everywhere() -> None:
    assert CASES["gla_0"].words == ["op=gla", "B=8", "T=8192", "H=32", "K=64", "V=64"]
    assert fla_cases.drawn("gdn") == [CASES[f"gdn_{index}"].shape for index in range(SHAPES)]


def test_a_case_is_a_consumer_by_its_name() -> None:
    assert callable(fla_cases.gla_0)
    assert not hasattr(fla_cases, "gla_6")


def test_a_row_compares_what_fla_reads_and_the_first_four_with_the_whole_list() -> None:
    row = bench_fla.judged(TASK, RANKING, result({"0": 10.0, "1": 8.0, "2": 12.5, "3": 9.0, "4": 5.0}))
    assert (row["chosen_us"], row["best_of_4_us"], row["best_us"]) == (12.5, 8.0, 5.0)
    assert (row["first_us"], row["median_us"]) == (10.0, 9.0)
    assert (row["best_over_chosen"], row["best_over_first_four"]) == (0.4, 0.625)
    assert (row["split"], row["config"], row["best_config"]) == ("train", "c", "e")


def test_what_fla_reads_is_judged_and_not_what_is_ranked_first() -> None:
    times = {"0": 10.0, "1": 8.0, "2": 12.5, "3": 9.0, "4": 5.0}
    assert bench_fla.judged(TASK, RANKING, result(times, chosen=4))["best_over_chosen"] == 1.0


def test_a_choice_that_does_not_run_counts_as_infinitely_slow() -> None:
    row = bench_fla.judged(TASK, RANKING, result({"0": 10.0, "1": 8.0}, failed={"2": "wrong"}))
    assert (row["chosen_us"], row["best_over_chosen"], row["best_over_first_four"]) == (None, 0.0, 1.0)
    summary = bench_fla.summarised([row])
    assert summary["chosen_over_best"] is summary["worst_chosen"] is None
    assert summary["met"] == {"chosen_over_best": False, "best_of_4_over_best": True}


@pytest.mark.parametrize(
    ("changes", "reason"), [({"configs": ["a"]}, "not the one that was ranked"), ({"chosen": None}, "finds no entry")]
)
def test_another_list_and_a_missing_entry_are_errors(changes: dict[str, Any], reason: str) -> None:
    row = bench_fla.judged(TASK, RANKING, result({"0": 10.0}, **changes))
    assert row["status"] == "error"
    assert reason in row["reason"]
    assert bench_fla.summarised([row])["failed"] == [["some_kernel", CASES["gla_0"].words, row["reason"]]]


def test_figures_are_told_apart_by_split_and_kernel() -> None:
    good = bench_fla.judged(TASK, RANKING, result({str(i): 10.0 for i in range(5)}))
    slow = bench_fla.judged(HELD_OUT, RANKING, result({"0": 10.0, "1": 8.0, "2": 16.0, "3": 16.0, "4": 16.0}))
    bad = bench_fla.judged(TASK, RANKING, {"status": "timeout", "reason": "silent for 240 s"})
    summary = bench_fla.summarised([good, slow, bad])
    assert (summary["rows"], summary["worst_chosen"], summary["worst_of_4"]) == (2, 2.0, 1.0)
    assert summary["chosen_over_best"] == pytest.approx(2.0**0.5, abs=1e-3)
    assert summary["by_split"]["train"]["chosen_over_best"] == 1.0
    assert summary["by_kernel"]["other_kernel"]["chosen_over_best"] == 2.0
    assert summary["met"] == {"chosen_over_best": False, "best_of_4_over_best": True}
    assert summary["failed"] == [["some_kernel", CASES["gla_0"].words, "silent for 240 s"]]
    assert bench_fla.summarised([])["met"] == dict.fromkeys(bench_fla.GOALS, False)


def test_tasks_are_those_of_ranked_cases_with_a_word_in_their_name() -> None:
    rankings = {"kda_1": {"launches": {"one_kernel": RANKING}}, "gla_0": {"launches": {"some_kernel": RANKING}}}
    assert bench_fla.tasks(rankings, []) == [TASK, ("kda_1", "one_kernel")]
    assert bench_fla.tasks(rankings, ["one_"]) == [("kda_1", "one_kernel")]
    assert bench_fla.tasks(rankings, ["gla_"]) == [TASK]


def test_rankings_are_kept_and_a_failed_one_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def each(target: str, jobs: Any, *, on_result: Any, **options: Any) -> None:
        for job in jobs:
            asked.append(job[0])
            first = len(asked) == 1
            on_result(job, {"status": "error", "reason": "no"} if first else {"status": "ok", "launches": {}})

    monkeypatch.setattr(bench_fla, "each", each)
    for known in (set[str](), {"gla_0"}, {"gla_0"}):
        found = bench_fla.rank(["gla_0"], tmp_path, float("inf"), workers=1, fresh=False)
        assert set(found) == known
    assert asked == ["gla_0", "gla_0"]

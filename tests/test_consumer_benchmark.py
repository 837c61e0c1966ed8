"""The benchmark of exported entries, as far as it goes without a GPU: its lists, the ranking, its rows and figures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the consumers' kernels are Triton kernels")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_consumers
import consumer_lists
import consumer_ranking
from consumer_lists import SHAPES, TRAIN, Consumer, consumers
from corpus_entry import BLOCK, STYLES

NORM, DESCRIBED = "layer_norm_forward", "gemm_host_descriptors"


def test_eight_consumers_of_every_style_have_long_lists_and_six_shapes() -> None:
    assert len(consumers()) >= 8
    assert {c.entry.style for c in consumers().values()} >= set(STYLES) - {BLOCK}
    for consumer in consumers().values():
        assert len(consumer.entry.configs) >= 15
        assert len({str(config) for config in consumer.entry.configs}) == len(consumer.entry.configs)
        assert len(consumer.shapes) == SHAPES
        splits = [consumer.split(shape) for shape in consumer.shapes]
        assert splits == ["train"] * TRAIN + ["heldout"] * (SHAPES - TRAIN)


def test_shapes_are_drawn_alike_everywhere() -> None:
    assert consumers()[NORM].shapes[:2] == ({"M": 512, "N": 768}, {"M": 4096, "N": 16384})
    assert consumer_lists.drawn(consumer_lists.NORMED, "18:layer_norm_forward") == consumers()[NORM].shapes


@pytest.mark.parametrize("name", sorted(consumer_lists.LISTS))
def test_every_configuration_can_be_launched_at_every_shape(name: str) -> None:
    if name not in consumers():
        pytest.skip("no block pointers in this Triton")
    entry = consumers()[name].entry
    parameters = {p.name for p in entry.jit.params}
    for shape in consumers()[name].shapes:
        problem = entry.problem(shape)
        for config in entry.configs:
            assert set(config.kwargs) <= parameters
            assert all(1 <= size < 2**31 for size in problem.grid(entry.constants(problem, config)))


def of_few(monkeypatch: pytest.MonkeyPatch, name: str, *positions: int) -> Consumer:
    """The consumer with a list of a few; what is ranked is still its own kernel."""
    whole = consumers()[name]
    few = replace(whole, entry=replace(whole.entry, plain_configs=tuple(whole.entry.configs[i] for i in positions)))
    monkeypatch.setattr(consumer_ranking, "consumers", lambda: {name: few})
    consumer_ranking._tuner.cache_clear()
    return few


@pytest.mark.parametrize(("name", "positions"), [(NORM, (0, 3)), (DESCRIBED, (0, 3, 11))])
def test_a_list_is_ranked_for_a_shape(monkeypatch: pytest.MonkeyPatch, name: str, positions: tuple[int, ...]) -> None:
    few = of_few(monkeypatch, name, *positions)
    shape = dict.fromkeys(few.shapes[0], 512)
    (row,) = consumer_ranking.rank_jobs([(name, shape)])
    assert row["status"] == "ok"
    assert sorted([*row["ranked"], *map(int, row["refused"])]) == list(range(len(positions)))
    assert row["predicted_us"] == sorted(row["predicted_us"])
    assert row["source"] == few.entry.jit.cache_key


def test_what_cannot_be_ranked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    of_few(monkeypatch, NORM, 0)
    (row,) = consumer_ranking.rank_jobs([("no kernel", {"M": 1})])
    assert row["status"] == "error"
    assert "no kernel" in row["reason"]


def result(times: dict[str, float], **more: Any) -> dict[str, Any]:
    return {"status": "ok", "times_us": times, "failed": {}, **more}


RANKING = {"status": "ok", "ranked": [2, 0, 1, 3, 4], "predicted_us": [9.0, 9.5, 10.0, 11.0, 12.0]}
TASK = (NORM, {"M": 512, "N": 768})


def test_a_row_compares_the_first_choice_and_the_first_four_with_the_whole_list() -> None:
    row = bench_consumers.judged(TASK, RANKING, result({"0": 10.0, "1": 8.0, "2": 12.5, "3": 9.0, "4": 5.0}))
    assert (row["chosen_us"], row["best_of_4_us"], row["best_us"]) == (12.5, 8.0, 5.0)
    assert (row["best_over_chosen"], row["best_over_first_four"]) == (0.4, 0.625)
    assert row["split"] == "train"
    assert row["best_config"] == str(consumers()[NORM].entry.configs[4])


def test_a_choice_that_does_not_run_counts_as_infinitely_slow() -> None:
    row = bench_consumers.judged(TASK, RANKING, result({"0": 10.0, "1": 8.0}, failed={"2": "wrong"}))
    assert (row["chosen_us"], row["best_over_chosen"], row["best_over_first_four"]) == (None, 0.0, 1.0)
    summary = bench_consumers.summarised([row])
    assert summary["best_over_chosen"] == summary["worst"] == 0.0
    assert summary["met"] == {"best_over_chosen": False, "worst": False, "best_over_first_four": True}


def test_recorded_times_are_judged_by_another_ranking(tmp_path: Path) -> None:
    path = tmp_path / "consumers.json"
    times = {"0": 10.0, "1": 8.0, "2": 12.5, "3": 9.0, "4": 5.0}
    row = {**bench_consumers.judged(TASK, RANKING, result(times, seconds=3.0)), "label": "M=512 N=768"}
    path.write_text(json.dumps({"bench": "consumers", "date": "then", "rows": [row]}))
    better = {(NORM, ("M=512", "N=768")): {**RANKING, "ranked": [4, 2, 0, 1, 3]}}
    (found,) = (again := bench_consumers.judge_recorded(path, better, "now"))["rows"]
    assert (again["date"], again["ranked_on"], again["summary"]["best_over_chosen"]) == ("then", "now", 1.0)
    assert found["chosen_us"] == 5.0
    assert {name: found[name] for name in ("times_us", "seconds", "label")} == {
        name: row[name] for name in ("times_us", "seconds", "label")
    }
    assert bench_consumers.judge_recorded(path, {}, "now")["rows"] == [row]


def test_a_failed_row_is_listed_and_not_averaged() -> None:
    good = bench_consumers.judged(TASK, RANKING, result({str(i): 10.0 for i in range(5)}))
    bad = bench_consumers.judged(TASK, RANKING, {"status": "timeout", "reason": "silent for 240 s"})
    summary = bench_consumers.summarised([good, bad])
    assert (summary["rows"], summary["best_over_chosen"], summary["worst"]) == (1, 1.0, 1.0)
    assert summary["failed"] == [[NORM, ["M=512", "N=768"], "silent for 240 s"]]
    assert bench_consumers.summarised([])["met"] == dict.fromkeys(bench_consumers.GOALS, False)


def test_rankings_are_kept_and_made_anew_for_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    source = consumers()[NORM].entry.jit.cache_key

    def each(target: str, jobs: Any, *, on_result: Any, **options: Any) -> None:
        for job in jobs:
            asked.append(job)
            on_result(job, {**RANKING, "source": source if len(asked) > 1 else "of an older kernel"})

    monkeypatch.setattr(bench_consumers, "each", each)
    for _ in range(3):
        bench_consumers.rank([TASK], tmp_path, float("inf"), workers=1, fresh=False)
    assert asked == [TASK, TASK]

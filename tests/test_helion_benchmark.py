"""The benchmark of Helion's entries, as far as it goes without a GPU: its sizes, its rows, its figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the benchmark launches Triton kernels")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_helion as bench
from helion_cases import CASES, COUNTS, drawn
from results_file import RESULTS, read_rows


def test_sizes_are_the_same_on_every_machine_and_none_comes_twice() -> None:
    for kernel, count in COUNTS.items():
        sizes = drawn(kernel)
        assert sizes == drawn(kernel)
        assert len(set(sizes)) == len(sizes) == count
    assert {case.split for case in CASES.values()} == {"train", "heldout"}


def test_recorded_rows_are_of_these_cases() -> None:
    rows = read_rows(RESULTS / "helion_h200.json")
    assert {row["label"]: row["shape"] for row in rows} == {
        name: "x".join(map(str, case.sizes)) for name, case in CASES.items()
    }


def test_a_choice_that_does_not_run_has_no_mean() -> None:
    case = CASES["matmul_0"]
    result = {"status": "ok", "failed": {}, "read_s": 0.1, "search_s": 20.0}
    fast = bench.judged(case, {**result, "default_us": 40.0, "ours_us": 10.0, "searched_us": 12.0, "planned_us": 8.0})
    assert (fast["searched_over_ours"], fast["default_over_ours"], fast["searched_over_planned"]) == (1.2, 4.0, 1.5)
    lost = bench.judged(
        case, {**result, "failed": {"ours": "its output is off"}, "default_us": 40.0, "searched_us": 9.0}
    )
    assert lost["searched_over_ours"] == 0.0
    summary = bench.summarised([fast, lost, {"label": "b", "kernel": "b", "split": "train", "status": "error"}])
    assert summary["searched_over_ours"] is None
    assert summary["worst"] == 0.0
    assert [name for name, _ in summary["failed"]] == ["matmul_0", "b"]
    assert bench.figures([fast])["searched_over_ours"] == 1.2

"""``warpplan measure`` with real children that run on the CPU: what it announces, spends and keeps."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tuning")]  # children import by name

import cpu_kernels  # noqa: E402
import cpu_launches  # noqa: E402

from warpplan.kernels.gemm.kernel import Gemm  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, config_of  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402
from warpplan.service.cli.app import main  # noqa: E402
from warpplan.service.feeds.machine_here import machine_here  # noqa: E402
from warpplan.service.measuring import measurement_plan, measurement_run  # noqa: E402
from warpplan.service.measuring.measurement_plan import DEFAULT_SPREAD, FIRST, pooled_spread  # noqa: E402
from warpplan.service.store.answer_store import Store  # noqa: E402
from warpplan.service.tuning import launch_jobs  # noqa: E402
from warpplan.service.workflow.configure import Workflow  # noqa: E402
from warpplan.service.workflow.request import Item  # noqa: E402

SHAPES = "M,N,K,launches\n512,1024,2048,1\n1024,1024,2048,100\n256,1024,2048,0\n"


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_jobs, "CHILD", launch_jobs.LaunchChild("cpu_launches:identity"))
    monkeypatch.setattr(measurement_run, "CHILD", "cpu_kernels:times")


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.csv"
    path.write_text(SHAPES)
    return path


def measure(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["measure", *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err


def plain(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    status, out, err = measure(capsys, *words, "--json")
    assert status == 0, err
    return dict(json.loads(out))


def times_of(store: Path, m: int) -> dict[str, float]:
    opened = Store.open(store)
    try:
        workflow = Workflow(opened)
        problem = workflow.check(Item("gemm", (("M", m), ("N", 1024), ("K", 2048)))).problem
        return {json.dumps(t.config.as_dict(), sort_keys=True): t.time_us for t in opened.times([problem])[problem]}
    finally:
        opened.close()


class TestForecast:
    def test_a_dry_run_says_what_would_be_gained_and_touches_nothing(
        self, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store = tmp_path / "store.sqlite"
        status, out, _ = measure(capsys, shapes, "--store", store, "--budget-s", 60, "--dry-run")
        assert status == 0
        assert "15 measurements in about 45 s of 60 s, and what they are expected to save" in out
        assert "gemm: predictions are taken to scatter by 2.8%, as those of recorded GEMMs do" in out
        assert not store.exists()
        found = plain(capsys, shapes, "--store", store, "--budget-s", 60, "--dry-run")
        rows = {row["shape"]["M"]: row for row in found["shapes"]}
        assert rows[1024]["measurements"] >= 7, "launched a hundred times as often"
        assert rows[256]["measurements"] == 0, "never launched"
        assert rows[256]["expected_gain"] == 0
        for row in rows.values():
            assert 0 <= row["expected_gain"] < 0.1
            assert row["expected_gain"] == row["expected_gain_us"] / row["now_us"]
        assert found["expected_s"] == measurement_plan.MEASURE_S * sum(r["measurements"] for r in rows.values())

    @pytest.mark.parametrize("option", ["--budget-s", "--time-limit"])
    @pytest.mark.parametrize("seconds", ["inf", "nan", "1e7"])
    def test_no_option_takes_endless_seconds(
        self, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, seconds: str
    ) -> None:
        words = (shapes, "--store", tmp_path / "store.sqlite", option, seconds, "--dry-run", "--json")
        status, out, err = measure(capsys, *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"'{option}'" in err
        assert f"'{seconds}'" in err

    def test_more_time_never_gains_less(self, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        store, before = tmp_path / "store.sqlite", (0, 0.0)
        for budget in (0, 10, 16, 18, 25, 40, 80, 400):
            found = plain(capsys, shapes, "--store", store, "--budget-s", budget, "--dry-run")
            count = sum(row["measurements"] for row in found["shapes"])
            gain = sum(row["expected_gain_us"] * row["launches"] for row in found["shapes"])
            assert found["expected_s"] <= max(0, budget - measurement_plan.START_S)
            assert (count, gain) >= before
            before = (count, gain)
        assert before[0] == 16

    def test_a_shape_that_is_listed_twice_counts_twice(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "job.jsonl"
        path.write_text('{"M": 512, "N": 1024, "K": 2048}\n' * 3 + '{"M": "1024", "N": 1024, "K": 2048}\n')
        found = plain(capsys, path, "--store", tmp_path / "store.sqlite", "--budget-s", 20, "--dry-run")
        assert [(row["shape"]["M"], row["launches"]) for row in found["shapes"]] == [(512, 3.0), (1024, 1.0)]

    def test_the_default_spread_is_that_of_the_recorded_times(self) -> None:
        """Of the first candidates of each training shape that leave K whole, about the shape's median."""
        results = Path(__file__).parents[3] / "benchmarks" / "results" / "gemm_exhaustive_h200_train.json"
        kernel, profile, residuals = Gemm(), embedded(H200.name), list[float]()
        for row in json.loads(results.read_text())["rows"]:
            ranked = kernel.rank(tuple(row["shape"]), row["dtype"], H200, profile, limit=1_000_000)
            times = {GemmConfig(*c): t[0] for c, t in zip(row["configs"], row["times_us"], strict=True)}
            found = [(config_of(r.config), r.prediction.time_us) for r in ranked]
            whole = [(c, predicted) for c, predicted in found if c in times and c.split == "none"]
            first = [math.log(times[c] / predicted) for c, predicted in whole][:FIRST]
            residuals += list(np.array(first) - np.median(first))
        assert 1.4826 * float(np.median(np.abs(residuals))) == pytest.approx(DEFAULT_SPREAD, abs=0.002)

    @pytest.mark.slow
    def test_the_recorded_savings_are_what_the_recorded_searches_give(self, monkeypatch: pytest.MonkeyPatch) -> None:
        benchmarks = Path(__file__).parents[3] / "benchmarks"
        monkeypatch.syspath_prepend(str(benchmarks))
        import measuring_gain

        heldout = [shape for shape in measuring_gain.read() if shape.split == "heldout"]
        recorded = json.loads((benchmarks / "results" / "measuring_gain.json").read_text())["rows"]
        for weighting in ("one launch", "equal shares"):
            kept = [row for row in recorded if (row["split"], row["weights"]) == ("heldout", weighting)]
            for was, now in zip(kept, measuring_gain.rows_of("heldout", heldout, weighting), strict=True):
                assert now.keys() == was.keys()
                assert [now[name] for name in now] == [
                    pytest.approx(was[name], abs=1e-4) if isinstance(was[name], float) else was[name] for name in now
                ]

    @given(st.lists(st.floats(-100, 100), max_size=40))
    def test_a_spread_is_a_number_whatever_is_stored(self, residuals: list[float]) -> None:
        assert 0.5 * DEFAULT_SPREAD < pooled_spread(residuals) < math.inf

    def test_wrong_reports_move_the_spread_little(self) -> None:
        generator = np.random.default_rng(3)
        honest = list(0.02 * generator.standard_normal(400))
        assert pooled_spread(honest) == pytest.approx(0.02, rel=0.15)
        assert pooled_spread([*honest, 5.0, -3.0]) == pytest.approx(pooled_spread(honest), rel=0.02)


class TestMeasuring:
    def test_what_is_measured_is_kept_and_served_and_not_measured_again(
        self, cpu: None, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store = tmp_path / "store.sqlite"
        status, out, err = measure(capsys, shapes, "--store", store, "--budget-s", 60, "--top", 4)
        assert status == 0
        assert "8 times kept, 0 measurements failed, 0 not begun" in out
        assert err.count(" us\n") == 8
        kept = times_of(store, 1024)
        assert len(kept) == 4
        assert all(us == cpu_kernels.time_us({"config": json.loads(c), "shape": [1024]}) for c, us in kept.items())
        assert main(["plan", "gemm", "M=1024", "N=1024", "K=2048", "--store", str(store), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        found = plain(capsys, shapes, "--store", store, "--budget-s", 60, "--top", 4, "--dry-run")
        assert [row["measured_us"] for row in found["shapes"]][1] == min(kept.values())
        assert found["spreads"]["gemm"]["stored_times"] == 8
        assert answer["device"] == "NVIDIA H200"
        again = plain(capsys, shapes, "--store", store, "--budget-s", 60, "--top", 4)
        fresh = {json.dumps(m["config"], sort_keys=True) for m in again["measured"] if m["shape"] == 1}
        assert not fresh & set(kept)

    @pytest.mark.slow
    def test_the_time_is_kept_to_and_what_was_finished_stays(
        self, cpu: None, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setenv("CPU_KERNELS_PAUSE_S", "0.8")
        monkeypatch.setattr(measurement_plan, "START_S", 0.0)
        monkeypatch.setattr(measurement_plan, "MEASURE_S", 0.1)
        store, began = tmp_path / "store.sqlite", time.monotonic()
        found = plain(capsys, shapes, "--store", store, "--budget-s", 6)
        assert len(found["measured"]) in range(1, 8), "of 16 that were announced"
        assert time.monotonic() - began < 20, "identity, planning and 6 s"
        kept = sum(len(times_of(store, m)) for m in {1024, *(512 for f in found["measured"] if f["shape"] == 0)})
        assert kept == len(found["measured"])

    @pytest.mark.slow
    def test_an_interruption_ends_the_child_and_keeps_what_was_finished(self, shapes: Path, tmp_path: Path) -> None:
        store = tmp_path / "store.sqlite"
        script = (
            "import sys; from warpplan.service.measuring import measurement_run; "
            "from warpplan.service.tuning import launch_jobs; from warpplan.service.cli.app import main; "
            "launch_jobs.CHILD = launch_jobs.LaunchChild('cpu_launches:identity'); "
            "measurement_run.CHILD = 'cpu_kernels:times'; "
            f"sys.exit(main(['measure', {str(shapes)!r}, '--store', {str(store)!r}, '--top', '8']))"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CPU_KERNELS_PAUSE_S": "1"}
        running = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
        assert running.stderr is not None
        assert "us" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
        assert (running.returncode, err.splitlines()[-1]) == (130, "warpplan: interrupted")
        assert 1 <= len(times_of(store, 512)) < 8

    def test_without_a_budget_the_first_of_every_shape_are_measured(
        self, cpu: None, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = plain(capsys, shapes, "--store", tmp_path / "store.sqlite", "--top", 2)
        assert [m["shape"] for m in found["measured"]] == [0, 0, 1, 1, 2, 2]

    def test_a_child_that_dies_costs_what_it_was_at(
        self, cpu: None, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(measurement_run, "CHILD", "cpu_kernels:dying")
        found = plain(capsys, shapes, "--store", tmp_path / "store.sqlite", "--top", 2)
        assert [m["status"] for m in found["measured"]] == ["ok", "crash"] * 3

    def test_times_that_cannot_be_are_not_kept(
        self, cpu: None, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(measurement_run, "CHILD", "cpu_kernels:impossible")
        found = plain(capsys, shapes, "--store", tmp_path / "store.sqlite", "--top", 1)
        assert {m["status"] for m in found["measured"]} == {"refused"}
        assert "time_us=0.001 cannot be" in found["measured"][0]["reason"]

    def test_what_is_in_the_store_is_measured_without_a_file(
        self, cpu: None, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store = tmp_path / "store.sqlite"
        status, _, err = measure(capsys, "--store", store, "--dry-run")
        assert (status, "does not exist" in err) == (2, True)
        assert main(["batch", str(tmp_path / "plain.csv"), "--store", str(store)]) == 2
        (tmp_path / "plain.csv").write_text("M,N,K\n512,1024,2048\n")
        assert main(["batch", str(tmp_path / "plain.csv"), "--store", str(store)]) == 0
        capsys.readouterr()
        assert len(plain(capsys, "--store", store, "--top", 1)["measured"]) == 1

    def test_without_a_gpu_it_is_one_line_and_no_store_is_made(
        self, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if machine_here().gpus:
            pytest.skip("there is a GPU")
        store = tmp_path / "store.sqlite"
        status, out, err = measure(capsys, shapes, "--store", store, "--budget-s", 60)
        assert (status, out, err.count("\n"), store.exists()) == (2, "", 1, False)
        assert "measuring needs a GPU, and this machine offers none" in err
        monkeypatch.setattr(launch_jobs, "CHILD", launch_jobs.LaunchChild("cpu_launches:other_gpu"))
        status, _, err = measure(capsys, shapes, "--store", store, "--budget-s", 60)
        assert (status, cpu_launches.other_gpu()["gpu"] in err, store.exists()) == (2, True, False)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("M,N,K,launches\n512,1024,2048,-1\n", "shapes.csv:2: launches='-1'"),
            ("M,N,K,launches\n512,1024,2048,nan\n", "launches='nan'"),
            ("M,N,K\n0,1,8\n", "M=0 is too small"),
            ("M,N,K,device\n512,1024,2048,NVIDIA H200\n512,1024,2048,NVIDIA H100 80GB HBM3\n", "one GPU at a time"),
        ],
    )
    def test_shapes_of_which_none_can_be_measured(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
    ) -> None:
        path = tmp_path / "shapes.csv"
        path.write_text(text)
        status, out, err = measure(capsys, path, "--store", tmp_path / "store.sqlite")
        assert (status, out) == (2, "")
        assert told in err.splitlines()[0]
        assert err.splitlines()[1:] in ([], ["warpplan: error: 1 of 1 lines could not be planned, named above"])

    def test_a_bad_line_is_named_and_costs_no_other(
        self, cpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "shapes.csv"
        path.write_text("M,N,K,launches\n512,x,2048,1\n512,1024,2048,1\n512,1024,2048,often\n512,1024,2048,2\n")
        status, out, err = measure(capsys, path, "--store", tmp_path / "store.sqlite", "--top", 1, "--json")
        assert status == 2
        (shape,), (measured,) = json.loads(out)["shapes"], json.loads(out)["measured"]
        assert (shape["launches"], measured["status"]) == (3, "ok")
        assert [line.rpartition("shapes.csv:")[2] for line in err.splitlines() if "error" in line] == [
            "2: N='x' is not a whole number",
            "4: launches='often': expected how often the shape is launched, 0 to 1e+12",
            "warpplan: error: 2 of 4 lines could not be planned, named above",
        ]

"""The compiler path's benchmarks, as far as they go without a GPU."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the cases are Triton kernels")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))  # children import this module by name

import bench_compiler
import children
import compiler_gpu
import scheme_sweep
import stock_failures
import tl_case
import tl_cases
from triton.backends.compiler import GPUTarget

from warpplan.kernels.compiler.pipeline import cut

ROOT = Path(__file__).parents[1]
CASES = tl_cases.all_cases()
FAMILIES = {case.family: case for case in CASES}


def misbehave(jobs: list[Any]) -> Iterator[dict[str, Any]]:
    """Runs in children: a job says what its process does."""
    for job in jobs:
        if job == "crash":
            os.abort()
        if job == "hang":
            time.sleep(600)
        if job == "end":
            yield {"status": "hang", "fatal": True}
            os._exit(1)
        yield {"status": "ok", "job": job}


def test_a_job_that_hangs_or_crashes_costs_its_own_result_only() -> None:
    jobs = ["a", "crash", "b", "hang", "end", "c"]
    seen: list[Any] = []
    results = children.each(
        "test_compiler_benchmarks:misbehave", jobs, limit_s=12.0, workers=2,
        on_result=lambda job, result: seen.append((job, result["status"])),
    )  # fmt: skip
    assert [r["status"] for r in results] == ["ok", "crash", "ok", "timeout", "hang", "ok"]
    assert [r.get("job") for r in results] == ["a", None, "b", None, None, "c"]
    assert sorted(seen) == sorted(zip(jobs, [r["status"] for r in results], strict=True))


def test_jobs_are_skipped_for_a_reason_or_out_of_time() -> None:
    def run(**keywords: Any) -> list[Any]:
        return children.each("test_compiler_benchmarks:misbehave", ["a", "b"], limit_s=60.0, **keywords)

    assert run(skip=lambda job: "known" if job == "a" else "") == [
        {"status": "skipped", "reason": "known"}, {"status": "ok", "job": "b"},
    ]  # fmt: skip
    assert [r["reason"] for r in run(until=time.monotonic() - 1)] == ["out of time"] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kernel_of_each_family_compiles_for_hopper_to_the_cut(family: str) -> None:
    case = FAMILIES[family]
    setting = case.settings[0]
    text = cut(tl_case.source(case, setting), GPUTarget("cuda", 90, 32), tl_case.options(setting)).text
    assert ("tt.descriptor_load" in text) == bool(case.slot(setting))
    assert ("ttng.warp_group_dot" in text) == bool(case.slot(setting))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_whole(case: tl_case.Case) -> None:
    assert len({str(setting) for setting in case.settings}) == len(case.settings)
    assert case.tensors[case.output].poisoned
    for setting in case.settings:
        arguments = case.arguments(setting)
        for parameter in case.kernel.params:
            if parameter.is_constexpr:
                assert parameter.name in setting.constants
                continue
            value = arguments[parameter.name]
            name = value.tensor if isinstance(value, tl_case.Described) else value
            assert not isinstance(name, str) or name in case.tensors
        assert all(blocks >= 1 for blocks in case.grid(setting))
    assert not scheme_sweep.schemes(case, case.settings[0]) or case.slot(case.settings[0])


def test_both_sides_are_tuned_over_the_same_tiles() -> None:
    for case in CASES:
        jobs = scheme_sweep.jobs(case)
        plain = {case.settings[job["setting"]].tile for job in jobs if job["scheme"] is None}
        planned = {case.settings[job["setting"]].tile for job in jobs if job["scheme"] is not None}
        assert planned <= plain
        assert bool(planned) == bool(case.slot(case.settings[0]))


def test_numbers_that_the_launcher_specialises_are_specialised() -> None:
    case = tl_cases.gemm("grouped_order", 2048, 1, 100)
    found = tl_case.source(case, case.settings[0])
    names = case.kernel.arg_names
    assert found.signature["N"] == "constexpr"
    assert found.constants[(names.index("N"),)] == 1
    assert (names.index("M"),) in found.attrs
    assert (names.index("K"),) not in found.attrs
    assert found.signature["a_desc"] == "tensordesc<bf16[128, 64]>"


def sweep_rows(case: tl_case.Case) -> list[dict[str, Any]]:
    """Readings in which setting 2 is the best unplanned one and the first scheme is wrong."""
    rows = []
    for number, job in enumerate(scheme_sweep.jobs(case)):
        wrong = job["scheme"] is not None and number == len(case.settings)
        us = 50.0 if job == {"case": case.name, "setting": 2, "scheme": None} else 100.0 - number
        rows.append({**job, "status": "wrong" if wrong else "ok", **({} if wrong else {"us": us})})
    return rows


def test_finalists_are_the_best_that_ran_right() -> None:
    case = tl_cases.gemm("persistent", 4096, 4096, 4096)
    rows = sweep_rows(case)
    job = bench_compiler.finalists(case, rows)
    assert job["unplanned"][0] == 2
    assert len(job["planned"]) == bench_compiler.FINALISTS
    schemes = [r for r in rows if r["scheme"] is not None and r["status"] == "ok"]
    best = min(schemes, key=lambda r: r["us"])
    assert job["planned"][0] == [best["setting"], best["scheme"]]
    assert case.settings[job["same_tile"][0]].tile == case.settings[best["setting"]].tile


def compared(case: tl_case.Case, times: dict[str, float], job: dict[str, Any]) -> dict[str, Any]:
    result = {
        "status": "ok",
        "times": {n: {"us": us} for n, us in times.items()},
        "errors": {},
        "failed": {},
        "decided": [],
    }
    return bench_compiler.compared(case, job, result)


def test_a_row_compares_the_best_of_each_side() -> None:
    case = tl_cases.gemm("persistent", 4096, 4096, 4096)
    job = {"unplanned": [0, 2], "planned": [[0, [2, [3], 4, 1, 0]], [6, [1, [4], 8, 1, 0]]], "same_tile": [0]}
    times = {"unplanned 0": 250.0, "unplanned 2": 240.0, "planned 0": 210.0, "planned 1": 200.0, "cublas": 220.0}
    row = compared(case, times, job)
    assert (row["planned_us"], row["over_unplanned"], row["over_same_tile"]) == (200.0, 1.2, 1.25)
    assert row["over_peers"] == {"cublas": 1.1}
    assert row["planned"] == "1 x 8 warps, 4 slots, in flight"
    assert row["tflops"] == pytest.approx(2 * 4096**3 / 200e-6 / 1e12, abs=0.1)


def test_a_kernel_that_no_scheme_fits_is_compared_by_what_planned_makes_of_it_or_not_at_all() -> None:
    case = FAMILIES["softmax"]
    job: dict[str, Any] = {"unplanned": [1], "planned": [], "same_tile": []}
    alone = compared(case, {"unplanned 1": 100.0}, job)
    assert alone["planned_us"] is None
    timed = compared(case, {"unplanned 1": 100.0, "planned()": 101.0}, {**job, "api": 1})
    assert timed["over_unplanned"] == pytest.approx(0.9901)
    assert timed["api"] == str(case.settings[1])
    summary = bench_compiler.summarised([alone, timed])
    assert summary["worst_over_itself"] == pytest.approx(0.9901)
    assert summary["compared"] == 1
    assert bench_compiler.line(alone).startswith("softmax")


def test_the_summary_is_of_the_rows_that_were_compared() -> None:
    case = tl_cases.gemm("persistent", 4096, 4096, 4096)
    job = {"unplanned": [0], "planned": [[0, [2, [3], 4, 1, 0]]], "same_tile": [0], "api": 0}
    rows = [
        compared(case, {"unplanned 0": a, "planned()": a / 1.1, "planned 0": 100.0, "cublas": b}, job)
        for a, b in ((150.0, 90.0), (96.0, 110.0))
    ]
    lost = bench_compiler.compared(case, job, {"status": "hang", "reason": "busy"})
    summary = bench_compiler.summarised([*rows, lost])
    assert summary["gemm_over_cublas"] == {"gemm_persistent": 0.995, "gemm_grouped_order": None}
    assert summary["worst_over_itself"] == 1.1
    assert summary["specialised_over_same_tile"] == summary["specialised_over_best_tile"] == 1.2
    assert summary["not_compared"] == [case.name]


def test_triton_fails_at_compile_time_as_recorded() -> None:
    wanted = [f for f in stock_failures.failures() if f.here and f.expected in ("refused", "not specialised")]
    found = children.each("stock_failures:compile_jobs", [f.name for f in wanted], limit_s=120.0)
    assert [(f.name, r["status"]) for f, r in zip(wanted, found, strict=True)] == [(f.name, f.expected) for f in wanted]


def test_what_runs_only_to_fail_compiles() -> None:
    wanted = [f.name for f in stock_failures.failures() if f.here and f.expected in ("hang", "wrong")]
    found = children.each("stock_failures:compile_jobs", wanted, limit_s=120.0)
    assert [r["status"] for r in found] == ["ok"] * len(wanted)
    boxes = dict(zip(wanted, (r["boxes"] for r in found), strict=True))
    if "shared row offset" in boxes:  # halved where Triton forgot to
        assert boxes["shared row offset"] == [[64, 64], [128, 64], [128, 64]]
        assert boxes["host descriptors"] == [[128, 64], [256, 64], [128, 64]]


def test_a_failure_is_compared_with_the_first_scheme_that_runs_right() -> None:
    failure = stock_failures.named("host descriptors")
    hang, ok, no = {"status": "hang"}, {"status": "ok"}, {"status": "refused", "reason": "no room"}
    row = stock_failures.compared(failure, hang, [no, ok, ok])
    assert (row["reproduced"], row["planned"], row["scheme"]) == (True, "runs right", str(failure.schemes[1]))
    assert stock_failures.compared(failure, ok, [no, no, no])["planned"] == "falls back"
    assert not stock_failures.compared(failure, ok, [no, no, no])["reproduced"]
    assert stock_failures.compared(failure, hang, [no, hang, no])["planned"] == "fails"


def test_a_step_that_fails_or_hangs_does_not_keep_the_next_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(name: str, code: str, limit_s: float) -> compiler_gpu.Step:
        return compiler_gpu.Step(name, limit_s, lambda out, seconds: [sys.executable, "-c", code])

    steps = (
        step("bad", "print('no GPU'); raise SystemExit(3)", 60),
        step("slow", "import time; print('begun', flush=True); time.sleep(600)", 4),
        step("good", "print('done')", 60),
    )
    monkeypatch.setattr(compiler_gpu, "STEPS", steps)
    monkeypatch.setattr(compiler_gpu, "GRACE_S", 2.0)
    monkeypatch.setattr(sys, "argv", ["compiler_gpu.py", "--out", str(tmp_path / "out")])
    compiler_gpu.main()
    done = json.loads((tmp_path / "out" / "steps.json").read_text())
    assert [(d["step"], d["status"]) for d in done] == [("bad", 3), ("slow", "out of time"), ("good", 0)]
    log = (tmp_path / "out" / "log.txt").read_text()
    assert log.split() == ["==", "bad", "no", "GPU", "==", "slow", "begun", "==", "good", "done"]
    monkeypatch.setattr(sys, "argv", ["compiler_gpu.py", "--out", str(tmp_path), "--steps", "tests,none"])
    with pytest.raises(SystemExit, match="2"):
        compiler_gpu.main()


def test_every_step_names_a_script_that_takes_its_arguments(tmp_path: Path) -> None:
    for step in compiler_gpu.STEPS:
        _, script, *_ = command = step.command(tmp_path, 60.0)
        if step.name == "tests":
            assert Path(command[-1]).exists()
            continue
        text = Path(script).read_text()
        flags = [part for part in command if part.startswith("--")]
        assert all(f'"{flag}"' in text for flag in flags), (script, flags)


def test_an_inductor_row_compares_with_the_planned_time() -> None:
    bench_inductor = pytest.importorskip("bench_inductor", reason="needs torch")
    result = {"status": "ok", "times": {n: {"us": us} for n, us in (("planned", 200.0), ("cublas", 190.0))}}
    row = bench_inductor.compared("mm", result)
    assert row["over"] == {"cublas": 0.95}
    assert row["tflops"] == pytest.approx(687.2, abs=0.1)
    assert "over" not in bench_inductor.compared("mm", {"status": "error", "reason": "no GPU"})


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``tl_launch`` on a machine that compiles for Hopper but runs nothing, with torch on the CPU."""
    torch = pytest.importorskip("torch", reason="needs torch")
    sys.path.insert(0, str(Path(__file__).parent / "kernels" / "compiler"))
    import graph_timing
    import tl_launch
    from planned_machine import Machine
    from triton.runtime.driver import driver

    def on_the_cpu(make: Any) -> Any:
        return lambda *args, **kwargs: make(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})

    for name in ("randn", "full", "tensor"):
        monkeypatch.setattr(torch, name, on_the_cpu(getattr(torch, name)))
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device: generator())
    monkeypatch.setattr(tl_launch, "wait", lambda: None)
    monkeypatch.setattr(tl_launch, "allow_scratch", lambda: None)
    monkeypatch.setattr(tl_launch, "COLD_BYTES", 1)
    monkeypatch.setattr(graph_timing, "capture", lambda launches, estimate: ([launch() for launch in launches], 1))
    monkeypatch.setattr(graph_timing, "run_for", lambda graph, launches, ms: [100.0])
    machine, before = Machine(), driver._active
    driver.set_active(machine)
    try:
        yield tl_launch
    finally:
        driver.set_active(before)


SMALL = (tl_cases.gemm("persistent", 256, 256, 128), tl_cases.grouped("small", (100, 60), 256, 128))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.family)
def test_a_kernel_that_writes_nothing_is_wrong_and_one_that_is_right_is_timed(
    case: tl_case.Case, no_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (scheme_sweep, bench_compiler):
        monkeypatch.setattr(module, "cases", lambda: {case.name: case})
    jobs = scheme_sweep.jobs(case)
    tried = [jobs[0], next(job for job in jobs if job["scheme"] is not None)]
    assert [r["status"] for r in scheme_sweep.run_jobs(tried)] == ["wrong", "wrong"]
    monkeypatch.setattr(no_gpu, "right", lambda errors: True)
    results = list(scheme_sweep.run_jobs(tried))
    assert [r["status"] for r in results] == ["ok", "ok"]
    rows = [scheme_sweep.row(job, result) for job, result in zip(tried, results, strict=True)]
    job = bench_compiler.finalists(case, rows)
    assert (len(job["unplanned"]), len(job["planned"])) == (1, 1)
    (result,) = bench_compiler.compare_jobs([job])
    assert result["status"] == "ok"
    assert set(result["times"]) | set(result["failed"]) == {"unplanned 0", "planned 0", *case.peers}
    assert bench_compiler.compared(case, job, result)["over_unplanned"] == 1.0


def test_the_reference_passes_its_own_check(no_gpu: Any) -> None:
    for case in SMALL:
        made, reference = no_gpu.checked(case)

        def write(tensors: Any, output: str = case.output, right: Any = reference) -> Any:
            return lambda: tensors[output].copy_(right)

        assert no_gpu.right(no_gpu.errors(case, write))
        made[case.output].fill_(0.0)
        assert not no_gpu.right(no_gpu.errors(case, lambda tensors: lambda: None))


def test_how_a_job_ended_says_whether_the_process_can_go_on(no_gpu: Any) -> None:
    assert no_gpu.ended(no_gpu.Hung("busy")) == {"status": "hang", "reason": "Hung: busy", "fatal": True}
    lost = no_gpu.ended(RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"))
    assert (lost["status"], lost["fatal"]) == ("crash", True)
    assert no_gpu.ended(ValueError("no\nroom")) == {"status": "refused", "reason": "ValueError: no"}

"""Traces written the way Proton writes them, small enough to know the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warpplan.kernels.gemm.space import GemmConfig
from warpplan.planner.errors import MalformedFile, MeasurementFailed
from warpplan.profiler.records import profile_of
from warpplan.profiler.traces import compare, parse, record, trace_costs

from .machines import IDENTITY, records

CONFIG = GemmConfig("single", 128, 256, 64, 8, 4)
II, WAIT, MMA, TILES, ITERATIONS = 600.0, 150.0, 400.0, 2, 5


def _event(name: str, warp: int, start: float, cycles: float, cta: int = 0, line: int = 0) -> dict[str, Any]:
    return {
        "cname": "good", "name": name, "cat": "gemm_kernel", "ph": "X", "pid": f"gemm_kernel Core{cta} CTA{cta}",
        "tid": f"warp {warp} (line {line})", "ts": start / 1000.0, "dur": cycles / 1000.0,
        "args": {"Finalization Time (ns)": 10, "Frequency (MHz)": 1000.0, "call_stack": []},
    }  # fmt: skip


def _trace() -> list[dict[str, Any]]:
    """Two blocks of one consumer warp and one producer warp; an epilogue of 5,000 cycles parts the tiles."""
    events = []
    for cta in range(2):
        for tile in range(TILES):
            begin = 1e6 * cta + tile * 20_000.0
            for i in range(ITERATIONS):
                now = begin + i * II
                events.append(_event("consumer_wait", 0, now, WAIT, cta))
                events.append(_event("mma", 0, now + WAIT, MMA, cta))
                events.append(_event("tma_issue", 8, now, 70.0, cta))
            events.append(_event("epilogue", 0, begin + ITERATIONS * II, 5000.0, cta))
    events.append(_event("some other scope", 0, 0.0, 1.0))
    return events[::-1]


def _write(path: Path, events: list[Any]) -> Path:
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))
    return path


def test_the_interval_is_within_tiles_only(tmp_path: Path) -> None:
    summary = trace_costs(_write(tmp_path / "t.chrome_trace", _trace()))
    assert summary.ii.p50 == pytest.approx(II)
    assert summary.ii.p90 == pytest.approx(II)
    assert summary.ii.count == 2 * TILES * (ITERATIONS - 1)
    assert summary.exposed_wait == pytest.approx(WAIT / II)
    assert dict(summary.scopes)["epilogue"].p50 == pytest.approx(5000.0)
    assert summary.scope("mma").p50 == pytest.approx(MMA)
    assert summary.scope("tma_issue").count == 2 * TILES * ITERATIONS
    assert summary.scope("producer_wait") is None


def test_another_nominal_frequency_scales_the_times(tmp_path: Path) -> None:
    events = _trace()
    for event in events:
        event["args"]["Frequency (MHz)"] = 2000.0
    assert trace_costs(_write(tmp_path / "t", events)).ii.p50 == pytest.approx(2 * II)


def test_blocks_and_lines_are_told_apart(tmp_path: Path) -> None:
    overlapping = [_event("mma", 4, 0.0, 10.0), _event("mma", 4, 5.0, 10.0, line=1), _event("mma", 5, 3.0, 1.0)]
    events = parse(_write(tmp_path / "t", overlapping))
    assert [(e.warp, e.start_cycles) for e in events] == [(4, 0.0), (4, 5.0), (5, 3.0)]


def test_the_comparison_takes_the_busiest_unit(tmp_path: Path) -> None:
    costs = profile_of(IDENTITY, [records()]).costs
    summary = trace_costs(_write(tmp_path / "t", _trace()))
    ii, issue, epilogue = compare(summary, CONFIG, "bfloat16", costs)
    # Invented costs: occupancy 0.05 a byte or column, issue 0.01, latency 0.3 an element.
    tensor = (128 // 64) * (64 // 16) * 0.05 * 256
    transfer = 0.05 * (128 * 64 * 2 + 256 * 64 * 2)
    assert (ii.name, ii.probed_cycles) == ("ii", pytest.approx(max(tensor, transfer)))
    assert ii.ratio == pytest.approx(II / transfer)
    assert issue.probed_cycles == pytest.approx(0.01 * (128 + 256) * 64 * 2)
    assert epilogue.probed_cycles == pytest.approx(0.3 * 128 * 256 / 2)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "not JSON"),
        ("[]", "traceEvents is missing"),
        ('{"traceEvents": [{"ph": "X", "name": "mma"}]}', "trace event 0"),
        ('{"traceEvents": [{"ph": "X", "name": "mma", "pid": 1, "tid": "thread", "ts": 0, "dur": 0}]}', "no warp"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "t.chrome_trace"
    path.write_text(body)
    with pytest.raises(MalformedFile, match=message):
        parse(path)


def test_a_trace_without_a_loop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="more iterations of K"):
        trace_costs(_write(tmp_path / "t", [_event("mma", 0, 0.0, 1.0)]))


def test_recording_without_a_gpu_or_scopes_fails_in_words(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="no partitions to trace"):
        record(tmp_path / "t", GemmConfig("pipelined", 128, 128, 64, 8, 4))
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        with pytest.raises(MeasurementFailed, match="tracing single 128x256: "):
            record(tmp_path / "t", CONFIG)

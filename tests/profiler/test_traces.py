"""Traces written the way Proton writes them, small enough to know the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warpplan.kernels.gemm.space import GemmConfig
from warpplan.planner.errors import MalformedFile, MeasurementFailed
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded
from warpplan.profiler.records import profile_of
from warpplan.profiler.traces import (
    compare,
    parse,
    predicted_phases,
    record,
    recording_cycles,
    trace_costs,
    traced_phases,
)

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


def test_three_consumers_load_three_tiles_of_a(tmp_path: Path) -> None:
    costs = profile_of(IDENTITY, [records()]).costs
    config = GemmConfig("cooperative", 192, 128, 64, 4, 4)
    _, issue, _ = compare(trace_costs(_write(tmp_path / "t", _trace())), config, "bfloat16", costs)
    assert issue.probed_cycles == pytest.approx(0.01 * (3 * 64 + 128) * 64 * 2)


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


# Phases


def test_traced_phases_are_less_what_recording_costs(tmp_path: Path) -> None:
    phases = traced_phases(trace_costs(_write(tmp_path / "t", _trace())), 20.0)
    assert (phases.multiply, phases.load_wait) == (pytest.approx(II), pytest.approx(WAIT - 20))
    assert phases.epilogue == pytest.approx(4980.0)
    assert phases.slot_wait is None
    assert traced_phases(trace_costs(tmp_path / "t"), 1e6).load_wait == 0.0


def test_an_empty_scope_is_no_phase(tmp_path: Path) -> None:
    events = [*_trace(), *(_event("empty", 0, 1e7 + i, 25.0) for i in range(3))]
    path = _write(tmp_path / "t", events)
    assert sum(e.scope == "empty" for e in parse(path)) == 3
    assert trace_costs(path) == trace_costs(_write(tmp_path / "u", _trace()))


def test_predicted_phases_of_a_deep_and_of_a_shallow_ring() -> None:
    """Enough slots: the consumer finds its data there and the producer waits. Two: every load is waited for."""
    costs = embedded("NVIDIA H200").costs
    ready = {s: costs.lookup("barrier_ready", scope=s).issue.p50 for s in ("group", "warp")}
    deep, shallow = (
        predicted_phases(GemmConfig("single", 128, 128, 64, 8, depth), "bfloat16", H200, costs, 64) for depth in (5, 2)
    )
    assert deep.multiply == pytest.approx(512, abs=1)
    assert deep.load_wait == ready["group"]
    assert deep.slot_wait > 400
    assert shallow.multiply > 800
    load, handoff = (costs.lookup(*c, **t).latency.p50 for c, t in (
        (("tma_load", 16384), {"source": "l2"}), (("handoff",), {"scope": "warp_to_group"})
    ))  # fmt: skip
    # Of the two multiplies in flight one is waited for, then its slot is filled and the data comes back.
    assert load + handoff < shallow.load_wait + 512 / 2 < shallow.multiply + 512 / 2
    assert deep.epilogue == shallow.epilogue > 0


def test_what_a_trace_and_the_simulator_call_alike(tmp_path: Path) -> None:
    """The recorded trace of one configuration: its multiplies follow one another as the simulator's do."""
    rows = json.loads((Path(__file__).parents[2] / "benchmarks/results/gemm_traces_h200.json").read_text())["rows"]
    costs = embedded("NVIDIA H200").costs
    for row in rows:
        config = GemmConfig(**row["config"])
        if (config.block_m, config.block_n) == (64, 128):  # so short a loop is Proton's own to delay
            continue
        predicted = predicted_phases(config, "bfloat16", H200, costs, 64).multiply
        assert row["trace"]["ii"]["p50"] == pytest.approx(predicted, rel=0.06), config


def test_recording_cost_without_a_gpu_fails_in_words() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        with pytest.raises(MeasurementFailed, match="tracing an empty scope: "):
            recording_cycles()


@pytest.mark.slow
def test_the_empty_scopes_compile() -> None:
    pytest.importorskip("triton")
    from warpplan.kernels.compile import compile_report
    from warpplan.kernels.triton_compat import GluonASTSource
    from warpplan.profiler.probes.harness.device_code import SCOPE_WARPS, empty_scopes

    source = GluonASTSource(empty_scopes, {"out": "*i32", "reps": "i32"}, {})
    assert compile_report(source, {"num_warps": SCOPE_WARPS}, 90, what="empty scopes").clean

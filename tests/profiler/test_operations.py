"""Traces of compiled kernels written the way Proton writes them, small enough to know the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warpplan.kernels.compiler.analysis.capture import Body
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import Part, Product
from warpplan.kernels.compiler.costing.loop_graph import Shape, cost_of
from warpplan.kernels.compiler.ttgir.types import parse_type
from warpplan.planner.errors import MalformedFile, MeasurementFailed
from warpplan.planner.values.dependence_graph import DependenceGraph, Operation
from warpplan.profiler.embedded import embedded
from warpplan.profiler.operations import Beside, beside_costs, operations, read_operations, with_measured
from warpplan.profiler.traces import parse, trace_costs

LOAD, DOT, MATH = "tma_issue@a.py:5", "mma@a.py:7", "math@a.py:8"


def _event(name: str, warp: int, start: float, cycles: float) -> dict[str, Any]:
    return {
        "name": name, "ph": "X", "pid": "kernel Core0 CTA0", "tid": f"warp {warp} (line 0)", "ts": start / 1000.0,
        "dur": cycles / 1000.0, "args": {"Frequency (MHz)": 1000.0},
    }  # fmt: skip


def _write(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "t.chrome_trace"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two consumer warps and a producer's; the first product is a peeled copy of its own name."""
    events = []
    for i in range(10):
        now = 1000.0 * i
        events += [_event(LOAD, 8, now, 60.0 + i), _event("consumer_wait#2", 0, now, 30.0)]
        for warp, slower in ((0, 0.0), (4, 100.0)):
            events += [_event(DOT, warp, now + 40, 400.0 + slower), _event(MATH, warp, now + 600, 200.0)]
    events += [_event("mma@a.py:7#2", 0, -500.0, 5.0), _event("my own scope", 0, 0.0, 1.0), _event("mmap", 0, 0.0, 1.0)]
    return _write(tmp_path, events)


def test_each_scope_is_read_with_its_warps(trace: Path) -> None:
    found = {m.name: m for m in read_operations(trace)}
    assert list(found) == sorted([LOAD, DOT, MATH, "mma@a.py:7#2", "consumer_wait#2"])
    assert found[DOT].warps == ((0, pytest.approx(400.0)), (4, pytest.approx(500.0)))
    assert found[DOT].cycles.count == 20
    assert found[DOT].cycles.p50 == pytest.approx(450.0)
    assert (found[DOT].kind, found[DOT].line) == ("mma", "a.py:7")
    assert (found["consumer_wait#2"].kind, found["consumer_wait#2"].line) == ("consumer_wait", "")
    assert found[LOAD].cycles.p50 == pytest.approx(64.5)


def test_the_loop_of_a_compiled_kernel_reads_as_that_of_our_own(trace: Path) -> None:
    """``explain --measured`` takes either."""
    summary = trace_costs(trace)
    assert summary.ii.p50 == pytest.approx(1000.0)
    assert {name for name, _ in summary.scopes} == {"tma_issue", "consumer_wait", "mma"}
    assert {event.scope for event in parse(trace)} == {"tma_issue", "consumer_wait", "mma"}


def _work(id: str, kind: Any, **fields: Any) -> LoopWork:
    line = id.partition("@")[2]
    defaults: dict[str, Any] = {"names": (), "line": line, "lines": (line,), "shape": (128, 128), "parts": ()}
    return LoopWork(id, kind, **{**defaults, **fields})


@pytest.fixture
def loop() -> Body:
    operand = parse_type("tensor<128x64xbf16, #shared>")
    assert operand is not None
    product = Product(128, 128, 64, operand, "shared")
    return Body(
        "loop@a.py:4", "a.py:4", "scf.for", "",
        (
            _work("a@a.py:5", "tma_load", parts=(Part("tma_load", 128 * 64 * 2),), buffer_bytes=128 * 64 * 2),
            _work("acc@a.py:7", "dot", product=product, rows=True),
            _work("p@a.py:8", "sfu", parts=(Part("exp2", 128 * 128),), rows=True),
        ),
        (), 128, None,
    )  # fmt: skip


def test_measured_cycles_stand_beside_the_probes(trace: Path, loop: Body) -> None:
    costs, shape = embedded("NVIDIA H200").costs, Shape(2)
    rows = {row.operation: row for row in beside_costs(read_operations(trace), loop, shape, costs, recording=10.0)}
    assert set(rows) == {"tma_issue", DOT, "math"}
    assert rows[DOT].measured == pytest.approx(440.0), "the peeled copy is not the loop's"
    assert rows[DOT].predicted == cost_of(loop.work[1], costs, shape).occupancy > 0
    assert rows["tma_issue"].measured == pytest.approx(54.5)
    assert rows["tma_issue"].predicted == cost_of(loop.work[0], costs, shape).issue > 0
    assert rows["math"].measured == pytest.approx(190.0)
    assert rows["math"].ratio == pytest.approx(190.0 / rows["math"].predicted)


def test_measured_costs_take_the_place_of_probed_ones(loop: Body) -> None:
    graph = DependenceGraph(
        "g",
        (
            Operation("a@a.py:5", "TMA", latency=600, occupancy=100, issue=10),
            Operation("acc@a.py:7", "TENSOR", latency=500, occupancy=400, issue=40),
            Operation("p@a.py:8", "SFU", latency=300, occupancy=200, issue=200),
            Operation("out", "LSU", latency=30, occupancy=20, issue=20),
        ),
        (),
    )
    rows = (Beside("tma_issue", 60.0, 10.0), Beside(DOT, 800.0, 400.0), Beside("math", 50.0, 100.0))
    load, dot, math, store = with_measured(graph, loop, rows).ops
    assert (load.latency, load.occupancy, load.issue) == (600, 100, 60)
    assert (dot.latency, dot.occupancy, dot.issue) == (1000, 800, 80)
    assert (math.latency, math.occupancy, math.issue) == (150, 100, 100)
    assert store == graph.ops[3]
    assert with_measured(graph, loop, ()) == graph


def test_a_trace_without_scopes_says_so(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="holds no scope of a recorded kernel"):
        read_operations(_write(tmp_path, [_event("other", 0, 0.0, 1.0)]))
    with pytest.raises(MeasurementFailed, match="the trace holds no scope"):
        operations([])
    (tmp_path / "bad").write_text("{}")
    with pytest.raises(MalformedFile, match="traceEvents is missing"):
        read_operations(tmp_path / "bad")

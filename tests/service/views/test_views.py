"""The pictures of a plan, of one small loop whose time line is known cycle by cycle."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from warpplan.planner.errors import MeasurementFailed
from warpplan.planner.simulate.simulation import simulate
from warpplan.planner.solve import SolveOptions, solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.plan import Plan
from warpplan.planner.values.timeline import Timeline
from warpplan.profiler.traces import Event, parse, summarize
from warpplan.service.views import html, lanes, perfetto, phases, sections, svg, text
from warpplan.service.views.lanes import Bar, Lane

ITERATIONS, EPILOGUE = 6, 300
GRAPH = DependenceGraph(
    "loop <1>",
    (
        Operation("load", "TMA", 700, 288, 30, buffer_bytes=49_152, alignment=1024),
        Operation("mma", "TENSOR", 560, 512, 120, min_warps=4),
        Operation("release", None, 0, 0, 10),
    ),
    (
        Dependence("load", "mma"),
        Dependence("load", "release", 1),
        Dependence("mma", "mma", 1, latency=512),
        Dependence("mma", "release", 0, "token", latency=120),
        Dependence("mma", "release", 1, "token"),
    ),
    Limits(2, handoff_cycles=60),
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    found = solve(GRAPH, SolveOptions(pinned={"load": 1, "mma": 0, "release": 0}, depth=3)).plan
    assert found is not None
    assert found.schedule.ii_cycles == 512
    return found


@pytest.fixture(scope="module")
def timeline(plan: Plan) -> Timeline:
    return simulate(plan, GRAPH, ITERATIONS)


@pytest.fixture(scope="module")
def rows(plan: Plan, timeline: Timeline) -> tuple[Lane, ...]:
    return lanes.predicted(GRAPH, plan, timeline, EPILOGUE)


@pytest.fixture(scope="module")
def scopes(plan: Plan, timeline: Timeline) -> tuple[Event, ...]:
    return phases.scopes(GRAPH, plan, timeline, EPILOGUE)


def test_lanes_show_every_cycle_of_a_partition_once(plan: Plan, timeline: Timeline, rows: tuple[Lane, ...]) -> None:
    assert [(lane.group, lane.name, lane.warp) for lane in rows] == [
        ("predicted: warps", plan.partitions[0].name, 0),
        ("predicted: warps", plan.partitions[1].name, plan.partitions[0].warps),
        ("predicted: units", "TMA", None),
        ("predicted: units", "TENSOR", None),
    ]
    for lane in rows:
        ordered = sorted(lane.bars, key=lambda b: b.start)
        assert all(a.end <= b.start for a, b in pairwise(ordered)), lane
    tensor = [(b.start, b.end, b.iteration) for b in rows[3].bars]
    assert tensor == [(s.start, s.start + 512, s.iteration) for s in timeline.of("mma")]
    last = rows[0].bars[-1]
    assert (last.kind, last.end - last.start) == ("epilogue", EPILOGUE)
    assert last.start == timeline.of("mma")[-1].done


def test_gantt_by_hand() -> None:
    drawn = [
        Lane("some", "a", (Bar("x", "TMA", 0, 20, 0), Bar("x", "wait", 20, 60, 1), Bar("x", "TMA", 60, 62, 1))),
        Lane("some", "bb", (Bar("y", "ALU", 30, 760),)),
    ]
    head, group, first, second, legend = text.gantt(drawn, 80)
    step = 10  # 760 cycles in 76 columns
    assert head.split() == [str(column * step) for column in range(0, 70, 10)]
    assert group == "some"
    assert first == "a   aa····A"
    assert second == "bb  " + " " * 3 + "b" * 73
    assert legend == "10 cycles a column; · waits; capitals in odd iterations; a x, b y"


def test_gantt_keeps_long_numbers_of_cycles_apart() -> None:
    head = next(text.gantt([Lane("some", "a", (Bar("x", "TMA", 0, 10**11, 0),))], 80))
    step = -(-(10**11) // 77)
    assert head.split() == [str(column * step) for column in range(0, 65, 13)]


@pytest.mark.parametrize("width", [1, 80, 97, 120, 500])
def test_gantt_keeps_to_the_width(rows: tuple[Lane, ...], width: int) -> None:
    lines = list(text.gantt(rows, width))
    assert max(map(len, lines)) <= min(max(width, 80), 120)
    assert all(name in "\n".join(lines) for name in ("TENSOR", "default", "load", "mma", "epilogue"))


def test_svg_has_a_bar_for_every_bar(rows: tuple[Lane, ...]) -> None:
    root = ET.fromstring(svg.timeline(rows, "a & b < c", 512))
    bars = [e for e in root.iter() if "bar" in e.get("class", "").split()]
    assert len(bars) == sum(len(lane.bars) for lane in rows)
    hovers = [bar[0].text for bar in bars]
    assert "mma, iteration 0" in "".join(h for h in hovers if h)
    left, width = float(root.get("data-left", 0)), float(root.get("data-width", 0))
    for bar in bars:
        assert left <= float(bar.get("x", -1)) <= left + width
        assert float(bar.get("x", 0)) + float(bar.get("width", 0)) <= left + width + 1.5


def test_units_of_the_graphs_own_are_drawn_as_others() -> None:
    graph = DependenceGraph("own", (Operation("a", "crane", 4, 3, 1),), (), Limits(1), units=(("crane", 2),))
    found = solve(graph).plan
    assert found is not None
    shown = lanes.predicted(graph, found, simulate(found, graph, 3))
    assert [lane.name for lane in shown] == ["default", "crane"]
    assert {bar.kind for lane in shown for bar in lane.bars} <= {lanes.OTHER, lanes.WAIT}
    assert "other</text>" in svg.timeline(shown, "own")


def test_memory_over_time(plan: Plan) -> None:
    """Three slots, each held once a turn of three intervals for as long as the channel says."""
    root = ET.fromstring(svg.memory(plan, 232_448))
    bars = [e[0].text or "" for e in root.iter() if "bar" in e.get("class", "").split()]
    ring = plan.channels[0]
    held = [list(map(int, m.groups())) for b in bars if (m := re.search(r"slot (\d).*cycles (\d+) to (\d+)$", b))]
    assert len(held) == len(bars)
    for slot in range(3):
        cycles = sum(end - start for s, start, end in held if s == slot)
        assert cycles == ring.live_cycles
    assert ring.live_cycles <= 3 * plan.schedule.ii_cycles
    assert f"bytes 0 to {ring.slot_bytes}" in "".join(bars)


def test_the_page_is_whole_and_asks_for_nothing(plan: Plan, rows: tuple[Lane, ...]) -> None:
    tables = sections.plan(GRAPH, plan)
    page = html.page("loop <1>", ["lead & line"], [svg.timeline(rows, "t"), svg.memory(plan, 232_448)], tables)
    assert "<h1>loop &lt;1&gt;</h1>" in page
    assert "lead &amp; line" in page
    assert all(f"<h2>{s.title}</h2>" in page for s in tables)
    assert [s.title for s in tables] == ["Schedule", "Partitions", "Channels", "Buffers"]
    addresses = set(re.findall(r"[a-z]+://[^\"' <]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|script [^>]*src)|@import|url\((?!#)", page)
    body = re.sub(r"<script>.*?</script>|<!DOCTYPE html>|<meta[^>]*>", "", page, flags=re.DOTALL)
    ET.fromstring(body)


def test_a_trace_reads_back_as_proton_s(
    tmp_path: Path, plan: Plan, rows: tuple[Lane, ...], scopes: tuple[Event, ...]
) -> None:
    trace = perfetto.trace("gemm", rows, scopes)
    for event in trace["traceEvents"]:
        assert event.keys() == {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}
        assert (event["ph"], event["args"]["Frequency (MHz)"]) == ("X", 1000.0)
        assert event["ts"] >= 0
        assert event["dur"] > 0
    assert {e["pid"] for e in trace["traceEvents"]} == {"gemm predicted Core0 CTA0", "gemm predicted units"}
    assert {e["tid"] for e in trace["traceEvents"]} == {
        "warp 0 (default)", "warp 4 (worker1)", "unit TMA", "unit TENSOR",
    }  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace))
    warps = parse_warps(path)
    assert [(e.scope, e.warp) for e in warps] == [(e.scope, e.warp) for e in scopes if e.cycles]
    assert [e.start_cycles for e in warps] == pytest.approx([e.start_cycles for e in scopes if e.cycles])
    assert summarize(warps).ii.p50 == pytest.approx(plan.schedule.ii_cycles)


def parse_warps(path: Path) -> list[Event]:
    """What the profiler's own reader finds, once the units' rows, which are not warps', are out."""
    body = json.loads(path.read_text())
    body["traceEvents"] = [e for e in body["traceEvents"] if e["pid"].endswith("CTA0")]
    path.write_text(json.dumps(body))
    return list(parse(path))


def test_a_graph_s_trace_names_its_operations(rows: tuple[Lane, ...]) -> None:
    names = {e["name"] for e in perfetto.trace("loop", rows)["traceEvents"]}
    assert {"load", "mma", "wait mma", "epilogue"} <= names
    waits = [e for e in perfetto.trace("loop", rows)["traceEvents"] if e["name"] == "wait mma"]
    assert waits[0]["args"]["note"] == "waits for data load"
    assert waits[0]["args"]["iteration"] == 0


def test_scopes_of_the_loop(timeline: Timeline, scopes: tuple[Event, ...]) -> None:
    counts = {name: sum(e.scope == name for e in scopes) for name in phases.PHASES}
    assert counts == {**dict.fromkeys(phases.PHASES, ITERATIONS), "epilogue": 1}
    assert {e.cycles for e in scopes if e.scope == "tma_issue"} == {30.0}
    first = next(e for e in scopes if e.scope == "consumer_wait")
    # The first value arrives after its latency and the hand-off.
    assert (first.start_cycles, first.cycles) == (0.0, timeline.of("load")[0].done + 60.0)
    multiplies = [e.start_cycles for e in scopes if e.scope == "mma"]
    assert summarize(scopes).ii.p50 == pytest.approx(512)
    assert multiplies == sorted(multiplies)


def test_a_measured_block_beside_the_prediction(plan: Plan, scopes: tuple[Event, ...], rows: tuple[Lane, ...]) -> None:
    """The prediction itself as a recording, 10 % slower and on another clock."""
    late = [
        replace(e, launch="gemm Core3 CTA9", start_cycles=7e6 + 1.1 * e.start_cycles, cycles=1.1 * e.cycles)
        for e in scopes
    ]
    alone = [Event("mma", "gemm Core1 CTA1", 0, 5.0, 9.0)]
    block = phases.on_one_clock(scopes, [*alone, *late])
    assert {e.launch for e in block} == {"gemm Core3 CTA9"}
    assert min(e.start_cycles for e in block if e.scope == "mma") == min(
        e.start_cycles for e in scopes if e.scope == "mma"
    )
    until = lanes.end_of(rows)
    shown = phases.measured_lanes(plan, block, until)
    assert [(lane.name, lane.warp) for lane in shown] == [("default", 0), ("worker1", 4)]
    assert all(0 <= b.start <= b.end <= until for lane in shown for b in lane.bars)
    found = {c.phase: c for c in phases.compare(scopes, late)}
    assert found["initiation interval"].measured == pytest.approx(1.1 * 512)
    for phase in ("load wait", "multiply", "load issue", "epilogue"):
        assert found[phase].measured == pytest.approx(1.1 * (found[phase].predicted or 0.0))
    assert found["exposed load wait, %"].measured == pytest.approx(found["exposed load wait, %"].predicted)
    table = sections.comparison(tuple(found.values())).rows
    assert ("epilogue", "300", "330", "1.10") in table
    threads = {e["tid"] for e in perfetto.trace("gemm", rows, scopes, block)["traceEvents"] if "Core3" in e["pid"]}
    assert threads == {"warp 0", "warp 4"}


def test_a_recording_without_a_loop_is_refused(scopes: tuple[Event, ...]) -> None:
    with pytest.raises(MeasurementFailed, match="more iterations of K"):
        phases.on_one_clock(scopes, [Event("mma", "b", 0, 5.0, 9.0)])


def test_tables_align_numbers_to_the_right() -> None:
    assert list(text.table(("name", "n"), [("a", 1), ("long name", 1000)])) == [
        "name          n",
        "a             1",
        "long name  1000",
    ]
    assert list(text.table(("name", "n"), [])) == ["name  n"]

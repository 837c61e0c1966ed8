"""``warpplan explain`` as a user runs it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from warpplan.planner.values import codec
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.timeline import Timeline
from warpplan.profiler.traces import parse, summarize
from warpplan.service.cli.app import main
from warpplan.service.workflow.profiles import Profiles

from .test_solve_command import GRAPH, bad, changed, run

GEMM = ["explain", "gemm", "M=4096", "N=4096", "K=4096"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("g.json").write_text(json.dumps(GRAPH))


def test_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "explain", "g.json")
    assert (status, err) == (0, "")
    for title in ("What binds", "The smallest change of one cost that moves the interval", "Time line of 6 iterations"):
        assert f"\n{title}" in out
    assert re.search(r"unit TENSOR +512 +512 +0 +100\.0 % +cycles +mma 512", out)
    assert "full together: recurrence, unit TENSOR" in out
    assert re.search(r"occupancy of mma +512 +513 +\+0\.2 % +513", out)
    assert "no single cost, however small, brings the interval below 512 cycles" in out
    gantt = out.split("Time line")[1].splitlines()
    assert any(line.startswith("TENSOR") for line in gantt)
    assert "Traceback" not in out


def test_a_graph_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "g.json", "--json", "--iterations", "9")
    body = json.loads(out)
    assert (status, body["schema"], body["graph"]) == (0, "warpplan/explanation-1", "gemm 128x256x64")
    assert codec.from_json(body["outcome"], Outcome).status == "optimal"
    timeline = codec.from_json(body["timeline"], Timeline)
    assert timeline.trip_count == 9
    assert [d["used"] for d in body["demands"] if d["name"] == "unit TENSOR"] == [512]
    assert body["costs"]["examined"] == body["costs"]["costs"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["g.json", "--dtype", "bfloat16"], "--dtype: only kernels have it, and g.json is a graph file"),
        (["g.json", "--device", "NVIDIA H200"], "--device: only kernels have it"),
        (["g.json", "--profile", "p.json"], "--profile: only kernels have it"),
        ([*GEMM[1:], "--work-limit", "1"], "--work-limit: only a graph is solved on request"),
        ([*GEMM[1:], "--depth", "3"], "--depth: only a graph is solved on request"),
        ([*GEMM[1:], "--time-limit", "1"], "--time-limit: only a graph is solved on request, and gemm is a kernel"),
        ([*GEMM[1:], "--slack", "0"], "--slack: only a graph is solved on request"),
    ],
)
def test_options_of_the_other_subject_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    assert error in bad(capsys, "explain", *words)


@pytest.mark.parametrize("limits", [["--time-limit", "5"], ["--work-limit", "5"]])
def test_a_graph_within_either_limit(capsys: pytest.CaptureFixture[str], limits: list[str]) -> None:
    status, out, _ = run(capsys, "explain", "g.json", "--json", *limits)
    assert (status, json.loads(out)["outcome"]["status"]) == (0, "optimal")


def test_a_graph_keeps_its_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """A graph of 300 operations is not even read within a millisecond of the command's start."""
    loads = [{**GRAPH["ops"][0], "id": f"load{i}"} for i in range(300)]
    Path("large.json").write_text(json.dumps({**GRAPH, "ops": loads, "edges": []}))
    status, out, _ = run(capsys, "explain", "large.json", "--time-limit", "0.001")
    assert status == 1
    assert re.search(r"^  reason +the time limit binds$", out, re.MULTILINE)


def test_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *GEMM, "--svg", "a.svg", "--html", "a.html", "--trace", "a.json", "--json")
    assert status == 0
    body = json.loads(out)
    ii = body["outcome"]["ii"]
    root = ET.parse("a.svg").getroot()
    assert root.tag.endswith("svg")
    page = Path("a.html").read_text()
    for title in ("What the time is made of", "What binds", "Which measured number would flip the choice", "Schedule"):
        assert f"<h2>{title}</h2>" in page
    trace = json.loads(Path("a.json").read_text())
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["tid"].startswith("warp")]
    Path("b.json").write_text(json.dumps(trace))
    assert summarize(parse(Path("b.json"))).ii.p50 == pytest.approx(ii)
    assert sorted(p.name for p in Path().iterdir()) == ["a.html", "a.json", "a.svg", "b.json", "g.json"]


def test_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *GEMM)
    assert (status, err) == (0, "")
    assert "gemm M=4096 N=4096 K=4096 bfloat16 on NVIDIA H200" in out
    for title in ("What the time is made of", "What binds", "The best of other block structures", "What the next best"):
        assert f"\n{title}" in out
    plan = json.loads(run(capsys, "plan", "gemm", "M=4096", "N=4096", "K=4096", "--json")[1])
    assert f"predicted {plan['predicted']['time_us']:.2f} us" in out
    assert f"bound by {plan['predicted']['bound_by']}; the next" in out
    assert re.search(r"(latency|occupancy) of \w+\(.*%.*no\. \d", out)
    assert f"no other partition or order has a shorter interval than {plan['plan']['ii']} cycles: proven" in out


def test_a_kernel_as_json_with_a_profile_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    embedded = Profiles().of("NVIDIA H200")
    Path("p.json").write_bytes(codec.canonical(embedded.profile))
    arguments = ["explain", "gemm", "M=16", "N=4096", "K=4096", "--dtype", "float16", "--json"]
    answers = [json.loads(run(capsys, *arguments, *more)[1]) for more in ([], ["--profile", "p.json"])]
    for answer in answers:
        del answer["outcome"]["solve_seconds"]
    assert answers[0] == answers[1]
    body = answers[0]
    plan = json.loads(run(capsys, "plan", "gemm", "M=16", "N=4096", "K=4096", "--dtype", "float16", "--json")[1])
    assert body["contenders"][0]["config"] == plan["config"]
    assert body["contenders"][0]["predicted"]["time_us"] == plan["predicted"]["time_us"]
    times = [c["predicted"]["time_us"] for c in body["contenders"]]
    assert times == sorted(times)
    assert all(0.5 <= flip["factor"] <= 2.0 for flip in body["flips"]["flips"])


def test_measured_beside_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """A prediction written as a trace, read back as if it had been recorded: every ratio is 1."""
    assert run(capsys, *GEMM, "--trace", "a.json", "--iterations", "64", "--json")[0] == 0
    trace = json.loads(Path("a.json").read_text())
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["tid"].startswith("warp")]
    for event in trace["traceEvents"]:
        event["pid"], event["ts"] = "gemm_kernel Core5 CTA5", event["ts"] + 1e6
    Path("r.chrome_trace").write_text(json.dumps(trace))
    status, out, _ = run(
        capsys, *GEMM, "--iterations", "8", "--measured", "r.chrome_trace", "--svg", "m.svg", "--html", "m.html",
        "--trace", "m.json",
    )  # fmt: skip
    assert status == 0
    table = out.split("Predicted and measured, median cycles")[1].split("\n\n")[0]
    for phase in ("initiation interval", "multiply", "load issue", "epilogue"):
        assert re.search(rf"{phase} .* 1\.00\n", table), table
    assert "measured: warps" in out
    assert "measured: warps" in Path("m.svg").read_text()
    assert "Predicted and measured" in Path("m.html").read_text()
    assert {e["pid"] for e in json.loads(Path("m.json").read_text())["traceEvents"]} == {
        "gemm predicted Core0 CTA0", "gemm predicted units", "gemm_kernel Core5 CTA5",
    }  # fmt: skip


def test_a_graph_without_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    Path("g.json").write_text(changed())
    status, out, _ = run(capsys, "explain", "g.json", "--depth", "9", "--svg", "a.svg")
    assert status == 1
    assert "status        infeasible" in out
    assert "9 slots of each ring" in out
    assert not Path("a.svg").exists()
    status, out, _ = run(capsys, "explain", "g.json", "--depth", "9", "--json")
    assert (status, json.loads(out)["outcome"]["status"]) == (1, "infeasible")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["gem"],
            "unknown kernel or graph file 'gem': expected one of gemm, gemm_bias_act, grouped_gemm, attention_fwd, "
            "attention_decode, attention_bwd, vector_add, GRAPH",
        ),
        (["gemm", "M=64", "N=64"], "needs K"),
        (["gemm", "M=64", "N=64", "K=NaN"], "'NaN' is not a whole number"),
        (["gemm", "64"], "'64' is no size"),
        (["gemm", "M=64", "N=64", "K=64", "--dtype", "int8"], "unknown dtype 'int8'"),
        (["gemm", "M=64", "N=64", "K=64", "--device", "TPU"], "unknown device 'TPU'"),
        (["gemm", "M=64", "N=64", "K=64", "--profile", "no.json"], "no.json: cannot be read"),
        (["no.json"], "no.json: cannot be read: No such file"),
        (["g.json", "M=4"], "'M=4' after a graph file: only kernels have sizes"),
        (["g.json", "--iterations", "0"], "--iterations"),
        (["g.json", "--iterations", "100000"], "--iterations"),
        (["g.json", "--depth", "0"], "--depth"),
        (["g.json", "--svg", "no/a.svg"], "no/a.svg cannot be written: its folder no does not exist"),
        (["g.json", "--html", "."], "cannot be written: Is a directory"),
        (["g.json", "--trace", "g.json/a.json"], "cannot be written"),
        (["g.json", "--measured", "no.trace"], "no.trace cannot be read"),
        (["g.json", "--measured", "g.json"], "g.json: no Chrome trace"),
        (["g.json", "--measured", "empty.json"], "empty.json holds none of the scopes"),
        (["g.json", "--measured", "one.json"], "more iterations of K"),
        (["cut.json"], "cut.json:1: not JSON"),
        (["dangling.json"], "dangling.json: edge load -> nma names operation 'nma'"),
        (["circle.json"], "operations load, mma form a cycle of distance 0"),
        ([], "Missing argument"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    Path("cut.json").write_text(json.dumps(GRAPH)[:300])
    Path("dangling.json").write_text(changed(edges=[{"src": "load", "dst": "nma"}]))
    Path("circle.json").write_text(changed(edges=[{"src": "load", "dst": "mma"}, {"src": "mma", "dst": "load"}]))
    Path("empty.json").write_text('{"traceEvents": []}')
    once = {"ph": "X", "name": "mma", "pid": "k Core0 CTA0", "tid": "warp 0 (line 0)", "ts": 0, "dur": 1}
    Path("one.json").write_text(json.dumps({"traceEvents": [once]}))
    assert says in bad(capsys, "explain", *arguments)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"\b{command}\b", out) for command in ("solve", "pack", "explain"))

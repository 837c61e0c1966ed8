"""``warpplan solve`` as a user runs it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from warpplan.planner.check.plan_check import check
from warpplan.planner.values import codec
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Outcome
from warpplan.service.cli.app import main

COMMAND = [sys.executable, "-m", "warpplan.service.cli.app"]
EXAMPLES = Path(__file__).parents[4] / "shared" / "data" / "minimalloc"
GRAPH: dict[str, Any] = {
    "schema": "warpplan/graph-1",
    "name": "gemm 128x256x64",
    "ops": [
        {"id": "load", "unit": "TMA", "latency": 700, "occupancy": 288, "issue": 30, "buffer_bytes": 49152},
        {
            "id": "mma",
            "unit": "TENSOR",
            "latency": 560,
            "occupancy": 512,
            "issue": 120,
            "min_warps": 4,
            "registers": 128,
        },
    ],
    "edges": [
        {"src": "load", "dst": "mma"},
        {"src": "mma", "dst": "mma", "distance": 1, "latency": 512},
    ],
    "limits": {"max_partitions": 2, "handoff_cycles": 60},
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def bad(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Assert exit 2 with exactly one clear line on stderr, and return it."""
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert re.fullmatch(r"warpplan: error: [^\n]+\n", err), err
    assert out == ""
    return err


def changed(**fields: object) -> str:
    """:data:`GRAPH` with other fields; ``mma__latency`` is a field of that operation."""
    body = json.loads(json.dumps(GRAPH))
    for name, value in fields.items():
        op, _, cost = name.partition("__")
        if cost:
            next(o for o in body["ops"] if o["id"] == op)[cost] = value
        else:
            body[name] = value
    return json.dumps(body)


def test_solve_shows_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    Path("g.json").write_text(json.dumps(GRAPH))
    status, out, err = run(capsys, "solve", "g.json")
    assert (status, err) == (0, "")
    assert "status        optimal" in out
    assert "II            512 cycles" in out
    assert "proven bound  512 cycles, gap 0" in out
    assert "unit TENSOR" in out
    lines = [line.split() for line in out.splitlines()]
    for head in ("operation partition cycle stage phase", "partition warps registers operations"):
        assert head.split() in lines
    assert [words[0] for words in lines if words and words[0] in ("load", "mma")] == ["load", "mma", "load", "load"]
    assert re.search(r"\d+ of 232448 B of shared memory", out)


def test_solve_as_json_from_stdin(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [*COMMAND, "solve", "-", "--json", "--depth", "3", "--slack", "100"],
        input=json.dumps(GRAPH), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    outcome = codec.loads(done.stdout, kind=Outcome)
    assert (outcome.status, outcome.plan.schedule.ii_cycles, outcome.plan.channels[0].depth) == ("optimal", 512, 3)
    assert check(outcome.plan, codec.loads(json.dumps(GRAPH), kind=DependenceGraph), slack_cycles=100) == ()


def test_solve_of_what_has_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    Path("g.json").write_text(json.dumps(GRAPH))
    status, out, err = run(capsys, "solve", "g.json", "--depth", "9")
    assert (status, err) == (1, "")
    assert "status        infeasible" in out
    assert "9 slots of each ring and the extra buffers take 442368 of 232448 bytes of shared memory" in out
    status, out, _ = run(capsys, "solve", "g.json", "--depth", "9", "--json")
    assert (status, json.loads(out)["status"]) == (1, "infeasible")
    assert "442368" in json.loads(out)["reason"]


EDGE = GRAPH["edges"][0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "g.json:1: not JSON"),
        (json.dumps(GRAPH)[:200], "g.json:1: not JSON"),
        ("[" * 100_000, "g.json: not JSON"),
        ("[]", "g.json: the document is []: expected an object"),
        ("{}", "g.json: schema is missing: expected one of warpplan/graph-1"),
        (changed(schema="warpplan/graph-9"), "'warpplan/graph-9' is newer"),
        (changed(schema="warpplan/plan-1"), "'warpplan/plan-1' is not the 'warpplan/graph-1' expected"),
        (changed(mma__latency=-5), "g.json: operation 'mma' has latency -5: expected a whole number of 0 or more"),
        (changed(mma__occupancy=0.5), "g.json: ops[1](mma).occupancy is 0.5: expected a whole number"),
        (changed(mma__issue="12"), "g.json: ops[1](mma).issue is '12': expected a whole number"),
        (changed(mma__latency=True), "ops[1](mma).latency is True"),
        (changed(mma__latency=10**30), "operation 'mma' has latency 10000"),
        (changed(mma__latency=float("nan")), "g.json: ops[1](mma).latency is nan: expected a whole number"),
        (changed(mma__latency=float("inf")), "g.json: ops[1](mma).latency is inf: expected a whole number"),
        (changed(mma__latency=int("9" * 4000)).replace("9" * 4000, "9" * 5000), "the number 99999999999999999999… has"),
        (json.dumps(GRAPH).replace('"latency": 560', '"latency": 560, "latency": 5'), "field 'latency'(mma) is given"),
        (changed(name="a\ud800"), "name is 'a\\ud800': expected text"),
        (changed(load__buffer_bytes=300_000), "operation 'load' writes 300000 bytes, more than the 232448 bytes"),
        (changed(load__buffer_bytes=300_000, load__memory="tmem"), "more than the 262144 bytes of 128 lanes of tensor"),
        (changed(mma__registers=10**30), "operation 'mma' has registers 1000"),
        (changed(limits={"max_partitions": 33}), "limits.max_partitions is 33: expected at most 32"),
        (changed(limits={"smem_bytes": 10**30}), "limits.smem_bytes is 1000"),
        (changed(limits={"handoff_cycles": 1.5}), "limits.handoff_cycles is 1.5: expected a whole number"),
        (changed(units={"TMA": 10**9, "TENSOR": 1}), "unit 'TMA' has capacity 1000000000: expected at most 1000"),
        (changed(edges=[{**EDGE, "latency": -4}]), "edge load -> mma has latency -4"),
        (changed(edges=[EDGE] * 110_000), "has 110000 edges: at most 100000"),
        (changed(mma__unit="GPU"), "operation 'mma' uses unknown unit 'GPU': expected one of TMA, TENSOR"),
        (changed(mma__id="load"), "operation 'load' appears twice"),
        (changed(mma__latancy=5), "unknown field ops[1](mma).latancy"),
        (changed(mma__min_warps=16), "operation 'mma' has min_warps 16"),
        (changed(load__alignment=24), "operation 'load' has alignment 24"),
        (changed(units={"TMA": 0, "TENSOR": 1}), "unit 'TMA' has capacity 0"),
        (changed(edges=[{"src": "load", "dst": "nma"}]), "edge load -> nma names operation 'nma', which does not"),
        (changed(edges=[{**EDGE, "distance": -1}]), "edge load -> mma has distance -1"),
        (changed(edges=[{**EDGE, "kind": "date"}]), "edges[0].kind is 'date'"),
        (changed(edges=[EDGE, {"src": "mma", "dst": "load"}]), "operations load, mma form a cycle of distance 0"),
        (changed(edges=[{"src": "mma", "dst": "mma"}]), "operations mma form a cycle of distance 0"),
        (changed(ops=[], edges=[]), "graph 'gemm 128x256x64' has no operations"),
        (changed(limits={"max_partitions": 0}), "limits.max_partitions is 0"),
        (changed(ops=[{**GRAPH["ops"][0], "id": f"o{i}"} for i in range(100_000)], edges=[]), "has 100000 ops: at"),
    ],
    ids=lambda value: None if len(value) > 90 else value,
)  # fmt: skip
def test_solve_of_bad_graphs(capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    Path("g.json").write_text(text)
    err = bad(capsys, "solve", "g.json")
    assert says in err
    assert err.startswith("warpplan: error: g.json")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no.json"], "no.json: cannot be read: No such file"),
        (["."], ".: cannot be read: Is a directory"),
        ([], "Missing argument 'graph'"),
        (["g.json", "--depth", "0"], "--depth"),
        (["g.json", "--slack", "-1"], "--slack"),
        (["g.json", "--time-limit", "-1"], "--time-limit"),
        (["g.json", "--time-limit", "soon"], "--time-limit"),
    ],
)
def test_solve_with_bad_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    Path("g.json").write_text(json.dumps(GRAPH))
    assert says in bad(capsys, "solve", *arguments)


def test_solve_with_costs_beyond_64_bits_says_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.loads(changed(load__latency=5 * 10**8, load__buffer_bytes=8))
    Path("g.json").write_text(json.dumps({**body, "limits": {**body["limits"], "smem_bytes": 2**40}}))
    err = bad(capsys, "solve", "g.json")
    assert "latency of operation 'load' is 500000000 cycles" in err
    assert "scale all cycles down" in err
    Path("g.json").write_text(json.dumps(body))
    assert run(capsys, "solve", "g.json")[0] == 0


@pytest.mark.parametrize("limits", [[], ["--work-limit", "5"], ["--time-limit", "5", "--work-limit", "2"]])
def test_either_limit_or_both_may_be_given(capsys, limits):
    Path("g.json").write_text(json.dumps(GRAPH))
    status, out, _ = run(capsys, "solve", "g.json", "--json", *limits)
    assert (status, json.loads(out)["status"]) == (0, "optimal")


def test_a_work_limit_is_more_than_nothing(capsys):
    Path("g.json").write_text(json.dumps(GRAPH))
    assert "--work-limit" in bad(capsys, "solve", "g.json", "--work-limit", "0")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_print_what_is_known_by_then(tmp_path: Path, sent: signal.Signals) -> None:
    ops = [
        {"id": f"o{i}", "unit": "ALU", "latency": 5 + i * 7 % 23, "occupancy": 1 + i * 5 % 11, "issue": 3}
        for i in range(60)
    ]
    edges = [{"src": f"o{i}", "dst": f"o{(i * 17 + 5) % 60}", "distance": 1 + i % 3} for i in range(60)]
    edges += [{"src": f"o{i}", "dst": f"o{i + 1}", "distance": 0} for i in range(0, 59, 2)]
    units = {"ALU": 3}
    limits = {"max_partitions": 4, "handoff_cycles": 9, "barrier_cycles": 2}
    graph = {"schema": "warpplan/graph-1", "name": "long", "ops": ops, "edges": edges, "units": units, "limits": limits}
    (tmp_path / "long.json").write_text(json.dumps(graph))
    solving = subprocess.Popen(
        [*COMMAND, "solve", str(tmp_path / "long.json"), "--time-limit", "100", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(6)
    solving.send_signal(sent)
    out, err = solving.communicate(timeout=20)
    assert solving.returncode == 130
    assert err.splitlines()[-1] == "warpplan: interrupted"
    answer = json.loads(out)
    assert answer["status"] in ("feasible", "unknown")
    assert answer["reason"] == "interrupted"
    assert answer["ii_lower_bound"] >= 1
    assert answer["solve_seconds"] > 0


def test_solve_seconds_are_those_of_the_clock(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps(GRAPH))
    began = time.monotonic()
    assert main(["solve", str(tmp_path / "g.json"), "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["solve_seconds"] <= time.monotonic() - began


def test_a_cyclic_project_with_shared_resources(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    jobs = [
        {"id": f"j{i}", "unit": None, "latency": 4, "occupancy": 4, "issue": 0, "demands": {"crew": 2}}
        for i in range(3)
    ]
    graph = {"schema": "warpplan/graph-1", "name": "project", "ops": jobs, "edges": []}
    graph["limits"] = {"max_partitions": 1, "capacities": {"crew": 5}}
    (tmp_path / "g.json").write_text(json.dumps(graph))
    assert main(["solve", str(tmp_path / "g.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ii"] == 6
    graph["limits"]["capacities"] = {"crew": 1}
    (tmp_path / "g.json").write_text(json.dumps(graph))
    assert main(["solve", str(tmp_path / "g.json"), "--json"]) == 1
    assert "'j0' demands 2 of resource 'crew', of which there are 1" in json.loads(capsys.readouterr().out)["reason"]
    jobs[0]["demands"] = {"crew": 0}
    (tmp_path / "g.json").write_text(json.dumps(graph))
    assert main(["solve", str(tmp_path / "g.json")]) == 2
    assert "demand 0 of resource 'crew': expected a whole number of 1 or more" in capsys.readouterr().err

"""Plans over HTTP: a real server on a socket, real SQLite files, real children that solve."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import InvalidInput
from warpplan.planner.solve import SolveOptions, solve
from warpplan.planner.values import codec
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.timeline import Timeline
from warpplan.service.http import plan_timeline
from warpplan.service.http.app import create_app
from warpplan.service.http.problem_json import problem_of
from warpplan.service.solving.plan_queue import MOST_CLAIMS, Plans, QueueFull, UnknownPlan
from warpplan.service.solving.plan_request import PlanRequest
from warpplan.service.solving.solver_process import Stopped, clock_limit_s, solve_apart
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow

PATIENCE_S = 120.0
"""Nothing here takes so long; a busy machine may."""
GRAPH: dict[str, Any] = {
    "schema": "warpplan/graph-1",
    "name": "gemm <128x256x64>",
    "ops": [
        {"id": "load", "unit": "TMA", "latency": 700, "occupancy": 288, "issue": 30, "buffer_bytes": 49152},
        {"id": "mma", "unit": "TENSOR", "latency": 560, "occupancy": 512, "issue": 120, "min_warps": 4},
    ],
    "edges": [{"src": "load", "dst": "mma"}, {"src": "mma", "dst": "mma", "distance": 1, "latency": 512}],
    "limits": {"max_partitions": 2, "handoff_cycles": 60},
}


def endless(seed: int = 1, count: int = 200) -> dict[str, Any]:
    """A loop that takes minutes: random operations on all units, four partitions, barriers that cost."""
    draw = random.Random(seed)
    ops = [
        {
            "id": f"o{i}", "unit": draw.choice(["ALU", "SFU", "LSU", "TENSOR", "TMA"]),
            "latency": draw.randint(20, 400), "occupancy": draw.randint(10, 60), "issue": draw.randint(2, 10),
        }
        for i in range(count)
    ]  # fmt: skip
    edges: list[dict[str, Any]] = [{"src": f"o{draw.randrange(i)}", "dst": f"o{i}"} for i in range(1, count)]
    for _ in range(count // 6):
        src, dst = draw.randrange(count // 2, count), draw.randrange(count // 2)
        edges.append({"src": f"o{src}", "dst": f"o{dst}", "distance": draw.randint(1, 2)})
    limits = {"max_partitions": 4, "handoff_cycles": 60, "barrier_cycles": 20}
    return {"schema": "warpplan/graph-1", "name": f"endless {seed}", "ops": ops, "edges": edges, "limits": limits}


ENDLESS = {"graph": endless(), "options": {"time_limit_s": 600}}


def request(changes: dict[str, Any] | None = None, **options: Any) -> PlanRequest:
    return PlanRequest.of(GRAPH | (changes or {}), options)


def problem(reply: httpx.Response, status: int, field: str | None = None) -> dict[str, Any]:
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json"), reply.text
    body: dict[str, Any] = reply.json()
    assert field is None or body["field"] == field, body
    return body


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        time.sleep(0.05)


def finished(http: httpx.Client, location: str) -> dict[str, Any]:
    until(lambda: http.get(location).json()["state"] in ("done", "failed"), f"the end of {location}")
    body: dict[str, Any] = http.get(location).json()
    return body


def children(parent: int) -> list[int]:
    """The processes that ``parent`` has started to solve something."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat, command = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent and b"isolate" in command:
                found.append(int(entry.name))
    return found


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def start(serve: Callable[..., str], store: Store) -> Iterator[Callable[..., httpx.Client]]:
    """Serve the store with so many solvers; gives a client."""
    clients = []

    def started(**settings: Any) -> httpx.Client:
        url = serve(create_app(Workflow(store), **settings))
        clients.append(httpx.Client(base_url=url, timeout=60))
        return clients[-1]

    yield started
    for client in clients:
        client.close()


def test_asked_for_solved_drawn_and_forgotten(start: Callable[..., httpx.Client]) -> None:
    http = start(solvers=1)
    first = http.post("/v1/plans", json={"graph": GRAPH})
    assert first.status_code == 202
    location, plan_id = first.headers["location"], first.json()["id"]
    assert location == f"/v1/plans/{plan_id}"
    loop = codec.from_json(GRAPH, DependenceGraph)
    asked = {
        "graph": codec.to_json(loop),
        "options": {"depth": None, "slack_cycles": 0, "time_limit_s": 10.0},
    }
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert plan_id == hashlib.sha256(canonical.encode()).hexdigest()

    done = finished(http, location)
    assert (done["state"], done["status"], done["problem"]) == ("done", "optimal", None)
    assert done["options"] == asked["options"]
    outcome = codec.from_json(done["outcome"], Outcome)
    assert check(outcome.plan, loop) == ()
    assert codec.key(outcome.plan) == codec.key(solve(loop, SolveOptions()).plan)
    ii = outcome.plan.schedule.ii_cycles
    assert (done["progress"]["ii_best"], done["progress"]["ii_lower_bound"]) == (ii, outcome.bound)
    assert done["submitted_at"] < done["started_at"] < done["finished_at"]

    # The same question, its defaults written out and its fields in another order, is the same plan.
    spelled = {"options": {"time_limit_s": 10, "depth": None}, "graph": dict(reversed(GRAPH.items())) | {"clones": []}}
    again = http.post("/v1/plans", json=spelled)
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, plan_id, "done")
    assert http.get(location).json() == done

    played = http.get(f"{location}/timeline?iterations=3")
    assert played.headers["content-type"] == "application/json"
    assert codec.from_json(played.json(), Timeline).trip_count == 3
    for accept, media_type, begins in (
        ("image/svg+xml", "image/svg+xml", "<svg"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8", "<!DOCTYPE html>"),
        ("image/*;q=0.2, application/json;q=0.1", "image/svg+xml", "<svg"),
    ):
        shown = http.get(f"{location}/timeline", headers={"Accept": accept})
        assert (shown.status_code, shown.headers["content-type"]) == (200, media_type)
        assert shown.text.startswith(begins)
        assert "gemm &lt;128x256x64&gt;" in shown.text
        assert "gemm <128" not in shown.text
        assert "script-src 'unsafe-inline'" in shown.headers["content-security-policy"]
    by_name = http.get(f"{location}/timeline?format=svg", headers={"Accept": "text/html"})
    assert by_name.headers["content-type"] == "image/svg+xml"
    problem(http.get(f"{location}/timeline", headers={"Accept": "text/plain"}), 406, "Accept")
    problem(http.get(f"{location}/timeline?format=png"), 422, "format")
    problem(http.get(f"{location}/timeline?iterations=1001"), 422, "iterations")

    metrics = http.get("/metrics").text
    assert 'warpplan_plans_submitted_total{new="true"} 1\n' in metrics
    assert 'warpplan_plans_submitted_total{new="false"} 1\n' in metrics
    assert 'warpplan_plans_total{outcome="optimal"} 1\n' in metrics
    assert re.search(r"^warpplan_plan_seconds_total \d", metrics, re.MULTILINE)
    assert '# TYPE warpplan_plans gauge\nwarpplan_plans{state="done"} 1' in metrics

    assert http.delete(location).status_code == 204
    for gone in (http.get(location), http.delete(location), http.get(f"{location}/timeline")):
        problem(gone, 404, "id")


BIG = [{**GRAPH["ops"][0], "id": f"o{i}"} for i in range(10_001)]


def changed(op: int, **fields: object) -> dict[str, Any]:
    ops = [dict(o) for o in GRAPH["ops"]]
    ops[op] |= fields
    return {"graph": GRAPH | {"ops": ops}}


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({}, "graph", "graph"),
        ({"graph": []}, "graph", "graph"),
        ({"graph": {}}, "graph.schema", "schema is missing"),
        ({"graph": GRAPH, "option": {}}, "option", "option"),
        ({"graph": GRAPH, "options": {"time_limit_s": 0}}, "options.time_limit_s", "time_limit_s"),
        ({"graph": GRAPH, "options": {"time_limit_s": 1e9}}, "options.time_limit_s", "600"),
        ({"graph": GRAPH, "options": {"time_limit_s": "NaN"}}, "options.time_limit_s", "number"),
        ({"graph": GRAPH, "options": {"depth": 0}}, "options.depth", "depth"),
        ({"graph": GRAPH, "options": {"depth": 1.5}}, "options.depth", "depth"),
        ({"graph": GRAPH, "options": {"slack_cycles": -1}}, "options.slack_cycles", "slack_cycles"),
        ({"graph": GRAPH, "options": {"workers": 8}}, "options.workers", "workers"),
        (changed(1, unit="GPU"), "graph.ops.unit", "operation 'mma' uses unknown unit 'GPU'"),
        (changed(1, latency=-5), "graph.ops.latency", "operation 'mma' has latency -5"),
        (changed(1, latency=0.5), "graph.ops[1](mma).latency", "0.5: expected a whole number"),
        (changed(1, latency=float("nan")), "graph.ops[1](mma).latency", "nan: expected a whole number"),
        (changed(1, id="load"), "graph.ops.id", "operation 'load' appears twice"),
        (changed(1, id="\ud800"), "graph.ops[1].id", "halves of characters"),
        (changed(1, **{"\ud800": 1}), "graph.ops[1](mma).\ud800", "unknown field"),
        (changed(0, buffer_bytes=300_000), "graph.ops.buffer_bytes", "'load' writes 300000 bytes, more than"),
        ({"graph": GRAPH | {"edges": [{"src": "load", "dst": "nma"}]}}, "graph.edges", "'nma', which does not exist"),
        ({"graph": GRAPH | {"edges": [{"src": "mma", "dst": "mma"}]}}, "graph.edges.distance", "cycle of distance 0"),
        ({"graph": GRAPH | {"ops": BIG, "edges": []}}, "graph.ops", "has 10001 ops: at most 10000"),
    ],
)  # fmt: skip
def test_bad_requests_name_the_element(
    start: Callable[..., httpx.Client], body: dict[str, Any], field: str, says: str
) -> None:
    http = start(solvers=0)
    headers = {"Content-Type": "application/json"}
    found = problem(http.post("/v1/plans", content=json.dumps(body), headers=headers), 422, field)
    assert says in found["detail"]
    assert http.get("/v1/plans").json() == {"plans": [], "next": None}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path into a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_stands_in_a_request_it_is_planned_or_refused_in_one_line(data: st.DataObject) -> None:
    """One element of a good graph, or one more field, replaced by any JSON."""
    graph = json.loads(json.dumps(GRAPH))
    *path, last = data.draw(st.sampled_from([p for p in places(graph) if p]))
    holder = graph
    for key in path:
        holder = holder[key]
    if isinstance(holder, dict) and data.draw(st.booleans()):
        last = data.draw(st.sampled_from([*holder, "clones", "handoff", "registers", "distance", "units", "x"]))
    holder[last] = data.draw(JSON)
    try:
        asked = PlanRequest.of(graph, {})
        assert PlanRequest.read(asked.text).id == asked.id
    except InvalidInput as error:
        said = problem_of(error)
        assert "\n" not in said["detail"]
        assert said["field"]
        json.dumps(said).encode()


def test_truncated_and_nested_bodies(start: Callable[..., httpx.Client]) -> None:
    http = start(solvers=0)
    headers = {"Content-Type": "application/json"}
    text = json.dumps({"graph": GRAPH})
    assert "not JSON" in problem(http.post("/v1/plans", content=text[:300], headers=headers), 422, "body")["detail"]
    assert 400 <= http.post("/v1/plans", content="[" * 100_000, headers=headers).status_code < 500
    problem(http.post("/v1/plans", content=" " * (2 << 20), headers=headers), 413, "body")


def test_without_a_store(serve: Callable[..., str]) -> None:
    url = serve(create_app(Workflow()))
    problem(httpx.post(f"{url}/v1/plans", json={"graph": GRAPH}), 503, "store")
    assert "warpplan_plans{" not in httpx.get(f"{url}/metrics").text


def test_a_full_queue_refuses_and_forgetting_makes_room(start: Callable[..., httpx.Client]) -> None:
    http = start(solvers=1, max_queued=1)
    running = http.post("/v1/plans", json=ENDLESS).headers["location"]
    until(lambda: http.get(running).json()["state"] == "running", "a solver")
    queued = http.post("/v1/plans", json={"graph": GRAPH}).headers["location"]
    full = http.post("/v1/plans", json={"graph": endless(2)})
    assert problem(full, 503, "plans")["limit"] == 1
    assert full.headers["retry-after"].isdigit()
    assert http.get(queued).headers["retry-after"].isdigit()
    # What waits already is no new work, and the server answers meanwhile.
    assert http.post("/v1/plans", json={"graph": GRAPH}).json()["state"] == "queued"
    assert problem(http.get(f"{queued}/timeline"), 409, "state")["value"] == "queued"
    assert http.get("/healthz").json() == {"status": "ok"}
    until(lambda: len(children(os.getpid())) == 1, "the child")
    (child,) = children(os.getpid())
    assert http.delete(running).status_code == 204
    until(lambda: not alive(child), "the end of the child")
    assert finished(http, queued)["status"] == "optimal"
    metrics = http.get("/metrics").text
    assert 'warpplan_plans_total{outcome="forgotten"} 1\n' in metrics
    assert "warpplan_plans_refused_total 1\n" in metrics


def test_a_solver_that_dies_is_a_failure_and_is_tried_again_when_asked(start: Callable[..., httpx.Client]) -> None:
    http = start(solvers=1)
    location = http.post("/v1/plans", json=ENDLESS).headers["location"]
    until(lambda: bool(children(os.getpid())), "the child")
    os.kill(children(os.getpid())[0], signal.SIGKILL)
    failed = finished(http, location)
    assert (failed["state"], failed["outcome"]) == ("failed", None)
    assert failed["problem"]["type"] == "urn:warpplan:problem:solver-crash"
    assert "SIGKILL" in failed["problem"]["detail"]
    assert "SIGKILL" in problem(http.get(f"{location}/timeline"), 409, "state")["detail"]
    assert 'warpplan_plans_total{outcome="crash"} 1\n' in http.get("/metrics").text
    again = http.post("/v1/plans", json=ENDLESS)
    assert again.headers["location"] == location
    assert again.json()["state"] == "queued"
    until(lambda: http.get(location).json()["state"] == "running", "another try")
    assert http.get(location).json()["problem"] is None


def test_a_loop_without_a_plan_has_no_time_line(start: Callable[..., httpx.Client]) -> None:
    http = start(solvers=1)
    body = {"graph": GRAPH, "options": {"depth": 9}}
    location = http.post("/v1/plans", json=body).headers["location"]
    done = finished(http, location)
    assert (done["state"], done["status"]) == ("done", "infeasible")
    assert "442368 of 232448 bytes" in done["outcome"]["reason"]
    assert "442368" in problem(http.get(f"{location}/timeline"), 409, "status")["detail"]


LIMITS_S = (3.0, 15.0, PATIENCE_S)
"""The first that is long enough for the child to start on this machine."""


def test_a_time_line_has_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_timeline, "MAX_SPANS", 8)
    plans, asked = Plans(store.database), request()
    plans.submit(asked, "p", most_queued=1)
    claim = plans.claim(60, "p")
    assert claim is not None
    plans.finish(claim, codec.to_json(solve(asked.graph, asked.options)), None)
    kept = plans.get(claim.id)
    played = codec.from_json(json.loads(plan_timeline.timeline(kept, None, "json")), Timeline)
    assert (played.trip_count, len(played.spans)) == (4, 8)
    with pytest.raises(InvalidInput, match="5 iterations of 2 operations: at most 4 can be shown"):
        plan_timeline.timeline(kept, 5, "svg")


def test_a_child_that_overruns_is_killed() -> None:
    text = PlanRequest.of(ENDLESS["graph"], {"time_limit_s": 600}).text
    beats: list[object] = []
    for limit_s in LIMITS_S:
        solved = solve_apart(text, limit_s, beats.append)
        assert (solved.kind, solved.outcome) == ("timeout", None)
        assert solved.reason == f"the solver had not ended after {limit_s:g} s and was killed"
        assert children(os.getpid()) == []
        if beats:
            return
    pytest.fail("the child never started")


def test_a_child_that_hangs_is_killed() -> None:
    """Stopped by a signal it does not even beat."""
    text = PlanRequest.of(ENDLESS["graph"], {"time_limit_s": 600}).text
    stopped: list[int] = []

    def freeze(_: object) -> None:
        if not stopped:
            stopped.extend(children(os.getpid()))
            os.kill(stopped[0], signal.SIGSTOP)

    for limit_s in LIMITS_S:
        assert solve_apart(text, limit_s, freeze).kind == "timeout"
        if stopped:
            break
    assert not alive(stopped[0])
    assert clock_limit_s(10.0) > 10.0


def test_what_the_watcher_raises_ends_the_child() -> None:
    def enough(_: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        solve_apart(PlanRequest.of(ENDLESS["graph"], {}).text, PATIENCE_S, enough)
    assert children(os.getpid()) == []


def test_an_error_in_the_solver_is_told() -> None:
    solved = solve_apart('{"graph": {}, "options": {}}', PATIENCE_S, lambda _: None)
    assert (solved.kind, solved.outcome) == ("error", None)
    assert "InvalidInput: schema is missing" in solved.reason


@contextmanager
def server(store: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [sys.executable, "-m", "warpplan.service.cli.app", "serve", "--port", "0", "--store", str(store)]
    process = subprocess.Popen([*command, "--solvers", "1"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        found = re.search(r"http://[\d.:]+", said)
        assert found, said
        with httpx.Client(base_url=found[0], timeout=60) as http:
            yield process, http
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stderr.close()


def test_restarts_lose_nothing(tmp_path: Path) -> None:
    """Killed, a server leaves a claim that runs out; asked to stop, it gives the plan back at once."""
    path = tmp_path / "s.sqlite"
    with server(path) as (process, http):
        done = http.post("/v1/plans", json={"graph": GRAPH}).headers["location"]
        answer = finished(http, done)
        running = http.post("/v1/plans", json=ENDLESS).headers["location"]
        until(lambda: http.get(running).json()["state"] == "running", "a solver")
        until(lambda: len(children(process.pid)) == 1, "the child")
        (child,) = children(process.pid)
        process.kill()
        process.wait(PATIENCE_S)
        until(lambda: not alive(child), "the end of the orphan")
    rows = sqlite3.connect(path, isolation_level=None)
    assert rows.execute("SELECT state FROM solves WHERE name LIKE 'endless%'").fetchall() == [("running",)]
    ((before, ends),) = rows.execute("SELECT claim, claimed_until FROM solves WHERE state = 'running'").fetchall()
    assert 0 < ends - time.time() <= 30
    rows.execute("UPDATE solves SET claimed_until = 0 WHERE state = 'running'")  # instead of 30 seconds

    with server(path) as (process, http):
        assert http.get(done).json() == answer

        def taken_up() -> bool:
            return rows.execute("SELECT claim FROM solves WHERE state = 'running'").fetchone() != (before,)

        until(taken_up, "another claim")
        until(lambda: len(children(process.pid)) == 1, "the child")
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        assert rows.execute("SELECT state, claim, claims FROM solves ORDER BY submitted_at").fetchall() == [
            ("done", None, 1), ("queued", None, 1),
        ]  # fmt: skip
    rows.close()


def test_an_answer_waits_for_a_locked_store(start: Callable[..., httpx.Client], store: Store) -> None:
    http = start(solvers=1)
    location = http.post("/v1/plans", json={"graph": GRAPH}).headers["location"]
    until(lambda: http.get(location).json()["state"] == "running", "a solver")
    other = sqlite3.connect(store.name, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    until(lambda: not children(os.getpid()), "the end of the child")
    assert http.get(location).json()["state"] == "running"
    other.execute("ROLLBACK")
    other.close()
    assert finished(http, location)["status"] == "optimal"


def test_pages(start: Callable[..., httpx.Client]) -> None:
    http = start(solvers=0)
    names = [f"loop {n}" for n in range(5)]
    for name in names:
        assert http.post("/v1/plans", json={"graph": GRAPH | {"name": name}}).json()["state"] == "queued"
    seen, after = [], None
    for _ in range(3):
        page = http.get("/v1/plans", params={"limit": 2} | ({"after": after} if after else {})).json()
        seen += [p["name"] for p in page["plans"]]
        after = page["next"]
    assert after is None
    assert seen == names[::-1]
    assert len(http.get("/v1/plans?state=queued").json()["plans"]) == 5
    assert http.get("/v1/plans?state=done").json() == {"plans": [], "next": None}
    for wrong in ("limit=0", "limit=201", "limit=x", "state=lost", "after=x"):
        problem(http.get(f"/v1/plans?{wrong}"), 422, wrong.partition("=")[0])


def test_a_plan_is_claimed_once(store: Store) -> None:
    plans = Plans(store.database)
    for n in range(12):
        plans.submit(request({"name": f"loop {n}"}), "p", most_queued=100)
    with ThreadPoolExecutor(6) as pool:
        claims = [c for c in pool.map(lambda _: plans.claim(60, "p"), range(24)) if c is not None]
    assert len({c.id for c in claims}) == len(claims) == 12
    assert plans.claim(60, "p") is None
    assert plans.counts() == {"queued": 0, "running": 12, "done": 0, "failed": 0}


def test_claims_end_and_those_that_ended_change_nothing(store: Store) -> None:
    at = [0.0]
    plans = Plans(store.database, clock=lambda: at[0])
    summary, fresh = plans.submit(request(), "p", most_queued=1)
    assert fresh
    claim = plans.claim(10, "p")
    assert claim is not None
    at[0] = 9
    assert plans.renew(claim, 10, {"ii_asked": 5, "ii_lower_bound": 4, "ii_best": None})
    assert plans.get(summary.id).summary.progress == {"ii_asked": 5, "ii_lower_bound": 4, "ii_best": None}
    at[0] = 18
    assert plans.claim(10, "p") is None
    at[0] = 20
    other = plans.claim(10, "p")
    assert other is not None
    assert not plans.holds(claim)
    assert not plans.renew(claim, 10, None)
    assert not plans.finish(claim, {"status": "optimal"}, None)
    assert not plans.fail(claim, "crash", "late")
    assert not plans.release(claim)
    assert plans.holds(other)
    assert plans.finish(other, {"status": "feasible"}, None)
    kept = plans.get(summary.id)
    assert (kept.summary.state, kept.summary.status, kept.outcome) == ("done", "feasible", {"status": "feasible"})


def test_what_ends_every_server_is_given_up(store: Store) -> None:
    at = [0.0]
    plans = Plans(store.database, clock=lambda: at[0])
    summary, _ = plans.submit(request(), "p", most_queued=1)
    released = plans.claim(10, "p")
    assert released is not None
    assert plans.release(released)  # a server that stops in peace does not count
    for _ in range(MOST_CLAIMS):
        assert plans.claim(10, "p") is not None
        at[0] += 11
    assert plans.claim(10, "p") is None
    kept = plans.get(summary.id)
    assert kept.summary.state == "failed"
    assert kept.failure == {"kind": "lost", "reason": "the servers that solved it were lost 3 times: given up"}
    assert plans.submit(request(), "p", most_queued=1)[0].state == "queued"


def test_a_plan_of_another_planner_is_solved_anew(store: Store) -> None:
    plans = Plans(store.database)
    summary, _ = plans.submit(request(), "old", most_queued=1)
    claim = plans.claim(60, "old")
    assert claim is not None
    plans.finish(claim, {"status": "optimal"}, None)
    assert plans.submit(request(), "old", most_queued=1) == (plans.get(summary.id).summary, False)
    again, fresh = plans.submit(request(), "new", most_queued=1)
    assert (again.id, again.state, again.planner, fresh) == (summary.id, "queued", "new", True)
    assert plans.get(summary.id).outcome is None


def test_the_queue_has_an_end_and_forgotten_plans_are_unknown(store: Store) -> None:
    plans = Plans(store.database)
    first, _ = plans.submit(request({"name": "zero \0 byte"}), "p", most_queued=1)
    assert first.name == "zero \ufffd byte"
    with pytest.raises(QueueFull, match="1 plans wait"):
        plans.submit(request(depth=2), "p", most_queued=1)
    plans.forget(first.id)
    for use in (plans.get, plans.forget):
        with pytest.raises(UnknownPlan, match="there is no plan"):
            use(first.id)


def test_a_request_read_back_is_the_same() -> None:
    for options in ({}, {"depth": 3}, {"time_limit_s": 2.5, "slack_cycles": 7}):
        asked = request(**options)
        assert PlanRequest.read(asked.text).id == asked.id
    assert len({request().id, request(depth=1).id, request(slack_cycles=1).id, request({"name": "x"}).id}) == 4

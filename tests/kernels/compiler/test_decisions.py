"""What decisions are for, as JSON, in folders that ranks share, and from a service over real sockets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.launching import sources
from warpplan.kernels.compiler.launching.decisions import (
    Compiled,
    Decision,
    Folder,
    Situation,
    from_json,
    parse,
    to_json,
)
from warpplan.kernels.compiler.launching.dispatch import size_class
from warpplan.kernels.compiler.launching.planned import planned
from warpplan.kernels.compiler.launching.sources import Given, Service, open_source, require_plans
from warpplan.kernels.compiler.launching.sources import given as plan_given
from warpplan.kernels.compiler.sizes.gain_model import GainBasis, GainModel, LoopTrips, StrategyTerms
from warpplan.kernels.compiler.sizes.size_expressions import LaunchSizes
from warpplan.kernels.compiler.strategy.blackwell import BlackwellStrategy
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.recorded import strategy_text
from warpplan.kernels.plan_source import default_profile
from warpplan.planner.errors import InvalidInput, MalformedFile, StoreError
from warpplan.planner.values import codec
from warpplan.planner.values.profile import Profile

SITUATION = Situation("my.gemm", "abc", "(i32, 16)", (8, 9), "NVIDIA H200", "570.1", "3.6.0", "0.1.0")
DECISION = Decision(SITUATION, HopperStrategy(2, (3, 2)), measured=True, planned_us=80.5, unplanned_us=100.25)
LEFT = Decision(SITUATION, None, "softmax has no loop with TMA loads", failed=True)

TERMS = StrategyTerms((570.5,), 2200.0, 1300.0)
texts = st.text(max_size=20)
times = st.none() | st.floats(1e-3, 1e9)
decisions = st.builds(
    Decision,
    st.builds(
        Situation, texts, texts, texts, st.lists(st.integers(0, 64), max_size=5).map(tuple), texts, texts, texts, texts,
        texts,
    ),
    st.none() | st.builds(HopperStrategy, st.just(2), st.lists(st.integers(1, 8), min_size=1, max_size=3).map(tuple)),
    texts, st.booleans(), st.booleans(), times, times,
    st.none() | st.builds(Compiled, texts, st.lists(st.tuples(texts, texts), max_size=3).map(tuple)),
    st.booleans(), texts, st.none() | st.floats(1e-3, 1e3),
    st.none() | st.builds(
        GainBasis,
        st.just(GainModel(132, (LoopTrips(("counter", 0, ("argument", "K"), 64)),), (TERMS,), TERMS)),
        st.builds(
            LaunchSizes, st.lists(st.tuples(texts, st.integers()), max_size=3).map(tuple),
            st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
        ),
    ),
    st.lists(texts, max_size=3).map(tuple),
)  # fmt: skip


@given(decisions)
def test_round_trip(decision: Decision) -> None:
    assert from_json(json.loads(json.dumps(to_json(decision))), "here") == decision


@given(st.integers(0, 10_000))
def test_a_torn_file_is_no_decision(cut: int) -> None:
    text = json.dumps(to_json(DECISION))
    with pytest.raises(MalformedFile, match="torn"):
        from_json(parse(text[: min(cut, len(text) - 1)], "torn"), "torn")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", "warpplan/plan-9"),
        ("key", "0" * 64),
        ("scheme", {"consumers": 9, "depths": [3]}),
        ("scheme", {"consumers": 2, "depths": [3], "speed": 1}),
        ("scheme", [2, 3]),
        ("planned_us", float("nan")),
        ("planned_us", "fast"),
        ("situation", {"kernel": "x"}),
        ("situation", {**SITUATION.__dict__, "kernel": 3}),
        ("situation", {**SITUATION.__dict__, "sizes": ["8"]}),
        ("compiled", {"hash": "x"}),
        ("compiled", 3),
        ("basis", {"model": {}, "sizes": {"integers": [], "grid": [1]}}),
        ("predicted_gain", -1.0),
    ],
)
def test_nonsense_is_no_decision(field: str, value: object) -> None:
    with pytest.raises(MalformedFile, match="here"):
        from_json({**to_json(DECISION), field: value}, "here")


@pytest.mark.parametrize("value", [None, [], 3, "x", {}])
def test_other_json_is_no_decision(value: object) -> None:
    with pytest.raises(MalformedFile):
        from_json(value, "here")


def test_every_field_of_a_situation_counts() -> None:
    changed = {replace(SITUATION, **{name: "other"}).key for name in SITUATION.__dict__ if name != "sizes"}
    assert len(changed | {SITUATION.key, replace(SITUATION, sizes=(8,)).key}) == len(SITUATION.__dict__) + 1


def test_the_first_to_decide_wins(tmp_path: Path) -> None:
    """Ranks that measure at once come to one decision."""
    results: list[Decision] = []
    barrier = threading.Barrier(8)

    def rank(number: int) -> None:
        barrier.wait(60)
        results.append(Folder(tmp_path / "shared").settle(replace(DECISION, planned_us=80.0 + number)))

    threads = [threading.Thread(target=rank, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 8
    assert len(set(results)) == 1
    assert Folder(tmp_path / "shared").load(SITUATION) == results[0]
    assert [file.name for file in (tmp_path / "shared").iterdir()] == [f"{SITUATION.key}.json"], (
        "nothing is left beside"
    )


def test_what_was_tried_outranks_a_prediction(tmp_path: Path) -> None:
    predicted = Decision(SITUATION, HopperStrategy(1, (4,)))
    folder = Folder(tmp_path)
    assert folder.settle(predicted) == predicted
    assert folder.settle(DECISION) == DECISION
    assert folder.settle(predicted) == folder.settle(LEFT) == DECISION


def test_a_decision_without_what_came_later_is_read() -> None:
    """As written before decisions were carried."""
    later = ("provisional", "carried_from", "predicted_gain", "basis", "aliases")
    before = {name: value for name, value in to_json(DECISION).items() if name not in later}
    assert from_json(before, "here") == DECISION


def test_what_was_tried_beside_a_job_is_not_told_before_launches_have_shown_it(
    shelf: ThreadingHTTPServer, tmp_path: Path
) -> None:
    service = Service(f"http://127.0.0.1:{shelf.server_port}", Folder(tmp_path))
    service.settle(replace(DECISION, provisional=True))
    assert not shelf.kept  # type: ignore[attr-defined]
    assert service.settle(DECISION) == DECISION
    assert len(shelf.kept) == 1  # type: ignore[attr-defined]
    assert service.family(SITUATION) == [DECISION]


def test_a_damaged_file_is_named_and_left(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.settle(DECISION)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text()[:-40])
    with pytest.raises(MalformedFile, match=f"{file.name}.*delete it"):
        folder.load(SITUATION)
    folder.replace(LEFT)
    assert folder.load(SITUATION) == LEFT


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = Folder(tmp_path / "file" / "below")
    assert folder.settle(DECISION) == DECISION
    folder.replace(DECISION)
    assert folder.load(SITUATION) is None


def test_a_given_plan_is_for_its_kernel(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(to_json(DECISION)))
    plan = plan_given(str(tmp_path / "plan.json"))
    assert plan is not None
    assert plan.scheme("my.gemm", "abc") == HopperStrategy(2, (3, 2))
    with pytest.raises(CannotPlan, match=r"is for the kernel my\.gemm"):
        plan.scheme("my.attention", "abc")
    with pytest.raises(CannotPlan, match="another state of the kernel's source"):
        plan.scheme("my.gemm", "abd")
    with pytest.raises(CannotPlan, match="no loop with TMA"):
        Given(to_json(LEFT)).scheme("my.gemm", "abc")


STEERED = BlackwellStrategy("apart", 4, (("a.py:6", 0), ("a.py:9", 1)), double=0)


def test_ways_to_steer_are_plans_too() -> None:
    assert Given(STEERED).scheme("any", "") == STEERED
    assert Given(json.loads(strategy_text(STEERED))).scheme("any", "") == STEERED
    decision = replace(LEFT, scheme=STEERED)
    assert from_json(json.loads(json.dumps(to_json(decision))), "here") == decision
    for broken in ({"workers": "both"}, {"workers": "apart", "stages": [["a.py:6"]]}, {"workers": "apart", "speed": 1},
                   {"workers": "apart", "depth": "deep"}):  # fmt: skip
        with pytest.raises(MalformedFile, match="the plan"):
            Given(broken).scheme("any", "")


def test_bare_schemes_are_plans() -> None:
    assert Given(HopperStrategy(1, (4,))).scheme("any", "") == HopperStrategy(1, (4,))
    assert Given({"consumers": 1, "depths": [4]}).scheme("any", "") == HopperStrategy(1, (4,))
    with pytest.raises(MalformedFile, match="consumers 7"):
        Given({"consumers": 7, "depths": [4]}).scheme("any", "")


def test_what_plans_may_be(tmp_path: Path) -> None:
    assert isinstance(open_source(tmp_path / "new", tmp_path), Folder)
    assert isinstance(open_source("http://127.0.0.1:1", tmp_path), Service)
    (tmp_path / "plan.json").write_text(json.dumps(to_json(DECISION)))
    for plans in (
        None, tmp_path, str(tmp_path / "new"), tmp_path / "plan.json", "http://127.0.0.1:1", STEERED,
        {"consumers": 1, "depths": [4]},
    ):  # fmt: skip
        require_plans(plans)
    assert not (tmp_path / "new").exists(), "made when the first decision is kept"


@pytest.mark.parametrize(
    ("plans", "told"),
    [
        ("none.json", "none.json: cannot be read: No such file or directory"),
        ("folder.json", "folder.json: cannot be read: Is a directory"),
        ("text.json", "text.json: not JSON"),
        ("deep.json", "deep.json: not JSON: nested too deeply"),
        ("scheme.json", "scheme.json: scheme with consumers 7"),
        ("plans.txt", "plans.txt': Not a directory: expected a folder, http://host:port or a plan in a .json file"),
        ("plans.txt/new", "Not a directory"),
        ("none/new", "its folder .*none does not exist"),
        ("nu\0ll", "embedded null byte"),
        ("nu\0ll.json", "embedded null byte"),
    ],
)
def test_a_path_that_gives_no_plans_is_told_before_any_launch(tmp_path: Path, plans: str, told: str) -> None:
    (tmp_path / "folder.json").mkdir()
    for name, text in (
        ("text.json", "{"), ("deep.json", "[" * 100_000), ("scheme.json", '{"consumers": 7, "depths": [4]}'),
        ("plans.txt", ""),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    for given_as in (tmp_path / plans, f"{tmp_path}/{plans}"):
        with pytest.raises(InvalidInput, match=told) as error:
            planned(given_as)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://", ""), ("http://[::1", "Invalid IPv6 URL"), ("http://planner:port", "could not be cast to integer")],
)
def test_a_url_without_a_host_is_told_before_any_launch(url: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"names no service: expected http://host:port.*{reason}"):
        planned(url)
    planned("http://planner:8000")  # no service is asked before a launch


def test_a_folder_that_may_not_be_read_or_made(tmp_path: Path) -> None:
    """In a process without root's right to read and write everything. To read decisions is enough."""
    for name, mode in (("read", 0o555), ("closed", 0o000)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    script = """
import os

from warpplan.kernels.compiler.launching.planned import planned
from warpplan.planner.errors import InvalidInput

if os.geteuid() == 0:
    os.setuid(65534)
for plans in ("read", "read/new", "closed"):
    try:
        planned(plans)
        print(plans)
    except InvalidInput as error:
        print(error)
"""
    tmp_path.chmod(0o711)  # and names are relative: nobody may look into pytest's folders
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    readable, unmade, closed = done.stdout.splitlines()
    assert readable == "read"
    assert unmade.startswith("plans 'read/new': its folder read cannot be written: expected a folder")
    assert closed.startswith("plans 'closed': Permission denied")


class Shelf(BaseHTTPRequestHandler):
    """A service as small as it can be: what was posted first can be got."""

    def do_GET(self) -> None:
        body = self.server.kept.get(self.path)  # type: ignore[attr-defined]
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = f"{self.path}/{json.loads(body)['key']}"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.kept.setdefault(path, body))  # type: ignore[attr-defined]

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def shelf() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shelf)
    server.kept = {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()


def test_a_reply_that_trickles_in_or_nests_too_deeply(
    shelf: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(f"http://127.0.0.1:{shelf.server_port}", Folder(tmp_path))
    shelf.kept[f"/v1/kernel-plans/{SITUATION.key}"] = b"[" * 100_000  # type: ignore[attr-defined]
    with pytest.raises(MalformedFile, match="nested too deeply"):
        service.load(SITUATION)
    over = threading.Event()

    def trickle(self: Shelf) -> None:
        self.send_response(200)
        self.end_headers()
        while not over.wait(0.05):
            self.wfile.write(b" ")

    monkeypatch.setattr(Shelf, "do_GET", trickle)
    monkeypatch.setattr(sources, "SERVICE_WAIT_S", 0.3)
    started = time.monotonic()
    with pytest.raises(StoreError, match=r"no whole reply within 0\.3 s"):
        service.load(SITUATION)
    assert time.monotonic() - started < 5
    over.set()


def test_decisions_travel_by_the_service(shelf: ThreadingHTTPServer, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{shelf.server_port}/"
    one, two = (Service(url, Folder(tmp_path / name)) for name in ("one", "two"))
    assert one.load(SITUATION) is None
    here = replace(DECISION, compiled=Compiled("x", (("gemm.cubin", "/cache/gemm.cubin"),)))
    assert one.settle(here) == here
    assert two.load(SITUATION) == DECISION, "paths of another machine stay there"
    late = Service(url, Folder(tmp_path / "late"))
    assert late.settle(LEFT) == DECISION, "the first to decide wins, there, too"
    shelf.kept.clear()  # type: ignore[attr-defined]
    for node in (two, late):
        assert node.load(SITUATION) == DECISION, "kept here from now on"


def test_a_service_that_talks_nonsense(shelf: ThreadingHTTPServer, tmp_path: Path) -> None:
    service = Service(f"http://127.0.0.1:{shelf.server_port}", Folder(tmp_path))
    other = replace(DECISION, situation=replace(SITUATION, kernel="other"))
    for body, said in ((b"<html>", "not JSON"), (json.dumps(to_json(other)).encode(), "another kernel")):
        shelf.kept[f"/v1/kernel-plans/{SITUATION.key}"] = body  # type: ignore[attr-defined]
        with pytest.raises(MalformedFile, match=said):
            service.load(SITUATION)


def test_a_service_that_is_down_is_asked_once(shelf: ThreadingHTTPServer, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{shelf.server_port}"
    shelf.shutdown()
    shelf.server_close()
    service = Service(url, Folder(tmp_path))
    for _ in range(2):
        with pytest.raises(StoreError, match="does not answer"):
            service.load(SITUATION)
    assert service.settle(DECISION) == DECISION


@pytest.mark.parametrize(
    ("device", "recorded"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA GH200 480GB", "NVIDIA H200"),
    ],
)
def test_the_shipped_profile_is_found(device: str, recorded: str) -> None:
    assert codec.from_json(default_profile(device), Profile).identity.gpu == recorded


@given(st.lists(st.integers(1, 2**31 - 1), min_size=2, max_size=2), st.tuples(st.integers(1, 65535)))
def test_sizes_in_a_class_differ_by_less_than_a_factor_of_two(sizes: list[int], grid: tuple[int]) -> None:
    a, b = (size_class((size,), (0,), grid) for size in sizes)
    assert (a == b) == (sizes[0].bit_length() == sizes[1].bit_length())
    if a == b:
        assert max(sizes) < 2 * min(sizes)

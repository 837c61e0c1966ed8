from __future__ import annotations

import json
import numbers
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import pytest

from warpplan.kernels import registry
from warpplan.service.agreement.choice_files import read_record
from warpplan.service.client import (
    DEFAULT_DEVICE,
    DEFAULT_DTYPE,
    DEFAULT_KERNEL,
    MOST_BODY_BYTES,
    PLAN_STATES,
    ChoiceDiffers,
    Client,
    ClientError,
    PlanFailed,
    ServiceRefused,
    ServiceUnavailable,
    listen,
)
from warpplan.service.http.app import MAX_BODY_BYTES, create_app
from warpplan.service.solving.plan_queue import Plans, State
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow import request
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.profiles import planner_version

SIZES = {"M": 512, "N": 1024, "K": 2048}


def test_config_and_entity_tag(url: str) -> None:
    client = Client(url, timeout=60)
    first, second, third = (client.config("gemm", **SIZES) for _ in range(3))
    assert first is not None
    assert set(first["config"]) == {"kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg"}
    assert first == second == third
    assert 'status="304"} 2' in httpx.get(url + "/metrics").text
    first["config"].clear()
    assert client.config("gemm", **SIZES) == second


def test_a_measurement_changes_what_is_served(url: str) -> None:
    client = Client(url, timeout=60)
    answer = client.config("gemm", **SIZES)
    assert answer is not None
    assert client.measured("gemm", answer["config"], 3.5, samples=9, run="r", **SIZES)
    assert not client.measured("gemm", answer["config"], 3.5, samples=9, run="r", **SIZES)
    after = client.config("gemm", **SIZES)
    assert after is not None
    assert after["measured"] == {"time_us": 3.5, "samples": 9}


def test_a_batch_is_one_request_and_a_refusal_costs_the_others_nothing(url: str) -> None:
    client = Client(url, timeout=60)
    good, bad = {"kernel": "gemm", "shape": SIZES}, {"kernel": "gemm", "shape": {**SIZES, "M": 0}}
    found = client.configs([good, bad, good])
    assert found is not None
    refused = found[1]
    assert isinstance(refused, ServiceRefused)
    assert (refused.field, refused.problem["status"]) == ("M", 422)
    config = client.config("gemm", **SIZES)
    assert config is not None
    assert [answer["config"] for answer in found if isinstance(answer, dict)] == [config["config"]] * 2
    assert client.configs([]) == []
    with pytest.raises(ServiceRefused, match="at most 30"):
        client.configs([good] * 31)


@pytest.mark.parametrize(
    "reply", [{}, {"results": []}, {"results": ["answer"]}, {"results": [{"status": 200}]}, {"results": {"answer": {}}}]
)
def test_a_batch_that_is_answered_with_nonsense(reply: object, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("http://planner:8000")
    monkeypatch.setattr(client, "_send", lambda *request: (json.dumps(reply).encode(), ""))
    with pytest.raises(ClientError, match="does the URL name a warpplan service"):
        client.configs([{"kernel": "gemm", "shape": SIZES}])


@pytest.mark.parametrize("reply", ["{}", '{"config": 5, "answers": 5}', "[" * 100_000, "<html>", ""])
@pytest.mark.parametrize("on_error", ["raise", "none"])
def test_a_reply_of_something_else(reply: str, on_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("http://planner:8000", on_error=on_error)  # type: ignore[arg-type]
    monkeypatch.setattr(client, "_send", lambda *request: (reply.encode(), ""))
    for ask in (
        lambda: client.config("gemm", **SIZES),
        lambda: client.tuned(SimpleNamespace(cache_key="a", __name__="k")),
    ):
        with pytest.raises(ClientError, match="does the URL name a warpplan service"):
            ask()


@pytest.mark.parametrize(
    "body", [b"<html>", b"{}", b"[]", b'{"answers": [5]}', b'{"answers": [{}, 1]}', b'{"answers": [{"config": 7}]}',
             b'{"recorded": "yes"}', b'{"id": 5}', b'{"id": "x", "state": "lost"}']
)  # fmt: skip
def test_another_server_is_named_and_never_counts_as_one_that_kept_a_report(
    page: Callable[[bytes], str], body: bytes
) -> None:
    client = Client(page(body), timeout=60, on_error="none")
    for ask in (
        lambda: client.tuned(SimpleNamespace(cache_key="a", __name__="k")),
        lambda: client.measured("gemm", {}, 3.5, **SIZES),
        lambda: client.plan({}, wait=0),
    ):
        with pytest.raises(ClientError, match="does the URL name a warpplan service"):
            ask()


def test_a_plan_that_failed_without_saying_why(page: Callable[[bytes], str]) -> None:
    client = Client(page(b'{"id": "x", "state": "failed", "problem": [1]}'), timeout=60)
    with pytest.raises(PlanFailed, match="plan x failed"):
        client.plan({})


def test_the_states_of_a_plan_are_the_services() -> None:
    assert get_args(State) == PLAN_STATES


def test_a_batch_that_the_service_would_hang_up_on(nobody: str) -> None:
    with pytest.raises(ServiceRefused, match="at most 1048576 in one request") as refused:
        Client(nobody, on_error="none").configs([{"kernel": "gemm", "shape": SIZES}] * 50_000)
    assert refused.value.field == "items"
    assert MOST_BODY_BYTES == MAX_BODY_BYTES


@pytest.mark.parametrize(
    "bad", [*({"timeout": seconds} for seconds in (0, -1, float("nan"), float("inf"), 1e9, "2", True)),
            *({"pause": seconds} for seconds in (-1, float("nan"), "30", None, True)),
            {"on_error": "ignore"}]
)  # fmt: skip
def test_settings_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=next(iter(bad))):
        Client("http://planner:8000", **bad)


@pytest.mark.parametrize("wait", [-1, float("nan"), "5"])
def test_a_wait_that_is_none(nobody: str, wait: Any) -> None:
    with pytest.raises(ClientError, match=r"wait=.*: expected seconds, 0 or more"):
        Client(nobody).plan({}, wait=wait)


@pytest.mark.parametrize("most", [0, -1, "10", None, 1.5, True])
def test_a_listener_takes_no_queue_that_would_end_the_job(most: Any) -> None:
    with pytest.raises(ClientError, match=r"most_waiting=.*: expected a whole number of tunings, at least 1"):
        listen("http://planner:8000", most_waiting=most)


@pytest.mark.parametrize("name", ["timeout", "interval_s"])
def test_a_listener_takes_no_endless_wait(name: str) -> None:
    with pytest.raises(ClientError, match=f"{name}=inf: expected seconds, more than 0 and at most 86400") as caught:
        listen("http://planner:8000", **{name: float("inf")})  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.limit) == (name, 86_400.0)


def test_an_item_that_cannot_be_planned_now_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("http://planner:8000")
    reply = {"results": [{"status": 503, "error": {"status": 503, "detail": "too many plans wait"}}]}
    monkeypatch.setattr(client, "_send", lambda *request: (json.dumps(reply).encode(), ""))
    (found,) = client.configs([{"kernel": "gemm", "shape": SIZES}]) or ()
    assert isinstance(found, ServiceUnavailable)
    assert str(found) == "too many plans wait"


def test_options_of_a_shape(grouped_add: str, url: str) -> None:
    client = Client(url, timeout=60)
    shape = {"N": 98432, "G": 3, "spread": "narrow", "sizes": "1,98000,0"}
    answer = client.config(grouped_add, N=98432, G=3, spread="narrow", sizes=[1, 98000, 0])
    assert answer is not None
    assert answer["shape"] == shape
    assert client.config(grouped_add, **{**shape, "sizes": (1, 98000, 0)}) == answer
    assert client.measured(grouped_add, answer["config"], 1.5, N=98432, G=3, spread="narrow", sizes=[1, 98000, 0])
    after = client.config(grouped_add, **shape)
    assert after is not None
    assert after["measured"]["time_us"] == 1.5
    with pytest.raises(ServiceRefused, match="spread='broad' is unknown: expected wide, narrow"):
        client.config(grouped_add, N=98432, G=3, spread="broad")


@pytest.mark.parametrize("on_error", ["raise", "none"])
def test_a_refusal_says_why(url: str, on_error: str) -> None:
    with pytest.raises(ServiceRefused, match="M=0 is too small") as caught:
        Client(url, timeout=60, on_error=on_error).config("gemm", M=0, N=1, K=8)  # type: ignore[arg-type]
    assert caught.value.field == "M"
    assert caught.value.problem["status"] == 422


GRAPH = {
    "schema": "warpplan/graph-1",
    "name": "copy and add",
    "ops": [
        {"id": "load", "unit": "LSU", "latency": 400, "occupancy": 32, "issue": 8},
        {"id": "add", "unit": "ALU", "latency": 24, "occupancy": 16, "issue": 16},
    ],
    "edges": [{"src": "load", "dst": "add"}],
}


def test_a_plan_is_waited_for(url: str) -> None:
    client = Client(url, timeout=60)
    plan = client.plan(GRAPH, time_limit_s=5)
    assert plan is not None
    assert (plan["state"], plan["outcome"]["status"], plan["outcome"]["ii"]) == ("done", "optimal", 32)
    assert plan["options"] == {"time_limit_s": 5.0, "depth": None, "slack_cycles": 0}
    assert client.plan(GRAPH, time_limit_s=5, wait=0) == plan


def test_a_plan_that_is_refused_late_or_failed(serve: Callable[..., str], workflow: Workflow, store: Store) -> None:
    url = serve(create_app(workflow, solvers=0))
    with pytest.raises(ServiceRefused, match="has latency -1") as caught:
        Client(url, timeout=60).plan({**GRAPH, "ops": [{**GRAPH["ops"][0], "latency": -1}]})
    assert caught.value.field == "graph.ops.latency"
    with pytest.raises(ServiceUnavailable, match=r"is still queued after 0\.01 s"):
        Client(url, timeout=60).plan(GRAPH, wait=0.01)
    assert Client(url, timeout=60, on_error="none").plan(GRAPH, wait=0.01) is None
    plans = Plans(store.database)
    claim = plans.claim(60, planner_version())
    assert claim is not None

    def fail() -> None:
        plans.fail(claim, "crash", "the solver's process died: killed by SIGKILL")

    failing = threading.Timer(0.3, fail)
    failing.start()
    with pytest.raises(PlanFailed, match="SIGKILL") as failed:
        Client(url, timeout=60).plan(GRAPH)
    failing.join()
    assert failed.value.problem["type"] == "urn:warpplan:problem:solver-crash"


@pytest.fixture
def nobody() -> str:
    """A URL where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_no_service(nobody: str) -> None:
    client = Client(nobody)
    with pytest.raises(ServiceUnavailable, match="cannot be reached"):
        client.config("gemm", **SIZES)
    quiet = Client(nobody, on_error="none")
    assert quiet.config("gemm", **SIZES) is None
    assert quiet.configs([{"kernel": "gemm", "shape": SIZES}]) is None
    assert quiet.measured("gemm", {}, 1.0, **SIZES) is False
    assert quiet.plan(GRAPH) is None


@pytest.fixture
def silent() -> Iterator[tuple[str, list[int]]]:
    """A service that accepts and says nothing, with the list of who called."""
    calls: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    held.append(server.accept()[0])
                    calls.append(1)
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", calls
        for connection in held:
            connection.close()


def test_a_silent_service_is_waited_for_once(silent: tuple[str, list[int]]) -> None:
    url, calls = silent
    client = Client(url, timeout=0.2, on_error="none")
    started = time.monotonic()
    assert [client.config("gemm", M=m, N=8, K=8) for m in range(1, 50)] == [None] * 49
    assert time.monotonic() - started < 2
    assert len(calls) == 1


def test_it_is_asked_again_after_the_pause(silent: tuple[str, list[int]]) -> None:
    url, calls = silent
    client = Client(url, timeout=0.05, pause=0.0, on_error="none")
    client.config("gemm", **SIZES)
    client.config("gemm", **SIZES)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "url",
    ["planner:8000", "file:///etc/passwd", "", "http://", f"http://{'a' * 70}:80", "http://a..b", "http://[::1",
     "http://planner:port", "http://planner:99999", "http://planner/\u00e4", "http://\ud800"],
)  # fmt: skip
def test_urls_that_are_none(url: str) -> None:
    for make in (Client, listen):
        with pytest.raises(ClientError, match="expected http") as caught:
            make(url)
        assert (caught.value.field, caught.value.value) == ("url", url)


@pytest.mark.parametrize("url", ["http://[::1]:80", "https://planner.example./base/", "http://b\u00fccher:80"])
def test_urls_that_name_a_host(url: str) -> None:
    Client(url)


def test_text_that_cannot_be_sent(nobody: str) -> None:
    client = Client(nobody)
    for words in ({"dtype": "\ud800"}, {"device": "\ud800"}, {"spread": "\ud800"}):
        with pytest.raises(ClientError, match="half of a surrogate pair") as caught:
            client.config("gemm", **words)  # type: ignore[arg-type]
        assert caught.value.field == next(iter(words))
    with pytest.raises(ClientError, match=r"kernel=.*half of a surrogate pair"):
        client.config("\ud800")
    with pytest.raises(ClientError, match="cannot be written as JSON"):
        client.measured("gemm", {"num_warps": object()}, 1.0)


def test_numbers_that_nobody_writes_in_digits(nobody: str) -> None:
    client = Client(nobody, on_error="none")
    for size in (10**5000, [1, 10**5000]):
        with pytest.raises(ClientError, match="M has more than 4300 digits") as caught:
            client.config("gemm", M=size)
        assert (caught.value.field, caught.value.limit) == ("M", 4300)
        with pytest.raises(ClientError, match="4300 digits"):
            client.tuned(SimpleNamespace(cache_key="k", __name__="k"), M=size)
        with pytest.raises(ClientError, match="4300 digits"):
            client.configs([{"kernel": "gemm", "shape": {"M": size}}])


class LibraryNumber:
    """A number as numpy has it: no subclass of ``int`` or ``float``."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)

    def __float__(self) -> float:
        return float(self.value)


class LibraryInt(LibraryNumber):
    def __index__(self) -> int:
        return int(self.value)


numbers.Integral.register(LibraryInt)
numbers.Real.register(LibraryNumber)


def test_numbers_of_another_library(url: str) -> None:
    client = Client(url, timeout=60)
    sizes: dict[str, Any] = {name: LibraryInt(size) for name, size in SIZES.items()}
    answer = client.config("gemm", **sizes)
    assert answer is not None
    (found,) = client.configs([{"kernel": "gemm", "shape": sizes}]) or ()
    assert isinstance(found, dict)
    assert found["config"] == answer["config"]
    config = {**answer["config"], "num_warps": LibraryInt(answer["config"]["num_warps"])}
    assert client.measured("gemm", config, LibraryNumber(3.5), samples=LibraryInt(9), **sizes)  # type: ignore[arg-type]
    after = client.config("gemm", **SIZES)
    assert after is not None
    assert after["measured"] == {"time_us": 3.5, "samples": 9}


TUNED = SimpleNamespace(cache_key="a", __name__="k")
LOOKUPS: dict[str, Callable[[Client], object]] = {
    "config": lambda client: client.config("gemm", **SIZES),
    "tuned": lambda client: client.tuned(TUNED, n=4096),
    "configs": lambda client: client.configs([{"kernel": "gemm", "shape": SIZES}]),
}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_lookup_that_fails_is_recorded_and_differs_from_an_answer(
    lookup: str, nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(nobody, pause=0, record=tmp_path, rank=0, strict=True)
    with pytest.raises(ServiceUnavailable):
        LOOKUPS[lookup](client)
    client.close()
    (line,) = read_record(tmp_path / "rank-00000.jsonl").lines
    assert line.choice == "null"

    strict = Client(nobody, pause=0, strict=True)
    answer = {"config": {"num_warps": 4}, "signature": ""}
    reply = {**answer, "answers": [answer], "results": [{"answer": answer}]}
    with monkeypatch.context() as patch:
        patch.setattr(strict, "_send", lambda *request: (json.dumps(reply).encode(), ""))
        LOOKUPS[lookup](strict)
    with pytest.raises(ChoiceDiffers, match="none, as the service gave no answer"):
        LOOKUPS[lookup](strict)


def test_a_refusal_is_recorded_as_no_answer(url: str, tmp_path: Path) -> None:
    with Client(url, timeout=60, record=tmp_path, rank=0) as client, pytest.raises(ServiceRefused):
        client.config("gemm", M=0, N=1, K=8)
    (line,) = read_record(tmp_path / "rank-00000.jsonl").lines
    assert line.choice == "null"


def test_a_batch_is_recorded_as_its_lookups_one_by_one(url: str, tmp_path: Path) -> None:
    items: list[dict[str, Any]] = [
        {"kernel": "gemm", "shape": SIZES, "dtype": "bfloat16", "device": "NVIDIA H200"},
        {"kernel": "gemm", "shape": {**SIZES, "M": 0}, "dtype": None},
        {**SIZES, "K": 512},
    ]
    one, batch = (Client(url, timeout=60, record=tmp_path / name, rank=0) for name in ("one", "batch"))
    one.config("gemm", **SIZES)
    with pytest.raises(ServiceRefused):
        one.config("gemm", **{**SIZES, "M": 0})
    one.config("gemm", **{**SIZES, "K": 512})
    batch.configs(items)
    assert batch.choices_digest == one.choices_digest
    one.close()
    batch.close()
    records = [read_record(tmp_path / name / "rank-00000.jsonl") for name in ("one", "batch")]
    assert records[0].lines == records[1].lines
    assert (DEFAULT_KERNEL, DEFAULT_DTYPE) == (registry.DEFAULT, request.DEFAULT_DTYPE)
    assert request.DEFAULT_DEVICE == DEFAULT_DEVICE


def test_a_batch_that_is_refused_as_a_whole_is_no_lookup(url: str) -> None:
    client = Client(url, timeout=60, strict=True)
    empty = client.choices_digest
    with pytest.raises(ServiceRefused, match="at most 30"):
        client.configs([{"kernel": "gemm", "shape": SIZES}] * 31)
    assert client.choices_digest == empty


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_a_reply_that_trickles_in_is_waited_for_as_long_as_any(status: str) -> None:
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        with connection:
            connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 100000\r\n\r\n".encode())
            while not over.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=lambda: trickle(server.accept()[0]), daemon=True)
        serving.start()
        started = time.monotonic()
        with pytest.raises(ServiceUnavailable, match=r"cannot be reached: no whole reply within 0\.3 s"):
            Client(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.3).config("gemm", **SIZES)
        assert time.monotonic() - started < 5
        assert serving.is_alive(), "the server was still sending"
        over.set()
        serving.join(5)


def test_it_needs_the_standard_library_only() -> None:
    script = (
        "import sys; before = set(sys.modules); import warpplan.service.client;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['warpplan']"

"""What autotuners measure reaches the service's store, and a service that is away costs the job nothing."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from warpplan.kernels.compiler.launching import progress
from warpplan.kernels.compiler.launching.decisions import Decision, Situation
from warpplan.service import listening
from warpplan.service.client import ClientError, listen
from warpplan.service.http.app import create_app
from warpplan.service.listening import MOST_BATCH, TuningListener
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow

KERNEL = "models.blocks.matmul"


def config(block: int, **more: Any) -> Any:
    """As ``triton.Config`` is: hashable, with these attributes."""
    return SimpleNamespace(
        kwargs={"BLOCK": block, "EVEN": True}, num_warps=4, num_stages=3, num_ctas=1, maxnreg=None, **more
    )


def event(times: dict[int, list[float]], key: tuple[Any, ...] = (4096, "torch.bfloat16"), hit: bool = False) -> Any:
    """The keywords with which Triton 3.9.0 calls its listener (runtime/autotuner.py, ``Autotuner.run``)."""

    def matmul() -> None: ...

    matmul.__module__, matmul.__qualname__ = KERNEL.rpartition(".")[0], "matmul"
    configs = {block: config(block) for block in times}
    return {
        "fn": SimpleNamespace(fn=matmul, cache_key="a" * 64),
        "key": key,
        "best_config": configs[min(times, key=times.__getitem__)],
        "configs_timings": _ByIdentity((configs[block], timing) for block, timing in times.items()),
        "duration": None if hit else 1.5,
        "cache_hit": hit,
    }


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines that run this have no GPU; the versions are theirs."""
    here = listening.environment() | {"gpu": "NVIDIA H200"}
    monkeypatch.setattr(listening, "environment", lambda gpu=0: here)


class _ByIdentity:
    """``dict.items`` of configurations that cannot be hashed here."""

    def __init__(self, pairs: Any) -> None:
        self._pairs = list(pairs)

    def items(self) -> list[Any]:
        return self._pairs


def kept(http: httpx.Client, kernel: str = KERNEL) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/v1/tunings", params={"kernel": kernel}).json()["tunings"]
    return found


def test_a_tuning_is_kept_with_all_its_times(url: str, http: httpx.Client) -> None:
    with listen(url, interval_s=60) as listener:
        listener(**event({64: [0.5, 0.4, 0.6], 128: [0.25, 0.2, 0.3], 256: [float("inf")] * 3}))
    assert (listener.posted, listener.dropped, listener.lost) == (1, 0, 0)
    rows = {row["config"]["kwargs"]["BLOCK"]: row for row in kept(http)}
    assert {block: row["time_us"] for block, row in rows.items()} == {64: 500.0, 128: 250.0, 256: None}
    assert rows[64]["key"] == [4096, "torch.bfloat16"]
    assert rows[64]["source"] == "a" * 64
    assert set(rows[64]["environment"]) == {"gpu", "driver", "cuda", "triton", "torch"}
    assert "warpplan_tunings_total 1" in http.get("/metrics").text


def test_of_repeated_tunings_the_least_time_stands(url: str, http: httpx.Client) -> None:
    with listen(url, interval_s=60) as listener:
        for time_ms in (0.5, 0.3, 0.4):
            listener(**event({64: [time_ms], 128: [float("inf")]}))
        listener.flush()
        listener(**event({64: [0.7], 128: [0.9]}))
    assert [(row["time_us"], row["reports"]) for row in kept(http)].count((300.0, 4)) == 1
    assert [(row["time_us"], row["reports"]) for row in kept(http)].count((900.0, 4)) == 1


def test_what_triton_read_from_its_disk_cache_is_no_measurement(url: str, http: httpx.Client) -> None:
    """Its times are the entry's own, such as the predicted one that ``warpplan export`` writes."""
    heard: list[dict[str, Any]] = []
    with listen(url, interval_s=60) as listener:
        listener._before = lambda **said: heard.append(said)
        listener(**event({64: [0.1]}, hit=True))
        listener(**event({64: [0.5], 128: [0.4]}))
    assert (listener.posted, listener.cached, listener.dropped, listener.lost) == (1, 1, 0, 0)
    assert [said["cache_hit"] for said in heard] == [True, False]
    assert sorted(row["time_us"] for row in kept(http)) == [400.0, 500.0]


def test_a_hit_that_an_older_client_posts_is_not_kept(http: httpx.Client) -> None:
    configs = [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 5.0}]
    tuning = {"kernel": KERNEL, "source": "s", "key": [], "configs": configs}
    body = {"device": "NVIDIA H200", "tunings": [tuning | {"hit": True}, tuning | {"key": [1]}]}
    assert http.post("/v1/tunings", json=body).json() == {"recorded": 1}
    assert [row["key"] for row in kept(http)] == [[1]]
    assert "warpplan_tunings_total 1" in http.get("/metrics").text
    assert http.post("/v1/tunings", json=body | {"tunings": [tuning | {"hit": True}]}).json() == {"recorded": 0}


def test_a_configuration_whose_time_is_none_costs_itself(url: str, http: httpx.Client) -> None:
    with listen(url, interval_s=60) as listener:
        listener(**event({64: [float("nan")], 128: [0.4], 256: [1e-9], 512: [float("inf")]}))
    assert (listener.posted, listener.lost) == (1, 0)
    rows = {row["config"]["kwargs"]["BLOCK"]: row["time_us"] for row in kept(http)}
    assert rows == {128: 400.0, 512: None}


def test_a_report_that_is_replayed_a_thousand_times_counts_once(url: str, http: httpx.Client) -> None:
    configs = [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 5.0}]
    tuning = {"kernel": KERNEL, "source": "s", "key": [], "configs": configs}
    other = [{**configs[0], "time_us": 4.0}]
    http.post("/v1/tunings", json={"device": "NVIDIA H200", "tunings": [tuning | {"configs": other}]})
    for _ in range(10):
        reply = http.post("/v1/tunings", json={"device": "NVIDIA H200", "tunings": [tuning] * 100})
        assert reply.status_code == 201
    (row,) = kept(http)
    assert (row["time_us"], row["reports"]) == (4.0, 1001)


def test_keys_sources_and_machines_are_not_mixed(url: str, http: httpx.Client) -> None:
    base = {
        "kernel": KERNEL, "source": "s", "key": [1],
        "configs": [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 5.0}],
    }  # fmt: skip
    reports = [
        ("NVIDIA H200", {"driver": "1"}, base), ("NVIDIA H200", {"driver": "2"}, base),
        ("NVIDIA B200", {"driver": "1"}, base), ("NVIDIA H200", {"driver": "1"}, {**base, "key": ["1"]}),
        ("NVIDIA H200", {"driver": "1"}, {**base, "source": "t"}),
    ]  # fmt: skip
    for device, environment, tuning in reports:
        body = {"device": device, "environment": environment, "tunings": [tuning]}
        assert http.post("/v1/tunings", json=body).json() == {"recorded": 1}
    assert len(kept(http)) == 5


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"configs": []}, "tunings.0.configs"),
        ({"kernel": ""}, "tunings.0.kernel"),
        ({"configs": [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": -1}]}, "time_us"),
        ({"configs": [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 1e-9}]}, "time_us"),
        ({"configs": [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 1e12}]}, "time_us"),
        ({"configs": [{"config": {"kwargs": {}, "num_warps": 0, "num_stages": 1}, "time_us": 1}]}, "num_warps"),
        ({"configs": [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 0.2}]}, "0.time_us"),
        ({"more": 1}, "more"),
    ],
)
def test_bad_reports(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    tuning = {
        "kernel": KERNEL, "source": "s", "key": [],
        "configs": [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 5.0}],
    }  # fmt: skip
    reply = http.post("/v1/tunings", json={"device": "NVIDIA H200", "tunings": [tuning | change]})
    assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json")
    assert field in reply.json()["field"]
    assert kept(http) == []


def test_another_gpu_in_the_environment(http: httpx.Client) -> None:
    tuning = {
        "kernel": KERNEL, "source": "s", "key": [],
        "configs": [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 5.0}],
    }  # fmt: skip
    body = {"device": "NVIDIA H200", "environment": {"gpu": "NVIDIA B200"}, "tunings": [tuning]}
    reply = http.post("/v1/tunings", json=body)
    assert (reply.status_code, reply.json()["field"]) == (422, "environment.gpu")


def test_a_gpu_that_nobody_knows_is_refused_at_once(
    url: str, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    send = listening._send
    monkeypatch.setattr(listening, "_send", lambda *request: (sent.append(1), send(*request)))
    monkeypatch.setattr(listening, "environment", lambda gpu=0: {"gpu": "FooGPU"})
    with listen(url, interval_s=60) as listener:
        for number in range(9):
            listener(**event({64: [0.5]}, key=(number,)))
    assert (listener.posted, listener.lost, len(sent)) == (0, 9, 1)
    tuning = {
        "kernel": KERNEL, "source": "s", "key": [],
        "configs": [{"config": {"kwargs": {}, "num_warps": 4, "num_stages": 1}, "time_us": 5.0}],
    }  # fmt: skip
    reply = http.post("/v1/tunings", json={"device": "FooGPU", "tunings": [tuning]})
    assert (reply.status_code, reply.json()["field"], "NVIDIA H200" in reply.json()["limit"]) == (404, "device", True)
    assert kept(http) == []


def test_without_a_store(serve: Callable[[FastAPI], str]) -> None:
    reply = httpx.get(serve(create_app(Workflow())) + "/v1/tunings", params={"kernel": "k"})
    assert (reply.status_code, reply.json()["field"]) == (503, "store")


def test_a_trial_of_planned_is_posted(url: str, http: httpx.Client) -> None:
    situation = Situation("my.kernel", "s" * 64, "spec", (4096, 64), "NVIDIA H200", "1", "3.6.0", "0.1")
    decision = Decision(situation, None, "as fast without a plan", measured=True, planned_us=12.0, unplanned_us=11.0)
    with listen(url, interval_s=60) as listener:
        progress.decided(decision, 1.0)
        progress.decided(replace(decision, unplanned_us=None), 1.0)  # a prediction: nothing to tell
    progress.decided(decision, 1.0)
    assert (listener.posted, listener.lost) == (1, 1)
    (row,) = kept(http, "my.kernel")
    assert (row["time_us"], row["key"], row["reports"]) == (11.0, ["spec", 4096, 64], 1)


def test_a_service_that_is_away_and_a_full_queue_cost_the_job_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        with listen(
            f"http://127.0.0.1:{taken.getsockname()[1]}", interval_s=60, most_waiting=np.int64(3), timeout=1
        ) as listener:
            for _ in range(5):
                listener(**event({64: [0.5]}))
    assert (listener.posted, listener.dropped, listener.lost) == (0, 2, 3)


@pytest.fixture
def hanging() -> Iterator[tuple[str, list[socket.socket]]]:
    """A service whose replies trickle in and never end, with its connections."""
    over, connections = threading.Event(), list[socket.socket]()

    def trickle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.05):
                connection.sendall(b" ")

    def accept() -> None:
        with suppress(OSError):
            while True:
                connections.append(server.accept()[0])
                threading.Thread(target=trickle, args=(connections[-1],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", connections
        over.set()


def test_the_end_waits_for_one_post_where_the_service_hangs(hanging: tuple[str, list[socket.socket]]) -> None:
    url, connections = hanging
    listener = listen(url, interval_s=60, timeout=0.3)
    for number in range(5 * MOST_BATCH):
        listener(**event({64: [0.5]}, key=(number,)))
    started = time.monotonic()
    listener.close()
    assert time.monotonic() - started < 5
    assert (len(connections), listener.posted, listener.lost) == (1, 0, 5 * MOST_BATCH)


def test_the_thread_leaves_a_service_that_failed_alone(hanging: tuple[str, list[socket.socket]]) -> None:
    url, connections = hanging
    listener = listen(url, interval_s=0.01, timeout=0.1)
    listener(**event({64: [0.5]}))
    _until(lambda: listener.lost == 1)
    for number in range(3):
        listener(**event({64: [0.5]}, key=(number,)))
    time.sleep(0.3)
    assert (len(connections), listener.lost) == (1, 1), "what comes in the pause waits"
    listener.close()
    assert (len(connections), listener.lost) == (2, 4)


def test_what_waits_behind_a_failed_post_is_posted_once_the_service_is_back(
    url: str, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(request: object, timeout: float) -> None:
        raise OSError("away")

    listener = listen(url, interval_s=60)
    for number in range(MOST_BATCH + 2):
        listener(**event({64: [0.5]}, key=(number,)))
    with monkeypatch.context() as patch:
        patch.setattr(listening, "_send", away)
        listener.flush()
    assert (listener.posted, listener.lost) == (0, MOST_BATCH)
    listener.close()
    assert (listener.posted, listener.lost, len(kept(http))) == (2, MOST_BATCH, 2)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"recorded": null}', b"[" * 100_000])
def test_what_another_server_takes_is_lost(page: Callable[[bytes], str], body: bytes) -> None:
    with listen(page(body), interval_s=60, timeout=60) as listener:
        listener(**event({64: [0.5]}))
    assert (listener.posted, listener.lost) == (0, 1)


def test_what_cannot_be_told_is_left_out_and_the_rest_is_posted(url: str, http: httpx.Client) -> None:
    with listen(url, interval_s=60) as listener:
        listener(**event({64: [float("nan")]}))
        listener(**event({64: [1e-9]}))
        listener(**event({64: [0.5]}, key=(float("inf"), object, None, 2.5, True)))
    assert (listener.posted, listener.lost) == (1, 2)
    (row,) = kept(http)
    assert row["key"] == ["inf", "<class 'object'>", None, 2.5, True]


def test_one_tuning_that_the_service_refuses_costs_itself(url: str, http: httpx.Client) -> None:
    with listen(url, interval_s=60) as listener:
        for number in range(40):
            listener(**event({64: [0.5]}, key=tuple(range(1000)) if number == 20 else (number,)))
        listener.flush()
    assert (listener.posted, listener.lost) == (39, 1)
    assert sorted(row["key"] for row in kept(http)) == [[n] for n in range(40) if n != 20]


def test_a_number_that_json_cannot_write_is_told_in_hexadecimal(url: str, http: httpx.Client) -> None:
    with listen(url, interval_s=60) as listener:
        listener(**event({64: [0.5]}, key=(1 << 63, -(1 << 62))))
        listener(**event({64: [0.5]}, key=(10**5000,)))
        listener.flush()
    assert listener.lost == 0
    keys = [row["key"] for row in kept(http)]
    assert [hex(10**5000)] in keys
    assert ["0x8000000000000000", -(1 << 62)] in keys


def test_a_long_report_is_posted_in_parts(url: str, store: Store, http: httpx.Client) -> None:
    """The service of these tests takes 20,000 bytes at once; a part that is still too long is lost alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warpplan.service.listening.MOST_BODY_BYTES", 15_000)
        with listen(url, interval_s=60) as listener:
            for number in range(40):
                listener(**event({64 * n: [0.5] for n in range(1, 21)}, key=(number,)))
            listener(**event({n: [0.5] for n in range(1, 400)}, key=("long",)))
    assert (listener.posted, listener.lost) == (40, 1)
    assert len(kept(http)) == 800


def test_the_thread_posts_by_itself_and_in_a_forked_child(url: str, http: httpx.Client) -> None:
    listener = listen(url, interval_s=0.05)
    listener(**event({64: [0.5]}))
    _until(lambda: listener.posted == 1)
    child = os.fork()
    if child == 0:
        listener(**event({128: [0.5]}))
        _until(lambda: listener.posted == 2)
        os._exit(0 if listener.posted == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    listener.close()
    listener.close()
    assert len(kept(http)) == 2


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true() and time.monotonic() < end:
        time.sleep(0.01)


def test_a_url_that_is_none() -> None:
    with pytest.raises(ClientError, match="expected http://host:port"):
        listen("planner:8000")


def test_tritons_own_call(url: str, http: httpx.Client) -> None:
    """The real autotuner of Triton 3.9, with a bench of its own in the place of a GPU."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton import knobs

    if not hasattr(knobs.autotuning, "listener"):
        pytest.skip(f"Triton {triton.__version__} has no knobs.autotuning.listener")
    from triton.runtime.autotuner import Autotuner

    from .tuned_kernel import CONFIGS, scaled

    times = dict(zip(CONFIGS, ([0.5, 0.4, 0.6], [0.2, 0.1, 0.3]), strict=True))
    heard: list[dict[str, Any]] = []
    knobs.autotuning.listener = lambda **said: heard.append(said)
    try:
        tuner = Autotuner(
            scaled, scaled.arg_names, list(CONFIGS), ["n"], None, None, do_bench=lambda call, quantiles: [1.0, 1.0, 1.0]
        )
        tuner._bench = lambda *args, config, **more: times[config]
        with listen(url, interval_s=60) as listener, pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(scaled), "run", lambda self, *args, **more: None)
            for _ in range(3):
                tuner.run(None, 4096, grid=(1,), warmup=False)
        assert knobs.autotuning.listener is not listener
        assert (listener.posted, len(heard)) == (1, 1)
    finally:
        knobs.autotuning.listener = None
    rows = kept(http, f"{scaled.fn.__module__}.scaled")
    assert sorted(row["time_us"] for row in rows) == [200.0, 500.0]
    assert rows[0]["source"] == scaled.cache_key
    assert rows[0]["key"][0] == 4096


def test_the_listener_is_what_the_client_returns(url: str) -> None:
    with listen(url) as listener:
        assert isinstance(listener, TuningListener)

"""Configurations of training: ranked alike everywhere, asked for once, and ranked where the source fails."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from warpplan.kernels import plan_source
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.plan_source import AskPlan, PlanSourceWarning, configuration, use_source
from warpplan.planner.errors import Infeasible, InvalidInput, InvalidShape, MalformedFile, StoreError, UnknownName
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

SHAPE = (1024, 512, 256)
OTHER = TuningConfig.of({"BLOCK_M": 1}, num_warps=4, num_stages=1)


def found(shape: tuple[int, ...] = SHAPE, device: str = H200.name) -> TuningConfig:
    return configuration("gemm", shape, "bfloat16", device)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((64, 64), r"gemm \(64, 64\) has 2 sizes: expected M, N, K, then options"),
        ((64, 64, 64, 64), "has 4 sizes: expected M, N, K"),
        ((-1, 64, 64), "M=-1 is too small: expected 1 or more"),
        ((64, 64, 64, "layuot=nn"), "gemm has no dimension or option 'layuot'"),
        ((64, 64, 64, "layout=mm"), "layout='mm' is unknown"),
    ],
)
def test_a_shape_that_the_kernel_does_not_have_is_refused(shape, message):
    with pytest.raises(InvalidShape, match=message):
        configuration("gemm", shape, "bfloat16", H200.name)


@pytest.fixture
def ranked(profile: Profile) -> TuningConfig:
    return Gemm().rank(SHAPE, "bfloat16", H200, profile, limit=1)[0].config


class Answers(BaseHTTPRequestHandler):
    status, body = 200, b""
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(status: int, body: object) -> Iterator[tuple[str, list[str]]]:
    """The URL of a service that gives one answer to everything, and the paths that it was asked for."""
    asked: list[str] = []
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler = type("OneAnswer", (Answers,), {"status": status, "body": text, "asked": asked})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_ranking_is_the_kernels_own(ranked: TuningConfig) -> None:
    assert found() == ranked
    assert found(device="NVIDIA H20") == ranked, "a Hopper GPU of another name has the H200's profile"


def test_every_process_finds_the_same(ranked: TuningConfig) -> None:
    code = (
        "from warpplan.kernels.plan_source import configuration\n"
        f"print(configuration('gemm', {SHAPE}, 'bfloat16', 'NVIDIA H200').as_dict())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(ranked.as_dict())


def test_names_and_shapes_that_there_are_not() -> None:
    with pytest.raises(UnknownName, match="kernel"):
        configuration("gem", SHAPE, "bfloat16", H200.name)
    with pytest.raises(UnknownName, match="dtype"):
        configuration("gemm", SHAPE, "float32", H200.name)


def test_a_function_is_asked_once_a_shape(ranked: TuningConfig) -> None:
    asked = []

    def source(kernel: str, shape: tuple[int | str, ...], dtype: str, device: str) -> TuningConfig | None:
        asked.append((kernel, shape, dtype, device))
        return OTHER if shape == SHAPE else None

    with use_source(source):
        assert found() == found() == OTHER
        assert found((64, 64, 64)) != OTHER
        with use_source(None):
            assert found() == ranked
        assert found() == OTHER
    assert found() == ranked
    assert asked == [("gemm", shape, "bfloat16", H200.name) for shape in (SHAPE, (64, 64, 64))]


def test_the_setting_holds_without_a_block(ranked: TuningConfig) -> None:
    before = use_source(lambda *_: OTHER)
    in_thread = []
    try:
        thread = threading.Thread(target=lambda: in_thread.append(found()))
        thread.start()
        thread.join()
    finally:
        before.__exit__(None, None, None)
    assert in_thread == [OTHER]
    assert found() == ranked


def test_a_service_is_asked_for_the_shape_by_name() -> None:
    with answering(200, {"config": OTHER.as_dict(), "match": {"kind": "exact"}}) as (url, asked), use_source(url):
        assert found(device="NVIDIA H20") == OTHER
    (path,) = asked
    assert path.startswith("/v1/configs/gemm?")
    assert dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(path).query)) == {
        "M": "1024", "N": "512", "K": "256", "dtype": "bfloat16", "device": "NVIDIA H200",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (422, {"detail": "no"}, StoreError, "answers 422"),
        (500, b"", StoreError, "answers 500"),
        (200, b"<html>", MalformedFile, "not JSON"),
        (200, b"[" * 100_000, MalformedFile, "nested too deeply"),
        (200, {"plan": 1}, MalformedFile, "no config"),
        (200, {"config": {"num_warps": "four"}}, InvalidInput, "kwargs|num_warps"),
    ],
)
def test_what_a_service_cannot_answer_is_ranked_with_one_warning(
    status: int, body: object, error: type[Exception], message: str, ranked: TuningConfig
) -> None:
    with answering(status, body) as (url, _):
        with use_source(url), pytest.warns(PlanSourceWarning, match=message) as given:
            answers = [found(shape) for shape in (SHAPE, (64, 64, 64))]
        assert answers[0] == ranked
        assert len(given) == 1
        with use_source(url, on_error="raise"), pytest.raises(error, match=message):
            found()


def test_a_service_that_is_down_is_asked_once(ranked: TuningConfig) -> None:
    with answering(200, {}) as (url, _):
        pass  # the port is free again
    with use_source(url), pytest.warns(PlanSourceWarning, match="does not answer"):
        assert found() == ranked
    with use_source(url, on_error="raise"):
        for shape in (SHAPE, (64, 64, 64)):
            with pytest.raises(StoreError, match="does not answer"):
                found(shape)


def test_a_reply_that_trickles_in_is_not_waited_for(ranked: TuningConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_source, "SERVICE_WAIT_S", 0.3)
    over = threading.Event()

    def trickle(self: Answers) -> None:
        self.send_response(200)
        self.end_headers()
        while not over.wait(0.05):
            self.wfile.write(b" ")

    monkeypatch.setattr(Answers, "do_GET", trickle)
    with answering(200, {}) as (url, _):
        started = time.monotonic()
        with use_source(url), pytest.warns(PlanSourceWarning, match=r"no whole reply within 0\.3 s"):
            assert found() == ranked
        assert time.monotonic() - started < 5
        over.set()


def test_a_functions_own_errors_are_the_users() -> None:
    def broken(*_: object) -> TuningConfig:
        raise KeyError("table")

    with use_source(broken), pytest.raises(KeyError):
        found()

    def none_fits(*_: object) -> TuningConfig:
        raise Infeasible("nothing fits")

    with use_source(none_fits, on_error="raise"), pytest.raises(Infeasible):
        found()


@pytest.mark.parametrize("source", ["planner:8000", 3])
def test_another_kind_of_source_is_an_error(source: AskPlan) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidInput, match="expected a function"):
            use_source(source)
        with pytest.raises(InvalidInput, match="on_error"):
            use_source(None, on_error="ignore")  # type: ignore[arg-type]

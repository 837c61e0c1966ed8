"""Half requests, foreign hosts and headers, by raw sockets against a real server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from warpplan.service.http.app import create_app
from warpplan.service.http.guards import BodyLimit
from warpplan.service.http.server import own_names, server_of
from warpplan.service.workflow.configure import Workflow

HEAD_S, BODY_S = 0.4, 0.6


@contextmanager
def serving(app: object, **limits: float) -> Iterator[int]:
    server: uvicorn.Server = server_of(app, port=0, log_level="critical", **limits)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def port(workflow: Workflow) -> Iterator[int]:
    with serving(create_app(workflow), head_s=HEAD_S, body_s=BODY_S) as bound:
        yield bound


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def until_closed(connection: socket.socket) -> bytes:
    """Everything that arrives until the server closes; a timeout fails the test."""
    got = b""
    while part := connection.recv(65_536):
        got += part
    return got


def sent_until_closed(connection: socket.socket, data: bytes) -> int:
    """How much of ``data`` could be sent, byte after byte."""
    for count, byte in enumerate(data):
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return count
        time.sleep(0.02)
    return len(data)


POST = b"POST /v1/configs:batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: loc",
        POST + b"Content-Length: 500\r\n\r\n" + b'{"items": [',
        POST + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"ite\r\n',
    ],
    ids=["nothing", "half a head", "half a body", "half of the chunks"],
)
def test_what_is_never_finished_is_closed(port: int, begun: bytes) -> None:
    with connected(port) as connection:
        connection.sendall(begun)
        assert until_closed(connection) == b""


def test_single_bytes_now_and_then_do_not_keep_it_open(port: int) -> None:
    with connected(port) as connection:
        head = b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"a" * 2_000
        assert sent_until_closed(connection, head) < len(head)


def test_a_second_request_that_stalls_is_closed_too(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        got = b""
        while b'"ok"' not in got:
            got += connection.recv(65_536)
        connection.sendall(b"GET /heal")
        assert until_closed(connection) in (b"", b"}")


def test_whole_requests_on_one_connection_are_served_beyond_the_limits(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
        for _ in range(4):
            assert http.get("/healthz").status_code == 200
            time.sleep(HEAD_S / 2)


def test_bodies_together_are_bounded(workflow: Workflow) -> None:
    inner = create_app(workflow)
    app = BodyLimit(inner, max_body_bytes=1_000, max_bodies_bytes=2_500, max_bodies=100)
    half = POST + b"Content-Length: 1000\r\n\r\n" + b" " * 900
    with serving(app) as port:
        holding = [connected(port) for _ in range(2)]
        for connection in holding:
            connection.sendall(half)
        time.sleep(0.3)
        with connected(port) as third:
            third.sendall(half)
            answer = until_closed(third)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"application/problem+json" in answer
        assert b"retry-after" in answer.lower()
        for connection in holding:
            connection.close()
        until = time.monotonic() + 20
        while httpx.post(f"http://127.0.0.1:{port}/v1/configs:batch", content=b" " * 900).status_code == 503:
            assert time.monotonic() < until, "what left still counts"
        while app._held_bytes or app._receiving:
            assert time.monotonic() < until, "what was answered still counts"


def raw(port: int, host: str, path: str = "/healthz") -> tuple[int, dict[str, str], bytes]:
    with connected(port) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = until_closed(connection).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}, body


def test_only_its_own_names_are_answered_to(workflow: Workflow) -> None:
    with serving(create_app(workflow, allowed_hosts=(*own_names("127.0.0.1"), "*.example.org"))) as port:
        for host in ("localhost", f"localhost:{port}", "127.0.0.1", "[::1]:8000", "LOCALHOST", "a.example.org"):
            assert raw(port, host)[0] == 200, host
        for host in ("evil.example", "localhost.evil.example", "example.org", "", "[", "127.0.0.1.evil:80"):
            status, headers, body = raw(port, host)
            assert (status, headers["content-type"]) == (421, "application/problem+json"), host
            assert json.loads(body)["field"] == "Host"
            assert headers["x-content-type-options"] == "nosniff"


def test_the_names_of_a_server() -> None:
    assert own_names("127.0.0.1") == ("localhost", "127.0.0.1", "::1")
    assert own_names("127.0.0.2") == ("localhost", "127.0.0.1", "::1", "127.0.0.2")
    assert own_names("localhost") == ("localhost", "127.0.0.1", "::1")
    assert own_names("0.0.0.0") == own_names("planner.example.org") == ("*",)


def test_redirects_name_no_host(port: int) -> None:
    status, headers, _ = raw(port, "evil.example", "/v1/kernels/")
    assert (status, headers["location"]) == (307, "/v1/kernels")


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/docs", "/openapi.json", "/nowhere", "/v1/configs/gemm?M=0"])
def test_nothing_is_sniffed(port: int, path: str) -> None:
    assert raw(port, "localhost", path)[1]["x-content-type-options"] == "nosniff"


def test_problems_are_described_as_what_they_are(serve: Callable[[FastAPI], str], workflow: Workflow) -> None:
    described = httpx.get(serve(create_app(workflow)) + "/openapi.json").json()
    errors = [
        response
        for path in described["paths"].values()
        for operation in path.values()
        for status, response in operation["responses"].items()
        if status[0] in "45"
    ]
    assert len(errors) > 20
    schema = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
    assert all(response["content"] == {"application/problem+json": schema} for response in errors)
    assert "HTTPValidationError" not in json.dumps(described)
    assert "ProblemDetails" in described["components"]["schemas"]

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from warpplan.kernels import registry
from warpplan.service.http.app import create_app
from warpplan.service.http.server import server_of
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.request import Item


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def workflow(store: Store) -> Workflow:
    return Workflow(store)


@pytest.fixture
def gemm() -> Callable[..., Item]:
    """An item for sizes M, N, K."""

    def item(m: object, n: object, k: object, **more: str) -> Item:
        return Item("gemm", (("M", m), ("N", n), ("K", k)), **more)

    return item


@pytest.fixture
def grouped_add(monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel with options, registered as one from elsewhere is; ask for it before the application."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    registry.register("grouped_add", "grouped_add:GroupedAdd")
    return "grouped_add"


@pytest.fixture
def serve() -> Iterator[Callable[[FastAPI], str]]:
    """Serve an application on a real socket; gives the URL."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app: FastAPI) -> str:
        server = server_of(app, port=0, log_level="critical")
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))
        until = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.01)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture
def page() -> Iterator[Callable[[bytes], str]]:
    """Serve the same bytes with status 200 at every path, as a server of something else does; gives the URL."""
    running: list[ThreadingHTTPServer] = []

    def start(body: bytes) -> str:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def url(serve: Callable[[FastAPI], str], workflow: Workflow) -> str:
    return serve(create_app(workflow, max_items=30, max_body_bytes=20_000))


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client

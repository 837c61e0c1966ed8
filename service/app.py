"""The HTTP application: routes, errors, limits and counters put together."""

from __future__ import annotations

import time
from importlib import metadata

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpplan.service import http_errors
from warpplan.service.http_errors import TooLarge
from warpplan.service.metrics import Metrics
from warpplan.service.routes import router
from warpplan.service.workflow import Workflow

MAX_ITEMS = 1_000
MAX_BODY_BYTES = 1 << 20


def create_app(workflow: Workflow, *, max_items: int = MAX_ITEMS, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """The service over ``workflow``; ``max_items`` in one batch, ``max_body_bytes`` in one request."""
    app = FastAPI(
        title="warpplan",
        summary="Warp specialisation plans and tuning configurations for Triton kernels",
        version=metadata.version("warpplan"),
    )
    app.state.workflow = workflow
    app.state.metrics = Metrics()
    app.state.max_items = max_items
    http_errors.install(app)
    app.include_router(router)
    app.add_middleware(BodyLimit, max_body_bytes=max_body_bytes)
    app.add_middleware(Counted, metrics=app.state.metrics)
    return app


class BodyLimit:
    """Refuses a body as soon as it is known to be too large, without reading the rest."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._most = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._most:
            return await self._refuse(scope, receive, send)
        # Chunked bodies declare nothing: they are gathered here up to the limit, then handed on whole.
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most:
                return await self._refuse(scope, receive, send)
        handed = False

        async def whole() -> Message:
            nonlocal handed
            if handed:
                return await receive()
            handed = True
            return {"type": "http.request", "body": body, "more_body": False}

        return await self._app(scope, whole, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = TooLarge(
            f"the body has more than {self._most} bytes: send fewer items at once", field="body", limit=self._most
        )
        await http_errors.respond(http_errors.problem_of(error), {"Connection": "close"})(scope, receive, send)


class Counted:
    """Counts requests and their time by route; the route's template, so that the counters stay few."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route = getattr(scope.get("route"), "path", "(none)")
            method = (
                scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS") else "other"
            )
            self._metrics.add("warpplan_requests_total", method=method, route=route, status=str(status))
            self._metrics.add("warpplan_request_seconds_total", time.perf_counter() - started, route=route)
        return None

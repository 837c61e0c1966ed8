"""The HTTP application: routes, errors, limits and counters put together."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpplan.service.http import decision_routes, plan_routes, problem_json
from warpplan.service.http.config_routes import kernel_operations, router
from warpplan.service.http.metrics import Metrics
from warpplan.service.http.problem_json import TooLarge
from warpplan.service.solving.plan_queue import Plans
from warpplan.service.solving.solver_process import GRACE_S
from warpplan.service.solving.workers import Solvers
from warpplan.service.store.decision_store import KernelPlans
from warpplan.service.workflow.configure import Workflow

MAX_ITEMS = 1_000
MAX_BODY_BYTES = 1 << 20
SOLVERS = max(1, (os.cpu_count() or 1) // 2)
"""Half the cores: the other half answers."""
MAX_QUEUED = 1_000


def create_app(
    workflow: Workflow,
    *,
    max_items: int = MAX_ITEMS,
    max_body_bytes: int = MAX_BODY_BYTES,
    solvers: int = SOLVERS,
    max_queued: int = MAX_QUEUED,
    solver_grace_s: float = GRACE_S,
) -> FastAPI:
    """The service over ``workflow``; ``max_items`` in one batch, ``max_body_bytes`` in one request.

    Plans are kept in the store and solved by up to ``solvers`` children at once, while ``max_queued`` more may
    wait; ``solver_grace_s`` is what a child may take beyond the time limit of its plan.
    """
    app = FastAPI(
        title="warpplan",
        summary="Warp specialisation plans and tuning configurations for Triton kernels",
        version=metadata.version("warpplan"),
        lifespan=_solving,
    )
    app.state.workflow = workflow
    app.state.metrics = Metrics()
    app.state.max_items = max_items
    app.state.max_queued = max_queued
    store = workflow.store
    app.state.plans = Plans(store.database) if store is not None else None
    app.state.kernel_plans = KernelPlans(store.database) if store is not None else None
    app.state.solvers = None
    if store is not None and not store.readonly:
        app.state.solvers = Solvers(app.state.plans, app.state.metrics, count=solvers, grace_s=solver_grace_s)
    problem_json.install(app)
    app.include_router(router)
    app.include_router(kernel_operations())
    app.include_router(plan_routes.router)
    app.include_router(decision_routes.router)
    app.add_middleware(BodyLimit, max_body_bytes=max_body_bytes)
    app.add_middleware(Counted, metrics=app.state.metrics)
    return app


@asynccontextmanager
async def _solving(app: FastAPI) -> AsyncIterator[None]:
    """Solvers work as long as the server does; what they have not finished waits for the next one."""
    solvers = app.state.solvers
    if solvers is not None:
        solvers.start()
    yield
    if solvers is not None:
        await run_in_threadpool(solvers.stop)


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
        await problem_json.respond(problem_json.problem_of(error), {"Connection": "close"})(scope, receive, send)


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

"""The HTTP application: routes, errors, limits and counters put together."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import metadata

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from warpplan.service.feeds.remote_artifacts import MAX_BYTES
from warpplan.service.http import (
    config_routes,
    decision_routes,
    openapi,
    plan_routes,
    problem_json,
)
from warpplan.service.http.artifacts import artifact_routes
from warpplan.service.http.guards import AnswerHeaders, BodyLimit, Counted, HeadAsGet, TrustedHosts, WholeAddress
from warpplan.service.http.measured import measurement_routes, tuned_routes, tuning_routes
from warpplan.service.metrics import Metrics
from warpplan.service.solving.plan_queue import Plans
from warpplan.service.solving.solver_process import GRACE_S
from warpplan.service.solving.workers import Solvers
from warpplan.service.store.artifact_store import Artifacts
from warpplan.service.store.decision_store import KernelPlans
from warpplan.service.store.tuned.tuning_store import Tunings
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.planning_pool import PLANNERS, PlanningPool
from warpplan.service.workflow.profiles import planner_version

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
    planners: int = PLANNERS,
    allowed_hosts: Sequence[str] = ("*",),
) -> FastAPI:
    """The service over ``workflow``; ``max_items`` in one batch, ``max_body_bytes`` in one request.

    Plans are kept in the store and solved by up to ``solvers`` children at once, while ``max_queued`` more may
    wait; ``solver_grace_s`` is what a child may take beyond the time limit of its plan. New shapes are planned by
    ``planners`` threads. Requests for a ``Host`` that is not among ``allowed_hosts`` are refused.
    """
    app = FastAPI(
        title="warpplan",
        summary="Warp specialisation plans and tuning configurations for Triton kernels",
        version=metadata.version("warpplan"),
        lifespan=_working,
        docs_url=None,
        redoc_url=None,
    )
    state = app.state
    state.workflow, state.metrics = workflow, Metrics()
    state.max_items, state.max_queued = max_items, max_queued
    state.pool = PlanningPool(workflow, planners=planners)
    state.writers = CapacityLimiter(measurement_routes.WRITERS)
    store = workflow.store
    state.plans = Plans(store.database) if store is not None else None
    state.kernel_plans = KernelPlans(store.database) if store is not None else None
    state.artifacts = Artifacts(store.database) if store is not None else None
    state.tunings = Tunings(store.database) if store is not None else None
    state.solvers = None
    if store is not None and not store.readonly:
        state.solvers = Solvers(state.plans, state.metrics, count=solvers, grace_s=solver_grace_s)
    problem_json.install(app)
    app.include_router(config_routes.kernel_operations())
    openapi.install(app)
    measured = (measurement_routes, tuning_routes, tuned_routes)
    for routes in (config_routes, *measured, plan_routes, decision_routes, artifact_routes):
        app.include_router(routes.router)
    # The last one added comes first.
    app.add_middleware(BodyLimit, max_body_bytes=max_body_bytes, larger={artifact_routes.router.prefix: MAX_BYTES})
    app.add_middleware(WholeAddress)
    app.add_middleware(HeadAsGet)
    app.add_middleware(TrustedHosts, allowed=tuple(allowed_hosts))
    app.add_middleware(AnswerHeaders)
    app.add_middleware(Counted, metrics=state.metrics)
    return app


@asynccontextmanager
async def _working(app: FastAPI) -> AsyncIterator[None]:
    """Solvers work as long as the server does; what they have not finished waits for the next one."""
    solvers = app.state.solvers
    # Reads every source file once: not while a client waits.
    planner_version()
    if solvers is not None:
        solvers.start()
    yield
    if solvers is not None:
        await run_in_threadpool(solvers.stop)
    await run_in_threadpool(app.state.pool.close)

"""Decisions about anyone's kernels over HTTP: what ``planned(url)`` asks for, and tells."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Body, Path, Request

from warpplan.kernels.compiler.launching.decisions import from_json, to_json
from warpplan.planner.errors import StoreError
from warpplan.service.http import config_schemas
from warpplan.service.http.config_routes import KNOWN_ONLY
from warpplan.service.http.json_bodies import JsonRoute
from warpplan.service.metrics import Metrics
from warpplan.service.store.decision_store import KernelPlans, UnknownKernelPlan
from warpplan.service.workflow.request import require_whole_text

router = APIRouter(
    route_class=JsonRoute,
    prefix="/v1/kernel-plans",
    responses={"4XX": {"model": config_schemas.ProblemDetails}, "5XX": {"model": config_schemas.ProblemDetails}},
    dependencies=KNOWN_ONLY,
)


def _plans(request: Request) -> KernelPlans:
    plans = cast(KernelPlans | None, request.app.state.kernel_plans)
    if plans is None:
        raise StoreError("the service has no store to keep decisions in: start it with --store FILE", field="store")
    return plans


@router.get("/{key}")
def get(key: Annotated[str, Path(max_length=200)], request: Request) -> dict[str, Any]:
    """What was decided for one kernel, specialisation, size class, GPU and versions: schema warpplan/kernel-plan-1."""
    metrics = cast(Metrics, request.app.state.metrics)
    try:
        found = _plans(request).get(key)
    except UnknownKernelPlan:
        metrics.add("warpplan_lookups_total", sought="decision", outcome="miss")
        raise
    metrics.add("warpplan_lookups_total", sought="decision", outcome="hit")
    return to_json(found)


@router.post("")
def settle(body: Annotated[dict[str, Any], Body()], request: Request) -> dict[str, Any]:
    """Tell what a job tried. The first one to tell wins; the answer is what holds."""
    for name, value in body.items():
        require_whole_text(name, value)
    return to_json(_plans(request).settle(from_json(body, "body")))

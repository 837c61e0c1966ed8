"""What jobs measured, over HTTP: reported, listed, taken back."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Path, Query, Request, Response

from warpplan.kernels import registry
from warpplan.service.http import config_schemas
from warpplan.service.http.config_routes import KNOWN_ONLY, item_of_query
from warpplan.service.http.json_bodies import JsonRoute
from warpplan.service.metrics import Metrics
from warpplan.service.store.measured_times import Measurement
from warpplan.service.store.stored_values import environment_of
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.planning_pool import PlanningPool

router = APIRouter(
    route_class=JsonRoute,
    prefix="/v1/measurements",
    responses={"4XX": {"model": config_schemas.ProblemDetails}, "5XX": {"model": config_schemas.ProblemDetails}},
)
WRITERS = 8
"""Threads that may wait for the store's one writer, so that a locked store holds up reports only."""


def _workflow(request: Request) -> Workflow:
    return cast(Workflow, request.app.state.workflow)


@router.post("", status_code=201, responses={200: {"model": config_schemas.Recorded}}, dependencies=KNOWN_ONLY)
async def record(
    body: config_schemas.MeasurementRequest, request: Request, response: Response
) -> config_schemas.Recorded:
    """What a job measured for a configuration. It takes the place of that configuration's prediction from then on.
    A time that the device's measured ceilings do not allow is refused."""
    keep = partial(
        _workflow(request).record, body.item(), body.config.tuning(), body.time_us,
        samples=body.samples, environment=environment_of(body.environment), run=body.run,
        measured_at=body.measured_at,
    )  # fmt: skip
    measurement, fresh = await to_thread.run_sync(keep, limiter=_writers(request))
    if fresh:
        cast(Metrics, request.app.state.metrics).add("warpplan_measurements_total")
    else:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/{measurement.id}"
    return config_schemas.Recorded(recorded=fresh, id=measurement.id)


@router.get("")
async def listed(
    request: Request, kernel: Annotated[str, Query(description="the kernel; its shape, dtype and device beside it")]
) -> config_schemas.KeptMeasurements:
    """What jobs measured for one problem, oldest first."""
    item = item_of_query(registry.kernel(kernel).declaration, request, "kernel")
    found = await cast(PlanningPool, request.app.state.pool).read(partial(_workflow(request).measurements, item))
    return config_schemas.KeptMeasurements.model_validate({"measurements": [_shown(m) for m in found]})


@router.delete("/{measurement_id}", status_code=204)
async def forget(measurement_id: Annotated[str, Path(max_length=200)], request: Request) -> None:
    """Take a measurement back: it outranks nothing any more."""
    forget = partial(_workflow(request).forget_measurement, measurement_id)
    await to_thread.run_sync(forget, limiter=_writers(request))


def _writers(request: Request) -> CapacityLimiter:
    return cast(CapacityLimiter, request.app.state.writers)


def _shown(m: Measurement) -> dict[str, Any]:
    return {
        "id": m.id, "config": m.config.as_dict(), "time_us": m.time_us, "samples": m.samples,
        "environment": dict(m.environment), "run": m.run, "created_at": m.created_at,
    }  # fmt: skip

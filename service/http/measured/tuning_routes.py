"""What jobs' autotuners measured of kernels of their own, over HTTP: what ``client.listen()`` posts."""

from __future__ import annotations

from functools import partial
from typing import Annotated, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request

from warpplan.planner.errors import InvalidInput, StoreError
from warpplan.service.http import config_schemas
from warpplan.service.http.config_routes import KNOWN_ONLY
from warpplan.service.http.json_bodies import JsonRoute
from warpplan.service.http.measured import tuning_schemas
from warpplan.service.metrics import Metrics
from warpplan.service.store.stored_values import environment_of
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings

router = APIRouter(
    route_class=JsonRoute,
    prefix="/v1/tunings",
    responses={"4XX": {"model": config_schemas.ProblemDetails}, "5XX": {"model": config_schemas.ProblemDetails}},
    dependencies=KNOWN_ONLY,
)


def _tunings(request: Request) -> Tunings:
    tunings = cast(Tunings | None, request.app.state.tunings)
    if tunings is None:
        raise StoreError("the service has no store to keep tunings in: start it with --store FILE", field="store")
    return tunings


@router.post("", status_code=201)
async def report(body: tuning_schemas.TuningReport, request: Request) -> tuning_schemas.TuningsRecorded:
    """What a job tuned. Times are kept by kernel, source, key, configuration and machine; of repeated reports the least
    time stands. A tuning that was found in a cache (``hit``) is no measurement, and is not kept."""
    gpu = body.environment.get("gpu", body.device)
    if gpu != body.device:
        raise InvalidInput(
            f"environment.gpu={gpu!r}: the tunings are of {body.device}: send them with that device",
            field="environment.gpu", value=gpu, limit=body.device,
        )  # fmt: skip
    environment = environment_of(body.environment)
    # What an entry of Triton's disk cache says may be another machine's time, or a prediction that we exported.
    tuned = [t for t in body.tunings if not t.hit]
    times = [
        TunedTime(t.kernel, t.source, tuple(t.key), c.config.tuning(), body.device, environment, c.time_us)
        for t in tuned
        for c in t.configs
    ]
    limiter = cast(CapacityLimiter, request.app.state.writers)
    await to_thread.run_sync(partial(_tunings(request).record, times), limiter=limiter)
    cast(Metrics, request.app.state.metrics).add("warpplan_tunings_total", len(tuned))
    return tuning_schemas.TuningsRecorded(recorded=len(times))


@router.get("")
def listed(
    request: Request, kernel: Annotated[str, Query(max_length=500, description="module and name of the kernel")]
) -> tuning_schemas.KeptTunings:
    """What was measured of one kernel, by source and key."""
    found = _tunings(request).of(kernel)
    return tuning_schemas.KeptTunings.model_validate(
        {
            "tunings": [
                {
                    "source": t.source, "key": list(t.key), "config": t.config.as_dict(), "device": t.device,
                    "environment": dict(t.environment), "time_us": t.time_us, "reports": t.reports,
                    "newest": t.newest,
                }
                for t in found
            ]
        }
    )  # fmt: skip

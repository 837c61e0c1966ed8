"""What jobs' autotuners measured of kernels of their own, over HTTP: what ``client.listen()`` posts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request

from warpplan.planner.errors import StoreError
from warpplan.planner.values.device import device
from warpplan.service.http import config_schemas
from warpplan.service.http.config_routes import KNOWN_ONLY
from warpplan.service.http.json_bodies import JsonRoute
from warpplan.service.http.measured import tuning_schemas
from warpplan.service.metrics import Metrics
from warpplan.service.store.stored_values import environment_of
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.plausibility import require_launchable, require_same_gpu

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
    time stands. A tuning that was found in a cache (``hit``) is no measurement, and is not kept. Refused are a device
    that nobody knows, another GPU in the environment, and a time that is shorter than an empty kernel's."""
    gpu, environment = device(body.device), environment_of(body.environment)
    require_same_gpu(environment, gpu)
    # What an entry of Triton's disk cache says may be another machine's time, or a prediction that we exported.
    tuned = [t for t in body.tunings if not t.hit]
    source = cast(Workflow, request.app.state.workflow).profiles.available().get(gpu.name)
    if source is not None:
        require_launchable(_times(body.tunings), gpu, source.profile)
    times = [
        TunedTime(t.kernel, t.source, tuple(t.key), c.config.tuning(), body.device, environment, c.time_us)
        for t in tuned
        for c in t.configs
    ]
    limiter = cast(CapacityLimiter, request.app.state.writers)
    await to_thread.run_sync(partial(_tunings(request).record, times), limiter=limiter)
    cast(Metrics, request.app.state.metrics).add("warpplan_tunings_total", len(tuned))
    return tuning_schemas.TuningsRecorded(recorded=len(times))


def _times(tunings: Sequence[tuning_schemas.Tuning]) -> Iterator[tuple[str, float]]:
    """Every time that would be kept, with its place in the body."""
    for number, tuning in enumerate(tunings):
        for place, config in enumerate(tuning.configs):
            if config.time_us is not None and not tuning.hit:
                yield f"tunings.{number}.configs.{place}.time_us", config.time_us


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

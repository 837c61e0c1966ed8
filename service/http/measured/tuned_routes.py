"""Configurations of kernels that are not ours, over HTTP: what ``warpplan tune --store`` has kept."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from warpplan.planner.errors import InvalidInput, StoreError, UnknownName
from warpplan.service.http import config_schemas
from warpplan.service.http.config_routes import single_parameters
from warpplan.service.http.json_bodies import JsonRoute
from warpplan.service.metrics import Metrics
from warpplan.service.store.answer_store import Store
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers
from warpplan.service.store.tuned.tuning_store import Tunings
from warpplan.service.tuning.kernel_choice import KernelChoice, RankingOrigin, choices
from warpplan.service.tuning.launch_times import times_of
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.planning_pool import PlanningPool
from warpplan.service.workflow.profiles import Profiles, planner_version

router = APIRouter(
    route_class=JsonRoute,
    prefix="/v1/tuned-kernels",
    responses={"4XX": {"model": config_schemas.ProblemDetails}, "5XX": {"model": config_schemas.ProblemDetails}},
)
WORDS = ("kernel", "source", "device", "signature")
"""What a query may name beside sizes."""


class TunedKernel(BaseModel):
    """A configuration of one kernel for one shape; ``measured_us`` is ``null`` where it was only predicted."""

    kernel: str
    source: str
    shape: dict[str, int]
    signature: str
    device: str
    config: config_schemas.Config
    predicted_us: float | None
    measured_us: float | None
    provenance: dict[str, Any]


class TunedKernels(BaseModel):
    answers: list[TunedKernel]


@router.get("")
async def tuned(
    request: Request,
    kernel: Annotated[str, Query(max_length=500, description="the kernel's function, by its name")],
    source: Annotated[str, Query(max_length=500, description="Triton's hash of it, `cache_key`")] = "",
    device: Annotated[str, Query(max_length=500, description="the GPU's full name")] = "",
    signature: Annotated[str, Query(max_length=10_000, description="its other parameters, as in the answers")] = "",
) -> TunedKernels:
    """The kept configurations of a kernel, one for each shape, signature and device: the fastest that was measured,
    else the first predicted by this planner from the device's profile here. Any other parameter of the query is a size,
    and then the shape has to be the same."""
    shape = {name: _size(name, value) for name, value in single_parameters(request).items() if name not in WORDS}
    workflow = cast(Workflow, request.app.state.workflow)
    if workflow.store is None:
        raise StoreError("the service has no store of tuned kernels: start it with --store FILE", field="store")
    find = partial(_find, workflow.store, workflow.profiles, kernel, source, device, signature, shape or None)
    found = await cast(PlanningPool, request.app.state.pool).read(find)
    outcome = "hit" if found else "miss"
    cast(Metrics, request.app.state.metrics).add("warpplan_lookups_total", sought="tuned kernel", outcome=outcome)
    return TunedKernels.model_validate({"answers": [choice.as_dict() for choice in found]})


def _find(
    store: Store, profiles: Profiles, kernel: str, source: str, device: str, signature: str,
    shape: dict[str, int] | None,
) -> tuple[KernelChoice, ...]:  # fmt: skip
    """As for configurations of our own kernels: what another profile or planner predicted is never found."""
    answers = KernelAnswers(store.database).of(kernel, lambda answer: not _why_stale(profiles, answer))
    times = times_of(answers, Tunings(store.database))
    found = choices(answers, times, source=source, device=device, signature=signature, shape=shape)
    return tuple(choice for choice in found if choice.measured is not None or not _why_stale(profiles, choice.answer))


def _why_stale(profiles: Profiles, answer: KernelAnswer) -> str:
    """Why ``answer`` is not this service's own; which Triton a job has is for the job to compare."""
    try:
        profile = profiles.of(answer.device).key
    except UnknownName as error:
        return str(error)
    return RankingOrigin(profile, planner_version()).why_stale(answer)


def _size(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise InvalidInput(f"{name}={value[:80]!r} is no size: expected a whole number", field=name, value=value[:80])
    return int(value)

"""Plans of anybody's loops over HTTP: asked for, followed, fetched, drawn, forgotten."""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import Response

from warpplan.planner.errors import InvalidInput, StoreError
from warpplan.service.http import config_schemas
from warpplan.service.http.config_routes import KNOWN_ONLY
from warpplan.service.http.json_bodies import JsonRoute
from warpplan.service.http.plan_schemas import NewPlan, PlanPage, PlanStatus, PlanSummary
from warpplan.service.http.plan_timeline import MEDIA_TYPES, Format, accepted
from warpplan.service.http.plan_timeline import timeline as drawn
from warpplan.service.http.problem_json import document
from warpplan.service.metrics import Metrics
from warpplan.service.solving.plan_queue import KeptPlan, Plans, QueueFull, State
from warpplan.service.solving.plan_request import PlanRequest
from warpplan.service.solving.workers import Solvers
from warpplan.service.workflow.profiles import planner_version

router = APIRouter(
    route_class=JsonRoute,
    prefix="/v1/plans",
    responses={"4XX": {"model": config_schemas.ProblemDetails}, "5XX": {"model": config_schemas.ProblemDetails}},
    dependencies=KNOWN_ONLY,
)

PlanId = Annotated[str, Path(description="the id that POST /v1/plans gave", max_length=200)]
NO_SCRIPTS_FROM_ELSEWHERE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def _plans(request: Request) -> Plans:
    plans = cast(Plans | None, request.app.state.plans)
    if plans is None:
        raise StoreError("the service has no store to keep plans in: start it with --store FILE", field="store")
    return plans


def _metrics(request: Request) -> Metrics:
    return cast(Metrics, request.app.state.metrics)


@router.post("", status_code=202)
def submit(body: NewPlan, request: Request, response: Response) -> PlanSummary:
    """Have a loop planned. The id digests the request: the same request is the same plan, solved once."""
    plans, solvers = _plans(request), cast(Solvers | None, request.app.state.solvers)
    wanted = PlanRequest.of(body.graph, body.options.model_dump())
    try:
        summary, fresh = plans.submit(wanted, planner_version(), most_queued=request.app.state.max_queued)
    except QueueFull:
        _metrics(request).add("warpplan_plans_refused_total")
        raise
    _metrics(request).add("warpplan_plans_submitted_total", new="true" if fresh else "false")
    if fresh and solvers is not None:
        solvers.wake()
    response.headers["Location"] = f"{router.prefix}/{summary.id}"
    return PlanSummary.model_validate(summary, from_attributes=True)


@router.get("")
def page(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="most plans on the page")] = 50,
    after: Annotated[str | None, Query(description="the page before's next", max_length=200)] = None,
    state: Annotated[State | None, Query(description="only plans in this state")] = None,
) -> PlanPage:
    """The plans that are kept, newest first."""
    found = _plans(request).page(limit + 1, after=_cursor(after), state=state)
    shown = [PlanSummary.model_validate(s, from_attributes=True) for s in found[:limit]]
    more = f"{shown[-1].submitted_at},{shown[-1].id}" if len(found) > limit else None
    return PlanPage(plans=shown, next=more)


def _cursor(after: str | None) -> tuple[str, str] | None:
    if after is None:
        return None
    # A plus sign that was not escaped arrives as a space.
    at, comma, plan_id = after.replace(" ", "+").partition(",")
    if not comma:
        raise InvalidInput(f"after is {after!r}: expected the next of the page before", field="after", value=after)
    return at, plan_id


@router.get("/{plan_id}")
def get(plan_id: PlanId, request: Request, response: Response) -> PlanStatus:
    """How far a plan is, and what became of it."""
    kept = _plans(request).get(plan_id)
    if kept.summary.state in ("queued", "running"):
        response.headers["Retry-After"] = "1"
    return _plan(kept)


def _plan(kept: KeptPlan) -> PlanStatus:
    return PlanStatus.model_validate(
        {
            **vars(kept.summary),
            "options": json.loads(kept.request)["options"],
            "outcome": kept.outcome,
            "problem": _problem(kept),
        }
    )


def _problem(kept: KeptPlan) -> dict[str, Any] | None:
    """Why there is no outcome: not the request's fault, so a 500."""
    if kept.failure is None:
        return None
    return document(500, f"solver-{kept.failure['kind']}", kept.failure["reason"], field="plan", value=kept.summary.id)


@router.get(
    "/{plan_id}/timeline",
    responses={200: {"content": {name.partition(";")[0]: {} for name in MEDIA_TYPES.values()}}},
)
def timeline(
    plan_id: PlanId,
    request: Request,
    iterations: Annotated[int | None, Query(ge=0, le=1000, description="iterations of the loop")] = None,
    form: Annotated[Format | None, Query(alias="format", description="instead of an Accept header")] = None,
    accept: str | None = Header(default=None),
) -> Response:
    """When what runs, as simulated: JSON (schema warpplan/timeline-1), a picture or a page, by Accept or format."""
    chosen = form or accepted(accept)
    body = drawn(_plans(request).get(plan_id), iterations, chosen)
    headers = {"Vary": "Accept", "Content-Security-Policy": NO_SCRIPTS_FROM_ELSEWHERE}
    return Response(body, media_type=MEDIA_TYPES[chosen], headers=headers)


@router.delete("/{plan_id}", status_code=204)
def forget(plan_id: PlanId, request: Request) -> None:
    """Forget a plan; one that is being solved is cancelled."""
    _plans(request).forget(plan_id)

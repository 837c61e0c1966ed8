"""What the service answers, route by route; the work is in :mod:`warpplan.service.workflow.configure`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, cast

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from warpplan.kernels import registry
from warpplan.kernels.declaration import Declaration
from warpplan.planner.errors import InvalidInput, StoreError, WarpplanError
from warpplan.planner.values import codec
from warpplan.planner.values.device import DEVICES
from warpplan.service.config_request import canonical_json
from warpplan.service.http import config_schemas
from warpplan.service.http.json_bodies import JsonRoute
from warpplan.service.http.problem_json import TooLarge, encodable, problem_of, status_of
from warpplan.service.metrics import Metrics
from warpplan.service.workflow.answers import ConfigAnswer
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.planning_pool import PlanningPool
from warpplan.service.workflow.request import DEFAULT_DEVICE, DEFAULT_DTYPE, Item

router = APIRouter(
    route_class=JsonRoute,
    responses={"4XX": {"model": config_schemas.ProblemDetails}, "5XX": {"model": config_schemas.ProblemDetails}},
)


def _workflow(request: Request) -> Workflow:
    return cast(Workflow, request.app.state.workflow)


def _pool(request: Request) -> PlanningPool:
    return cast(PlanningPool, request.app.state.pool)


def _metrics(request: Request) -> Metrics:
    return cast(Metrics, request.app.state.metrics)


def _count(request: Request, answer: ConfigAnswer) -> None:
    _metrics(request).add("warpplan_answers_total", match=answer.kind)
    if answer.notice and _workflow(request).store is not None:
        _metrics(request).add("warpplan_answers_not_kept_total")


def kernel_operations() -> APIRouter:
    """One operation for each registered kernel, described from what it declares. The last route, which the OpenAPI
    document leaves out, answers for kernels registered since and says which kernels there are."""
    operations = APIRouter(route_class=JsonRoute, responses=router.responses)
    answers: dict[int | str, dict[str, Any]] = {
        200: {"model": config_schemas.Answer},
        304: {"description": "the client's copy is current"},
    }
    for declared in registry.declarations():
        operations.add_api_route(
            f"/v1/configs/{declared.name}",
            _operation(declared),
            methods=["GET"],
            operation_id=f"get_config_{declared.name}",
            summary=f"Configuration of {declared.name}",
            description=f"{declared.description}. {_PLANNED_OR_KEPT}",
            responses=answers,
            openapi_extra={"parameters": config_schemas.query_parameters(declared)},
        )
    operations.add_api_route("/v1/configs/{kernel}", _get_any_config, methods=["GET"], include_in_schema=False)
    return operations


_PLANNED_OR_KEPT = "The configuration for one shape; planned on the spot and kept where it was never asked for."


async def _get_any_config(kernel: str, request: Request, if_none_match: str | None = Header(default=None)) -> Response:
    return await _answer(registry.kernel(kernel).declaration, request, if_none_match)


def _operation(declared: Declaration) -> Callable[..., Awaitable[Response]]:
    async def get_config(request: Request, if_none_match: str | None = Header(default=None)) -> Response:
        return await _answer(declared, request, if_none_match)

    return get_config


async def _answer(declared: Declaration, request: Request, if_none_match: str | None) -> Response:
    """The answer with a strong entity tag, or 304 where the client holds it."""
    answer = await _pool(request).configure(item_of_query(declared, request))
    _count(request, answer)
    headers = {"ETag": answer.etag, "Cache-Control": "no-cache"}
    held = _matching(if_none_match, answer)
    if held is not None:
        return Response(status_code=304, headers=headers | {"ETag": held})
    return Response(answer.body, media_type="application/json", headers=headers)


def item_of_query(declared: Declaration, request: Request, *beside: str) -> Item:
    """The question in a query string; parameters ``beside`` it are the route's own. Raises :class:`InvalidInput`."""
    given = single_parameters(request, (*declared.parameters, "dtype", "device", *beside))
    shape = tuple((name, given[name]) for name in declared.parameters if name in given)
    return Item(declared.name, shape, given.get("dtype", DEFAULT_DTYPE), given.get("device", DEFAULT_DEVICE))


def only_known_parameters(request: Request) -> None:
    """What a router depends on whose routes take no other query parameters than they declare: one that is misspelt
    would be left out of account. Raises :class:`InvalidInput`."""
    single_parameters(request, [parameter.alias for parameter in request.scope["route"].dependant.query_params])


def single_parameters(request: Request, expected: Sequence[str] | None = None) -> dict[str, str]:
    """The query's parameters. Raises :class:`InvalidInput` for one that is given twice, of which only one value could
    count, or is none of ``expected``; without ``expected`` every name will do."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if expected is not None and name not in expected:
            raise InvalidInput(
                f"unknown query parameter {name!r}: expected {', '.join(expected) or 'none'}",
                field=name, value=value, limit=list(expected),
            )  # fmt: skip
        if name in given:
            raise InvalidInput(f"query parameter {name!r} is given twice: give it once", field=name, value=value)
        given[name] = value
    return given


KNOWN_ONLY = [Depends(only_known_parameters)]
"""The ``dependencies`` of a route, or of a router, for :func:`only_known_parameters`."""


def _matching(if_none_match: str | None, answer: ConfigAnswer) -> str | None:
    """The tag of ``answer`` that the client holds, if any (RFC 9110, 13.1.2: weak comparison)."""
    if if_none_match is None:
        return None
    held = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return answer.etag if "*" in held else next((tag for tag in held if tag in answer.etags), None)


@router.post("/v1/configs:batch", responses={200: {"model": config_schemas.BatchAnswer}}, dependencies=KNOWN_ONLY)
async def batch(body: config_schemas.BatchRequest, request: Request) -> Response:
    """The same for many, a status each; one bad item does not cost the others."""
    most = request.app.state.max_items
    if len(body.items) > most:
        raise TooLarge(
            f"{len(body.items)} items in one batch: at most {most}, send the rest in another",
            field="items", value=len(body.items), limit=most,
        )  # fmt: skip
    results: list[dict[str, Any]] = []
    for result in await _pool(request).batch([_parsed(fields) for fields in body.items]):
        if result.answer is not None:
            _count(request, result.answer)
            results.append({"status": 200, "answer": result.answer.as_dict()})
        elif result.error is not None:
            results.append({"status": status_of(result.error), "error": encodable(problem_of(result.error))})
    return Response(canonical_json({"results": results}), media_type="application/json")


def _parsed(fields: object) -> Item | WarpplanError:
    if not isinstance(fields, dict):
        return InvalidInput(
            f"item {fields!r}: expected an object of kernel, shape, dtype and device",
            field="items", value=fields, limit="an object",
        )  # fmt: skip
    try:
        return Item.of(fields)
    except InvalidInput as error:
        return error


@router.get("/v1/kernels", dependencies=KNOWN_ONLY)
async def kernels() -> dict[str, Any]:
    """What can be planned: each kernel with its sizes and options and what they mean, its dtypes, example shapes."""
    return {"kernels": [declared.as_dict() for declared in registry.declarations()]}


@router.get("/v1/devices", dependencies=KNOWN_ONLY)
async def devices(request: Request) -> dict[str, Any]:
    """The known GPUs; ``profile`` is the key of the profile that plans for it, null where there is none."""
    sources = _workflow(request).profiles.available()
    return {
        "devices": [
            {**asdict(d), "profile": sources[d.name].key if d.name in sources else None} for d in DEVICES.values()
        ]
    }


@router.get("/v1/profiles/{profile_id}", dependencies=KNOWN_ONLY)
async def profile(profile_id: str, request: Request) -> Response:
    """A profile by its key: identity, costs, ceilings, calibrations, failures."""
    source = _workflow(request).profiles.by_key(profile_id)
    return JSONResponse(codec.to_json(source.profile), headers={"ETag": f'"{source.key}"'})


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> dict[str, str]:
    """The store answers too, and there is a profile to plan with; else 503."""
    workflow = _workflow(request)
    if workflow.store is not None:
        await _pool(request).read(workflow.store.ping)
    workflow.profiles.of(workflow.profiles.default_device)
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> PlainTextResponse:
    """Counters for Prometheus; without those of the plans where the store does not answer."""
    plans = request.app.state.plans
    try:
        states = await _pool(request).read(plans.counts) if plans is not None else None
    except StoreError:
        states = None
    return PlainTextResponse(_metrics(request).text(states), media_type="text/plain; version=0.0.4; charset=utf-8")

"""Files of consumers' caches over HTTP: what one job compiled or tuned, given to the others."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated, Any, cast

from anyio import to_thread
from fastapi import APIRouter, Body, Path, Query, Request, Response

from warpplan.planner.errors import InvalidInput, StoreError
from warpplan.service.feeds.remote_artifacts import packed
from warpplan.service.feeds.triton_remote import TUNED_SUFFIX
from warpplan.service.http import config_schemas
from warpplan.service.http.artifacts.artifact_checks import key_pattern, place_of, require_file_name, require_tuning
from warpplan.service.http.json_bodies import JsonRoute
from warpplan.service.metrics import Metrics
from warpplan.service.store.artifact_store import Artifacts, artifact
from warpplan.service.workflow.planning_pool import PlanningPool

router = APIRouter(
    route_class=JsonRoute,
    prefix="/v1/artifacts",
    responses={"4XX": {"model": config_schemas.ProblemDetails}, "5XX": {"model": config_schemas.ProblemDetails}},
)
MAX_KEYS = 10_000
MAX_NAMES = 64

ConsumerName = Annotated[str, Path(max_length=40, description="whose cache it is: triton, helion")]
CacheKey = Annotated[str, Path(max_length=200, description="the consumer's own key")]
Scope = Annotated[str, Query(description="the machine that the files are for; empty where they hold everywhere")]


@router.get("/{consumer}")
async def keys(consumer: ConsumerName, request: Request) -> dict[str, Any]:
    """The keys under which files are kept, newest first, at most ten thousand."""
    key_pattern(consumer)
    found = await _pool(request).read(partial(_artifacts(request).keys, consumer, MAX_KEYS))
    return {"keys": list(found)}


@router.get("/{consumer}/{key}")
async def files(
    consumer: ConsumerName,
    key: CacheKey,
    request: Request,
    name: Annotated[list[str], Query(description="a file's name; may be given again")],
    scope: Scope = "",
) -> dict[str, Any]:
    """Those of the named files that are kept whole: ``data`` is zlib in base64, ``sha256`` of the file itself."""
    place = place_of(consumer, key, scope)
    if len(name) > MAX_NAMES:
        raise InvalidInput(
            f"{len(name)} names: at most {MAX_NAMES} at once", field="name", value=len(name), limit=MAX_NAMES
        )
    for one in name:
        require_file_name(one)
    found = await _pool(request).read(partial(_artifacts(request).get, place, name))
    _count(request, consumer, "found", len(found))
    _count(request, consumer, "missing", len(set(name)) - len(found))
    return {"files": {a.name: {"sha256": a.sha256, "data": a.body} for a in found.values()}}


@router.put("/{consumer}/{key}", status_code=201)
async def keep(
    consumer: ConsumerName,
    key: CacheKey,
    request: Request,
    response: Response,
    body: Annotated[bytes, Body(media_type="application/octet-stream")],
    name: Annotated[str, Query(description="the file's name")],
    sha256: Annotated[str, Query(description="of the body, in hexadecimal")],
    scope: Scope = "",
) -> dict[str, Any]:
    """Keep a file. The first one sent under a name stays: the answer's ``sha256`` is of what holds."""
    place = place_of(consumer, key, scope)
    require_file_name(name)
    if hashlib.sha256(body).hexdigest() != sha256:
        raise InvalidInput("the body does not match its sha256: send it again", field="sha256", value=sha256)
    if name.endswith(TUNED_SUFFIX):
        require_tuning(body)
    store = _artifacts(request)

    def kept() -> tuple[str, bool]:
        holds, fresh = store.put(place, artifact(name, body, packed(body)))
        return holds.sha256, fresh

    holds, fresh = await to_thread.run_sync(kept, limiter=request.app.state.writers)
    response.status_code = 201 if fresh else 200
    _count(request, consumer, "kept" if fresh else "kept before", 1)
    return {"kept": fresh, "sha256": holds}


@router.delete("/{consumer}/{key}", status_code=204)
async def forget(consumer: ConsumerName, key: CacheKey, request: Request) -> None:
    """Give up every file under a key: the next job makes them anew."""
    place_of(consumer, key, "")
    await to_thread.run_sync(partial(_artifacts(request).forget, consumer, key), limiter=request.app.state.writers)


def _artifacts(request: Request) -> Artifacts:
    found = cast(Artifacts | None, request.app.state.artifacts)
    if found is None:
        raise StoreError("the service has no store to keep artifacts in: start it with --store FILE", field="store")
    return found


def _pool(request: Request) -> PlanningPool:
    return cast(PlanningPool, request.app.state.pool)


def _count(request: Request, consumer: str, outcome: str, amount: int) -> None:
    if amount:
        metrics = cast(Metrics, request.app.state.metrics)
        metrics.add("warpplan_artifacts_total", amount, consumer=consumer, outcome=outcome)

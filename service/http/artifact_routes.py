"""Files of consumers' caches over HTTP: what one job compiled or tuned, given to the others."""

from __future__ import annotations

import hashlib
import json
import math
import re
from functools import partial
from typing import Annotated, Any, cast

from anyio import to_thread
from fastapi import APIRouter, Body, Path, Query, Request, Response

from warpplan.planner.errors import InvalidInput, StoreError, UnknownName
from warpplan.service.feeds.remote_artifacts import packed
from warpplan.service.feeds.triton_remote import TUNED_SUFFIX
from warpplan.service.http import config_schemas
from warpplan.service.metrics import Metrics
from warpplan.service.store.artifact_store import ArtifactKey, Artifacts, artifact
from warpplan.service.workflow.planning_pool import PlanningPool
from warpplan.service.workflow.request import require_whole_text

router = APIRouter(
    prefix="/v1/artifacts",
    responses={"4XX": {"model": config_schemas.ProblemDetails}, "5XX": {"model": config_schemas.ProblemDetails}},
)
KEYS = {"triton": re.compile(r"[A-Z2-7]{20,104}"), "helion": re.compile(r"[0-9a-f]{64}")}
"""What each consumer's keys look like: Triton's are digests in base32, Helion's in hexadecimal."""
MAX_NAMES = 64
MAX_NAME_BYTES = 255
MAX_SCOPE_CHARACTERS = 200
MAX_KEYS = 10_000

ConsumerName = Annotated[str, Path(max_length=40, description="whose cache it is: triton, helion")]
CacheKey = Annotated[str, Path(max_length=200, description="the consumer's own key")]
Scope = Annotated[str, Query(description="the machine that the files are for; empty where they hold everywhere")]


@router.get("/{consumer}")
async def keys(consumer: ConsumerName, request: Request) -> dict[str, Any]:
    """The keys under which files are kept, newest first, at most ten thousand."""
    _key_pattern(consumer)
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
    place = _place(consumer, key, scope)
    if len(name) > MAX_NAMES:
        raise InvalidInput(
            f"{len(name)} names: at most {MAX_NAMES} at once", field="name", value=len(name), limit=MAX_NAMES
        )
    for one in name:
        _require_file_name(one)
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
    place = _place(consumer, key, scope)
    _require_file_name(name)
    if hashlib.sha256(body).hexdigest() != sha256:
        raise InvalidInput("the body does not match its sha256: send it again", field="sha256", value=sha256)
    if name.endswith(TUNED_SUFFIX):
        _require_tuning(body)
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
    _place(consumer, key, "")
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


def _key_pattern(consumer: str) -> re.Pattern[str]:
    if consumer not in KEYS:
        raise UnknownName("consumer", consumer, KEYS)
    return KEYS[consumer]


def _place(consumer: str, key: str, scope: str) -> ArtifactKey:
    pattern = _key_pattern(consumer)
    if not pattern.fullmatch(key):
        raise InvalidInput(
            f"{key[:80]!r} is no key of {consumer}: expected {pattern.pattern}",
            field="key", value=key, limit=pattern.pattern,
        )  # fmt: skip
    require_whole_text("scope", scope)
    if len(scope) > MAX_SCOPE_CHARACTERS or not scope.isprintable():
        raise InvalidInput(
            f"scope {scope[:40]!r}: expected at most {MAX_SCOPE_CHARACTERS} printable characters",
            field="scope", value=scope, limit=MAX_SCOPE_CHARACTERS,
        )  # fmt: skip
    return ArtifactKey(consumer, key, scope)


def _require_file_name(name: str) -> None:
    """Raise :class:`InvalidInput` for what is no plain file name: consumers write it into their folders."""
    require_whole_text("name", name)
    plain = 0 < len(name.encode()) <= MAX_NAME_BYTES and name.isprintable() and not name.startswith(".")
    if not plain or "/" in name or "\\" in name:
        raise InvalidInput(
            f"{name[:80]!r} is no file name: expected 1 to {MAX_NAME_BYTES} bytes without slashes, not beginning with "
            "a dot",
            field="name", value=name, limit=MAX_NAME_BYTES,
        )  # fmt: skip


def _require_tuning(body: bytes) -> None:
    """Raise :class:`InvalidInput` for a tuning result from which Triton could take no configuration."""
    try:
        times = [times[0] for _, times in json.loads(body)["configs_timings"]]
        usable = any(math.isfinite(t) and t > 0 for t in times) and not any(math.isnan(t) or t < 0 for t in times)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        usable = False
    if not usable:
        raise InvalidInput(
            "the body is no tuning result of Triton: expected configs_timings with a time above 0", field="body"
        )

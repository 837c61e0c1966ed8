"""Every error as RFC 9457 ``application/problem+json``: type, title, status, detail, field, value, limit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from math import isfinite
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from warpplan.planner.errors import Infeasible, InvalidInput, MissingCosts, StoreError, UnknownName, WarpplanError
from warpplan.service.store.store_failures import ReadOnlyStore

MEDIA_TYPE = "application/problem+json"
MAX_VALUE_CHARACTERS = 200
_MOST_OTHERS = 8
"""Further fields of a request that are named; the rest are "…"."""
RETRY_AFTER_S = 5


class TooLarge(InvalidInput):
    """A request with more items or bytes than the service takes (HTTP 413)."""


class NotAcceptable(InvalidInput):
    """No form of the answer is one that the client takes (HTTP 406)."""


class UnknownHost(InvalidInput):
    """A request for a name that this service does not go by (HTTP 421)."""


class NotReady(WarpplanError):
    """What was asked for is not there yet, or will never be, in the state that things are in (HTTP 409)."""


_STATUS: tuple[tuple[type[WarpplanError], int], ...] = (
    (TooLarge, 413),
    (NotAcceptable, 406),
    (UnknownHost, 421),
    (UnknownName, 404),
    (InvalidInput, 422),
    (Infeasible, 422),
    (NotReady, 409),
    (ReadOnlyStore, 403),
    # The question is sound; this server cannot answer it for now.
    (MissingCosts, 503),
    (StoreError, 503),
)


def status_of(error: WarpplanError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem_of(error: WarpplanError) -> dict[str, Any]:
    """The problem document of one of our errors."""
    return document(
        status_of(error),
        _dashed(type(error).__name__),
        str(error),
        field=error.field,
        value=error.value,
        limit=error.limit,
    )


def _field(place: Sequence[int | str]) -> str:
    """A path into the body; the first element only says where the value came from."""
    return ".".join(str(part) for part in place[1:]) or str(place[0])


def install(app: FastAPI) -> None:
    """Make every error of ``app`` a problem document, the framework's own and unexpected ones included."""

    @app.exception_handler(WarpplanError)
    async def ours(request: Request, error: WarpplanError) -> Response:
        return respond_to(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first, *more = error.errors()
        field, message = _field(first["loc"]), first["msg"]
        if first["loc"] == ("body",) and isinstance(first.get("input"), bytes):
            # The framework parses a body as JSON only where its type says so.
            given = request.headers.get("content-type", "")
            detail = f"Content-Type is {given!r}: expected application/json"
            unread = document(
                415, "unsupported-media-type", detail, field="Content-Type", value=given, limit="application/json"
            )
            return respond(unread)
        if first["type"] == "json_invalid":
            # Here the path holds the character at which the parser gave up.
            message, field = f"not JSON at character {field}: {first['ctx']['error']}", "body"
        others = [name for name in dict.fromkeys(_field(one["loc"]) for one in more) if name != field]
        told = ", ".join(others[:_MOST_OTHERS]) + (", …" if len(others) > _MOST_OTHERS else "")
        detail = f"{field}: {message}" + (f" (wrong, too: {told})" if told else "")
        limit = next((v for k, v in first.get("ctx", {}).items() if k in _LIMITS), None)
        # Of what is missing and of what is no JSON the framework gives the whole around it.
        value = None if first["type"] in ("missing", "json_invalid") else first.get("input")
        return respond(document(422, "invalid-request", detail, field=field, value=value, limit=limit))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        path, headers = request.url.path, dict(error.headers or {})
        if isinstance(error.__cause__, WarpplanError):  # raised while the framework read the body
            return respond_to(error.__cause__)
        if error.status_code == 404:
            return respond(
                document(404, "not-found", f"there is nothing at {path}: see /docs", field="path", value=path)
            )
        if error.status_code == 405:
            headers["Allow"] = allowed = ", ".join(_methods(app, request))
            detail = f"{path} does not take {request.method}: use {allowed}"
            return respond(
                document(405, "method-not-allowed", detail, field="method", value=request.method, limit=allowed),
                headers,
            )
        unread = next((why for kind, why in _UNREAD if isinstance(error.__cause__, kind)), None)
        if unread is not None:
            return respond(document(422, "invalid-request", f"body: not JSON that can be read: {unread}", field="body"))
        kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        return respond(document(error.status_code, kind, str(error.detail)), headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # The server logs it, with its traceback.
        return respond(document(500, "internal-error", "the service failed unexpectedly: its log says where"))


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Every method that a route takes at this path, HEAD where GET is: the framework names the first route's only."""
    return [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": "GET" if method == "HEAD" else method})[0] is Match.FULL
            for route in app.routes
        )
    ]


METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_UNREAD: tuple[tuple[type[Exception], str], ...] = (
    (RecursionError, "it nests too deeply"),
    (UnicodeDecodeError, "it is not UTF-8"),
    (ValueError, "it holds a number of thousands of digits"),
)
"""Bodies on which the parser gives up without naming a place, and why."""
_LIMITS = ("gt", "ge", "lt", "le", "max_length", "min_length", "expected")


def respond_to(error: WarpplanError, headers: dict[str, str] | None = None) -> Response:
    """The answer to one of our errors; a 503 says when to come again."""
    again = {"Retry-After": str(RETRY_AFTER_S)} if status_of(error) == 503 else {}
    return respond(problem_of(error), again | (headers or {}))


def respond(document: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    # In ASCII: what a caller sent may hold halves of characters, which are no UTF-8.
    return Response(json.dumps(document), document["status"], headers=headers or {}, media_type=MEDIA_TYPE)


def document(
    status: int, kind: str, detail: str, *, field: str | None = None, value: object = None, limit: object = None
) -> dict[str, Any]:
    """A problem document of a ``kind`` in words joined by dashes."""
    return {
        "type": f"urn:warpplan:problem:{kind}",
        "title": kind.replace("-", " ").capitalize(),
        "status": status,
        # One line, whatever names a caller has sent.
        "detail": _short(" ".join(detail.split()), 4 * MAX_VALUE_CHARACTERS),
        "field": field,
        "value": _plain(value),
        "limit": _plain(limit),
    }


def _plain(value: object) -> object:
    """``value`` as JSON can carry it, cut where a caller sent a book."""
    if value is None or isinstance(value, bool):
        return value
    if (isinstance(value, int) and abs(value) < 2**63) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, list | tuple) and len(value) <= 32 and all(isinstance(v, str | int) for v in value):
        return [_plain(v) for v in value]
    try:
        return _short(value if isinstance(value, str) else repr(value), MAX_VALUE_CHARACTERS)
    except ValueError:
        # Python refuses to print whole numbers of thousands of digits.
        return "(too long to show)"


def encodable(value: Any) -> Any:
    """A problem document with halves of characters (lone surrogates), which are no UTF-8, written as escapes."""
    if isinstance(value, dict):
        return {name: encodable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [encodable(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _dashed(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()

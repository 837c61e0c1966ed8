"""What stands before the routes: limits on bodies and addresses, names of hosts, HEAD, headers, counters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpplan.planner.errors import InvalidInput, StoreError
from warpplan.service.http import problem_json
from warpplan.service.http.problem_json import METHODS, TooLarge, UnknownHost
from warpplan.service.metrics import Metrics

MAX_BODIES_BYTES = 64 << 20
"""Bytes of all bodies together that are being received or worked on: 64 of the largest. Twice as much is twice the
memory that clients can make the service hold."""
MAX_BODIES = 256
"""Bodies received at once; each also costs its connection's buffer of 64 KiB."""


class TooManyBodies(StoreError):
    """The service holds as many bytes of requests as it may (HTTP 503)."""


class BodyLimit:
    """Refuses a body as soon as it is known to be too large, or too much beside the others; the rest is not read.

    ``larger`` are prefixes of paths with limits of their own.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        max_bodies_bytes: int = MAX_BODIES_BYTES,
        max_bodies: int = MAX_BODIES,
        larger: Mapping[str, int] | None = None,
    ) -> None:
        self._app = app
        self._larger = dict(larger or {})
        self._most, self._most_together, self._most_bodies = max_body_bytes, max_bodies_bytes, max_bodies
        self._held_bytes = self._receiving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        most = next((n for prefix, n in self._larger.items() if scope["path"].startswith(prefix)), self._most)
        if declared.isdigit() and int(declared) > most:
            return await self._refuse(self._too_large(most), scope, receive, send)
        if declared == b"0" and b"transfer-encoding" not in headers:
            return await self._app(scope, receive, send)
        mine = 0
        try:
            body = bytearray()
            self._receiving += 1
            try:
                if self._receiving > self._most_bodies:
                    return await self._refuse(self._too_many(), scope, receive, send)
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) + len(part) > most:
                        return await self._refuse(self._too_large(most), scope, receive, send)
                    if self._held_bytes + len(part) > self._most_together:
                        return await self._refuse(self._too_many(), scope, receive, send)
                    body += part
                    mine += len(part)
                    self._held_bytes += len(part)
            finally:
                self._receiving -= 1
            return await self._app(scope, _whole(bytes(body), receive), send)
        finally:
            self._held_bytes -= mine

    def _too_large(self, most: int) -> TooLarge:
        return TooLarge(f"the body has more than {most} bytes: send fewer items at once", field="body", limit=most)

    def _too_many(self) -> TooManyBodies:
        return TooManyBodies(
            "the service holds as many bytes of requests as it may: ask again later",
            field="body", limit=self._most_together,
        )  # fmt: skip

    async def _refuse(self, error: TooLarge | TooManyBodies, scope: Scope, receive: Receive, send: Send) -> None:
        await problem_json.respond_to(error, {"Connection": "close"})(scope, receive, send)


def _whole(body: bytes, receive: Receive) -> Receive:
    """A body that has been received, handed on at once."""
    handed = False

    async def whole() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return whole


class TrustedHosts:
    """Answers only to the names in ``allowed``: a page elsewhere whose name was made to lead here cannot ask. ``*``
    allows any. "*.example.org" allows what ends in it."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = tuple(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "*" in self._allowed:
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        try:
            name = (urlsplit(f"//{given}").hostname or "").lower()
        except ValueError:
            name = ""
        if any(name == one or (one.startswith("*.") and name.endswith(one[1:])) for one in self._allowed):
            return await self._app(scope, receive, send)
        error = UnknownHost(
            f"this service does not go by the name {given!r}: start it with --allowed-host to allow another",
            field="Host", value=given, limit=list(self._allowed),
        )  # fmt: skip
        return await problem_json.respond_to(error)(scope, receive, send)


class WholeAddress:
    """Refuses a null character in the path or the query: PostgreSQL cannot even look for one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or ("\0" not in scope["path"] and b"%00" not in scope["query_string"]):
            return await self._app(scope, receive, send)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        name = next((name for name, value in query if "\0" in name + value), "path")
        error = InvalidInput(f"{name} holds a null character (%00): leave it out", field=name, value="%00")
        return await problem_json.respond_to(error)(scope, receive, send)


class HeadAsGet:
    """Answers HEAD as GET without the body (RFC 9110, 9.3.2): the framework's routes take GET alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        # The server goes by its own scope; what the router finds in this one is for the counters.
        as_get = {**scope, "method": "GET"}
        await self._app(as_get, receive, without_body)
        scope["route"] = as_get.get("route")
        return None


class AnswerHeaders:
    """No answer is taken for another type than it states, and no redirect names a host: it leads to the same server by
    whatever name the client knows it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def adding(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                to = urlsplit(headers.get("location", ""))
                if to.netloc:
                    headers["location"] = to._replace(scheme="", netloc="").geturl()
            await send(message)

        return await self._app(scope, receive, adding)


class Counted:
    """Counts requests and their time by route; the route's template, so that the counters stay few."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route = getattr(scope.get("route"), "path", "(none)")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.add("warpplan_requests_total", method=method, route=route, status=str(status))
            self._metrics.add("warpplan_request_seconds_total", time.perf_counter() - started, route=route)
        return None

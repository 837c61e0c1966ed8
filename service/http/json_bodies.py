"""Bodies of requests: JSON whose objects give each field once, as every file that is read does."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from warpplan.planner.errors import InvalidInput


class JsonRoute(APIRoute):
    """A route that refuses a body with a field twice: by the standard parser, the last value counts in silence."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def with_body_read_once(request: Request) -> Response:
            return await answer(_JsonRequest(request.scope, request.receive))

        return with_body_read_once


class _JsonRequest(Request):
    async def json(self) -> Any:
        return json.loads(await self.body(), object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"body: field {twice!r} is given twice: give it once", field=twice)
    return fields

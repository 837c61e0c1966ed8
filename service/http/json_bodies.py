"""Bodies of requests: JSON whose objects give each field once, as every file that is read does."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from warpplan.service.workflow.shape_files import fields_once


class JsonRoute(APIRoute):
    """A route that refuses a body with a field twice: by the standard parser, the last value counts in silence."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def with_body_read_once(request: Request) -> Response:
            return await answer(_JsonRequest(request.scope, request.receive))

        return with_body_read_once


class _JsonRequest(Request):
    async def json(self) -> Any:
        return json.loads(await self.body(), object_pairs_hook=fields_once)

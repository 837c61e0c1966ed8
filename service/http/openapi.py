"""The API's description and the page that shows it, both from this server alone: no network of its own is needed."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from warpplan.service.http.problem_json import MEDIA_TYPE

ASSETS = "/docs/assets"
NOTHING_FROM_ELSEWHERE = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'"
)
PROBLEM = {"$ref": "#/components/schemas/ProblemDetails"}


def install(app: FastAPI) -> None:
    """Give ``app`` its description at ``/openapi.json`` and Swagger UI at ``/docs``.

    The assets are those of swagger-ui-dist 5.35.0 from npm, unchanged; their licence (Apache 2.0) lies beside them.
    """
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_problems(described())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the description
    app.mount(ASSETS, StaticFiles(packages=[("warpplan.service.http", "static/swagger_ui")]), name="docs-assets")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        page = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=f"{app.title} {app.version}",
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon-32x32.png",
            # It would send the description to a public validator otherwise.
            swagger_ui_parameters={"validatorUrl": None},
        )
        page.headers["Content-Security-Policy"] = NOTHING_FROM_ELSEWHERE
        return page


def _with_problems(schema: dict[str, Any]) -> dict[str, Any]:
    """Every error's body as what it is: a problem document under its own media type."""
    for path in schema["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                if status[0] in "45":
                    response["content"] = {MEDIA_TYPE: {"schema": PROBLEM}}
    # What the framework would have answered with.
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
    return schema

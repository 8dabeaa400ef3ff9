"""The documentation page, Swagger UI without a network as FastAPI makes it, and /openapi.json."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import orjson

from service.http.response import Response, bytes_response
from service.http.routes import Handler, Request, Route
from service.http.static_files import StaticFile, file_response

SCRIPT, STYLE, ICON = "/docs/swagger-ui.js", "/docs/swagger-ui.css", "/docs/favicon.png"
CACHED = ((b"cache-control", b"public, max-age=31536000, immutable"),)  # an address changes with the bytes
REVALIDATED = ((b"cache-control", b"no-cache"),)
FILTER = Path(__file__).with_name("swagger_filter.js")
LOOKS = {
    "docExpansion": "none",
    "filter": True,
    "deepLinking": True,
    "displayRequestDuration": True,
    "tryItOutEnabled": True,
    "defaultModelsExpandDepth": 0,
    "persistAuthorization": False,
}
"""Parameters of Swagger UI: tags and schemas folded; a key is kept in the page's memory alone."""


def docs_routes(make_document: Callable[[str], dict[str, Any]], model: Callable[[], str]) -> list[Route]:
    """Return the rows of the page, of its files and of /openapi.json.

    Args:
        make_document: returns the OpenAPI document whose examples name a model.
        model: returns the name of that model.
    """

    @lru_cache(maxsize=1)
    def made(name: str) -> StaticFile:
        return StaticFile.of(orjson.dumps(make_document(name)), ".json")

    async def document(request: Request) -> Response:
        return await file_response(await asyncio.to_thread(made, model()), request, headers=REVALIDATED)

    async def page(request: Request) -> Response:
        return bytes_response(await asyncio.to_thread(_page), "text/html; charset=utf-8")

    async def file(path: str, request: Request) -> Response:
        files = await asyncio.to_thread(_files)
        return await file_response(files[path], request, headers=CACHED)

    handlers: dict[str, Handler] = {"/docs": page, "/openapi.json": document}
    handlers |= {path: partial(file, path) for path in (SCRIPT, STYLE, ICON)}
    return [
        Route("GET", path, handler, needs_key=False, admitted=False, probe=True) for path, handler in handlers.items()
    ]


@cache
def _files() -> Mapping[str, StaticFile]:
    """Return Swagger UI with our filter, its style and an icon, by their paths."""
    import fastapi_offline  # FastAPI comes with it: 0.3 s, too dear for every start

    folder = Path(fastapi_offline.__file__).with_name("static")
    script = (folder / "swagger-ui-bundle.js").read_bytes() + b"\n" + FILTER.read_bytes()
    return {
        SCRIPT: StaticFile.of(script, ".js"),
        STYLE: StaticFile.of((folder / "swagger-ui.css").read_bytes(), ".css"),
        ICON: StaticFile.of((folder / "favicon.png").read_bytes(), ".png"),
    }


@cache
def _page() -> bytes:
    """Return the page, which names its files by addresses that change with their bytes."""
    from fastapi.openapi.docs import get_swagger_ui_html

    script, style, icon = (f"{path}?{_files()[path].etag[1:9]}" for path in (SCRIPT, STYLE, ICON))
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Inlay: operations",
        oauth2_redirect_url=None,
        swagger_js_url=script,
        swagger_css_url=style,
        swagger_favicon_url=icon,
        swagger_ui_parameters=LOOKS,
    )
    return bytes(page.body)

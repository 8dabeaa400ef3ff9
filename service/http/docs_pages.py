"""The documentation pages, Swagger UI without a network, which FastAPI serves, and /openapi.json."""

import asyncio
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fastapi_offline
import orjson
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi_offline import FastAPIOffline

from service.http.formats import JSON
from service.http.openapi_examples import LoadedModels
from service.http.response import Headers, Response, bytes_response
from service.http.routes import Handler, Request, Route

STATIC_FILES = "/static-offline-docs"
SCRIPT = "/docs/swagger-ui.js"
PAGES = ("/docs", STATIC_FILES + "/{file:path}")
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


class OpenAPIDocument:
    """The OpenAPI document, made when it is first asked for and again when other models are loaded.

    Args:
        make: returns the document whose examples name some models.
        loaded: returns the models that are loaded now.
    """

    def __init__(self, make: Callable[[LoadedModels], dict[str, Any]], loaded: Callable[[], LoadedModels]) -> None:
        self._make, self._loaded = make, loaded
        self._body, self._etag, self._version = b"", b"", object()
        self._making = asyncio.Lock()

    def make(self) -> dict[str, Any]:
        """Return the document for the models that are loaded now."""
        return self._make(self._loaded())

    async def respond(self, request: Request) -> Response:
        """Return the document as JSON, or 304 to a client that has it."""
        async with self._making:
            loaded = self._loaded()
            if loaded.version != self._version:
                self._body = await asyncio.to_thread(lambda: orjson.dumps(self._make(loaded)))
                self._etag = _etag(self._body)
                self._version = loaded.version
        headers = ((b"etag", self._etag), (b"cache-control", b"no-cache"))
        if request.holds(self._etag.decode()):
            return Response((), headers, 304)
        return bytes_response(self._body, JSON, headers)


def docs_application(version: str, document: OpenAPIDocument) -> FastAPI:
    """Return the ASGI application behind the pages.

    Args:
        version: of the service.
    """
    api: FastAPI = FastAPIOffline(
        title="Inlay",
        version=version,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        static_url=STATIC_FILES,
        telemetry={"auto_configure": False},
    )
    api.openapi = document.make  # type: ignore[method-assign]
    script = f"{SCRIPT}?{_etag(_script()).decode()[1:9]}"

    @api.get("/docs", include_in_schema=False)
    async def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Inlay: operations",
            oauth2_redirect_url=None,
            swagger_js_url=script,
            swagger_css_url=f"{STATIC_FILES}/swagger-ui.css",
            swagger_favicon_url=f"{STATIC_FILES}/favicon.png",
            swagger_ui_parameters=LOOKS,
        )

    return api


def docs_routes(api: FastAPI, document: OpenAPIDocument) -> list[Route]:
    """Return the rows of the pages, of their script and of /openapi.json."""
    pages = _through_asgi(api)
    handlers = {**dict.fromkeys(PAGES, pages), SCRIPT: _respond_with_script, "/openapi.json": document.respond}
    return [
        Route(
            verb="GET",
            path=path,
            handler=handler,
            name=path,
            summary="Documentation",
            tag="operation",
            needs_key=False,
            admitted=False,
            probe=True,
            documented=False,
        )
        for path, handler in handlers.items()
    ]


async def _respond_with_script(request: Request) -> Response:
    """Return Swagger UI with our filter; the page's address of it changes with its bytes."""
    body = _script()
    headers = ((b"etag", _etag(body)), (b"cache-control", b"public, max-age=31536000, immutable"))
    if request.holds(_etag(body).decode()):
        return Response((), headers, 304)
    return bytes_response(body, "text/javascript; charset=utf-8", headers)


@cache
def _script() -> bytes:
    swagger = Path(fastapi_offline.__file__).with_name("static") / "swagger-ui-bundle.js"
    return swagger.read_bytes() + b"\n" + Path(__file__).with_name("swagger_filter.js").read_bytes()


def _etag(body: bytes) -> bytes:
    return b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()


def _through_asgi(app: FastAPI) -> Handler:
    """Return a handler that asks an ASGI application and returns its response as a whole."""

    async def handler(request: Request) -> Response:
        status, parts = 500, list[bytes]()
        headers: Headers = ()
        messages = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            # after the body comes only the client's leaving, at which this task is cancelled
            return messages.pop() if messages else await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = tuple((bytes(name), bytes(value)) for name, value in message.get("headers", ()))
            elif message["type"] == "http.response.body":
                parts.append(bytes(message.get("body", b"")))

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": request.query,
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": request.client,
            "server": None,
            "state": {},
        }
        await app(scope, receive, send)
        return Response(parts, headers, status)

    return handler

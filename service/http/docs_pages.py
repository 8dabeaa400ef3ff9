"""The documentation pages (Swagger UI, without a network) and /openapi.json, which FastAPI serves."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from service.http.response import Headers, Response
from service.http.routes import Handler, Request, Route

STATIC_FILES = "/static-offline-docs"
PATHS = ("/docs", "/docs/oauth2-redirect", "/openapi.json", STATIC_FILES + "/{file:path}")


def docs_application(version: str, document: Callable[[], dict[str, Any]]) -> FastAPI:
    """Return the ASGI application behind the pages.

    Args:
        version: of the service.
        document: makes the OpenAPI document; called once, when it is first asked for.
    """
    api: FastAPI = FastAPIOffline(
        title="Inlay",
        version=version,
        redoc_url=None,
        redirect_slashes=False,
        static_url=STATIC_FILES,
        telemetry={"auto_configure": False},
    )
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(document())
        return made

    api.openapi = openapi  # type: ignore[method-assign]
    return api


def docs_routes(api: FastAPI) -> list[Route]:
    """Return the pages' rows."""
    handler = _through_asgi(api)
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
        for path in PATHS
    ]


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

"""Requests handed to an ASGI application: FastAPI's documentation pages."""

from typing import Any

from service.http.request import Request
from service.http.response import Headers, Response
from service.http.routes import Handler


def through_asgi(app: Any) -> Handler:
    """Return a handler that asks an ASGI application and returns its response as a whole."""

    async def handler(request: Request) -> Response:
        status, parts = 500, list[bytes]()
        headers: Headers = ()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
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

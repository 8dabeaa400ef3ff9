"""TEMPORARY adapter while protocols move to Route rows: old endpoints as handlers."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.requests import Request as StarletteRequest
from starlette.responses import StreamingResponse
from starlette.routing import Route as StarletteRoute

from service.http.request import Request
from service.http.response import Response
from service.http.routes import ErrorRenderer, Route, RouteGroup

Headers = tuple[tuple[bytes, bytes], ...]


class Answer(NamedTuple):
    headers: Headers
    body: Any
    status: int = 200


class Call:
    __slots__ = ("fields", "request", "scope")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.fields = request.headers
        self.scope = {"query_string": request.query, "path": request.path, "method": request.verb}

    @property
    def path(self) -> dict[str, str]:
        return self.request.parameters

    async def body(self) -> bytes:
        return self.request.body


Answers = Callable[[Call], Awaitable[Answer]]
Refuses = Callable[[Any], Answer]


class Endpoint:
    """An old hot endpoint."""

    vectors = True

    def __init__(self, method: str, answers: Answers, refuses: Refuses, parts: Any) -> None:
        self.method, self._answers, self.refuses = method, answers, refuses

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    async def handler(self, request: Request) -> Response:
        answer = await self._answers(Call(request))
        return Response(answer.body, tuple(answer.headers), answer.status)


class StarletteEndpoint:
    """An old cold endpoint."""

    vectors = False

    def __init__(self, path: str, answer: Any, parts: Any) -> None:
        self._answer = answer
        self.refuses = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    async def handler(self, request: Request) -> Response:
        async def receive() -> Any:
            return {"type": "http.request", "body": request.body, "more_body": False}

        headers = [(k, v) for k, v in request.headers.items() if k != b"content-encoding"]
        scope = {
            "type": "http", "method": request.verb, "path": request.path, "query_string": request.query,
            "headers": headers, "path_params": request.parameters, "scheme": "http", "server": ("x", 80), "root_path": "",
        }
        scope["inlay.request"] = request
        answer = await self._answer(StarletteRequest(scope, receive))
        pairs = tuple((bytes(k), bytes(v)) for k, v in answer.raw_headers)
        if isinstance(answer, StreamingResponse):
            return Response((), pairs, answer.status_code, answer.body_iterator)
        if request.verb == "HEAD":
            return Response((), pairs, answer.status_code)
        return Response((answer.body,), pairs, answer.status_code)


def legacy_group(router: Any, render_error: ErrorRenderer, prefixes: tuple[str, ...] = ()) -> RouteGroup:
    rows = []
    for each in router.routes:
        assert isinstance(each, StarletteRoute)
        endpoint: Any = each.app
        for verb in sorted((each.methods or set()) - {"HEAD"}):
            rows.append(
                Route(verb=verb, path=each.path, handler=endpoint.handler, name=f"{verb} {each.path}", summary="", tag="",
                      vectors=endpoint.vectors, documented=False)
            )
    return RouteGroup(rows, render_error, prefixes)

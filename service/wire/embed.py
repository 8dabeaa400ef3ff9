"""POST /embed: the JSON body, the road, the bytes of the accepted format. Plain ASGI; FastAPI only describes it."""

import asyncio
import logging
from collections.abc import Sequence
from time import perf_counter

from fastapi import APIRouter
from starlette.routing import Route

from service.errors import InlayError, Unavailable, UnsupportedMedia
from service.wire import problems
from service.wire.asgi import CLOSE, LEFT, ClientGone, Receive, Scope, Send, check_json, read_body
from service.wire.body import read
from service.wire.formats import FORMATS, Body, Headers, negotiate
from service.wire.parts import Parts

PATH = "/embed"
log = logging.getLogger(__name__)


def routes(parts: Parts) -> APIRouter:
    """POST /embed."""
    return APIRouter(routes=[Route(PATH, EmbedRoute(parts), methods=["POST"], include_in_schema=False)])


class EmbedRoute:
    """The ASGI application behind PATH."""

    def __init__(self, parts: Parts) -> None:
        self._encoder = parts.encoder
        self._max_body_bytes = parts.settings.max_body_bytes
        self._metrics = parts.metrics
        self._life = parts.life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every refusal is a problem document."""
        started = perf_counter()
        status = 200
        try:
            headers, body = await self._answer(scope, receive)
        except InlayError as error:
            status, headers, body = _problem(error)
        except (ClientGone, asyncio.CancelledError) as error:
            if isinstance(error, ClientGone) or scope.get(LEFT):
                self._metrics.request("http", "embed", "499", perf_counter() - started)
                return
            if not self._life.stopping:
                raise
            status, headers, body = _problem(Unavailable("the service stopped before this was done; send it again"))
        except Exception:
            log.exception("a request to %s met a fault", PATH)
            status, headers, body = _problem(InlayError("the service has a fault; its log says more"))
        if self._life.stopping:
            headers = (*headers, CLOSE)
        *parts, last = body
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": last})
        self._metrics.request("http", "embed", str(status), perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[Headers, Body]:
        fields = _fields(scope["headers"])
        encode = FORMATS[negotiate(fields.get(b"accept"))]
        check_json(fields.get(b"content-type"))
        if fields.get(b"content-encoding", b"identity") != b"identity":
            raise UnsupportedMedia("the body is compressed; send it without content-encoding")
        request, base64 = read(await read_body(receive, fields.get(b"content-length"), self._max_body_bytes))
        scope[LEFT] = False
        result = await self._encoder.embed(request)
        return encode(result, base64)


def _fields(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; those of one name are one list (RFC 9110, 5.3)."""
    fields = dict(headers)
    if len(fields) < len(headers):
        fields = {name: b",".join([value for each, value in headers if each == name]) for name in fields}
    return fields


def _problem(error: InlayError) -> tuple[int, Headers, Body]:
    status, headers, document = problems.answer(error)
    return status, tuple(headers), [document]

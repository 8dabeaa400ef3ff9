"""POST /embed: the JSON body, the road, the bytes of the accepted format. Plain ASGI; FastAPI only describes it."""

import logging
from time import perf_counter

from fastapi import APIRouter
from starlette.routing import Route

from service.errors import InlayError, UnsupportedMedia
from service.wire import problems
from service.wire.asgi import CLOSE, ClientGone, Patrol, Receive, Scope, Send, check_json, read_body
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
        self._patrol = Patrol()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every refusal is a problem document."""
        started = perf_counter()
        status = 200
        try:
            headers, body = await self._answer(scope, receive)
        except InlayError as error:
            status, headers, problem = problems.answer(error)
            body = [problem]
        except ClientGone:
            self._metrics.request("http", "embed", "499", perf_counter() - started)
            return
        except Exception:
            log.exception("a request to %s met a fault", PATH)
            status, headers, problem = problems.answer(InlayError("the service has a fault; its log says more"))
            body = [problem]
        if self._life.stopping:
            headers.append(CLOSE)
        await _send(send, status, headers, body)
        self._metrics.request("http", "embed", str(status), perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[Headers, Body]:
        content_type = accept = length = None
        for name, value in scope["headers"]:
            if name == b"content-type":
                content_type = value
            elif name == b"accept":
                accept = value if accept is None else accept + b"," + value
            elif name == b"content-length":
                length = value
            elif name == b"content-encoding" and value != b"identity":
                raise UnsupportedMedia("the body is compressed; send it without content-encoding")
        encode = FORMATS[negotiate(accept)]
        check_json(content_type)
        request, base64 = read(await read_body(receive, length, self._max_body_bytes))
        with self._patrol.watch(receive):
            result = await self._encoder.embed(request)
        headers, body = encode(result, base64)
        headers.append((b"content-length", str(sum(map(len, body))).encode()))
        return headers, body


async def _send(send: Send, status: int, headers: Headers, body: Body) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    last = len(body) - 1
    for place, part in enumerate(body):
        await send({"type": "http.response.body", "body": part, "more_body": place < last})

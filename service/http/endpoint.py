"""A hot path as a plain ASGI application: bounded body, counted, dropped when its client leaves. Knows no protocol.

A protocol gives two functions: what answers a call, and how it words a refusal.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from service.context import Parts
from service.errors import InlayError, Unavailable, UnsupportedCoding
from service.http.asgi import (
    CLOSE,
    LEFT,
    ClientGone,
    Receive,
    Scope,
    Send,
    read_body,
)
from service.http.bodies import ACCEPTED
from service.http.compression import vectors
from service.http.formats import Body, Headers
from service.http.intake import Intake
from service.http.negotiation import choose
from service.http.request_ids import HEADER, ID, request_id
from service.http.timeouts import HEADERS, allowed_seconds
from service.observability.stage_times import written
from service.scheduling import deadlines

_TIMED = frozenset(HEADERS)
log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What goes out; the headers hold content-type and content-length."""

    headers: Headers
    body: Body
    status: int = 200


class Call:
    """One HTTP request.

    fields   headers by lower-case name; those of one name are one list (RFC 9110, 5.3)
    path     the parameters of the route, e.g. {"name": "minilm"}
    """

    __slots__ = ("_intake", "_receive", "fields", "scope")

    def __init__(self, scope: Scope, receive: Receive, intake: Intake) -> None:
        self.scope = scope
        self.fields = _fields(scope["headers"])
        self._receive = receive
        self._intake = intake

    @property
    def path(self) -> dict[str, str]:
        """The route's parameters."""
        found: dict[str, str] = self.scope.get("path_params", {})
        return found

    async def body(self) -> bytes:
        """The whole body; from here on the call is dropped if its client leaves.

        raises   BodyTooLarge, UnsupportedCoding, Malformed, ClientGone, Overloaded
        """
        fields = self.fields
        body = await read_body(
            self._receive, fields.get(b"content-length"), self._intake, fields.get(b"content-encoding")
        )
        self.scope[LEFT] = False
        return body


Answers = Callable[[Call], Awaitable[Answer]]
Refuses = Callable[[InlayError], Answer]


class Endpoint:
    """The ASGI application of one path.

    method    its name in the metrics
    answers   the call's answer, or an InlayError
    refuses   an InlayError as the protocol words it
    """

    def __init__(self, method: str, answers: Answers, refuses: Refuses, parts: Parts) -> None:
        self._method = method
        self._answers = answers
        self._refuses = refuses
        self._metrics = parts.metrics
        self._metrics.expect("http", [method])
        self._life = parts.life
        self._intake = parts.intake
        self._compression = parts.settings.compression

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every refusal is in the protocol's own words."""
        started = perf_counter()
        call = Call(scope, receive, self._intake)
        number = scope.get(ID) or request_id(call.fields.get(HEADER))
        try:
            if not _TIMED.isdisjoint(call.fields):
                deadlines.allow(allowed_seconds(call.fields))
            accept = call.fields.get(b"accept-encoding")
            coding = choose(accept, self._compression, "vectors").coding if accept else None
            answer = await self._answers(call)
            if accept and coding is not None:
                headers, body = await vectors(answer.headers, answer.body, accept, self._compression)
                answer = Answer(tuple(headers), body, answer.status)
        except InlayError as error:
            answer = self._refused(error)
        except (ClientGone, asyncio.CancelledError) as error:
            if isinstance(error, ClientGone) or scope.get(LEFT):
                self._metrics.request("http", self._method, "499", perf_counter() - started)
                return
            if not self._life.stopping:
                raise
            answer = self._refused(Unavailable("the service stopped before this was done; send it again"))
        except Exception:
            log.exception("a request to %s met a fault (x-request-id: %s)", self._method, number.decode())
            answer = self._refused(InlayError("the service has a fault; its log says more"))
        headers, body, status = answer
        if self._life.stopping:
            headers = (*headers, CLOSE)
        *parts, last = body if scope["method"] != "HEAD" else (b"",)
        await send({"type": "http.response.start", "status": status, "headers": (*headers, (HEADER, number))})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": last})
        written()
        self._metrics.request("http", self._method, str(status), perf_counter() - started)

    def _refused(self, error: InlayError) -> Answer:
        self._metrics.refused(error.code)
        answer = self._refuses(error)
        if not isinstance(error, UnsupportedCoding):
            return answer
        return answer._replace(headers=(*answer.headers, ACCEPTED))


def _fields(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    fields = dict(headers)
    if len(fields) < len(headers):
        fields = {name: b",".join([value for each, value in headers if each == name]) for name in fields}
    return fields

"""The one pipeline that every HTTP request passes: route, key, limits, deadline, admission, handler, errors, metrics.

The server calls `accept` when a request's head is complete, `respond` when its body is, and `finish` when the response
has been sent or the client has left.
"""

import asyncio
import logging
from time import perf_counter
from typing import NamedTuple, Protocol

from service.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    InlayError,
    MethodNotAllowed,
    NoSuchPath,
    Unavailable,
    UnsupportedCoding,
)
from service.http import bodies
from service.http.access_log import AccessLog
from service.http.compression import compressed
from service.http.cors import Cors
from service.http.negotiation import Policy, choose
from service.http.request import Request
from service.http.request_ids import request_id
from service.http.response import Response
from service.http.routes import Handler, Match, Router
from service.http.timeouts import HEADERS as TIMEOUT_HEADERS
from service.http.timeouts import allowed_seconds
from service.observability.metrics import Metrics
from service.observability.request_context import REQUEST_ID
from service.observability.stage_times import written
from service.scheduling.admission import AdmissionController
from service.security.api_keys import Keys

CHALLENGE = (b"www-authenticate", b"Bearer")  # with every 401 (RFC 9110, 15.5.2)
GONE = "499"  # how a client that left before its response is counted
_TIMEOUTS = frozenset(TIMEOUT_HEADERS)
log = logging.getLogger(__name__)


class Lifecycle(Protocol):
    """Whether the process is stopping."""

    stopping: bool


class Limits(NamedTuple):
    """What the pipeline reads of the settings.

    Args:
        max_body_bytes: of one body, also once it is decoded.
        compression: when responses are compressed.
    """

    max_body_bytes: int
    compression: Policy


class Pipeline:
    """Serves the routes of a router."""

    def __init__(
        self,
        router: Router,
        admission: AdmissionController,
        metrics: Metrics,
        lifecycle: Lifecycle,
        limits: Limits,
        keys: Keys | None = None,
        access_log: AccessLog | None = None,
        cors: Cors | None = None,
    ) -> None:
        self.router = router
        self._admission = admission
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._limits = limits
        self._keys = keys
        self._access_log = access_log
        self._cors = cors
        self._count_refused_at_gate = metrics.gate("http") if keys else None
        metrics.expect("http", [route.path for route in router.routes if not route.probe])

    @property
    def stopping(self) -> bool:
        """Whether connections are to be closed after their response."""
        return self._lifecycle.stopping

    def accept(self, request: Request) -> Response | None:
        """Check the head of a request; return the response if the body need not be read."""
        headers = request.headers
        request.id = request_id(headers.get(b"x-request-id"))
        REQUEST_ID.set(request.id)
        if self._access_log is not None:
            self._access_log.begin(request)
        match = self.router.find(request.verb, request.path)
        if match is not None:
            request.route, request.parameters = match
            request.matched = match.route.path
        if self._cors is not None and (preflight := self._cors.preflight(request)) is not None:
            return preflight
        try:
            if self._keys is not None and (match is None or match.route.needs_key):
                self._check_key(request, self._keys)
            self._check_head(request, match)
        except InlayError as error:
            return self.error_response(request, error)
        return None

    def _check_key(self, request: Request, keys: Keys) -> None:
        """Take a place of the key that the request shows; raise Unauthorized or KeyLimited."""
        began = perf_counter()
        try:
            request.key = keys.acquire(shown_key(request))
        except InlayError as error:
            status = self.router.renderer(request.route, request.path)(error).status
            if self._count_refused_at_gate is not None:
                self._count_refused_at_gate(error.code, str(status), perf_counter() - began)
            request.route = None
            raise
        request.context.caller = request.key.name

    def _check_head(self, request: Request, match: Match | None) -> None:
        if match is None:
            path = request.path[:200]
            if verbs := self.router.verbs(request.path):
                raise MethodNotAllowed(f"{path} answers {', '.join(verbs)}, not {request.verb}", verbs)
            raise NoSuchPath(f"there is no {path} here; /docs lists what there is")
        headers = request.headers
        if not _TIMEOUTS.isdisjoint(headers) and (seconds := allowed_seconds(headers)) is not None:
            request.context.deadline = request.arrived + seconds
        declared = headers.get(b"content-length")
        if declared is not None and len(declared) > 5 and int(declared) > self._limits.max_body_bytes:
            raise too_large(int(declared), self._limits.max_body_bytes)
        if b"content-encoding" in headers:
            bodies.codings(headers[b"content-encoding"])  # refused before the body is read

    async def respond(self, request: Request) -> Response:
        """Return the response to a whole request; errors come as the route's protocol renders them."""
        route = request.route
        assert route is not None
        try:
            if route.admitted:
                self._admission.acquire()
                request._admitted = True
            headers = request.headers
            if b"content-encoding" in headers:
                codings = bodies.codings(headers[b"content-encoding"])
                request.body = await bodies.decoded(request.body, codings, self._limits.max_body_bytes)
            accept = headers.get(b"accept-encoding")
            if accept:
                choose(accept, self._limits.compression)  # refused before any work is done
            if request.context.deadline is None:
                response = await route.handler(request)
            else:
                response = await self._within_deadline(request, route.handler)
            if accept or not route.vectors:
                response = await compressed(response, request, self._limits.compression, vectors=route.vectors)
            return response if self._cors is None else self._for_origin(request, self._cors, response)
        except InlayError as error:
            return self.error_response(request, error)
        except asyncio.CancelledError:
            if request.disconnected or not self._lifecycle.stopping:
                raise
            return self.error_response(request, Unavailable("the service stopped before this was done; send it again"))
        except Exception:
            name = "a path" if request.route is None else request.route.path
            log.exception("a request to %s met a fault (x-request-id: %s)", name, request.id.decode())
            return self.error_response(request, InlayError("the service has a fault; its log says more"))

    async def _within_deadline(self, request: Request, handler: Handler) -> Response:
        assert request.context.deadline is not None
        limit = asyncio.timeout(request.context.deadline - perf_counter())
        try:
            async with limit:
                return await handler(request)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(
                "the time allowed is over and this is not done: allow more time or try again later"
            ) from None

    def error_response(self, request: Request, error: InlayError) -> Response:
        """Return an error as the protocol of the request's route or path renders it."""
        route = request.route
        if route is None or not route.probe:
            self._metrics.refused(error.code)
        response = self.router.renderer(route, request.path)(error)
        headers = response.headers
        if isinstance(error, UnsupportedCoding):
            headers = (*headers, bodies.ACCEPTED)
        if isinstance(error, MethodNotAllowed) and error.verbs:
            headers = (*headers, (b"allow", ", ".join(error.verbs).encode()))
        if response.status == 401:
            headers = (*headers, CHALLENGE)
        response = response._replace(headers=headers)
        return response if self._cors is None else self._for_origin(request, self._cors, response)

    def _for_origin(self, request: Request, cors: Cors, response: Response) -> Response:
        return response._replace(headers=(*response.headers, *cors.headers(request)))

    def finish(self, request: Request, status: str) -> None:
        """Count a request whose response has been sent, or whose client has left (GONE); give its places back."""
        if request._admitted:
            self._admission.release()
            request._admitted = False
        seconds = perf_counter() - request.arrived
        if request.key is not None and request.key.limited:
            request.key.release(seconds)
        route = request.route
        if route is not None and not route.probe:
            self._metrics.request("http", route.path, status, seconds)
        written()
        if self._access_log is not None:
            self._access_log.end(request, status, gone=status == GONE)


def too_large(size: int, allowed: int) -> BodyTooLarge:
    """Return the error for a body of `size` bytes or more."""
    return BodyTooLarge(
        f"the body has {size} bytes or more", allowed=f"this server takes {allowed}", remedy="send fewer inputs at a time"
    )


def shown_key(request: Request) -> bytes | None:
    """Return the key that a request shows (RFC 6750)."""
    value = request.headers.get(b"authorization", b"")
    return value[7:].strip() if value[:7].lower() == b"bearer " else None

"""The pipeline of every HTTP request: route, key, limits, deadline, admission, handler, errors, metrics.

The server calls `prepare` for a new head, `accept` when a request's head is complete, `respond` when its body is, and
`finish` when the response has been sent or the client has left.
"""

import asyncio
import logging
import sys
from collections.abc import Collection, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol

from service.embedding import truncation
from service.errors import InlayError, MethodNotAllowed, ModelNotLoaded, NoSuchPath, Unavailable, UnsupportedCoding
from service.http import content_coding
from service.http.compression import compressed, decoded
from service.http.cors import Cors
from service.http.intake import too_large
from service.http.negotiation import Policy, choose
from service.http.response import Headers, Response
from service.http.router import Router
from service.http.routes import GONE, Handler, Head, Request
from service.http.timeouts import NAMES as TIMEOUT_NAMES
from service.http.timeouts import allowed_seconds
from service.observability.access_log import AccessLog, Ended
from service.observability.metrics import GATE, Metrics
from service.request_context import CURRENT_CALL
from service.scheduling import deadlines
from service.scheduling.admission import AdmissionController
from service.scheduling.loaded_first import loaded_first
from service.scheduling.loop_turns import SMALL_BYTES
from service.scheduling.memory_budget import MemoryBudget
from service.scheduling.priority import HEADER, is_bulk
from service.security.api_keys import Keys

PRIORITY = HEADER.encode()
CHALLENGE = (b"www-authenticate", b"Bearer")  # with every 401 (RFC 9110, 15.5.2)
TURN_BYTES = 16384  # of the bodies that batch handlers answer in one turn of the event loop: about 2 ms
SAME_TURN_SECONDS = 40e-6  # a request that follows the last answer sooner was readable before it: others are too
SHOWN_PATH = 200  # characters of a path that an error repeats
RANDOM_WEIGHTS = tuple([(name.encode(), value.encode()) for name, value in truncation.RANDOM_WEIGHTS])
MOST_SHOWN, SHOWN_CHARACTERS = 16, 40  # names of ignored fields in a header, and characters of each
log = logging.getLogger(__name__)


class Lifecycle(Protocol):
    """Whether the process drains, or is stopping."""

    draining: bool
    stopping: bool


class Connection(Protocol):
    """The connection of a gathered request, as the pipeline uses it."""

    def serve(self, request: Request) -> None:
        """Serve the request in a task of its own."""
        ...

    def respond(self, request: Request, response: Response) -> None:
        """Write the response to the request and finish it."""
        ...


class Pipeline:
    """Serves the routes of a router.

    Args:
        max_body_bytes: largest size of one body, before and after decoding.
        compression: when responses are compressed.
        strict_fields: whether bodies of other people's protocols may hold known fields alone.
        bulk_paths: paths whose requests give way to others.

    Attributes:
        budget: bounds the memory of the requests being computed and answered.
    """

    def __init__(
        self,
        router: Router,
        admission: AdmissionController,
        metrics: Metrics,
        lifecycle: Lifecycle,
        max_body_bytes: int,
        compression: Policy,
        keys: Keys | None = None,
        access_log: AccessLog | None = None,
        cors: Cors | None = None,
        budget: MemoryBudget | None = None,
        strict_fields: bool = False,
        bulk_paths: Collection[str] = (),
    ) -> None:
        self.router = router
        self._admission = admission
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._max_body_bytes, self._compression = max_body_bytes, compression
        self._strict_fields, self._bulk_paths = strict_fields, bulk_paths
        self._keys = keys
        self._access_log = access_log
        self._cors = cors or Cors()
        self.budget = budget or MemoryBudget(sys.maxsize)
        self._gathered: list[tuple[Request, Connection]] = []
        self._alone: Connection | None = None  # the connection of the last turn, if that gathered one request
        self._answered_at = 0.0
        metrics.ignored(0)

    @property
    def stopping(self) -> bool:
        """Whether connections close after their response."""
        return self._lifecycle.stopping or self._lifecycle.draining

    def prepare(self, head: Head) -> None:
        """Resolve what follows from a head alone: its route or error, the pages that may read it, and its codings."""
        head.cors_headers = self._cors.headers(head)
        if head.path.endswith("/") and self.router.template(head.path[:-1]):
            head.path = head.path[:-1]
        match = self.router.find(head.verb, head.path)
        if match is not None:
            head.route, head.parameters = match
        head.template = match.route.path if match is not None else self.router.template(head.path)
        try:
            self._check_head(head)
            sent = head.headers.get(PRIORITY)
            head.bulk = is_bulk(None if sent is None else sent.decode("latin-1"), head.template or "", self._bulk_paths)
        except InlayError as error:
            head.error = error
        if match is None:
            return
        accepted, policy = head.headers.get(b"accept-encoding"), self._compression
        head.codings = choose(accepted, policy), choose(accepted, policy, numbers=True)
        head.may_compress = not match.route.vectors or head.codings[1] is not None
        is_plain = not head.may_compress and b"content-encoding" not in head.headers
        head.batched = is_plain and match.route.batch_handler is not None

    def gather(self, request: Request, connection: Connection, pipelined: bool) -> None:
        """Add a request to those for its route's batch handler that are readable in this turn of the loop.

        Args:
            pipelined: the request may have come together with the last one of its connection.
        """
        is_next = self._alone is connection and not pipelined
        is_later = self._alone is not None and request.arrived - self._answered_at > SAME_TURN_SECONDS
        if is_next or (is_later and not self._gathered):
            self._answer_batch([(request, connection)])  # a turn of the loop would cost a lone caller 4 µs
            return
        self._gathered.append((request, connection))
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._answer_gathered)

    def _answer_gathered(self) -> None:
        """Answer gathered requests of one route, TURN_BYTES of bodies a turn."""
        waiting, size, count = self._gathered, 0, 0
        route = waiting[0][0].head.route
        for request, _ in waiting:
            if size > TURN_BYTES or request.head.route is not route:
                break
            size, count = size + len(request.body), count + 1
        self._gathered = waiting[count:]
        if self._gathered:
            asyncio.get_running_loop().call_soon(self._answer_gathered)
        self._answer_batch(waiting[:count])

    def _answer_batch(self, batch: Sequence[tuple[Request, Connection]]) -> None:
        """Answer requests of one route; serve those singly that its batch handler declines."""
        route = batch[0][0].head.route
        assert route is not None
        assert route.batch_handler is not None
        self._alone = None  # requests gathered meanwhile take a turn
        answers: Sequence[Response | InlayError | Handler] = [route.handler] * len(batch)
        if self._admission.has_room(len(batch)) and self.budget.has_room and not self._lifecycle.stopping:
            try:
                given = route.batch_handler([request for request, _ in batch])
                if len(given) != len(batch):  # which answer belongs to which request is then unknown
                    raise RuntimeError(f"{len(batch)} requests gave {len(given)} responses")
                answers = given
            except Exception:  # each request's handler meets it again and answers with an error
                log.exception("a batch of requests to %s met a fault", route.path)
        for (request, connection), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Response):
                deadline = request.context.deadline
                if deadline is not None and deadline < perf_counter():
                    answer = self.error_response(request, deadlines.exceeded())
                elif request.head.cors_headers:
                    answer = _with_headers(answer, request.head.cors_headers)
                connection.respond(request, answer)
            elif isinstance(answer, InlayError):
                connection.respond(request, self.error_response(request, answer))
            else:
                request.handler = answer
                connection.serve(request)
        self._alone = batch[0][1] if len(batch) == 1 else None
        self._answered_at = perf_counter()

    def accept(self, request: Request) -> Response | None:
        """Check the head of a request; return a response if the body need not be read."""
        head = request.head
        if self._access_log is not None and not (head.route is not None and head.route.probe):
            sent = [(name.decode(), value.decode("latin-1")) for name, value in request.varying.items()]
            attributes = {"http.request.method": head.verb, "url.scheme": "http"}
            request.span = self._access_log.begin(head.verb, sent, attributes, request.context)
        if head.verb == "OPTIONS" and (preflight := self._cors.preflight(request)) is not None:
            return preflight
        try:
            if self._keys is not None and (head.route is None or head.route.needs_key):
                request.refused_at_gate = True  # unless its key opens the gate
                request.key = self._keys.acquire(shown_key(request.varying.get(b"authorization", b"")), request.context)
                request.refused_at_gate = False
            if head.bulk:
                request.context.make_bulk()
            if head.error is not None:
                raise head.error
            if not request.varying.keys().isdisjoint(TIMEOUT_NAMES):
                request.context.deadline = request.arrived + allowed_seconds(request.varying)
            size = request.body_bytes
            if size is not None and size > self._max_body_bytes:
                raise too_large(size, self._max_body_bytes)
        except InlayError as error:
            return self.error_response(request, error)
        return None

    def _check_head(self, head: Head) -> None:
        """Raise the error by which every request with this head is refused."""
        self._cors.check(head)
        if head.route is None:
            path = head.path[:SHOWN_PATH]
            if verbs := self.router.verbs(head.path):
                raise MethodNotAllowed(f"{path} answers {', '.join(verbs)}, not {head.verb}", verbs)
            hint = "; /docs lists what there is" if self.router.find("GET", "/docs") else ""
            raise NoSuchPath(f"there is no {path} here{hint}")
        if b"content-encoding" in head.headers:
            content_coding.coding_of(head.headers[b"content-encoding"])

    async def respond(self, request: Request) -> Response:
        """Return the response to a complete request; the route's protocol renders errors."""
        CURRENT_CALL.set(request.context)
        if self._strict_fields:
            request.context.strict_fields = True
        route, cors_headers, admitted = request.head.route, request.head.cors_headers, False
        caller = request.context.caller  # which a field of the body may change
        assert route is not None
        try:
            if route.admitted:
                self._admission.acquire(caller)
                admitted = True
            response = await self._handled(request, request.handler or route.handler)
            return _with_headers(response, cors_headers) if cors_headers else response
        except InlayError as error:
            return self.error_response(request, error)
        except asyncio.CancelledError:
            if request.disconnected or not self._lifecycle.stopping:
                raise
            return self.error_response(
                request, Unavailable("the service stopped before this was done", remedy="send it again")
            )
        except Exception:
            log.exception(
                "a request to %s met a fault (x-request-id: %s)", route.path, request.context.request_id.decode()
            )
            return self.error_response(request, InlayError("the service has a fault; its log says more"))
        finally:
            if admitted:
                self._admission.release(caller)

    async def _handled(self, request: Request, handler: Handler) -> Response:
        """Decode the body, call the handler within the deadline and compress the response, as the head says."""
        head, context = request.head, request.context
        if b"content-encoding" in head.headers:
            coding = content_coding.coding_of(head.headers[b"content-encoding"])
            if coding is not None:
                request.body = await decoded(request.body, coding, self._max_body_bytes)
            self.budget.reserve(len(request.body), context)
        if len(request.body) > SMALL_BYTES:
            await self._admission.turns.wait(len(request.body), context.caller)
        try:
            response = await handler(request) if context.deadline is None else await _in_time(handler, request)
        except ModelNotLoaded as missing:
            response = await loaded_first(missing, partial(handler, request), context.deadline)
        if context.truncated:
            response = _with_truncated(context.truncated, response)
        if context.random_weights:
            response = _with_headers(response, RANDOM_WEIGHTS)
        if context.ignored_fields:
            self._metrics.ignored(len(context.ignored_fields))
            response = _with_ignored(context.ignored_fields, response)
        if head.may_compress:
            response = await compressed(response, head)
        return response

    def error_response(self, request: Request, error: InlayError) -> Response:
        """Return an error as the protocol of the request's route or path renders it."""
        route = request.head.route
        if route is None or not route.probe:
            self._metrics.refused(error.code)
        call = CURRENT_CALL.set(request.context)  # outside a request's task too: errors may show the request's id
        response = (request.render_error or self.router.renderer(route, request.head.path))(error)
        CURRENT_CALL.reset(call)
        headers = response.headers
        if isinstance(error, UnsupportedCoding):
            headers = (*headers, content_coding.ACCEPTED)
        if isinstance(error, MethodNotAllowed) and error.verbs:
            headers = (*headers, (b"allow", ", ".join(error.verbs).encode()))
        if response.status == 401:
            headers = (*headers, CHALLENGE)
        return response._replace(headers=(*headers, *self._cors.headers(request.head)))

    def finish(self, request: Request, status: int) -> None:
        """Count and release a request whose response has been sent, or whose client has left (GONE)."""
        now = perf_counter()
        route, context, seconds = request.head.route, request.context, now - request.arrived
        if request.key is not None:
            request.key.release(seconds)
        if request.refused_at_gate:
            self._metrics.request("http", GATE, status, seconds, context)
        elif route is not None and not route.probe:
            self._metrics.request("http", route.path, status, seconds, context)
        if context.encoding is not None:
            context.written(now)
        if context.reservations is not None:
            context.release()
        if self._access_log is not None:
            self._access_log.end(_ended(request, status), request.span, context)


async def _in_time(handler: Handler, request: Request) -> Response:
    """Return the response of a handler if it comes before the request's deadline."""
    async with deadlines.within(request.context.deadline):
        return await handler(request)


def _ended(request: Request, status: int) -> Ended:
    """Return what the access log says of a request."""
    verb, template, peer = request.head.verb, request.head.template, ""
    attributes: dict[str, str | int] = {"http.response.status_code": status}
    if template:
        attributes["http.route"] = template
    if status in (401, 403) and request.client:
        host, port = request.client
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = f"{verb} {template}" if template else verb
    return Ended("http", name, status, request.arrived, attributes, status >= 500, status != GONE, peer)


def _with_truncated(truncated: tuple[int, ...], response: Response) -> Response:
    """Return the response with headers that name the inputs that were cut."""
    lines = [(name.encode(), value.encode()) for name, value in truncation.metadata(truncated)]
    return _with_headers(response, tuple(lines))


def _with_ignored(names: tuple[str, ...], response: Response) -> Response:
    """Return the response with a header that names ignored fields; names that are not identifiers are shown as `?`."""
    shown = [name if name.isascii() and name.isidentifier() else "?" for name in names[:MOST_SHOWN]]
    value = ",".join([name[:SHOWN_CHARACTERS] for name in shown]).encode()
    return _with_headers(response, ((b"inlay-ignored-fields", value),))


def _with_headers(response: Response, more: Headers) -> Response:
    return response._replace(headers=(*response.headers, *more))


def shown_key(value: bytes) -> bytes | None:
    """Return the key in an Authorization header (RFC 6750)."""
    return value[7:].strip() if value[:7].lower() == b"bearer " else None

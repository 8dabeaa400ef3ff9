"""The one pipeline of gRPC calls: key, call limits, request id, deadline, admission, handler, errors, metrics.

`Pipeline.service` finds the method of a call before its message is read and returns a Call, which grpc.aio takes for a
method handler: it finds there whether requests and answers are streams, how to decode and serialize them, and the
coroutine that serves them. So one object holds all that is known of a call, and no coroutine wraps another.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, NoReturn

import grpc

from service.error_status import retry_seconds
from service.errors import InlayError
from service.grpc.access_log import AccessLog
from service.grpc.call_limits import CallLimit
from service.grpc.methods import Handler, Method, Service
from service.grpc.streams import in_order
from service.observability.metrics import Metrics
from service.observability.tracing import Traced
from service.request_context import REQUEST_ID, RequestContext, request_id
from service.scheduling.admission import AdmissionController
from service.scheduling.deadlines import within
from service.security.api_keys import Keys

REQUEST_ID_KEY = "x-request-id"
BEARER = b"bearer "
OTHER = "_OTHER"  # what OpenTelemetry calls a method that does not exist: its name is the caller's own
UNKNOWN_SERVICE = Service(name="", methods=())
UNKNOWN_METHOD = Method(name=OTHER, request=None, handler=lambda request, context: None)
Metadata = Sequence[tuple[str, str | bytes]]
GrpcContext = Any  # grpc.aio.ServicerContext is generic in ways its stubs and its runtime disagree on
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all calls use.

    Args:
        access_log: follows each call; None: none is asked for.
        keys: callers must show one of them; None: everyone may call.
    """

    metrics: Metrics
    admission: AdmissionController
    access_log: AccessLog | None = None
    keys: Keys | None = None


class ServedMethod:
    """A method of a service, and what its calls need.

    Attributes:
        path: service and method, for spans and log lines.
        metric_name: its name in the metrics.
        limit: bounds its calls.
    """

    __slots__ = ("limit", "method", "metric_name", "path", "service", "shared")

    def __init__(self, shared: Shared, service: Service, method: Method, limit: CallLimit) -> None:
        self.shared, self.service, self.method, self.limit = shared, service, method, limit
        self.path = OTHER if method is UNKNOWN_METHOD else f"{service.name}/{method.name}"
        self.metric_name = service.metric_prefix + method.name


class Pipeline(grpc.GenericRpcHandler):
    """Serves the methods of all services.

    Args:
        max_requests: that are admitted at a time; each sort of call (requests, streams, probes) may have twice as many.
        silent_seconds: how long a call may wait for its first message while others find no place.
        open_handlers: what is served without key, limits and metrics, by path.
    """

    def __init__(
        self,
        shared: Shared,
        services: Iterable[Service],
        max_requests: int,
        silent_seconds: float,
        open_handlers: Mapping[str, Any],
    ) -> None:
        self._shared, self._keys = shared, shared.keys
        self._open_handlers = open_handlers
        self._services = {service.name: service for service in services}
        requests, streams, probes = [CallLimit(max_requests, silent_seconds) for _ in range(3)]
        self._unlimited = requests
        self._methods: dict[str, ServedMethod] = {}
        for service in self._services.values():
            shared.metrics.expect("grpc", service.metric_names)
            for method in service.methods:
                streaming = method.kind in ("client_stream", "bidirectional")
                limit = probes if method.probe else streams if streaming else requests
                self._methods[f"/{service.name}/{method.name}"] = ServedMethod(shared, service, method, limit)
        self._count_refused_at_gate = shared.metrics.gate("grpc")
        self._loop: asyncio.AbstractEventLoop | None = None

    def service(self, handler_call_details: Any) -> Any:
        """Return what serves or refuses a call; None: there is no such method."""
        path, now = handler_call_details.method, perf_counter()
        served, metadata = self._methods.get(path), handler_call_details.invocation_metadata
        if served is None and path in self._open_handlers:
            return self._open_handlers[path]
        key = None
        if self._keys is not None:
            try:
                key = self._keys.acquire(shown_key(metadata))
            except InlayError as error:
                return self._refused_at_gate(path, metadata, error, now)
        task = self._task()
        if key is not None and key.limited:
            task.add_done_callback(lambda _: key.release(perf_counter() - now))
        if served is None:
            return None
        try:
            served.limit.acquire(task, now)
        except InlayError as error:
            return RefusedCall(served, metadata, task, now, error)
        call = CALLS[served.method.kind](served, metadata, task, now, "" if key is None else key.name)
        task.add_done_callback(served.limit.release)
        return call

    def _task(self) -> asyncio.Task[Any]:
        """Return the task of the call that begins; it ends with the call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)  # finding the loop each time is a system call (Python 3.11)
        assert task is not None
        return task

    def _refused_at_gate(self, path: str, metadata: Metadata, error: InlayError, began: float) -> "RefusedCall":
        service = self._services.get(path[1:].rpartition("/")[0], UNKNOWN_SERVICE)
        self._count_refused_at_gate(error.code, service.status_of(error), perf_counter() - began)
        served = self._methods.get(path) or ServedMethod(self._shared, service, UNKNOWN_METHOD, self._unlimited)
        return RefusedCall(served, metadata, self._task(), began, error, counted=True)


class Call:
    """One call, which grpc.aio takes for the handler of a method."""

    request_streaming: ClassVar[bool] = False
    response_streaming: ClassVar[bool] = False
    __slots__ = (
        "_arrived",
        "_caller",
        "_context",
        "_deadline",
        "_grpc",
        "_metadata",
        "_served",
        "_span",
        "_status",
        "_task",
        "id",
    )

    def __init__(
        self, served: ServedMethod, metadata: Metadata, task: asyncio.Task[Any], arrived: float, caller: str = ""
    ) -> None:
        self._served, self._metadata, self._task, self._arrived = served, metadata, task, arrived
        self._caller = caller
        self._status = "UNKNOWN"
        self._span: Traced | None = None
        self._context: RequestContext | None = None

    def request_deserializer(self, data: bytes) -> Any:
        """Return a request's message, or a Malformed."""
        self._served.limit.message_came(self._task)
        return self._served.method.decode(data)

    def response_serializer(self, answer: Any) -> bytes:
        """Return an answer's wire bytes."""
        data = self._served.method.serialize(answer)
        if self._context is not None:
            self._context.written()
        return data

    def begin(self, grpc_context: GrpcContext) -> "Call":
        """Read the request id and the deadline; enter the returned call to have it followed."""
        self._grpc = grpc_context
        sent = None
        for name, value in self._metadata:
            if name == REQUEST_ID_KEY:
                sent = value.encode("ascii", "replace") if isinstance(value, str) else None
                break
        self.id = request_id(sent)
        REQUEST_ID.set(self.id)
        # grpcio counts by the wall clock, which may jump: 0 left is no deadline, since grpc's core, which counts by
        # another clock, cancels calls whose time is really over
        seconds = grpc_context.time_remaining()
        self._deadline = perf_counter() + seconds if seconds else None
        return self

    def context(self) -> RequestContext:
        """Return the context of one request of the call."""
        context = RequestContext()
        context.staggered = self._served.limit.active > 1
        if self._deadline is not None:
            context.deadline = self._deadline
        if self._caller:
            context.caller = self._caller
        if self._span is not None:
            context.passes = self._span.passes
        self._context = context
        return context

    def __enter__(self) -> None:
        """Begin the span."""
        if (access_log := self._served.shared.access_log) is not None:
            self._span = access_log.begin(self._served.path, self._metadata)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End the span and write the log line."""
        if (access_log := self._served.shared.access_log) is not None:
            status = "CANCELLED" if isinstance(error, asyncio.CancelledError) else self._status
            access_log.end(self._served.path, self._span, status, self._arrived, self._grpc.peer)

    async def perform(self, handler: Handler, request: Any) -> Any:
        """Return the handler's answer to one request, or the InlayError it met; counted either way."""
        served, context = self._served, self.context()
        shared = served.shared
        began, status, admitted = perf_counter(), "CANCELLED", False
        try:
            if isinstance(request, InlayError):
                raise request
            if served.method.admitted:
                shared.admission.acquire()
                admitted = True
            if context.deadline is None:
                answer = await handler(request, context)
            else:
                async with within(context.deadline):
                    answer = await handler(request, context)
            status = "OK"
            return answer
        except Exception as error:
            failure = self._failure(error)
            status = served.service.status_of(failure)
            return failure
        finally:
            if admitted:
                shared.admission.release()
            shared.metrics.request("grpc", served.metric_name, status, perf_counter() - began)

    def _failure(self, error: Exception) -> InlayError:
        """Return what the caller is told of an error, counted by its code."""
        if not isinstance(error, InlayError):
            name = self._served.method.name
            log.error("a call of %s met a fault (x-request-id: %s)", name, self.id.decode(), exc_info=error)
            error = InlayError("the service has a fault; its log says more")
        self._served.shared.metrics.refused(error.code)
        return error

    def succeed(self) -> None:
        """Let the call end with OK."""
        self._status = "OK"
        self._grpc.set_trailing_metadata(((REQUEST_ID_KEY, self.id.decode()),))

    async def abort(self, error: InlayError) -> NoReturn:
        """End the call with the error's status; its code and index go into trailing metadata."""
        service = self._served.service
        metadata = [(REQUEST_ID_KEY, self.id.decode()), ("inlay-code", error.code)]
        if (wait := retry_milliseconds(error)) is not None:
            metadata.append(("grpc-retry-pushback-ms", str(wait)))  # gRFC A6
        if error.index is not None:
            metadata.append(("inlay-index", str(error.index)))
        self._status = service.status_of(error)
        await self._grpc.abort(grpc.StatusCode[self._status], service.message_of(error), tuple(metadata))
        raise AssertionError("abort returned")


class UnaryCall(Call):
    """One request, one answer."""

    __slots__ = ()

    async def unary_unary(self, request: Any, grpc_context: GrpcContext) -> Any:
        """Serve the call."""
        with self.begin(grpc_context):
            method = self._served.method
            answer = await self.perform(method.handler, request)
            if isinstance(answer, InlayError):
                await self.abort(answer)
            if method.initial_metadata is not None:
                await grpc_context.send_initial_metadata(method.initial_metadata(answer))
            self.succeed()
            return answer


class ServerStreamCall(Call):
    """One request, many answers."""

    response_streaming = True
    __slots__ = ()

    async def unary_stream(self, request: Any, grpc_context: GrpcContext) -> None:
        """Serve the call."""
        with self.begin(grpc_context):
            failure = await self.perform(self._write_all, request)
            if isinstance(failure, InlayError):
                await self.abort(failure)
            self.succeed()

    async def _write_all(self, request: Any, context: RequestContext) -> None:
        async with aclosing(self._served.method.handler(request, context)) as answers:
            async for answer in answers:
                await self._grpc.write(answer)


class ClientStreamCall(Call):
    """Many requests, one answer."""

    request_streaming = True
    __slots__ = ()

    async def stream_unary(self, requests: AsyncIterator[Any], grpc_context: GrpcContext) -> Any:
        """Serve the call."""
        with self.begin(grpc_context):
            answer = await self.perform(self._served.method.handler, requests)
            if isinstance(answer, InlayError):
                await self.abort(answer)
            self.succeed()
            return answer


class BidirectionalCall(Call):
    """Many requests, an answer to each."""

    request_streaming = response_streaming = True
    __slots__ = ()

    async def stream_stream(self, requests: AsyncIterator[Any], grpc_context: GrpcContext) -> None:
        """Serve the call."""
        with self.begin(grpc_context):
            async with aclosing(in_order(requests, self._respond)) as answers:
                async for answer in answers:
                    if isinstance(answer, InlayError):
                        await self.abort(answer)
                    await grpc_context.write(answer)
            self.succeed()

    async def _respond(self, request: Any) -> Any:
        method = self._served.method
        answer = await self.perform(method.handler, request)
        if method.error_answer is not None and isinstance(answer, InlayError):
            return method.error_answer(None if isinstance(request, InlayError) else request, answer)
        return answer


class RefusedCall(Call):
    """A call that is refused before a message is read; the caller takes it for a method of any kind."""

    request_streaming = response_streaming = True
    __slots__ = ("_counted", "_error")

    def __init__(
        self,
        served: ServedMethod,
        metadata: Metadata,
        task: asyncio.Task[Any],
        arrived: float,
        error: InlayError,
        counted: bool = False,
    ) -> None:
        super().__init__(served, metadata, task, arrived)
        self._error, self._counted = error, counted

    async def stream_stream(self, requests: Any, grpc_context: GrpcContext) -> None:
        """Refuse the call."""
        with self.begin(grpc_context):
            if not self._counted:
                await self.perform(self._served.method.handler, self._error)
            await self.abort(self._error)


CALLS = {
    "unary": UnaryCall,
    "server_stream": ServerStreamCall,
    "client_stream": ClientStreamCall,
    "bidirectional": BidirectionalCall,
}


def shown_key(metadata: Metadata) -> bytes | None:
    """Return the key that a call shows (RFC 6750)."""
    for name, value in metadata:
        if name == "authorization" and isinstance(value, str):
            raw = value.encode("ascii", "replace")
            return raw[len(BEARER) :].strip() if raw[: len(BEARER)].lower() == BEARER else None
    return None


def retry_milliseconds(error: InlayError) -> int | None:
    """Return when a caller may try again; None: the same would happen again."""
    seconds = retry_seconds(error)
    return None if seconds is None else math.ceil(seconds * 1000)

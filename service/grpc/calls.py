"""One gRPC call of each kind: request id, deadline, admission, memory, handler, errors, metrics.

grpc.aio uses a Call as a method handler: its attributes say whether requests and answers are streams and how to
serialize them, and its coroutine serves them. One object holds the whole state of a call, so no coroutine has to wrap
another.
"""

import asyncio
import logging
import math
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, NoReturn
from urllib.parse import unquote

import grpc

from service.embedding import truncation
from service.error_status import retry_seconds
from service.errors import InlayError, Malformed, ModelNotLoaded, Overloaded
from service.grpc.call_limits import CallLimit
from service.grpc.messages import decode
from service.grpc.methods import Handler, Method, Service
from service.grpc.streams import in_order
from service.observability.access_log import AccessLog, Ended
from service.observability.metrics import Metrics
from service.request_context import CURRENT_CALL, RequestContext, request_id
from service.scheduling.admission import AdmissionController
from service.scheduling.deadlines import within
from service.scheduling.loaded_first import loaded_first
from service.scheduling.loop_turns import SMALL_BYTES
from service.scheduling.memory_budget import MemoryBudget
from service.security.api_keys import Key, Keys

REQUEST_ID_KEY = "x-request-id"
UNCOUNTED_BYTES = 4096  # largest message that is not counted
DECODED_SIZE = 8  # a decoded message takes up to so many times its bytes: an id of one byte takes eight
COPIES = 2  # copies of an answer: its rows or grpc's own copy, and the message
OTHER = "_OTHER"  # what OpenTelemetry calls a method that does not exist: its name is the caller's own
SERVER_FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
"""Statuses that make a server's span an error (OpenTelemetry's conventions for RPC)."""
Metadata = Sequence[tuple[str, str | bytes]]
GrpcContext = Any  # grpc.aio.ServicerContext is generic in ways its stubs and its runtime disagree on
log = logging.getLogger(__name__)


class Shared(NamedTuple):
    """The parts that all calls share.

    Args:
        access_log: logs each call; None: calls are not logged.
        keys: callers must show one of them; None: everyone may call.
        budget: bounds the memory of large messages.
    """

    metrics: Metrics
    admission: AdmissionController
    access_log: AccessLog | None = None
    keys: Keys | None = None
    budget: MemoryBudget = MemoryBudget(sys.maxsize)


class ServedMethod:
    """A method of a service, with the limit and metrics of its calls.

    Attributes:
        path: service and method, for spans and log lines.
        metric_name: name of the method in the metrics.
        limit: bounds its calls.
        call_class: serves one call.
    """

    def __init__(self, shared: Shared, service: Service, method: Method, limit: CallLimit) -> None:
        self.shared, self.service, self.method, self.limit = shared, service, method, limit
        self.path = OTHER if method.name == OTHER else f"{service.name}/{method.name}"
        self.metric_name = service.metric_prefix + method.name
        self.call_class = CALLS[method.kind]


class Call:
    """One call, which grpc.aio uses as a method handler.

    Attributes:
        arrived: when its headers had arrived, on `time.perf_counter`.
        silent: whether its first message has yet to arrive.
        identity: id, key and trace of the call, which the context of each of its requests repeats.
    """

    request_streaming: ClassVar[bool] = False
    response_streaming: ClassVar[bool] = False
    request_deserializer = response_serializer = None  # the coroutines take and give bytes
    silent = True
    _status = "CANCELLED"
    _grpc: GrpcContext = None
    _deadline: float | None = None
    _span: Any = None
    _peer = ""
    _reading: asyncio.Future[Any] | None = None
    _gives_way = False
    _context: RequestContext | None = None  # context of the request that is being answered

    def __init__(
        self,
        served: ServedMethod,
        metadata: Metadata,
        task: asyncio.Task[Any] | None,
        identity: RequestContext,
        key: Key | None = None,
    ) -> None:
        self._served, self._task, self._key, self.identity = served, task, key, identity
        self.arrived = perf_counter()
        if served.shared.access_log is not None and not served.method.probe:
            attributes = {"rpc.system.name": "grpc", "rpc.method": served.path}
            sent = [(name, str(value)) for name, value in metadata]
            self._span = served.shared.access_log.begin(served.path, sent, attributes, identity)

    def cancel(self) -> None:
        """End the call."""
        if self._task is not None:
            self._task.cancel()

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Release what a call held once its task has ended, and write its log line."""
        served, key = self._served, self._key
        served.limit.remove(self)
        if self._context is not None:
            self._context.release()
        if key is not None:
            key.release(perf_counter() - self.arrived)
        if served.shared.access_log is not None:
            status, attributes = self._status, {"rpc.response.status_code": self._status}
            peer = unquote(self._peer.partition(":")[2]) if status == "UNAUTHENTICATED" else ""  # ipv6:%5B::1%5D:50123
            ended = Ended("grpc", served.path, status, self.arrived, attributes, status in SERVER_FAULTS, False, peer)
            served.shared.access_log.end(ended, self._span, self.identity)

    def begin(self, grpc_context: GrpcContext) -> None:
        """Record grpc's context, and the deadline in it, when the call's coroutine starts."""
        self._grpc = grpc_context
        # grpcio counts by the wall clock, which may jump: 0 left is no deadline, since grpc's core, which counts by
        # another clock, cancels calls whose time is really over
        if seconds := grpc_context.time_remaining():
            self._deadline = perf_counter() + seconds

    def context(self) -> RequestContext:
        """Return the context of one request of the call."""
        context, identity = RequestContext(), self.identity
        self._context = context
        context.request_id, context.key_name, context.trace_id = (
            identity.request_id,
            identity.key_name,
            identity.trace_id,
        )
        context.copies = COPIES
        if self._served.limit.concurrent:
            context.staggered = True
        if self._deadline is not None:
            context.deadline = self._deadline
        context.caller = identity.key_name or address_of(self._grpc.peer())
        context.passes = identity.passes
        if identity.bulk:
            context.make_bulk()
        return context

    async def perform(self, handler: Handler, request: Any, context: RequestContext) -> Any:
        """Return the handler's answer to one request, or the InlayError that ended it, and count it.

        Args:
            request: a message's bytes, or what the handler takes.
        """
        served = self._served
        shared, method = served.shared, served.method
        began, status, admitted, caller = perf_counter(), "CANCELLED", False, context.caller
        self.silent = False
        served.limit.read(self)
        data = request
        try:
            if type(request) is bytes:
                if len(request) > UNCOUNTED_BYTES:
                    shared.budget.reserve(DECODED_SIZE * len(request), context)
                if len(request) > SMALL_BYTES:
                    await shared.admission.turns.wait(len(request), context.caller)
                request = await decode(method.request, request)
            if method.admitted:
                shared.admission.acquire(caller)
                admitted = True
            try:
                if context.deadline is None:
                    answer = await handler(request, context)
                else:
                    async with within(context.deadline):
                        answer = await handler(request, context)
            except ModelNotLoaded as missing:  # met before a stream of requests is read, or an answer written
                again = partial(self._again, handler, data, context)
                answer = await loaded_first(missing, again, context.deadline)
            status = "OK"
            return answer
        except Exception as error:
            failure = self._failure(error)
            status = served.service.status_of(failure)
            return failure
        finally:
            if admitted:
                shared.admission.release(caller)
            shared.metrics.request("grpc", served.metric_name, status, perf_counter() - began, context)

    async def _again(self, handler: Handler, data: Any, context: RequestContext) -> Any:
        """Return the handler's answer to a request that it has already taken apart."""
        return await handler(await decode(self._served.method.request, data) if type(data) is bytes else data, context)

    def _failure(self, error: Exception) -> InlayError:
        """Return the InlayError that the caller receives for an error, and count it by its code."""
        if not isinstance(error, InlayError):
            name = self._served.method.name
            log.error(
                "a call of %s met a fault (x-request-id: %s)", name, self.identity.request_id.decode(), exc_info=error
            )
            error = InlayError("the service has a fault; its log says more")
        self._served.shared.metrics.refused(error.code)
        return error.without_frames()

    async def first(self, grpc_context: GrpcContext) -> bytes:
        """Return the one message of a call that waits for its turn to be read."""
        self.begin(grpc_context)
        await self._served.limit.turn_to_read(self)
        self._reading = asyncio.ensure_future(grpc_context.read())
        try:
            request = await self._reading
        except asyncio.CancelledError:
            if not self._gives_way:
                raise
            await self.abort(Overloaded("the message came slowly and others wait", remedy="send it again"))
        self._reading = None  # it holds the message
        if isinstance(request, bytes):
            return request
        await self.abort(Malformed("the call holds no message", remedy="send one"))

    def give_way(self) -> None:
        """End a call whose message is being read although it had to wait for its turn."""
        if self._reading is not None:
            self._gives_way = self._reading.cancel()

    def succeed(self, truncated: Metadata = ()) -> None:
        """End the call with OK; `truncated` names the inputs that were cut."""
        self._status = "OK"
        metadata: Metadata = ((REQUEST_ID_KEY, self.identity.request_id.decode()),)
        if self.identity.random_weights or (self._context is not None and self._context.random_weights):
            metadata = (*metadata, *truncation.RANDOM_WEIGHTS)
        self._grpc.set_trailing_metadata((*metadata, *truncated) if truncated else metadata)

    async def abort(self, error: InlayError) -> NoReturn:
        """End the call with the error's status; its code and index go into trailing metadata."""
        service = self._served.service
        metadata = [(REQUEST_ID_KEY, self.identity.request_id.decode()), ("inlay-code", error.code)]
        if (wait := retry_milliseconds(error)) is not None:
            metadata.append(("grpc-retry-pushback-ms", str(wait)))  # gRFC A6
        if error.index is not None:
            metadata.append(("inlay-index", str(error.index)))
        self._status = service.status_of(error)
        await self._grpc.abort(grpc.StatusCode[self._status], service.message_of(error), tuple(metadata))
        raise AssertionError("abort returned")


class UnaryCall(Call):
    """A call of one request and one answer."""

    async def unary_unary(self, request: bytes, grpc_context: GrpcContext) -> bytes:
        """Serve the call."""
        self.begin(grpc_context)
        method, context = self._served.method, self.context()
        answer = await self.perform(method.handler, request, context)
        del request  # grpc keeps the error of an abort and so this frame, until Python looks for cycles
        if isinstance(answer, InlayError):
            await self.abort(answer)
        if method.initial_metadata is not None:
            await grpc_context.send_initial_metadata(method.initial_metadata(answer))
        data = method.serialize(answer)
        del answer  # its rows: grpc makes a copy of the message
        context.written(perf_counter())
        self.succeed(truncation.metadata(context.truncated) if context.truncated else ())
        return data


class WaitingUnaryCall(UnaryCall):
    """A unary call, declared as a stream of requests so that its message is read only when its turn comes."""

    request_streaming = True

    async def stream_unary(self, requests: AsyncIterator[bytes], grpc_context: GrpcContext) -> bytes:
        """Serve the call."""
        return await self.unary_unary(await self.first(grpc_context), grpc_context)


class ServerStreamCall(Call):
    """A call of one request and many answers, declared as a stream of requests: its message is read in its turn."""

    request_streaming = response_streaming = True

    async def stream_stream(self, requests: AsyncIterator[bytes], grpc_context: GrpcContext) -> None:
        """Serve the call."""
        failure = await self.perform(self._write_all, await self.first(grpc_context), self.context())
        if isinstance(failure, InlayError):
            await self.abort(failure)
        self.succeed()

    async def _write_all(self, request: Any, context: RequestContext) -> None:
        method = self._served.method
        async with aclosing(method.handler(request, context)) as answers:
            async for answer in answers:
                await self._grpc.write(method.serialize(answer))


class ClientStreamCall(Call):
    """A call of many requests and one answer."""

    request_streaming = True

    async def stream_unary(self, requests: AsyncIterator[bytes], grpc_context: GrpcContext) -> bytes:
        """Serve the call."""
        self.begin(grpc_context)
        method = self._served.method
        context = self.context()
        answer = await self.perform(method.handler, _decoded(requests, method), context)
        if isinstance(answer, InlayError):
            await self.abort(answer)
        self.succeed(truncation.metadata(context.truncated))
        return method.serialize(answer)


async def _decoded(requests: AsyncIterator[bytes], method: Method) -> AsyncIterator[Any]:
    async for data in requests:
        yield await decode(method.request, data)


class BidirectionalCall(Call):
    """A call of many requests with an answer to each.

    Its trailing metadata has the numbers of requests with an input that was cut.
    """

    request_streaming = response_streaming = True
    _begun = 0
    _cut = 0
    _truncated: tuple[int, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unsent: set[RequestContext] = set()

    async def stream_stream(self, requests: AsyncIterator[bytes], grpc_context: GrpcContext) -> None:
        """Serve the call."""
        self.begin(grpc_context)
        async with aclosing(in_order(requests, self._respond)) as answers:
            async for answer, context in answers:
                if isinstance(answer, InlayError):
                    await self.abort(answer)
                await grpc_context.write(answer if type(answer) is bytes else self._served.method.serialize(answer))
                self._unsent.discard(context)
                context.release()
        self.succeed(truncation.metadata(tuple(sorted(self._truncated)), self._cut))

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Release what the call held, and the memory of the answers that were not sent."""
        super().ended(task)
        while self._unsent:
            self._unsent.pop().release()

    async def _respond(self, request: bytes) -> tuple[Any, RequestContext]:
        method, context, number = self._served.method, self.context(), self._begun
        self._begun += 1
        self._unsent.add(context)
        answer = await self.perform(method.handler, request, context)
        if context.random_weights:
            self.identity.random_weights = True  # of one of its requests
        if context.truncated:
            self._cut += 1
            if self._cut <= truncation.MOST_SHOWN:
                self._truncated = (*self._truncated, number)
        if method.error_answer is None or not isinstance(answer, InlayError):
            return answer, context
        try:
            message = await decode(method.request, request)
        except InlayError:
            message = None
        return method.error_answer(message, answer), context


class RefusedCall(Call):
    """A call that is refused before a message is read; declared as streams, which fits every kind of method.

    Attributes:
        error: the reason.
        metric_name: name in the metrics, if not the method's.
    """

    request_streaming = response_streaming = True
    error: InlayError
    metric_name = ""

    async def stream_stream(self, requests: Any, grpc_context: GrpcContext) -> None:
        """Refuse the call."""
        self.begin(grpc_context)
        self._peer = grpc_context.peer()
        metrics, served = self._served.shared.metrics, self._served
        name, status = self.metric_name or served.metric_name, served.service.status_of(self.error)
        metrics.refused(self.error.code)
        metrics.request("grpc", name, status, 0.0, self.identity)
        await self.abort(self.error)


def identity_of(metadata: Metadata) -> RequestContext:
    """Return the context of a call with only its request id, and make it that of the running task."""
    sent_id = None
    for name, value in metadata:
        if name == REQUEST_ID_KEY:
            sent_id = value.encode("ascii", "replace") if isinstance(value, str) else None
            break
    identity = RequestContext()
    identity.request_id = request_id(sent_id)
    CURRENT_CALL.set(identity)
    return identity


CALLS: dict[str, type[Call]] = {
    "unary": UnaryCall,
    "server_stream": ServerStreamCall,
    "client_stream": ClientStreamCall,
    "bidirectional": BidirectionalCall,
}


def address_of(peer: str) -> str:
    """Return the address in grpc's name of the peer: `ipv4:127.0.0.1:50123` or `ipv6:%5B::1%5D:50123`."""
    kind, _, place = peer.partition(":")
    if kind == "ipv4":
        return place.rpartition(":")[0]
    if kind == "ipv6":
        return place.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return peer


def retry_milliseconds(error: InlayError) -> int | None:
    """Return after how many milliseconds a caller may retry; None if a retry would fail too."""
    seconds = retry_seconds(error)
    return None if seconds is None else math.ceil(seconds * 1000)

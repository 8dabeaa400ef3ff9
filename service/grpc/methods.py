"""Methods as gRPC handlers, an InlayError as the status a protocol gives it. Knows no service."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from service.embedding.context import ANONYMOUS, RequestContext
from service.error_status import STATUSES, retry_seconds
from service.errors import InlayError, Malformed
from service.observability import stage_times as stages
from service.observability.metrics import Metrics
from service.observability.request_context import REQUEST_ID
from service.scheduling import deadlines

Context = Any  # grpc.aio.ServicerContext is generic in ways its stubs and its runtime disagree on
StatusOf = Callable[[InlayError], str]  # the name of a gRPC status code
Answer = TypeVar("Answer")
IN_FLIGHT = 64  # requests of one stream worked on at a time
log = logging.getLogger(__name__)


def inlay_status(error: InlayError) -> str:
    """The gRPC status of inlay.v1."""
    return STATUSES[error.code].grpc


class Service(NamedTuple):
    """A gRPC service: its full name and its methods' handlers.

    watched   names besides its own that grpc.health.v1 answers for
    counted   before the name of each method in the metrics
    serving   what it answers; False: the methods are there and no model here is for them
    status_of how it refuses
    probes    methods that only tell how the server is: they are answered however many others are under way
    """

    name: str
    handlers: Mapping[str, Any]
    watched: Sequence[str] = ()
    serving: bool = True
    counted: str = ""
    status_of: StatusOf = inlay_status
    probes: Collection[str] = ()


def serialise(message: Any) -> bytes:
    """A message's wire bytes."""
    return bytes(message.SerializeToString())


def reader(kind: Any) -> Callable[[bytes], Any]:
    """Bytes → a message of this class, or the Malformed to refuse them with; raised here, grpc calls it UNKNOWN."""
    read: Callable[[bytes], Any] = kind.FromString

    def message(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            name = kind.DESCRIPTOR.full_name
            return Malformed(f"the message's {len(data)} bytes are no {name}: serialise that message and send it whole")

    return message


def _remaining(context: Context) -> float | None:
    """Seconds the caller still waits; None: it did not say.

    grpcio 1.85 counts them by the clock of the wall, which may jump: 0 left is no word either, since the core, which
    counts by another clock, cancels calls whose time is over.
    """
    return context.time_remaining() or None


CALL: ContextVar[RequestContext] = ContextVar("call", default=ANONYMOUS)
"""The context of the running task's call."""


def _begin(context: Context) -> None:
    seconds = _remaining(context)
    deadline = None if seconds is None else perf_counter() + seconds
    CALL.set(RequestContext(deadline, staggered=True))


def unary(answer: Any, kind: Any, serialise: Callable[[Any], bytes] = serialise) -> Any:
    """A handler of one request and one answer; `kind` is the request's message class."""

    async def call(request: Any, context: Context) -> Any:
        _begin(context)
        return await answer(request, context)

    def write(answer: Any) -> bytes:
        written = serialise(answer)
        stages.written()
        return written

    return grpc.unary_unary_rpc_method_handler(call, reader(kind), write)


def streams(
    answer: Callable[[Any], Awaitable[Any]],
    kind: Any,
    serialise: Callable[[Any], bytes] = serialise,
    *,
    ends: StatusOf | None = None,
) -> Any:
    """A handler of many requests, each answered in its turn.

    answer   of one request
    ends     an InlayError among the answers ends the call with this status; None: it is sent like any other answer
    """

    async def call(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        _begin(context)
        async with aclosing(in_order(requests, answer)) as answers:
            async for each in answers:
                if ends and isinstance(each, InlayError):
                    await abort(context, each, ends)
                yield each

    return grpc.stream_stream_rpc_method_handler(call, reader(kind), serialise)


def answers_stream(answer: Any, kind: Any, serialise: Callable[[Any], bytes] = serialise) -> Any:
    """A handler of one request and many answers; `answer` is an async generator function."""

    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        _begin(context)
        async with aclosing(answer(request, context)) as answers:
            async for each in answers:
                yield each

    return grpc.unary_stream_rpc_method_handler(call, reader(kind), serialise)


def collects(answer: Any, kind: Any, serialise: Callable[[Any], bytes] = serialise) -> Any:
    """A handler of many requests and one answer."""

    async def call(requests: AsyncIterator[Any], context: Context) -> Any:
        _begin(context)
        return await answer(requests, context)

    return grpc.stream_unary_rpc_method_handler(call, reader(kind), serialise)


async def guarded(
    metrics: Metrics,
    method: str,
    work: Callable[[Any], Awaitable[Answer]],
    request: Any,
    status_of: StatusOf = inlay_status,
) -> Answer | InlayError:
    """What `work` gives for the request, or the InlayError it met; counted under `method`; our own faults are logged.

    request   a message, or the InlayError that was found in its place
    """
    started, status = perf_counter(), "OK"
    try:
        if isinstance(request, InlayError):
            raise request
        async with deadlines.within(CALL.get().deadline):
            return await work(request)
    except asyncio.CancelledError:
        status = "CANCELLED"
        raise
    except Exception as error:
        refusal = _refusal(metrics, method, error)
        status = status_of(refusal)
        return refusal
    finally:
        metrics.request("grpc", method, status, perf_counter() - started)


def answering(
    metrics: Metrics, method: str, work: Callable[[Any], Awaitable[Any]], status_of: StatusOf = inlay_status
) -> Callable[[Any, Context], Awaitable[Any]]:
    """What answers one request of a method whose protocol refuses with these statuses."""

    async def call(request: Any, context: Context) -> Any:
        answer = await guarded(metrics, method, work, request, status_of)
        if isinstance(answer, InlayError):
            await abort(context, answer, status_of)
        return answer

    return call


async def guarded_each(
    metrics: Metrics, method: str, work: Callable[[Any], AsyncGenerator[Answer, None]], request: Any, context: Context
) -> AsyncGenerator[Answer, None]:
    """Each of what `work` gives, the call ended with the InlayError it met; counted and logged as `guarded` does it."""
    started, status, refusal = perf_counter(), "OK", None
    try:
        if isinstance(request, InlayError):
            raise request
        async with aclosing(work(request)) as answers:
            async for each in answers:
                yield each
    except (asyncio.CancelledError, GeneratorExit):
        status = "CANCELLED"
        raise
    except Exception as error:
        refusal = _refusal(metrics, method, error)
        status = inlay_status(refusal)
    finally:
        metrics.request("grpc", method, status, perf_counter() - started)
    if refusal:
        await abort(context, refusal)


def _refusal(metrics: Metrics, method: str, error: Exception) -> InlayError:
    """What a caller is told of an error, counted by its code."""
    if not isinstance(error, InlayError):
        log.error("a call of %s met a fault (x-request-id: %s)", method, REQUEST_ID.get().decode(), exc_info=error)
        error = InlayError("the service has a fault; its log says more")
    metrics.refused(error.code)
    return error


async def in_order(
    requests: AsyncIterator[Any], work: Callable[[Any], Awaitable[Any]], in_flight: int = IN_FLIGHT
) -> AsyncGenerator[Any, None]:
    """What `work` gives for each request, in their order; at most `in_flight` are worked on at a time.

    raises   what reading the requests raised, behind the answers to those before it
    """
    room = asyncio.Semaphore(in_flight)
    answers: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue()
    tasks: set[asyncio.Task[Any]] = set()

    async def read() -> None:
        try:
            async for request in requests:
                await room.acquire()
                answers.put_nowait(begin(work(request)))
        finally:
            answers.put_nowait(None)

    def begin(work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(done)
        return task

    def done(task: asyncio.Task[Any]) -> None:
        tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: where the call has ended, nobody waits for it and asyncio would log it

    reading = begin(read())
    try:
        while (answer := await answers.get()) is not None:
            yield await answer
            room.release()
        await reading
    finally:
        for task in tasks:
            task.cancel()


def retry_milliseconds(error: InlayError) -> int | None:
    """When to try again; None: the same would happen again."""
    seconds = retry_seconds(error)
    return None if seconds is None else math.ceil(seconds * 1000)


async def abort(context: Context, error: InlayError, status_of: StatusOf = inlay_status) -> NoReturn:
    """End the call with the error's status, its code and index in trailing metadata."""
    metadata = [*(context.trailing_metadata() or ()), ("inlay-code", error.code)]
    if (wait := retry_milliseconds(error)) is not None:
        metadata.append(("grpc-retry-pushback-ms", str(wait)))  # gRFC A6
    if error.index is not None:
        metadata.append(("inlay-index", str(error.index)))
    await context.abort(grpc.StatusCode[status_of(error)], error.message, tuple(metadata))
    raise AssertionError("abort returned")

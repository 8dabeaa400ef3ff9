"""Methods as gRPC handlers, an InlayError as the status a protocol gives it. Knows no service."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, TypeVar

import grpc

from service.errors import InlayError
from service.queueing import deadlines
from service.sight import stages
from service.sight.metrics import Metrics
from service.wire.status import STATUSES, retry_seconds
from service.wire.transport.request_ids import CURRENT

Context = Any  # grpc.aio.ServicerContext is generic in ways its stubs and its runtime disagree on
StatusOf = Callable[[InlayError], str]  # the name of a gRPC status code
Answer = TypeVar("Answer")
log = logging.getLogger(__name__)


class Service(NamedTuple):
    """A gRPC service: its full name and its methods' handlers.

    watched   names besides its own that grpc.health.v1 answers for
    counted   before the name of each method in the metrics
    serving   what it answers; False: the methods are there and no model here is for them
    """

    name: str
    handlers: Mapping[str, Any]
    watched: Sequence[str] = ()
    serving: bool = True
    counted: str = ""


def inlay_status(error: InlayError) -> str:
    """The gRPC status of inlay.v1."""
    return STATUSES[error.code].grpc


def serialise(message: Any) -> bytes:
    """A message's wire bytes."""
    return bytes(message.SerializeToString())


def unary(answer: Any, kind: Any, serialise: Callable[[Any], bytes] = serialise) -> Any:
    """A handler of one request and one answer; `kind` is the request's message class."""

    async def call(request: Any, context: Context) -> Any:
        deadlines.allow(context.time_remaining())
        return await answer(request, context)

    def write(answer: Any) -> bytes:
        written = serialise(answer)
        stages.written()
        return written

    return grpc.unary_unary_rpc_method_handler(call, kind.FromString, write)


def streams(answer: Any, kind: Any, serialise: Callable[[Any], bytes] = serialise) -> Any:
    """A handler of many requests and many answers; `answer` is an async generator function, which grpc looks for."""
    return grpc.stream_stream_rpc_method_handler(answer, kind.FromString, serialise)


def answers_stream(answer: Any, kind: Any, serialise: Callable[[Any], bytes] = serialise) -> Any:
    """A handler of one request and many answers."""
    return grpc.unary_stream_rpc_method_handler(answer, kind.FromString, serialise)


def collects(answer: Any, kind: Any, serialise: Callable[[Any], bytes] = serialise) -> Any:
    """A handler of many requests and one answer."""
    return grpc.stream_unary_rpc_method_handler(answer, kind.FromString, serialise)


async def guarded(
    metrics: Metrics, method: str, work: Awaitable[Answer], status_of: StatusOf = inlay_status
) -> Answer | InlayError:
    """What `work` gives, or the InlayError it met; counted under `method`; our own faults are logged."""
    started, status = perf_counter(), "OK"
    try:
        return await work
    except InlayError as error:
        status = status_of(error)
        metrics.refused(error.code)
        return error
    except asyncio.CancelledError:
        status = "CANCELLED"
        raise
    except Exception:
        log.exception("a call of %s met a fault (x-request-id: %s)", method, CURRENT.get().decode())
        status = "INTERNAL"
        return InlayError("the service has a fault; its log says more")
    finally:
        metrics.request("grpc", method, status, perf_counter() - started)


async def in_order(
    requests: AsyncIterator[Any], work: Callable[[Any], Awaitable[Any]], in_flight: int
) -> AsyncGenerator[Any, None]:
    """What `work` gives for each request, in their order; at most `in_flight` are worked on at a time."""
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
        task.add_done_callback(tasks.discard)
        return task

    begin(read())
    try:
        while (answer := await answers.get()) is not None:
            yield await answer
            room.release()
    finally:
        for task in tasks:
            task.cancel()


async def abort(context: Context, error: InlayError, status_of: StatusOf = inlay_status) -> NoReturn:
    """End the call with the error's status, its code and index in trailing metadata."""
    metadata = [*(context.trailing_metadata() or ()), ("inlay-code", error.code)]
    if (wait := retry_seconds(error)) is not None:
        metadata.append(("grpc-retry-pushback-ms", str(math.ceil(wait * 1000))))  # gRFC A6
    if error.index is not None:
        metadata.append(("inlay-index", str(error.index)))
    await context.abort(grpc.StatusCode[status_of(error)], error.message, tuple(metadata))
    raise AssertionError("abort returned")

"""The standard health and reflection services, which need no key.

Their streams last as long as a caller likes, so they are few, and end when the server begins to stop.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from service.grpc.methods import serialize

MAX_STREAMS = 1024
State = health_pb2.HealthCheckResponse
Context = Any  # grpc.aio.ServicerContext
NAMES = (health.SERVICE_NAME, reflection.SERVICE_NAME)


class OpenStreams:
    """Bounds the streams of health checks and reflection, and ends them when the server begins to stop."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self._active = 0

    @asynccontextmanager
    async def one(self, context: Context) -> AsyncIterator[None]:
        """Count one stream for the length of a block; if there are too many, end it with RESOURCE_EXHAUSTED."""
        if self._active >= MAX_STREAMS:
            message = f"{MAX_STREAMS} streams of health and reflection are open, which is all: call Check, or try later"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    async def until_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a stream's work, or as much of it as is done when the server begins to stop."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            working.cancel()
            stopping.cancel()


class Health:
    """grpc.health.v1: the states of named services; the empty name is the server itself."""

    def __init__(self, streams: OpenStreams) -> None:
        self._streams = streams
        self._states: dict[str, Any] = {"": State.SERVING}
        self._changed = asyncio.Event()
        self._draining = False

    def set(self, name: str, serving: bool) -> None:
        """Set a service's state; once the server drains it stays NOT_SERVING."""
        self._put({name: State.SERVING if serving and not self._draining else State.NOT_SERVING})

    def drain(self) -> None:
        """Tell watchers that no service serves any more."""
        self._draining = True
        self._put(dict.fromkeys(self._states, State.NOT_SERVING))

    def stop(self) -> None:
        """Tell watchers that no service serves any more, and end their streams."""
        self._streams.stopping.set()
        self.drain()

    def _put(self, states: dict[str, Any]) -> None:
        self._states |= states
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, request: Any, context: Context) -> Any:
        """Return the state of a service; NOT_FOUND if there is none of that name."""
        if request.service not in self._states:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of that name is here; reflection lists them")
        return State(status=self._states[request.service])

    async def list(self, request: Any, context: Context) -> Any:
        """Return the states of all services."""
        states = {name: State(status=state) for name, state in self._states.items()}
        return health_pb2.HealthListResponse(statuses=states)

    async def watch(self, request: Any, context: Context) -> None:
        """Send the state of a service, and each change of it."""
        async with self._streams.one(context):
            last_sent, ending = None, False
            while not ending:
                changed, ending = self._changed, self._streams.stopping.is_set()
                state = self._states.get(request.service, State.SERVICE_UNKNOWN)
                if state != last_sent:
                    await context.write(State(status=state))
                    last_sent = state
                if not ending:
                    await changed.wait()


def open_handlers(checks: Health, streams: OpenStreams, services: Sequence[str]) -> dict[str, Any]:
    """Return the handlers of both services by path, not registered with grpc one by one.

    grpc.aio waits for the next call of each registered method separately, which costs every call of the server 4 µs.

    Args:
        services: the names that reflection lists besides its own and health's.
    """
    servicer = reflection.aio.ReflectionServicer([*services, *NAMES])

    async def answer_all(requests: AsyncIterator[Any], context: Context) -> None:
        async for answer in servicer.ServerReflectionInfo(requests, context):
            await context.write(answer)

    async def reflect(requests: AsyncIterator[Any], context: Context) -> None:
        async with streams.one(context):
            await streams.until_stop(answer_all(requests, context))

    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    check = health_pb2.HealthCheckRequest.FromString
    rows: tuple[tuple[str, Any, Any, Any], ...] = (
        (f"{health.SERVICE_NAME}/Check", unary, checks.check, check),
        (f"{health.SERVICE_NAME}/List", unary, checks.list, health_pb2.HealthListRequest.FromString),
        (f"{health.SERVICE_NAME}/Watch", stream, checks.watch, check),
        (
            f"{reflection.SERVICE_NAME}/ServerReflectionInfo",
            grpc.stream_stream_rpc_method_handler,
            reflect,
            reflection_pb2.ServerReflectionRequest.FromString,
        ),
    )
    return {f"/{path}": kind(handler, decode, serialize) for path, kind, handler, decode in rows}

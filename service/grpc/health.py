"""What gRPC answers without a key: health and reflection. Knows no model.

Their streams last as long as a caller likes, so they are few, and end by themselves when a stop begins: it need not
wait for them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from service.grpc.methods import Context

MOST_STREAMS = 1024
States = health_pb2.HealthCheckResponse


class Streams:
    """Room for `most` streams at a time, until a stop begins."""

    def __init__(self, most: int = MOST_STREAMS) -> None:
        self.stopping = asyncio.Event()
        self._most, self._open = most, 0

    @asynccontextmanager
    async def one(self, context: Context) -> AsyncIterator[None]:
        """The time of one stream; beyond the most it ends here with RESOURCE_EXHAUSTED."""
        if self._open >= self._most:
            said = f"{self._open} streams of health and reflection are open, which is all: call Check, or try later"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, said)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def until_stopping(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """The requests as they come, and no more once a stop begins."""

        async def read() -> Any:
            return await anext(requests, None)

        stopped = asyncio.create_task(self.stopping.wait())
        coming = asyncio.create_task(read())
        try:
            while await _first(coming, stopped) is coming and (request := coming.result()) is not None:
                yield request
                coming = asyncio.create_task(read())
        finally:
            coming.cancel()
            stopped.cancel()


async def _first(*tasks: asyncio.Task[Any]) -> asyncio.Task[Any]:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return next(task for task in tasks if task in done)


class Health:
    """grpc.health.v1 of names that are told; the empty one is the server itself."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._states: dict[str, Any] = {"": States.SERVING}
        self._changed = asyncio.Event()

    def tell(self, name: str, serving: bool) -> None:
        """What a name's state is from now on; once a stop has begun it is NOT_SERVING for good."""
        self._put({name: States.SERVING if serving and not self._streams.stopping.is_set() else States.NOT_SERVING})

    def stop(self) -> None:
        """Nothing serves any more; who watches is told so, and that was all."""
        self._streams.stopping.set()
        self._put(dict.fromkeys(self._states, States.NOT_SERVING))

    def _put(self, states: dict[str, Any]) -> None:
        self._states |= states
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: Context) -> Any:
        """The state of a name; NOT_FOUND where there is none."""
        if request.service not in self._states:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of that name is here; reflection lists them")
        return States(status=self._states[request.service])

    async def List(self, request: Any, context: Context) -> Any:
        """The states of all names."""
        states = {name: States(status=state) for name, state in self._states.items()}
        return health_pb2.HealthListResponse(statuses=states)

    async def Watch(self, request: Any, context: Context) -> None:
        """The state of a name now and after each change, until a stop begins."""
        async with self._streams.one(context):
            told, ending = None, False
            while not ending:
                changed, ending = self._changed, self._streams.stopping.is_set()
                state = self._states.get(request.service, States.SERVICE_UNKNOWN)
                if state != told:
                    await context.write(States(status=state))
                    told = state
                if not ending:
                    await changed.wait()


class Reflection:
    """grpc.reflection.v1alpha of these services, until a stop begins."""

    def __init__(self, names: Sequence[str], streams: Streams) -> None:
        self._answers = reflection.aio.ReflectionServicer(names)
        self._streams = streams

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Context) -> None:
        """An answer to each request."""
        async with self._streams.one(context), aclosing(self._streams.until_stopping(requests)) as before:
            async for answer in self._answers.ServerReflectionInfo(before, context):
                await context.write(answer)

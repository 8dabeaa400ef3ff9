"""Answers the requests of one stream in their order, several at a time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any

IN_FLIGHT = 64  # requests of one stream worked on at a time, if they are small
PLACE_BYTES = 4096  # of a request for each place that it takes of these: a stream holds 256 KiB, or one request


async def in_order(
    requests: AsyncIterator[bytes], work: Callable[[bytes], Coroutine[Any, Any, Any]]
) -> AsyncGenerator[Any, None]:
    """Yield the result of `work` for each request, in the requests' order.

    Args:
        work: called with each request, in a task of its own.

    Raises:
        Exception: what reading the requests raised, after the answers to those before it.
    """
    places = asyncio.Semaphore(IN_FLIGHT)
    answers: asyncio.Queue[tuple[asyncio.Task[Any], int] | None] = asyncio.Queue()
    tasks: set[asyncio.Task[Any]] = set()

    async def read() -> None:
        try:
            async for request in requests:
                taken = min(IN_FLIGHT, 1 + len(request) // PLACE_BYTES)
                for _ in range(taken):
                    await places.acquire()
                answers.put_nowait((_begin(work(request), tasks), taken))
        finally:
            answers.put_nowait(None)

    reading = _begin(read(), tasks)
    try:
        while (begun := await answers.get()) is not None:
            answer, taken = begun
            yield await answer
            for _ in range(taken):
                places.release()
        await reading
    finally:
        for task in tasks:
            task.cancel()


def _begin(work: Coroutine[Any, Any, Any], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    """Run work in a task, which is one of `tasks` until it is done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    task.add_done_callback(_retrieve)
    return task


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Read the exception of a task; asyncio would log it if nothing awaits the task after the call has ended."""
    if not task.cancelled():
        task.exception()

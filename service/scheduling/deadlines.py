"""Until when the caller of the running task waits. Set where a request comes in, read where work is queued."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from time import perf_counter

from service.errors import DeadlineExceeded

_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)


def current() -> float | None:
    """When the caller stops waiting, on perf_counter; None: it did not say."""
    return _DEADLINE.get()


def allow(seconds: float | None) -> None:
    """The caller waits so long from now, or did not say."""
    _DEADLINE.set(None if seconds is None else perf_counter() + seconds)


def at_most(seconds: float) -> None:
    """The caller waits no longer than that from now, whatever was allowed before."""
    deadline, before = perf_counter() + seconds, _DEADLINE.get()
    _DEADLINE.set(deadline if before is None else min(before, deadline))


@asynccontextmanager
async def kept() -> AsyncIterator[None]:
    """What is awaited inside is cancelled when the caller's time is over; raises DeadlineExceeded then."""
    deadline = _DEADLINE.get()
    if deadline is None:
        yield
        return
    limit = asyncio.timeout(deadline - perf_counter())
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded(
            "the time allowed is over and this is not done: allow more time or try again later"
        ) from None

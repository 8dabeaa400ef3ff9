"""Cancels work when its caller's deadline has passed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter

from service.errors import DeadlineExceeded


@asynccontextmanager
async def within(deadline: float | None, clock: Callable[[], float] = perf_counter) -> AsyncIterator[None]:
    """Cancel the block when the deadline passes.

    Args:
        deadline: time on `clock`; None: there is none.
        clock: seconds.

    Raises:
        DeadlineExceeded: the deadline passed.
    """
    if deadline is None:
        yield
        return
    limit = asyncio.timeout(deadline - clock())
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise exceeded() from None
    if clock() > deadline:  # the event loop was held up, so the timer had not its turn yet
        raise exceeded()


def exceeded() -> DeadlineExceeded:
    """Return the error of a request whose deadline has passed."""
    return DeadlineExceeded(
        "the time allowed is over and this is not done", remedy="allow more time or try again later"
    )

"""Deadlines: cancels work when the time that its caller allowed is over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

from service.errors import DeadlineExceeded


@asynccontextmanager
async def within(deadline: float | None) -> AsyncIterator[None]:
    """Cancel the block when the deadline passes.

    Args:
        deadline: on `time.perf_counter`; None: there is none.

    Raises:
        DeadlineExceeded: the deadline passed.
    """
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
            "the time allowed is over and this is not done", remedy="allow more time or try again later"
        ) from None

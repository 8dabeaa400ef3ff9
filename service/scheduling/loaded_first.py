"""Serves a request for a model that is not loaded: waits until it is, and begins again."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from service.errors import ModelNotLoaded
from service.scheduling.deadlines import within

Answer = TypeVar("Answer")
TRIES = 3  # loads that a request waits for: its model may be unloaded again before its turn


async def loaded_first(
    missing: ModelNotLoaded, answer: Callable[[], Awaitable[Answer]], deadline: float | None
) -> Answer:
    """Return the answer to a request that needed a model which was not loaded.

    Args:
        missing: the error that it met before anything was done for it.
        answer: answers it from the beginning.

    Raises:
        InlayError: the model cannot be loaded now, or what `answer` raises.
    """
    async with within(deadline):
        for _ in range(TRIES):
            await missing.load()
            try:
                return await answer()
            except ModelNotLoaded as again:
                missing = again
        raise missing

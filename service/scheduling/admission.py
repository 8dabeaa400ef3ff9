"""Bounds the requests of a process, and reserves room in queues for texts that are being tokenized."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from service.errors import Overloaded
from service.request_context import BULK
from service.scheduling.fair_queue import BULK_PART, FairQueue
from service.scheduling.loop_turns import LoopTurns
from service.scheduling.memory_budget import HeldByCallers

CHARACTERS_PER_TOKEN = 4  # of English texts
SPECIAL_TOKENS = 2
LAST_PART, LITTLE_PART = 8, 64  # of the requests at a time: the last eighth is for callers with few of them


class AdmissionController:
    """Bounds the requests that one process serves at a time. Every `acquire` is paired with a `release`.

    Args:
        max_requests: requests at a time, from a whole body to a response that is being sent.

    Attributes:
        turns: when each of them begins.
    """

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._callers = HeldByCallers(max_requests - max_requests // LAST_PART, max_requests // LITTLE_PART)
        self._max_bulk = max(1, int(max_requests * BULK_PART))
        self.turns = LoopTurns()
        self.active = self._bulk = 0

    def acquire(self, caller: str = "") -> None:
        """Admit one request.

        Raises:
            Overloaded: `max_requests` are being served, or nearly as many and several of them are the caller's, or
                as many bulk requests as may.
        """
        bulk = caller.startswith(BULK)
        if bulk and self._bulk >= self._max_bulk:
            raise Overloaded(
                f"{self._bulk} bulk requests are being served",
                allowed=f"this server takes {self._max_bulk} at a time",
                remedy="try again in a moment",
            )
        if self.active >= self._max_requests or not self._callers.take(caller, 1, self.active):
            raise Overloaded(
                f"{self.active} requests are being served",
                allowed=f"this server takes {self._max_requests} at a time",
                remedy="try again in a moment",
            )
        self.active += 1
        self._bulk += bulk

    def has_room(self, requests: int) -> bool:
        """Return whether this many more requests could be admitted."""
        return self.active + requests <= self._max_requests

    def release(self, caller: str = "") -> None:
        """End one request."""
        self.active -= 1
        self._bulk -= caller.startswith(BULK)
        self._callers.give_back(caller, 1)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit one request for the length of a block."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


def estimated_tokens(sizes: Iterable[int], longest: int | None) -> int:
    """Return about how many tokens texts have; once they are tokenized, the queues are asked for what is above it.

    Args:
        sizes: characters of each text.
        longest: tokens to which each text is cut; None: it is not.
    """
    most = longest or 1 << 62
    return sum([min(size // CHARACTERS_PER_TOKEN + SPECIAL_TOKENS, most) for size in sizes])


@contextmanager
def reserved(queues: Sequence[FairQueue[Any, Any]], cost: int, caller: str) -> Iterator[None]:
    """Reserve room in queues while a caller's request is prepared."""
    for queue in queues:
        queue.reserve(cost, caller)
    try:
        yield
    finally:
        for queue in queues:
            queue.release(cost, caller)

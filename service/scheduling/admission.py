"""Bounds the requests of a process, and reserves room in queues for texts that are being tokenized."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from service.errors import Overloaded
from service.scheduling.fair_queue import FairQueue
from service.scheduling.loop_turns import LoopTurns
from service.scheduling.memory_budget import HeldByCallers

FIRST_CHARACTERS_PER_TOKEN = 4.0  # estimate until texts of the model have been tokenized
LEAST_CHARACTERS, MOST_CHARACTERS = 0.5, 8.0  # that a token is taken to have, whatever the texts: blanks give none
NEWEST_WEIGHT = 0.05  # weight of the newest request in that estimate
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
        self.turns = LoopTurns()
        self.active = 0

    def acquire(self, caller: str = "") -> None:
        """Admit one request.

        Raises:
            Overloaded: `max_requests` are being served, or nearly as many and several of them are the caller's.
        """
        if self.active >= self._max_requests or not self._callers.take(caller, 1, self.active):
            raise Overloaded(
                f"{self.active} requests are being served",
                allowed=f"this server takes {self._max_requests} at a time",
                remedy="try again in a moment",
            )
        self.active += 1

    def has_room(self, requests: int) -> bool:
        """Return whether this many more requests could be admitted."""
        return self.active + requests <= self._max_requests

    def release(self, caller: str = "") -> None:
        """End one request."""
        self.active -= 1
        self._callers.give_back(caller, 1)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit one request for the length of a block."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


class TokenEstimator:
    """Estimates the number of tokens of texts before they are tokenized, from earlier texts of the model."""

    def __init__(self) -> None:
        self._characters_per_token: dict[str, float] = {}

    def estimate(self, model: str, sizes: Iterable[int], longest: int | None) -> int:
        """Return the estimated tokens of texts.

        Args:
            model: the model's name.
            sizes: characters of each text.
            longest: tokens to which each text is cut; None: it is not.
        """
        per_token = self._characters_per_token.get(model, FIRST_CHARACTERS_PER_TOKEN)
        most = longest or 1 << 62
        return sum([min(int(size / per_token) + SPECIAL_TOKENS, most) for size in sizes])

    def learn(self, model: str, characters: int, tokens: int) -> None:
        """Correct the estimate: texts of `characters` together, none of which was cut, gave `tokens`."""
        if tokens:
            newest = min(max(characters / tokens, LEAST_CHARACTERS), MOST_CHARACTERS)
            estimate = self._characters_per_token.get(model, FIRST_CHARACTERS_PER_TOKEN)
            self._characters_per_token[model] = estimate + NEWEST_WEIGHT * (newest - estimate)


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

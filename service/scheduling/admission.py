"""The door: who is let in before any work is done for them. Counts requests and guesses tokens; tokenises nothing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from service.embedding.requests import Text
from service.errors import Overloaded

FIRST_GUESS = 4.0  # characters a token; corrected by what is seen
WEIGHT = 0.05  # of the newest request in the guess
SPECIAL_TOKENS = 2


class Queue(Protocol):
    """What the door asks of a batcher."""

    def promise(self, cost: int) -> None:
        """Count a request let in and still being prepared."""
        ...

    def redeem(self, cost: int) -> None:
        """It joins now, or will not."""
        ...


class Door:
    """Admission to one process: whatever costs work passes here once, probes and lists do not.

    max_requests   requests inside at a time
    """

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._guesses: dict[str, float] = {}
        self.inside = 0

    def enter(self) -> None:
        """Come in; whoever did leaves again. Raises Overloaded where too many are inside."""
        if self.inside >= self._max_requests:
            raise Overloaded(
                f"{self.inside} requests are being served; this server takes {self._max_requests} at a time: "
                "try again in a moment"
            )
        self.inside += 1

    def leave(self) -> None:
        """Go."""
        self.inside -= 1

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request inside, to its end; for all that does not go to Encoder.embed, which counts its own.

        raises   Overloaded where too many are inside
        """
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def guess(self, model: str, texts: Sequence[Text], longest: int | None) -> int:
        """Tokens these texts will come to, about; `longest` is what the model reads of one."""
        a_token = self._guesses.get(model, FIRST_GUESS)
        most = longest or 1 << 62
        sizes = [len(text.text) + len(text.pair or "") for text in texts]
        return sum([min(int(size / a_token) + SPECIAL_TOKENS, most) for size in sizes])

    def learn(self, model: str, characters: int, tokens: int) -> None:
        """Texts of so many characters came to so many tokens."""
        if tokens:
            seen, guess = characters / tokens, self._guesses.get(model, FIRST_GUESS)
            self._guesses[model] = max(0.5, guess + WEIGHT * (seen - guess))

    @contextmanager
    def promised(self, queues: Sequence[Queue], cost: int) -> Iterator[None]:
        """Room in queues that said there is some, kept while the request is prepared."""
        for queue in queues:
            queue.promise(cost)
        try:
            yield
        finally:
            for queue in queues:
                queue.redeem(cost)


def texts_of(inputs: Sequence[Any]) -> list[Text]:
    """The texts among the inputs."""
    return [each for each in inputs if isinstance(each, Text)]

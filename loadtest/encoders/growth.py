"""Cost against growth: microseconds a token while 1 to a million tokens wait, of texts of 1 to 512 tokens.

    python -m loadtest.encoders.growth STORE MODEL

It runs on the cores of this process. Tokens of like texts are sent to Inlay's pipeline, in requests of about a batch,
all at once. Their cost is the time until all of them wait, over all of them, and the time that the first few batches
then take, over those; the others are cancelled, so that a million waiting tokens need not be computed.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import EmbedRequest, Ids
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.settings import Settings

WAITING = (1, 16, 512, 16_384, 262_144, 1_048_576)
LENGTHS = (1, 16, 128, 512)
MEASURED_TOKENS = 2048  # of the first batches
REQUEST_TOKENS = 512
MOST_TEXTS = 65_536  # waiting; a million texts of one token would take minutes to send
POLL_S = 0.0005
MANY = 10**9
FIRST_ID, LAST_ID = 1996, 29611  # whole words


@dataclass(frozen=True)
class Point:
    """The cost of a token.

    Attributes:
        waiting: tokens that were sent at once.
        length: tokens of each text.
        joining_us: microseconds a token until all of them waited.
        running_us: microseconds a token of the first batches.
    """

    waiting: int
    length: int
    joining_us: float
    running_us: float


class CountingMetrics(Metrics):
    """Metrics that also count the tokens of all runs."""

    tokens = 0

    def runs(self, model: str, graph: str) -> Any:
        """Return what notes the runs of one graph."""
        note = super().runs(model, graph)

        def counted(items: int, cost: int, waited: float, seconds: float) -> None:
            self.tokens += cost
            note(items, cost, waited, seconds)

        return counted


class Waiting:
    """A model whose queues hold whatever is sent."""

    def __init__(self, store: Path, model: str) -> None:
        unbounded = {
            "max_queue_seconds": MANY,
            "max_queue_tokens": MANY,
            "max_concurrent_requests": MANY,
            "max_inputs": REQUEST_TOKENS,
        }
        chosen = Settings.model_validate({"store": store, "models": (model,), "device": "cpu", **unbounded})
        self._metrics = CountingMetrics()
        self._pipeline = EmbeddingPipeline(open_registry(chosen, self._metrics), chosen)

    async def point(self, waiting: int, length: int) -> Point:
        """Return the cost of a token of texts of `length` tokens, `waiting` of them sent at once."""
        await self._pipeline.embed(EmbedRequest([sequence(length)]))  # warm, and rid of what was cancelled
        requests = requests_of(waiting, length)
        before, begun = self._metrics.tokens, time.perf_counter()
        tasks = [asyncio.ensure_future(self._pipeline.embed(request)) for request in requests]
        await asyncio.sleep(0)  # every task has run up to its first wait
        joined = time.perf_counter()
        measured = min(waiting, MEASURED_TOKENS)
        while self._metrics.tokens - before < measured:
            await asyncio.sleep(POLL_S)
        ended, ran = time.perf_counter(), self._metrics.tokens - before
        for task in tasks:
            task.cancel()
        failures = [
            each for each in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(each, Exception)
        ]
        if failures:
            raise failures[0]
        return Point(waiting, length, 1e6 * (joined - begun) / waiting, 1e6 * (ended - joined) / ran)


def sequence(length: int) -> Ids:
    """Return random ids of the demo model's vocabulary, int64 (length,)."""
    return Ids(np.random.default_rng(length).integers(FIRST_ID, LAST_ID, length))


def requests_of(tokens: int, length: int) -> list[EmbedRequest]:
    """Return requests of at most REQUEST_TOKENS tokens each that hold `tokens` together."""
    texts, most = max(1, tokens // length), max(1, REQUEST_TOKENS // length)
    drawn = np.random.default_rng(length).integers(FIRST_ID, LAST_ID, (texts, length))
    drawn[:, 0] = FIRST_ID + np.arange(texts) % (LAST_ID - FIRST_ID)  # equal ones would be computed once
    return [EmbedRequest([Ids(ids) for ids in drawn[start : start + most]]) for start in range(0, texts, most)]


async def points(store: Path, model: str, waiting: Sequence[int], lengths: Sequence[int]) -> list[Point]:
    """Return every point of a text length that fits in the tokens that wait."""
    held = Waiting(store, model)
    return [
        await held.point(tokens, length)
        for length in lengths
        for tokens in waiting
        if length <= tokens <= MOST_TEXTS * length
    ]


if __name__ == "__main__":
    found = asyncio.run(points(Path(sys.argv[1]), sys.argv[2], WAITING, LENGTHS))
    print(json.dumps([asdict(point) for point in found]))

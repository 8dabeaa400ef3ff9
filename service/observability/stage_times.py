"""What the stages of a request took: told by the encoder and by who writes the answer, kept for metrics and traces.

A request runs in a task of its own, so what the encoder found is handed on in context variables. Knows no protocol.
"""

from contextvars import ContextVar
from time import perf_counter
from typing import NamedTuple

from service.embedding.requests import Times
from service.observability.metric_definitions import Histogram
from service.observability.metrics import Metrics

MOST_KEPT = 64  # of one stream; a span each


class Embedded(NamedTuple):
    """One pass through the encoder that ended at `at`, on perf_counter."""

    model: str
    tokens: int
    times: Times
    at: float


Trail = list[Embedded]
TRAIL: ContextVar[Trail | None] = ContextVar("trail", default=None)
"""Where a request that is traced collects its passes; None: it is not."""
_WRITES: ContextVar[tuple[Histogram, float] | None] = ContextVar("writes", default=None)


class Stages:
    """Counts the stages of every pass under its model."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known: dict[str, tuple[Histogram, Histogram, Histogram, Histogram]] = {}

    def embedded(self, model: str, tokens: int, times: Times) -> None:
        """The encoder is done with a request of the running task."""
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = self._metrics.stages(model)
        tokenise, queue, run, encode = known
        if times.tokenization:
            tokenise.observe(times.tokenization)
        queue.observe(times.queue)
        run.observe(times.inference)
        now = perf_counter()
        _WRITES.set((encode, now))
        trail = TRAIL.get()
        if trail is not None and len(trail) < MOST_KEPT:
            trail.append(Embedded(model, tokens, times, now))


def written() -> None:
    """The answer of the running task is written; what the encoder gave to it, if anything, became bytes since."""
    found = _WRITES.get()
    if found is not None:
        encode, since = found
        encode.observe(perf_counter() - since)
        _WRITES.set(None)

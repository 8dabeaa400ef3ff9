"""The times of a request's stages: reported by the core and by what writes the response, counted, and kept for spans."""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from service.observability.metrics import Histogram, Metrics

if TYPE_CHECKING:
    from service.embedding.context import RequestContext

MAX_PASSES = 64  # of one stream that become spans


class StageTimes(NamedTuple):
    """Seconds that a request took, by stage; waiting and running are means over its items."""

    tokenization: float
    queue: float
    inference: float


class Pass(NamedTuple):
    """One pass through the core, which ended at `ended` on the clock of perf_counter."""

    model: str
    tokens: int
    times: StageTimes
    ended: float


class Stages:
    """Counts the stages of every pass under its model."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._histograms: dict[str, tuple[Histogram, Histogram, Histogram, Histogram]] = {}

    def observe(self, contexts: "Sequence[RequestContext]", model: str, tokens: int, times: StageTimes) -> None:
        """Count passes that end now.

        Args:
            contexts: of the requests that passed together.
            tokens: of all of them.
            times: of each of them.
        """
        histograms = self._histograms.get(model)
        if histograms is None:
            histograms = self._histograms[model] = self._metrics.stages(model)
        tokenize, queue, run, encode = histograms
        count, now = len(contexts), perf_counter()
        if times.tokenization:
            tokenize.observe(times.tokenization, count)
        if times.queue:
            queue.observe(times.queue, count)
        run.observe(times.inference, count)
        encoding = encode, now
        for context in contexts:
            context.encoding = encoding
            if context.passes is not None and len(context.passes) < MAX_PASSES:
                context.passes.append(Pass(model, tokens, times, now))


def written(context: "RequestContext | None" = None) -> None:
    """Count the time since the last pass of a request: its response has been written."""
    if context is not None and context.encoding is not None:
        encode, since = context.encoding
        encode.observe(perf_counter() - since)
        context.encoding = None

"""The times of a request's stages, reported by the embedding pipeline and by what writes the response.

Metrics count them; a traced request makes spans of them. They are handed on in context variables, because a request
runs in a task of its own.
"""

from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from service.observability.metrics import Histogram, Metrics

if TYPE_CHECKING:
    from service.embedding.requests import StageTimes

MAX_PASSES = 64  # of one stream that become spans


class Pass(NamedTuple):
    """One pass through the embedding pipeline, which ended at `ended` on the clock of perf_counter."""

    model: str
    tokens: int
    times: "StageTimes"
    ended: float


PASSES: ContextVar[list[Pass] | None] = ContextVar("passes", default=None)
"""Where the passes of the running task's request are collected; None: it is not traced."""
_ENCODING: ContextVar[tuple[Histogram, float] | None] = ContextVar("encoding", default=None)


class Stages:
    """Counts the stages of every pass under its model."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._histograms: dict[str, tuple[Histogram, Histogram, Histogram, Histogram]] = {}

    def embedded(self, model: str, tokens: int, times: "StageTimes") -> None:
        """Count a pass of the running task's request that ends now."""
        histograms = self._histograms.get(model)
        if histograms is None:
            histograms = self._histograms[model] = self._metrics.stages(model)
        tokenize, queue, run, encode = histograms
        if times.tokenization:
            tokenize.observe(times.tokenization)
        queue.observe(times.queue)
        run.observe(times.inference)
        now = perf_counter()
        _ENCODING.set((encode, now))
        passes = PASSES.get()
        if passes is not None and len(passes) < MAX_PASSES:
            passes.append(Pass(model, tokens, times, now))


def written() -> None:
    """Count the time since the last pass of the running task's request: its response has been written."""
    found = _ENCODING.get()
    if found is not None:
        encode, since = found
        encode.observe(perf_counter() - since)
        _ENCODING.set(None)

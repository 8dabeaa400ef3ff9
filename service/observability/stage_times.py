"""Counts the times of a request's stages by model, and keeps them for its spans."""

from collections.abc import Sequence
from time import perf_counter

from service.observability.metrics import Histogram, Metrics
from service.request_context import Pass, RequestContext, StageTimes

MAX_PASSES = 64  # of one stream that become spans


class Stages:
    """Counts the stages of every pass by model."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._histograms: dict[str, tuple[Histogram, Histogram, Histogram, Histogram]] = {}

    def observe(self, contexts: Sequence[RequestContext], model: str, tokens: int, times: StageTimes) -> None:
        """Count passes that end now.

        Args:
            contexts: of the requests that ran together.
            model: the model's name.
            tokens: of all requests together.
            times: of each request's stages.
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
        if times.inference:  # not for vectors that were kept
            run.observe(times.inference, count)
        encoding = encode.observe, now
        for context in contexts:
            context.encoding = encoding
            if context.passes is not None and len(context.passes) < MAX_PASSES:
                context.passes.append(Pass(model, tokens, times, now))

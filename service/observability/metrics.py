"""The service's metrics; a scrape of any worker shows those of all workers.

The thread of the event loop counts events when they happen. Current values (queues, memory) are read at the scrape.
"""

import asyncio
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from models import VERSION
from service.errors import InlayError
from service.observability.exposition import CONTENT_TYPE, OPENMETRICS, Exemplar, collected, exposition
from service.observability.history import History, SlowestRequests
from service.observability.metric_families import BY_NAME, STAGES
from service.observability.metric_store import Key, MetricStore
from service.observability.process_stats import open_files, private_bytes
from service.request_context import NO_CALL, KeyUse, Pass, RequestContext, StageTimes

__all__ = ["CONTENT_TYPE", "GATE", "OPENMETRICS", "Histogram", "Metrics", "RunMetrics"]

MOST_OBSERVED = 256  # requests of a method, or runs for requests, after which what was observed is counted
MAX_PASSES = 64  # passes of one stream that become spans
GATE = "gate"
"""The method of requests that are refused before their method is known."""
NO_REFUSALS = ("OK", "CANCELLED", "499")  # and all below 400; who leaves is not refused
KEY_USE = tuple(f"inlay_key_{name}" for name in KeyUse._fields)


class Histogram:
    """Counts the values between each two bounds; the last number is the sum of the values.

    Attributes:
        observed: values that `settle` still has to count; one by one between other work, each takes 1 µs and not 0.1.
        exemplars: the last traced value of each bucket.
    """

    __slots__ = ("bounds", "exemplars", "numbers", "observe", "observed")

    def __init__(self, bounds: Sequence[float], numbers: list[float]) -> None:
        self.bounds = bounds
        self.numbers = numbers
        self.observed: list[float] = []
        self.observe = self.observed.append
        self.exemplars: dict[int, Exemplar] = {}

    def settle(self) -> None:
        """Count what was observed."""
        for place, count in Counter(map(partial(bisect_left, self.bounds), self.observed)).items():
            self.numbers[place] += count
        self.numbers[-1] = sum(self.observed, self.numbers[-1])
        self.observed.clear()


@dataclass(frozen=True)
class RunMetrics:
    """The histograms of one graph's runs; called by its batcher."""

    run_seconds: Histogram
    items: Histogram
    tokens: Histogram
    queue_seconds: Histogram

    def __call__(self, items: int, tokens: int, queued_seconds: float, seconds: float) -> None:
        """Count a run of `items` that took `seconds`, whose oldest item had waited `queued_seconds`."""
        self.run_seconds.observe(seconds)
        self.items.observe(items)
        self.tokens.observe(tokens)
        self.queue_seconds.observe(queued_seconds)


class Metrics:
    """Counts events and shows all families.

    Args:
        store: holds the numbers; None: a store of this process alone.

    Attributes:
        store: the same.
    """

    def __init__(self, store: MetricStore | None = None) -> None:
        self.store = store or MetricStore()
        self._requests: dict[tuple[str, str, str | int], tuple[list[float], Histogram | None, bool]] = {}
        self._key_uses: dict[tuple[str, str], KeyUse] = {}  # by the key's name and the model's
        self._key_label: Callable[[str], str] | None = None
        self._histograms: dict[Key, Histogram] = {}
        self._stages: dict[str, list[Histogram]] = {}  # stage histograms by model
        self._readers: list[Callable[[], Mapping[Key, float]]] = []
        self._slowest = SlowestRequests()
        self._history = History(time.time(), self.store.snapshots())
        for code in sorted(_codes(InlayError)):
            self.store.counter(("inlay_refusals", code))
        self.store.counter(("inlay_worker_restarts",))[0] += self.store.replaces_another
        started = time.time()  # read once: it must not move when the clock is set
        python = ".".join(map(str, sys.version_info[:3]))
        self.watch(
            lambda: {
                ("inlay_build_info", python, VERSION): 1,
                ("inlay_workers",): 1,
                ("process_start_time_seconds",): started,
                ("inlay_worker_private_bytes",): private_bytes(),
                ("inlay_worker_cpu_seconds",): time.process_time(),
                ("inlay_worker_open_files",): open_files(),
            }
        )

    def show_keys(self, label: Callable[[str], str]) -> None:
        """Count what each API key uses; `label` returns what it is called, of bounded number, from its name."""
        self._key_label = label

    def request(
        self, protocol: str, method: str, status: str | int, seconds: float, context: RequestContext = NO_CALL
    ) -> None:
        """Count an answered request for its method and its key, and its time if it succeeded.

        Args:
            context: shows whose it is, and where its time went if it is one of the slowest.
        """
        if seconds > self._slowest.least:
            self._slowest.note(seconds, protocol, method, str(status), context)
        numbers = self._requests.get((method, protocol, status))
        count, times, refused = numbers or self._request(method, protocol, status)
        count[0] += 1
        if times is not None:
            times.observe(seconds)
            if context.passes is not None:
                exemplar = Exemplar(context.trace_id, seconds, time.time())
                times.exemplars[bisect_left(times.bounds, seconds)] = exemplar
            if len(times.observed) >= MOST_OBSERVED:
                self._settle()
        if context.key_name and self._key_label is not None:
            use = context.key_use or self._key_use(context, "")
            use.requests[0] += 1
            use.seconds[0] += seconds
            use.refusals[0] += refused

    def _settle(self) -> None:
        for histogram in self._histograms.values():
            histogram.settle()

    def _request(self, method: str, protocol: str, status: str | int) -> tuple[list[float], Histogram | None, bool]:
        text, times = str(status), None
        if text == "OK" or text.startswith("2"):
            times = self._histogram("inlay_request_seconds", method, protocol)
        refused = text not in NO_REFUSALS and text >= "400"
        count = self.store.counter(("inlay_requests", method, protocol, text))
        numbers = self._requests[method, protocol, status] = count, times, refused
        return numbers

    def _key_use(self, context: RequestContext, model: str) -> KeyUse:
        """Return the counters of the caller's key and a model; keep them in the context."""
        use = self._key_uses.get((context.key_name, model))
        if use is None:
            assert self._key_label is not None
            label = self._key_label(context.key_name)
            use = KeyUse(*[self.store.counter((name, label, model)) for name in KEY_USE])
            self._key_uses[context.key_name, model] = use
        context.key_use = use
        return use

    def refused(self, code: str) -> None:
        """Count a request that ended with an error; `code` is that of an InlayError."""
        self.store.counter(("inlay_refusals", code))[0] += 1

    def ignored(self, fields: int) -> None:
        """Count fields of bodies that were not used."""
        self.store.counter(("inlay_ignored_fields",))[0] += fields

    def truncated(self, model: str, inputs: int) -> None:
        """Count inputs of a model that were cut."""
        self.store.counter(("inlay_truncated_inputs", model))[0] += inputs

    def cache_lookups(self, model: str, hits: int, misses: int) -> None:
        """Count inputs of a model whose vectors were looked up in the vector cache."""
        self.store.counter(("inlay_vector_cache_hits", model))[0] += hits
        self.store.counter(("inlay_vector_cache_misses", model))[0] += misses

    def passes(
        self,
        contexts: Sequence[RequestContext],
        model: str,
        tokens: Sequence[int],
        times: StageTimes,
        batch: float = 1,
    ) -> None:
        """Count passes through the embedding pipeline that end now, and record their times for the spans of requests.

        Args:
            contexts: contexts of the requests that ran together.
            model: the model's name.
            tokens: tokens of each request.
            times: seconds of each request's stages.
            batch: items that ran together, the mean over the runs.
        """
        tokenize, queue, run, encode = self._stages.get(model) or self._stage_histograms(model)
        count, now = len(contexts), perf_counter()
        tokenization, queued, inference = times
        if tokenization:
            tokenize.observed += [tokenization] * count
        if queued:
            queue.observed += [queued] * count
        if inference:  # not for vectors that were kept
            run.observed += [inference] * count
            if len(run.observed) >= MOST_OBSERVED:  # within one call of a stream too
                self._settle()
        observe = encode.observe
        for context, size in zip(contexts, tokens, strict=True):
            context.encoding = observe, now, (model, size, times)
            if context.passes is not None and len(context.passes) < MAX_PASSES:
                context.passes.append(Pass(model, size, batch, times, now))
            if context.key_name:
                self.used(context, model, size)

    def used(self, context: RequestContext, model: str, tokens: int) -> None:
        """Count tokens that a model read, for the key of a request if it has one."""
        if context.key_name and self._key_label is not None:
            self._key_use(context, model).tokens[0] += tokens

    def _stage_histograms(self, model: str) -> list[Histogram]:
        """Return the histograms of a request's seconds in STAGES, in their order."""
        histograms = [self._histogram("inlay_stage_seconds", model, stage) for stage in STAGES]
        return self._stages.setdefault(model, histograms)

    def runs(self, model: str, graph: str) -> RunMetrics:
        """Return the histograms of the runs of one graph."""
        names = ("inlay_engine_run_seconds", "inlay_batch_items", "inlay_batch_tokens", "inlay_queue_seconds")
        return RunMetrics(*[self._histogram(name, model, graph) for name in names])

    def counter(self, name: str, *labels: str) -> Callable[[], None]:
        """Return a function that adds 1 to the counter with these label values, which starts at 0."""
        numbers = self.store.counter((name, *labels))

        def count() -> None:
            numbers[0] += 1

        return count

    def loaded(self, model: str) -> None:
        """Show a model with zeros before its first request."""
        self._stage_histograms(model)
        self.truncated(model, 0)
        self.cache_lookups(model, 0, 0)

    def load_took(self, model: str, seconds: float) -> None:
        """Record the time in which a model was loaded on demand."""
        self._histogram("inlay_model_load_seconds", model).observe(seconds)

    def evicted(self, reason: str) -> None:
        """Count a model that was unloaded for a reason: memory or keep_alive."""
        self.store.counter(("inlay_model_evictions", reason))[0] += 1

    def watch(self, read: Callable[[], Mapping[Key, float]]) -> None:
        """Show at each scrape the gauges that `read` returns, and counters whose totals each worker shows for itself.

        Args:
            read: returns numbers by the name of their family and the values of its labels.
        """
        self._readers.append(read)

    def save(self) -> None:
        """Share the present numbers of this worker with the other workers."""
        self._settle()
        self.store.gauges = {key: float(value) for read in self._readers for key, value in read().items()}
        self.store.slow = self._slowest.shown()
        self.store.save()

    def text(self) -> bytes:
        """Return all metrics in the format that Prometheus scrapes, which is CONTENT_TYPE."""
        self.save()
        return exposition(self.store.snapshots())

    def openmetrics(self) -> bytes:
        """Return all metrics as OPENMETRICS, with the exemplars of this worker."""
        self.save()
        held = {key: histogram.exemplars.copy() for key, histogram in self._histograms.items()}
        return exposition(self.store.snapshots(), held)

    def own(self) -> Mapping[str, Mapping[Key, Sequence[float]]]:
        """Return the numbers of this worker: those of each family by the values of its labels."""
        self.save()
        return collected([self.store.own()])

    async def look(self) -> None:
        """Keep a sample of the last ten seconds once they are over."""
        if self._history.is_due(now := time.time()):
            self.save()
            await asyncio.to_thread(lambda: self._history.take(now, self.store.snapshots()))  # reads a file a worker
            self._slowest.begin()

    def history(self) -> bytes:
        """Return the samples of the last hour and the time since, as JSON."""
        self.save()
        return self._history.text(time.time(), self.store.snapshots(), self.store.worker)

    def _histogram(self, *key: str) -> Histogram:
        bounds = BY_NAME[key[0]].bounds
        histogram = Histogram(bounds, self.store.counter(key, len(bounds) + 2))
        return self._histograms.setdefault(key, histogram)


def _codes(error: type[InlayError]) -> set[str]:
    return {error.code}.union(*[_codes(subclass) for subclass in error.__subclasses__()])

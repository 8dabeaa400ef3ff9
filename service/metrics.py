"""What this process counts, on one screen. The only module that imports prometheus_client.

Observations come from the event loop's thread alone, several for every request, so they are plain Python numbers that a
custom collector shows when Prometheus asks: prometheus_client 0.26 locks for each, 4 of 76 µs a request.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Histogram:
    """How often values fell at or below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Family(Collector):
    """The histograms of one name, one for each combination of label values.

    counter   a counter of the same events under a name of its own; None: the histogram's count is enough
    """

    def __init__(
        self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float], counter: str | None = None
    ) -> None:
        self._name, self._about, self._labels, self._bounds, self._counter = name, about, labels, bounds, counter
        self._children: dict[tuple[str, ...], Histogram] = {}

    def labels(self, *values: str) -> Histogram:
        """The histogram of these label values, made at the first call."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = Histogram(self._bounds)
        return child

    def collect(self) -> Iterator[HistogramMetricFamily | CounterMetricFamily]:
        """What prometheus_client's registry asks for."""
        shown = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        total = CounterMetricFamily(self._counter or self._name, f"Count of: {self._about}", labels=self._labels)
        for values, child in list(self._children.items()):
            sums = list(accumulate(child.counts))
            bounds = [*(str(float(bound)) for bound in child.bounds), "+Inf"]
            shown.add_metric(values, list(zip(bounds, sums, strict=True)), child.sum)
            total.add_metric(values, sums[-1])
        yield shown
        if self._counter:
            yield total


class Metrics:
    """One registry and its families; a graph's children are made when its model is loaded, so that rates start at 0."""

    def __init__(self) -> None:
        request, graph = ("protocol", "method", "status"), ("model", "graph")
        self._requests = Family("inlay_request_seconds", "Time to answer.", request, SECONDS, "inlay_requests")
        self._runs = Family("inlay_engine_run_seconds", "Time of one run.", graph, SECONDS, "inlay_engine_runs")
        self._items = Family("inlay_batch_items", "Items run together.", graph, COUNTS)
        self._tokens = Family("inlay_batch_tokens", "Tokens run together.", graph, TOKENS)
        self._waits = Family("inlay_queue_seconds", "Time the oldest item of a run had waited.", graph, SECONDS)
        self.registry = CollectorRegistry()
        for family in (self._requests, self._runs, self._items, self._tokens, self._waits):
            self.registry.register(family)
        self._loaded = Gauge(
            "inlay_model_bytes", "Bytes of weights of a loaded model.", ["model"], registry=self.registry
        )

    def request(self, protocol: str, method: str, status: str, seconds: float) -> None:
        """One request was answered."""
        self._requests.labels(protocol, method, status).observe(seconds)

    def loaded(self, model: str, weight_bytes: int) -> None:
        """A model is ready to serve."""
        self._loaded.labels(model).set(weight_bytes)

    def runs(self, model: str, graph: str) -> "RunMetrics":
        """The instruments of one graph."""
        families = (self._runs, self._items, self._tokens, self._waits)
        return RunMetrics(*[family.labels(model, graph) for family in families])

    def text(self) -> bytes:
        """The exposition format Prometheus scrapes."""
        return generate_latest(self.registry)


class RunMetrics:
    """An Observer for the batcher of one graph."""

    def __init__(self, run_seconds: Histogram, items: Histogram, tokens: Histogram, waits: Histogram) -> None:
        self._run_seconds, self._items, self._tokens, self._waits = run_seconds, items, tokens, waits

    def __call__(self, items: int, cost: int, waited: float, seconds: float) -> None:
        """`items` of `cost` tokens ran together for `seconds`, after the oldest had `waited` seconds."""
        self._run_seconds.observe(seconds)
        self._items.observe(items)
        self._tokens.observe(cost)
        self._waits.observe(waited)

"""What this process counts, on one screen. The only module that imports prometheus_client."""

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """One registry and its instruments; label children are made when a model is loaded, so that rates start at zero."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "inlay_requests", "Requests answered.", ["protocol", "method", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "inlay_request_seconds", "Time to answer.", ["protocol", "method"], buckets=SECONDS, registry=registry
        )
        graph = ["model", "graph"]
        self._runs = Counter("inlay_engine_runs", "Engine runs.", graph, registry=registry)
        self._run_seconds = Histogram(
            "inlay_engine_run_seconds", "Time of one run.", graph, buckets=SECONDS, registry=registry
        )
        self._items = Histogram("inlay_batch_items", "Items run together.", graph, buckets=COUNTS, registry=registry)
        self._tokens = Histogram("inlay_batch_tokens", "Tokens run together.", graph, buckets=TOKENS, registry=registry)
        self._queue_seconds = Histogram(
            "inlay_queue_seconds",
            "Time the oldest item of a run had waited.",
            graph,
            buckets=SECONDS,
            registry=registry,
        )
        self._children = lru_cache(maxsize=1024)(  # looking a child up costs more than counting
            lambda protocol, method, status: (
                self._requests.labels(protocol, method, status),
                self._request_seconds.labels(protocol, method),
            )
        )
        self._loaded = Gauge("inlay_model_bytes", "Bytes of weights of a loaded model.", ["model"], registry=registry)

    def request(self, protocol: str, method: str, status: str, seconds: float) -> None:
        """One request was answered."""
        answered, duration = self._children(protocol, method, status)
        answered.inc()
        duration.observe(seconds)

    def loaded(self, model: str, weight_bytes: int) -> None:
        """A model is ready to serve."""
        self._loaded.labels(model).set(weight_bytes)

    def runs(self, model: str, graph: str) -> "RunMetrics":
        """The instruments of one graph, their children made now."""
        return RunMetrics(
            self._runs.labels(model, graph),
            self._run_seconds.labels(model, graph),
            self._items.labels(model, graph),
            self._tokens.labels(model, graph),
            self._queue_seconds.labels(model, graph),
        )

    def text(self) -> bytes:
        """The exposition format Prometheus scrapes."""
        return generate_latest(self.registry)


class RunMetrics:
    """An Observer for the batcher of one graph."""

    def __init__(
        self, runs: Counter, run_seconds: Histogram, items: Histogram, tokens: Histogram, queue_seconds: Histogram
    ) -> None:
        self._runs = runs
        self._run_seconds = run_seconds
        self._items = items
        self._tokens = tokens
        self._queue_seconds = queue_seconds

    def __call__(self, items: int, cost: int, waited: float, seconds: float) -> None:
        """`items` of `cost` tokens ran together for `seconds`, after the oldest had `waited` seconds."""
        self._runs.inc()
        self._run_seconds.observe(seconds)
        self._items.observe(items)
        self._tokens.observe(cost)
        self._queue_seconds.observe(waited)

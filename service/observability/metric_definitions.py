"""What is counted: a row for each family of metrics, and the three instruments. Keeps and shows no numbers itself."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from service.observability.counter_store import Cells

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
WAITS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 3.0, 10.0)  # 0.5: an alert's
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536)
STAGES = ("tokenise", "queue", "run", "encode")
USUAL = {
    "http": ("200", "400", "404", "413", "415", "422", "424", "429", "499", "500", "503", "504"),
    "grpc": (
        "OK",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "RESOURCE_EXHAUSTED",
        "DEADLINE_EXCEEDED",
        "CANCELLED",
        "INTERNAL",
        "UNAVAILABLE",
    ),
}
"""Statuses shown from the start, so that the first of them is seen as a change; the first is success."""
GATE = "gate"  # the method of requests that were refused before anyone looked what they ask for
AT_THE_GATE = {
    "http": ("401", "403", "429", "503"),
    "grpc": ("UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"),
}
"""Its statuses."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row: every metric of one name.

    bounds    upper bounds of a histogram's buckets
    counted   name of a counter shown beside a histogram, of the same events
    merged    what several workers' gauges come to; `each`: shown apart, with the label `worker`
    """

    name: str
    kind: Literal["histogram", "counter", "gauge"]
    about: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = ()
    counted: str | None = None
    merged: Literal["sum", "max", "min", "each"] = "sum"


_REQUEST, _GRAPH = ("protocol", "method", "status"), ("model", "graph")
FAMILIES = (
    Family("inlay_request_seconds", "histogram", "Time to answer.", _REQUEST, SECONDS, "inlay_requests"),
    Family("inlay_requests_in_flight", "gauge", "Requests being served now."),
    Family("inlay_refusals", "counter", "Requests refused, by the code of the refusal.", ("reason",)),
    Family("inlay_stage_seconds", "histogram", "Time of a request in a stage.", ("model", "stage"), SECONDS),
    Family("inlay_engine_run_seconds", "histogram", "Time of one run.", _GRAPH, SECONDS, "inlay_engine_runs"),
    Family("inlay_run_failures", "counter", "Items whose run failed.", _GRAPH),
    Family("inlay_stuck_runs", "counter", "Runs given up because they took too long.", _GRAPH),
    Family("inlay_batch_items", "histogram", "Items run together.", _GRAPH, COUNTS),
    Family("inlay_batch_tokens", "histogram", "Tokens run together.", _GRAPH, TOKENS),
    Family("inlay_queue_seconds", "histogram", "Time the oldest item of a run had waited.", _GRAPH, WAITS),
    Family("inlay_queue_tokens", "gauge", "Tokens waiting now.", _GRAPH),
    Family("inlay_queue_items", "gauge", "Items waiting now.", _GRAPH),
    Family("inlay_model_bytes", "gauge", "Bytes of weights of a loaded model.", ("model",), merged="max"),
    Family("inlay_model_resident_bytes", "gauge", "Mapped weights in memory.", ("model",), merged="max"),
    Family("inlay_model_workers", "gauge", "Workers that hold a model.", ("model",)),
    Family("inlay_workers", "gauge", "Worker processes that live."),
    Family("inlay_workers_ready", "gauge", "Worker processes that welcome requests, and whose models answer."),
    Family("inlay_worker_restarts", "counter", "Workers started in the place of one that ended."),
    Family("inlay_worker_private_bytes", "gauge", "Memory of a worker that it shares with none.", merged="each"),
    Family("inlay_worker_cpu_seconds", "counter", "Processor time of a worker.", merged="each"),
    Family("inlay_worker_open_files", "gauge", "Files and connections a worker holds open.", merged="each"),
    Family("process_start_time_seconds", "gauge", "Start of the oldest worker since the epoch.", merged="min"),
    Family("inlay_build_info", "gauge", "1, labelled with what runs.", ("version", "python"), merged="max"),
)
BY_NAME = {family.name: family for family in FAMILIES}


class Histogram:
    """How often values fell at or below each bound, and their sum in the last cell."""

    __slots__ = ("bounds", "cells")

    def __init__(self, bounds: Sequence[float], cells: Cells) -> None:
        self.bounds = bounds
        self.cells = cells

    def observe(self, value: float) -> None:
        """Count one value."""
        cells = self.cells
        cells[bisect_left(self.bounds, value)] += 1
        cells[-1] += value


class Counter:
    """How often something happened."""

    __slots__ = ("cells",)

    def __init__(self, cells: Cells) -> None:
        self.cells = cells

    def __call__(self) -> None:
        """Count it once more."""
        self.cells[0] += 1


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


class Queue(Protocol):
    """What is asked of the batcher of one graph when its numbers are shown."""

    @property
    def waiting_cost(self) -> int:
        """Tokens that wait."""
        ...

    @property
    def waiting_items(self) -> int:
        """Items that wait."""
        ...


class Watched:
    """A number that is asked for when it is shown."""

    __slots__ = ("_cells", "_read")

    def __init__(self, cells: Cells, read: Callable[[], float]) -> None:
        self._cells, self._read = cells, read

    def ask(self) -> None:
        """Write down what it is now."""
        self._cells[0] = self._read()

"""What the service counts, read as one by whoever scrapes any of its workers. Knows no protocol.

Observations come from the event loop's thread alone, several for every request, so they are additions to plain numbers
(counts.py): prometheus_client 0.26 locks for each, 4 of 76 µs a request. What is so now (queues, memory) is not told
but watched: asked when it is shown. What happened is told when it happens: whoever could be asked later may be gone.
"""

import math
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from weakref import ref

from models import VERSION
from service.errors import InlayError
from service.observability import process_stats as process
from service.observability.counter_store import Key, Private, Store
from service.observability.exposition import CONTENT_TYPE, Exposition
from service.observability.metric_definitions import (
    AT_THE_GATE,
    BY_NAME,
    GATE,
    STAGES,
    USUAL,
    Counter,
    Histogram,
    Queue,
    RunMetrics,
    Watched,
)

__all__ = ["CONTENT_TYPE", "Metrics"]

RUN_FAMILIES = ("inlay_engine_run_seconds", "inlay_batch_items", "inlay_batch_tokens", "inlay_queue_seconds")
QUEUE_FAMILIES: dict[str, Callable[[Queue], float]] = {
    "inlay_queue_tokens": lambda queue: queue.waiting_cost,
    "inlay_queue_items": lambda queue: queue.waiting_items,
}


class Metrics:
    """The numbers and their families; children with known label values are made early, so that rates start at 0."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store or Private()
        self._children: dict[Key, Histogram] = {}
        self._watched: dict[Key, Watched] = {}
        self._exposition = Exposition()
        for reason in _codes(InlayError):
            self._store.cells(("inlay_refusals", reason), 1)
        python = ".".join(map(str, sys.version_info[:3]))
        self.watch("inlay_build_info", {"version": VERSION, "python": python}, lambda: 1)
        started = time.time()  # not read again: it must not move when the clock is set
        self.watch("process_start_time_seconds", {}, lambda: started)
        self.watch("inlay_worker_private_bytes", {}, process.private_bytes)
        self.watch("inlay_worker_cpu_seconds", {}, process.cpu_seconds)
        self.watch("inlay_worker_open_files", {}, process.open_files)

    def expect(self, protocol: str, methods: Iterable[str]) -> None:
        """These methods will be counted: show them from now on."""
        for method in methods:
            self._expect(protocol, method, USUAL[protocol])

    def gate(self, protocol: str) -> Callable[[str, str, float], None]:
        """Counts the requests that are refused before they reach a method: code, status and seconds of each."""
        self._expect(protocol, GATE, AT_THE_GATE[protocol])

        def count(reason: str, status: str, seconds: float) -> None:
            self.refused(reason)
            self.request(protocol, GATE, status, seconds)

        return count

    def request(self, protocol: str, method: str, status: str, seconds: float) -> None:
        """One request was answered."""
        key = ("inlay_request_seconds", protocol, method, status)
        (self._children.get(key) or self._histogram(*key)).observe(seconds)

    def refused(self, reason: str) -> None:
        """One of the requests that are counted was refused, or failed; `reason` is the code of an InlayError."""
        self._store.cells(("inlay_refusals", reason), 1)[0] += 1

    def stage(self, model: str, stage: str, seconds: float) -> None:
        """One request spent so long in one of STAGES."""
        key = ("inlay_stage_seconds", model, stage)
        (self._children.get(key) or self._histogram(*key)).observe(seconds)

    def stages(self, model: str) -> tuple[Histogram, Histogram, Histogram, Histogram]:
        """The times of the model's STAGES, in their order, for whoever counts them often."""
        tokenise, queue, run, encode = [self._histogram("inlay_stage_seconds", model, stage) for stage in STAGES]
        return tokenise, queue, run, encode

    def runs(self, model: str, graph: str) -> RunMetrics:
        """The instruments of one graph."""
        return RunMetrics(*[self._histogram(name, model, graph) for name in RUN_FAMILIES])

    def counter(self, name: str, *labels: str) -> Counter:
        """The counter of FAMILIES with these values of its labels, for whoever counts it."""
        return Counter(self._store.cells((name, *labels), 1))

    def loaded(self, model: str, weight_bytes: int, queues: Mapping[str, Queue] | None = None) -> None:
        """A model is ready to serve; each graph's queue is watched, and not kept alive."""
        self.stages(model)
        self._set(("inlay_model_bytes", model), weight_bytes)
        self._set(("inlay_model_workers", model), 1)
        self.resident(model, 0)
        self._unwatch(model, keep=queues or ())
        for graph, queue in (queues or {}).items():
            for name, number in QUEUE_FAMILIES.items():
                self.watch(name, {"model": model, "graph": graph}, _weakly(queue, number))

    def resident(self, model: str, mapped_bytes: float) -> None:
        """So much of a model's mapped files is in memory; 0 before anyone looked."""
        self._set(("inlay_model_resident_bytes", model), mapped_bytes)

    def unloaded(self, model: str) -> None:
        """A model is no longer served: its numbers are shown no more, and go on if it is loaded again."""
        self._unwatch(model)
        self.resident(model, math.nan)
        self._set(("inlay_model_bytes", model), math.nan)
        self._set(("inlay_model_workers", model), math.nan)

    def watch(self, name: str, labels: Mapping[str, str], read: Callable[[], float]) -> None:
        """Show what `read` gives whenever this is asked for, in the place of what was watched there before.

        name     of a gauge of FAMILIES, or of a counter whose total each worker shows for itself
        labels   exactly the family's
        """
        family = BY_NAME[name]
        key = (name, *[labels[label] for label in family.labels])
        cells = self._store.cells(key, 1, gauge=family.kind == "gauge" or family.merged == "each")
        self._watched[key] = Watched(cells, read)

    def ask(self) -> None:
        """Write down everything watched, for whoever reads next."""
        for watched in list(self._watched.values()):
            watched.ask()

    def text(self) -> bytes:
        """The exposition format Prometheus scrapes."""
        self.ask()
        return self._exposition.text(self._store.seen())

    def _unwatch(self, model: str, keep: Container[str] = ()) -> None:
        """Ask no more after the graphs of a model, but for those to keep."""
        for key in [key for key in self._watched if key[0] in QUEUE_FAMILIES and key[1] == model]:
            if key[2] not in keep:
                del self._watched[key]
                self._set(key, math.nan)

    def _expect(self, protocol: str, method: str, statuses: Sequence[str]) -> None:
        for status in statuses:
            self._store.cells(("inlay_requests", protocol, method, status), 1)
        self._histogram("inlay_request_seconds", protocol, method, statuses[0])

    def _set(self, key: Key, value: float) -> None:
        self._store.cells(key, 1, gauge=True)[0] = value

    def _histogram(self, *key: str) -> Histogram:
        bounds = BY_NAME[key[0]].bounds
        return self._children.setdefault(key, Histogram(bounds, self._store.cells(key, len(bounds) + 2)))


def _weakly(queue: Queue, number: Callable[[Queue], float]) -> Callable[[], float]:
    held = ref(queue)

    def read() -> float:
        alive = held()
        return 0 if alive is None else number(alive)

    return read


def _codes(error: type[InlayError]) -> list[str]:
    return sorted({error.code}.union(*[_codes(each) for each in error.__subclasses__()]))

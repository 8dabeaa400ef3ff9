"""Keeps the figures of the last hour, one sample every ten seconds, for GET /metrics/history and the page's view Now.

A sample is what the counters of all workers rose by, and the slowest requests in it with the times of their stages. It
is kept as JSON: an hour takes 0.2 MB without requests and up to 1 MB with them. Taking one costs about a millisecond a
worker, in a thread, since the files of other workers are read.
"""

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from heapq import heappush, heappushpop, nlargest
from itertools import accumulate, count
from time import perf_counter, time
from typing import Any

from service.observability.exposition import totals
from service.observability.metric_families import SECONDS as BOUNDS
from service.observability.metric_families import STAGES
from service.observability.metric_store import Key, Numbers, Snapshot
from service.request_context import RequestContext

SAMPLES, SECONDS = 360, 10.0
SLOWEST = 3  # requests of a sample
QUICK_SECONDS = 0.01  # a request that took less needs no explanation, and costs no step here
LAG_SECONDS = 1.5  # until what other workers saved is surely read
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
COUNTED = ("requests", "refusals", "request_seconds", "stage_seconds", "batch_items", "batch_tokens")
PRESENT = ("requests_in_flight", "queue_tokens", "queue_items", "worker_private_bytes", "workers", "workers_ready")
Slow = Mapping[str, Any]


class SlowestRequests:
    """The slowest requests of this worker since the last sample, and those of the sample before.

    Attributes:
        least: seconds that a request must have taken to be one of them.
    """

    def __init__(self) -> None:
        self.least = QUICK_SECONDS
        self._numbers = count()  # no two dicts are compared
        self._heap: list[tuple[float, int, Slow]] = []
        self._before: list[tuple[float, int, Slow]] = []

    def note(self, seconds: float, protocol: str, method: str, status: str, context: RequestContext) -> None:
        """Keep a request that took longer than `least`, with the stages of its last pass through the pipeline."""
        slow: dict[str, Any] = {"at": round(time(), 3), "protocol": protocol, "method": method, "status": status}
        slow |= {"seconds": round(seconds, 6), "stages": {}, **context.log_fields()}
        if context.encoding is not None:
            _, ended, (model, tokens, times) = context.encoding
            stages = zip(STAGES, (*times, perf_counter() - ended), strict=True)
            slow |= {"model": model, "tokens": tokens, "stages": {name: round(s, 6) for name, s in stages}}
        entry = seconds, next(self._numbers), slow
        (heappush if len(self._heap) < SLOWEST else heappushpop)(self._heap, entry)
        self.least = self._heap[0][0] if len(self._heap) == SLOWEST else QUICK_SECONDS

    def shown(self) -> list[Slow]:
        """Return the requests that are kept."""
        return [slow for _, _, slow in self._before + self._heap]

    def begin(self) -> None:
        """Begin the next sample."""
        self._before, self._heap, self.least = self._heap, [], QUICK_SECONDS


class History:
    """The samples of the last hour.

    Args:
        now: the time of the first, in seconds since 1970.
        snapshots: the numbers before it.
    """

    def __init__(self, now: float, snapshots: Sequence[Snapshot]) -> None:
        self._samples: deque[bytes] = deque(maxlen=SAMPLES)
        self._before: Numbers = _counted(totals(snapshots))
        self._taken = now

    def is_due(self, now: float) -> bool:
        """Return whether a sample should be taken: all workers take theirs when the same ten seconds have ended."""
        return now // SECONDS > self._taken // SECONDS

    def take(self, now: float, snapshots: Sequence[Snapshot]) -> None:
        """Keep a sample of what happened since the last one."""
        sample, counted = self._sample(now, snapshots)
        self._samples.append(sample)
        self._taken, self._before = now, counted

    def text(self, now: float, snapshots: Sequence[Snapshot], worker: int) -> bytes:
        """Return all samples as JSON; the last one is of the time since, which may be short."""
        samples = b",".join([*self._samples, self._sample(now, snapshots)[0]])
        return b'{"sample_seconds":%.1f,"worker":%d,"samples":[%b]}' % (SECONDS, worker, samples)

    def _sample(self, now: float, snapshots: Sequence[Snapshot]) -> tuple[bytes, Numbers]:
        everything = totals(snapshots)
        counted = _counted(everything)
        begun, ended = self._taken - LAG_SECONDS, now - LAG_SECONDS * (now - self._taken >= SECONDS / 2)
        slow = [each for snapshot in snapshots for each in snapshot.slow if begun < each["at"] <= ended]
        sample = {"at": round(now, 1), "seconds": round(now - self._taken, 3), **_risen(self._before, counted)}
        sample["slowest"] = nlargest(SLOWEST, slow, key=lambda each: float(each["seconds"]))
        present = dict.fromkeys(PRESENT, 0.0)
        for (family, *_), numbers in everything.items():
            if (name := family.removeprefix("inlay_")) in present:
                present[name] += numbers[0]
        return json.dumps(sample | present, separators=(",", ":")).encode(), counted


def _counted(numbers: Numbers) -> dict[Key, Sequence[float]]:
    """Return a copy of the counters that samples are made of, by names without `inlay_`."""
    named = {(family.removeprefix("inlay_"), *labels): each for (family, *labels), each in numbers.items()}
    return {key: tuple(each) for key, each in named.items() if key[0] in COUNTED}


def _risen(before: Numbers, after: Numbers) -> dict[str, Any]:
    """Return what happened between two sets of counters: by route, by reason, by model, and quantiles of latency."""
    routes: dict[str, dict[str, float]] = defaultdict(lambda: {"requests": 0, "timed": 0, "timed_seconds": 0.0})
    models: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    refusals: dict[str, float] = {}
    buckets: list[float] = [0.0] * (len(BOUNDS) + 1)
    for key, numbers in after.items():
        old = before.get(key, (0.0,) * len(numbers))
        if old == numbers:
            continue
        rise, (family, label, *more) = [b - a for a, b in zip(old, numbers, strict=True)], key
        if family == "requests":
            routes[label]["requests"] += rise[0]
        elif family == "refusals":
            refusals[label] = rise[0]
        elif family == "request_seconds":
            buckets = [a + b for a, b in zip(buckets, rise, strict=False)]
            routes[label]["timed"] += sum(rise[:-1])
            routes[label]["timed_seconds"] += rise[-1]
        elif family == "stage_seconds":
            models[label][more[0]] += rise[-1]
            models[label]["requests"] += sum(rise[:-1]) * (more[0] == "run")
        else:
            models[label]["batches"] += sum(rise[:-1]) * (family == "batch_items")
            models[label]["inputs" if family == "batch_items" else "tokens"] += rise[-1]
    latency = {name: quantile(share, buckets) for name, share in SHARES.items()} if any(buckets) else None
    return {"routes": routes, "models": models, "refusals": refusals, "latency": latency}


def quantile(share: float, buckets: Sequence[float]) -> float:
    """Return a quantile of what fell between BOUNDS, interpolated in its bucket as Prometheus' histogram_quantile."""
    wanted, lower, below = share * sum(buckets), 0.0, 0.0
    for bound, number, reached in zip(BOUNDS, buckets, accumulate(buckets), strict=False):
        if reached >= wanted:
            return lower + (bound - lower) * (wanted - below) / (number or 1.0)
        lower, below = bound, reached
    return lower

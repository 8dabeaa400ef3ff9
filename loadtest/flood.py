"""What a caller of one short text waits beside a flood from the same address, and what the flood computes meanwhile.

    python -m loadtest.flood [--seconds 10] [--only bulk] [--save]

A fresh server for each flood. The short caller is measured alone, then beside the flood, one request after another with
short pauses; then the flood is measured alone, which says what serving the short caller costs it. The flood runs in a
process of its own, and all share the machine's cores, as callers of a small container do. Targets: the short caller's
median at most MEDIAN_RATIO times that of the idle server, its 99th percentile TAIL_RATIO times.
"""

import argparse
import http.client
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

from loadtest import servers, workload
from loadtest.facts import facts
from loadtest.processes import RESULTS, ROOT, NotReady, end_on_sigterm
from loadtest.workload import percentile

MEDIAN_RATIO, TAIL_RATIO = 5, 10
WARM_SECONDS = 2.0  # of the flood before anything is counted
LONGEST_PAUSE = 0.02  # seconds between two requests of the short caller
SHORT_WORDS = 12
TIMEOUT_S = 120
BODIES = 8  # different ones for each connection: equal texts in flight would be computed once
HEADERS = {"content-type": "application/json", "accept": "application/octet-stream"}


@dataclass(frozen=True)
class Flood:
    """Requests that several connections send one after another.

    Attributes:
        path: of the route.
        connections: at a time.
        texts: returns the texts of one request.
        options: other members of its body.
    """

    path: str
    connections: int
    texts: Callable[[random.Random], list[str]]
    options: Mapping[str, bool] = field(default_factory=dict)


def _texts(count: int, words: Callable[[random.Random], int]) -> Callable[[random.Random], list[str]]:
    return lambda rng: [workload.text(rng, words(rng) + 2) for _ in range(count)]


FLOODS: Mapping[str, Flood] = {
    "bulk": Flood("/embed", 16, _texts(64, lambda _: 60)),
    "bulk, mixed lengths": Flood("/embed", 16, _texts(64, lambda rng: rng.randint(5, 240))),
    "bulk, mixed sizes": Flood("/embed", 16, lambda rng: _texts(rng.choice((2, 8, 32, 128)), lambda _: 60)(rng)),
    "long texts": Flood("/embed", 16, _texts(4, lambda _: 4000), {"truncate": True}),
    "tokenize": Flood("/tokenize", 4, _texts(1, lambda _: 30_000)),
}


@dataclass(frozen=True)
class Waits:
    """Latencies of answered requests in milliseconds."""

    requests: int
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Waits":
        """Return the waits of some requests."""
        ordered = sorted(seconds) or [float("inf")]
        figures = statistics.median(ordered), percentile(ordered, 0.99), ordered[-1]
        return cls(len(seconds), *(round(1000 * figure, 1) for figure in figures))


@dataclass(frozen=True)
class Row:
    """What was measured of one flood.

    Attributes:
        idle: waits of the short caller alone; `beside` while the flood goes on.
        flood: waits of the flood's requests beside the short caller.
        texts_beside: texts a second of the flood beside the short caller; `texts_alone` without it.
    """

    name: str
    idle: Waits
    beside: Waits
    flood: Waits
    texts_beside: float
    texts_alone: float

    @property
    def ratios(self) -> tuple[float, float]:
        """The short caller's median and 99th percentile beside the flood, of those alone."""
        return self.beside.p50 / self.idle.p50, self.beside.p99 / self.idle.p99

    @property
    def is_met(self) -> bool:
        """Whether both targets are met."""
        return self.ratios[0] <= MEDIAN_RATIO and self.ratios[1] <= TAIL_RATIO


def send(connection: http.client.HTTPConnection, path: str, body: bytes) -> float:
    """Send one request and return the seconds until its answer was read.

    Raises:
        ConnectionError: the status is not 200.
    """
    began = time.perf_counter()
    connection.request("POST", path, body, HEADERS)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise ConnectionError(f"{path} answered {response.status}: {answer[:200]!r}")
    return time.perf_counter() - began


def short_caller(port: int, seconds: float) -> list[float]:
    """Return the waits of single short texts that are sent for some seconds."""
    rng, waits = random.Random(1), list[float]()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        body = json.dumps({"inputs": workload.text(rng, SHORT_WORDS)}).encode()
        waits.append(send(connection, "/embed", body))
        time.sleep(rng.uniform(0, LONGEST_PAUSE))
    connection.close()
    return waits


def flooding(name: str, port: int, seconds: float) -> tuple[list[float], float]:
    """Send a flood for some seconds; return the waits of its answers, and its texts a second.

    The requests under way at the end are awaited and counted.
    """
    flood, waits, sent = FLOODS[name], list[float](), list[int]()
    began = time.perf_counter()
    until = began + seconds

    def connected(number: int) -> None:
        rng = random.Random(number)
        requests = [flood.texts(rng) for _ in range(BODIES)]
        bodies = [(json.dumps({"inputs": texts, **flood.options}).encode(), len(texts)) for texts in requests]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        for body, texts in itertools.cycle(bodies):
            waits.append(send(connection, flood.path, body))
            sent.append(texts)
            if time.perf_counter() >= until:
                break
        connection.close()

    with ThreadPoolExecutor(flood.connections) as threads:
        list(threads.map(connected, range(flood.connections)))
    return waits, round(sum(sent) / (time.perf_counter() - began), 1)


def measure(name: str, port: int, seconds: float) -> Row:
    """Measure one flood on a running server."""
    short_caller(port, 1.0)
    idle = short_caller(port, seconds)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        both = process.submit(flooding, name, port, seconds + WARM_SECONDS)
        time.sleep(WARM_SECONDS)
        waits = short_caller(port, seconds)
        answers, rate = both.result()
        _, alone = process.submit(flooding, name, port, seconds + WARM_SECONDS).result()
    return Row(name, Waits.of(idle), Waits.of(waits), Waits.of(answers), rate, alone)


def show(row: Row) -> None:
    """Print one row."""
    median, tail = row.ratios
    print(
        f"{row.name:20} idle {row.idle.p50:6.1f} {row.idle.p99:6.1f} ms, beside it {row.beside.p50:6.1f} "
        f"{row.beside.p99:6.1f} ms ({median:.1f}x, {tail:.1f}x{'' if row.is_met else ': too slow'}); the flood: "
        f"{row.flood.requests} requests, p50 {row.flood.p50:.0f} ms, longest {row.flood.longest:.0f} ms, "
        f"{row.texts_beside:.0f} texts/s, {row.texts_alone:.0f} alone",
        flush=True,
    )


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.flood", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="an encoder in that store")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--only", choices=FLOODS, default="", help="one flood")
    parser.add_argument("--serve", default="", help="more flags of serve")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/flood.json")
    return parser.parse_args()


def main() -> int:
    """Measure, print and perhaps save; returns 0 if every target is met."""
    options, rows = arguments(), list[Row]()
    end_on_sigterm()
    spec = servers.inlay_server(options.store, options.model, ("--log-level", "warning", *options.serve.split()))
    cores = frozenset(os.sched_getaffinity(0))
    for name in [options.only] if options.only else FLOODS:
        try:
            with tempfile.TemporaryDirectory() as logs, servers.started(spec, Path(logs), cores) as running:
                rows.append(measure(name, running.ports["http"], options.seconds))
        except NotReady as failure:
            print(f"flood: {failure}", file=sys.stderr)
            return 1
        show(rows[-1])
    if options.save:
        saved = {"facts": facts(), "seconds": options.seconds, "floods": [asdict(row) for row in rows]}
        (RESULTS / "flood.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    return 0 if all([row.is_met for row in rows]) else 1


if __name__ == "__main__":
    sys.exit(main())

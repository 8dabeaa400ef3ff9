"""Goodput and latency at 1, 2, 4 and 8 times a server's capacity, for Inlay and for a plain FastAPI app.

    python -m loadtest.overload [--seconds 20] [--multiples 1,2,4,8] [--only inlay] [--save]
    python -m loadtest.overload --model random-reranker --documents 8     requests of /rerank, Inlay alone

Every level has a freshly started server. Its capacity is measured first, in a closed loop of one-text requests through
the whole encoder, so that a machine whose speed drifts does not blur the ratio; then requests arrive as a Poisson
process at a multiple of it for --seconds. Latency counts from the moment a request was due. The server has one core and
the generator another. The generator's own lag is shown:
where it is large, or the server got less than its core, the row says so. Then three more loads for Inlay: clients that
retry twice, as Retry-After says; clients that give up, each after a time of its own; and a crowd that comes at once and
retries until it is served. The result covers requests of one kind and one length over loopback; mixed lengths, gRPC and
networks are not covered.
"""

import argparse
import base64
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from loadtest import generators, overload_plot, servers, workload
from loadtest.facts import facts
from loadtest.generators import BadLoad, LoadRequest
from loadtest.open_loop import Order, Tally
from loadtest.overload_report import CROWD, GIVING_UP, RETRYING, Level, ServerResult, show, verdicts
from loadtest.processes import (
    RESULTS,
    ROOT,
    Cores,
    NotReady,
    cpu_seconds,
    end_on_sigterm,
    python,
    running_on,
    split_cores,
)
from loadtest.servers import RunningServer, ServerSpec

HEADERS = {"content-type": "application/json", "accept": "application/octet-stream"}
VECTOR_BYTES = 384 * 4
TEXTS = 2048  # sent in turn; more than wait at a time, since equal ones would be computed once
WARM_SECONDS = 1  # of closed loop for every server started, so that its drain rate is known
RETRIES = 2  # as OpenAI's clients
RETRY_TIMEOUT = 30.0
PATIENCE = (1.0, 3.0, 10.0, 30.0)  # seconds after which clients give up, drawn for each
CROWD_SECONDS, CROWD_MULTIPLE = 1.0, 12.0  # a crowd brings twelve seconds of work within one
CROWD_TIMEOUT, CROWD_RETRIES = 60.0, 100


def compared(options: argparse.Namespace) -> list[ServerSpec]:
    """Return the servers to measure: both, or the one named by --only."""
    flags = (*servers.ONE_CORE, "--log-level", "warning", *options.serve.split())
    fastapi = servers.fastapi_server(options.store / options.model, threads=1)
    # Its backlog outlives its clients by minutes, so its shutdown does not wait for it.
    fastapi = replace(fastapi, command=(*fastapi.command, "--timeout-graceful-shutdown", "1"))
    specs = [servers.inlay_server(options.store, options.model, flags), fastapi]
    only = servers.INLAY if options.documents else options.only
    return [spec for spec in specs if not only or spec.name == only]


def texts(words: int) -> list[str]:
    """Return TEXTS texts of `words` words; each word is one token."""
    rng = random.Random(words)
    return [workload.text(rng, words + 2) for _ in range(TEXTS)]


def bodies(options: argparse.Namespace) -> list[bytes]:
    """Return the request bodies that are sent in turn: a text each, or a query and its documents."""
    chosen = texts(options.words)
    if not options.documents:
        return [json.dumps({"inputs": text}).encode() for text in chosen]
    ranked = [chosen[number : number + options.documents] for number in range(len(chosen) - options.documents)]
    return [json.dumps({"query": texts[0], "texts": texts}).encode() for texts in ranked]


def form(spec: ServerSpec, options: argparse.Namespace) -> tuple[str, dict[str, str], int]:
    """Return path and headers of the requests, and the least bytes of their answers."""
    if options.documents:
        return "/rerank", {"content-type": "application/json"}, options.documents * len('{"index":0,"score":0.5}')
    return spec.text_path or "", HEADERS, VECTOR_BYTES


@contextlib.contextmanager
def measured(
    spec: ServerSpec, options: argparse.Namespace, cores: tuple[Cores, Cores]
) -> Iterator[tuple[RunningServer, float]]:
    """Start a server and measure its capacity in requests a second."""
    with tempfile.TemporaryDirectory() as logs, servers.started(spec, Path(logs), cores[0]) as running:
        closed_loop(running, options, cores[1], WARM_SECONDS)
        yield running, closed_loop(running, options, cores[1], options.capacity_seconds)


def closed_loop(running: RunningServer, options: argparse.Namespace, cores: Cores, seconds: float) -> float:
    """Return requests a second while `--calls` requests are always in flight."""
    path, headers, least = form(running.spec, options)
    first, *others = bodies(options)
    request = LoadRequest(running.ports["http"], path, headers, first, least, tuple(others))
    return generators.run(generators.PYTHON_HTTP, request, options.calls, seconds, cores).per_second


def measure_level(
    spec: ServerSpec,
    multiple: float,
    options: argparse.Namespace,
    cores: tuple[Cores, Cores],
    kind: str = "",
    **changes: Any,
) -> Level:
    """Measure a freshly started server at one multiple of its capacity.

    Args:
        kind: of clients, for the table.
        changes: fields of the order.
    """
    with measured(spec, options, cores) as (running, capacity):
        fields: Mapping[str, Any] = {
            "seconds": options.warm_seconds + options.seconds,
            "warm_seconds": options.warm_seconds,
            "timeout_s": options.timeout,
        }
        path, headers, least = form(spec, options)
        order = Order(
            running.ports["http"],
            path,
            headers,
            [base64.b64encode(body).decode() for body in bodies(options)],
            rate=capacity * multiple,
            response_bytes=least,
            connections=options.connections,
            **{**fields, **changes},
        )
        before, begun = cpu_seconds(running.pid), time.perf_counter()
        with running_on(cores[1]):
            command = python("-m", "loadtest.open_loop")
            printed = generators.output_of(command, order.seconds + order.timeout_s, json.dumps(asdict(order)))
        cpu = (cpu_seconds(running.pid) - before) / (time.perf_counter() - begun)
    level = Level(multiple, round(capacity, 1), round(order.rate, 1), round(cpu, 3), Tally(**json.loads(printed)), kind)
    print(f"{spec.name} at {multiple:g}x {kind}: {level.share:.2f} of {capacity:.0f}/s", flush=True)
    return level


def measure_server(spec: ServerSpec, options: argparse.Namespace, cores: tuple[Cores, Cores]) -> ServerResult:
    """Measure one server at every multiple of its capacity."""
    levels = [measure_level(spec, multiple, options, cores) for multiple in options.multiples]
    is_inlay = spec.name == servers.INLAY and not options.documents
    return ServerResult(spec.name, levels, measure_others(spec, options, cores) if is_inlay else [])


def measure_others(spec: ServerSpec, options: argparse.Namespace, cores: tuple[Cores, Cores]) -> list[Level]:
    """Measure clients that retry, clients that give up, and a crowd."""
    retrying = {"retries": RETRIES, "timeout_s": RETRY_TIMEOUT}
    giving_up = {"timeouts_s": PATIENCE, "timeout_s": max(PATIENCE)}
    crowd = {
        **{"seconds": CROWD_SECONDS, "warm_seconds": 0.0},
        **{"retries": CROWD_RETRIES, "timeout_s": CROWD_TIMEOUT},
    }
    return [
        *(measure_level(spec, one, options, cores, RETRYING, **retrying) for one in (2.0, 4.0, 8.0)),
        measure_level(spec, 4.0, options, cores, GIVING_UP, **giving_up),
        measure_level(spec, CROWD_MULTIPLE, options, cores, CROWD, **crowd),
    ]


def document(
    options: argparse.Namespace, results: Sequence[ServerResult], placement: str, load_before: float
) -> dict[str, Any]:
    """Return what --save writes."""
    listed = [
        {
            **asdict(one),
            "capacity": one.capacity,
            "levels": [{**asdict(level), "warnings": level.warnings} for level in one.levels],
            "others": [{**asdict(level), "warnings": level.warnings} for level in one.others],
        }
        for one in results
    ]
    names = ("model", "words", "seconds", "warm_seconds", "timeout", "calls", "serve")
    settings = {name: getattr(options, name) for name in names} | {"placement": placement}
    settings["load_average_before"] = round(load_before, 2)
    return {"facts": facts(), "settings": settings, "verdicts": verdicts(results), "servers": listed}


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.overload", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="an encoder of width 384 in that store")
    parser.add_argument("--words", type=int, default=20, help="of each text")
    parser.add_argument("--documents", type=int, default=0, help="ranked by each request, with a --model that ranks")
    parser.add_argument("--multiples", default="1,2,4,8", help="of capacity")
    parser.add_argument("--seconds", type=float, default=20, help="counted at each multiple")
    parser.add_argument("--warm-seconds", type=float, default=5, help="before these, at the same rate, not counted")
    parser.add_argument("--timeout", type=float, default=10, help="seconds after which a client gives up")
    parser.add_argument("--connections", type=int, default=0, help="open at a time at most; 0: all that may be open")
    parser.add_argument("--calls", type=int, default=64, help="in flight at a time while capacity is measured")
    parser.add_argument("--capacity-seconds", type=float, default=4, help="of each measurement of capacity")
    parser.add_argument("--serve", default="", help='more flags of serve, as in --serve="--max-queue-seconds 0.5"')
    parser.add_argument("--only", choices=[servers.INLAY, servers.FASTAPI], default="", help="one server")
    parser.add_argument("--no-pin", action="store_true", help="let server and generator share all cores")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/overload.json and overload.png")
    options = parser.parse_args()
    options.multiples = [float(one) for one in options.multiples.split(",")]
    return options


def main() -> int:
    """Measure, print and perhaps save; returns 0 if every target is met."""
    options = arguments()
    end_on_sigterm()
    cores = split_cores(pin=not options.no_pin)
    placement = "one core for the server, one for the generator" if cores[0] != cores[1] else "all cores shared"
    before = os.getloadavg()[0]
    print(
        f"{placement}; {options.words} words a text, {options.seconds:g} s a level; load average {before:.1f}",
        flush=True,
    )
    try:
        results = [measure_server(spec, options, cores) for spec in compared(options)]
    except (NotReady, BadLoad) as failure:
        print(f"overload: {failure}", file=sys.stderr)
        return 1
    met = verdicts(results)
    show(results, met)
    if options.save:
        saved = document(options, results, placement, before)
        (RESULTS / "overload.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
        overload_plot.draw(saved, RESULTS / "overload.png")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

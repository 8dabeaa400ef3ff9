"""Measures what the simulation of a fleet needs of one replica: service times, memory, start-up, bytes, the balancer.

    python -m loadtest.fleet.measure [--seconds 0.3] [--rounds 5] [--save]

The server has one core and one thread, this client another core. Every point is a request of some texts of one length
(or of mixed lengths), sent again and again, one at a time; of its rounds the least time is kept, since other processes
can only add to it. Start-up is measured with the model's files in the page cache and dropped from it. HAProxy, where it
is installed, is measured by its processor time for a request. --save writes loadtest/results/fleet_service_times.json.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadtest import servers, user_mix
from loadtest.facts import facts
from loadtest.fleet.service_times import FILE, Point, fit
from loadtest.footprint import drop_from_page_cache
from loadtest.processes import (
    ROOT,
    Cores,
    NotReady,
    end_on_sigterm,
    free_port,
    process_tree,
    running_on,
    server,
    split_cores,
    wait_for,
)
from loadtest.servers import RunningServer

SINGLES = (4, 8, 16, 24, 32, 64, 96, 128, 192, 256)
BATCHES = ((2, 8), (8, 8), (32, 8), (2, 16), (4, 16), (8, 16), (16, 16), (32, 16), (8, 32), (16, 32), (2, 64), (4, 64))
FULL = ((8, 64), (2, 128), (4, 128), (2, 256))
MIXED = ((16, 160), (8, 8, 8, 200), (12, 20, 64, 250), (10, 10, 10, 10, 10, 10, 10, 10, 100, 200))
STARTS = 3
JSON = {"content-type": "application/json"}
PROXY_REQUESTS = 4000
RUN_SECONDS = 'inlay_engine_run_seconds_sum{{model="{model}",graph="encoder"}}'
PRIVATE_BYTES = 'inlay_worker_private_bytes{worker="0"}'


def points() -> list[tuple[int, ...]]:
    """Return the tokens of each text of every request to measure."""
    equal = [*((1, tokens) for tokens in SINGLES), *BATCHES, *FULL]
    return [*((tokens,) * texts for texts, tokens in equal), *MIXED]


def core_seconds(pid: int) -> tuple[float, float]:
    """Return how long the threads of a process and its descendants have run, and waited for a core to run on."""
    tasks = [task for member in process_tree(pid) for task in Path("/proc", str(member), "task").iterdir()]
    times = [(task / "schedstat").read_text().split() for task in tasks]
    return sum([int(ran) for ran, _, _ in times]) / 1e9, sum([int(waited) for _, waited, _ in times]) / 1e9


def scrape(port: int) -> dict[str, float]:
    """Return the values of a server's metrics by name and labels."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] != "#"}


def post(connection: http.client.HTTPConnection, path: str, document: Any, accept: str = "*/*") -> bytes:
    """Return the body of a response.

    Raises:
        NotReady: its status is not 200.
    """
    connection.request("POST", path, json.dumps(document), {**JSON, "accept": accept})
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise NotReady(f"POST {path} was answered with {response.status}: {body[:200]!r}")
    return body


def measure_point(running: RunningServer, model: str, lengths: Sequence[int], seconds: float) -> Point:
    """Send requests of texts of these lengths for some seconds; return the mean times of one."""
    rng, port = random.Random(len(lengths)), running.ports["http"]
    run_name = RUN_SECONDS.format(model=model)
    sent, begun_run, begun_cpu, begun = (
        0,
        scrape(port).get(run_name, 0.0),
        core_seconds(running.pid)[0],
        time.perf_counter(),
    )
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        while time.perf_counter() - begun < seconds or sent < 3:
            texts = [user_mix.text(rng, count - user_mix.SPECIAL_TOKENS) for count in lengths]
            post(connection, "/v1/embeddings", {"input": texts, "model": model, "encoding_format": "base64"})
            sent += 1
    wall, cpu = time.perf_counter() - begun, core_seconds(running.pid)[0] - begun_cpu
    return Point(tuple(lengths), wall / sent, cpu / sent, (scrape(port)[run_name] - begun_run) / sent)


def measure_points(running: RunningServer, options: argparse.Namespace) -> list[Point]:
    """Return every point, the least times of interleaved rounds."""
    for lengths in points():
        measure_point(running, options.model, lengths, 0)
    rounds = [
        [measure_point(running, options.model, lengths, options.seconds) for lengths in points()]
        for _ in range(options.rounds)
    ]
    return [
        Point(of[0].tokens, min(p.wall for p in of), min(p.processor for p in of), min(p.run for p in of))
        for of in zip(*rounds, strict=True)
    ]


def start_up(spec: servers.ServerSpec, folder: Path, core: Cores, cold: bool) -> float:
    """Return the seconds from process start to ready; `cold`: with the model's files dropped from the page cache."""
    if cold:
        drop_from_page_cache(folder)
    with tempfile.TemporaryDirectory() as logs:
        begun = time.perf_counter()
        with servers.started(spec, Path(logs), core):
            return time.perf_counter() - begun


def sizes(running: RunningServer, model: str) -> dict[str, dict[str, int]]:
    """Return the bytes of requests and answers, heads left out, for one query and for ten passages."""
    rng, listed = random.Random(10), {}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", running.ports["http"])) as connection:
        for name, count, tokens in (("one query of 10 tokens", 1, 10), ("ten passages of 130 tokens", 10, 130)):
            texts = [user_mix.text(rng, tokens) for _ in range(count)]
            openai = {"input": texts, "model": model}
            listed[name] = {
                "request": len(json.dumps(openai)),
                "answer, JSON": len(post(connection, "/v1/embeddings", openai)),
                "answer, base64": len(post(connection, "/v1/embeddings", {**openai, "encoding_format": "base64"})),
                "answer, bytes": len(post(connection, "/embed", {"inputs": texts}, "application/octet-stream")),
            }
    return listed


HAPROXY = """
defaults
  mode http
  timeout connect 1s
  timeout client 10s
  timeout server 10s
{part}
"""
FRONT = "listen front\n  bind 127.0.0.1:{port}\n  balance leastconn\n  server one 127.0.0.1:{back}\n"
BACK = "listen back\n  bind 127.0.0.1:{port}\n  http-request return status 200 content-type text/plain file {body}\n"


@contextlib.contextmanager
def haproxy(part: str, port: int, folder: Path, core: Cores) -> Iterator[int]:
    """Run HAProxy with one thread on a core; yield its process id."""
    config, log = folder / f"{port}.cfg", folder / f"{port}.log"
    config.write_text("global\n  nbthread 1\n" + HAPROXY.format(part=part))
    with log.open("wb") as output, server(["haproxy", "-db", "-f", str(config)], output, core) as process:
        wait_for(process, log, port, None)
        yield process.pid


def balancer(answer_bytes: int, core: Cores) -> float | None:
    """Return HAProxy's processor seconds for a request that it passes to a server; None: it is not installed."""
    if not shutil.which("haproxy"):
        return None
    front, back = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "body").write_bytes(b"x" * answer_bytes)
        behind = BACK.format(port=back, body=folder / "body")
        with (
            haproxy(behind, back, folder, core),
            haproxy(FRONT.format(port=front, back=back), front, folder, core) as pid,
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", front, timeout=10)) as connection,
        ):
            begun = core_seconds(pid)[0]
            for _ in range(PROXY_REQUESTS):
                post(connection, "/v1/embeddings", {"input": "a query of some eight words or so"})
            return (core_seconds(pid)[0] - begun) / PROXY_REQUESTS


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return everything that --save writes."""
    folder, (core, _) = options.store / options.model, split_cores(pin=True)
    spec = servers.inlay_server(options.store, options.model, (*servers.ONE_CORE, "--log-level", "warning"))
    load_before = os.getloadavg()[0]
    starts = {
        kind: min(start_up(spec, folder, core, kind == "cold") for _ in range(STARTS)) for kind in ("warm", "cold")
    }
    with tempfile.TemporaryDirectory() as logs, servers.started(spec, Path(logs), core) as running:
        measured = measure_points(running, options)
        transfers = sizes(running, options.model)
        metrics = scrape(running.ports["http"])
    files = [file.stat().st_size for file in folder.iterdir()]
    return {
        "command": "python -m loadtest.fleet.measure --save",
        "facts": facts() | {"load average before": f"{load_before:.2f}"},
        "settings": {
            "model": options.model,
            "seconds": options.seconds,
            "rounds": options.rounds,
            "placement": "one core, one thread",
        },
        "start_seconds": {kind: round(seconds, 2) for kind, seconds in starts.items()},
        "memory_bytes": {
            "model files": sum(files),
            "private of a worker": int(metrics[PRIVATE_BYTES]),
        },
        "transfer_bytes": transfers,
        "balancer_seconds": balancer(transfers["one query of 10 tokens"]["answer, JSON"], core),
        **fit(measured),
    }


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fleet.measure", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="an encoder of that store")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each point in each round")
    parser.add_argument("--rounds", type=int, default=5, help="of which the least time is kept")
    parser.add_argument("--save", action="store_true", help=f"write {FILE.relative_to(ROOT)}")
    return parser.parse_args()


def main() -> int:
    """Measure, print and perhaps save."""
    options = arguments()
    end_on_sigterm()
    try:
        with running_on(split_cores(pin=True)[1]):
            document = measure(options)
    except NotReady as failure:
        print(f"fleet: {failure}", file=sys.stderr)
        return 1
    print(json.dumps({key: value for key, value in document.items() if key not in ("facts", "points")}, indent=1))
    if options.save:
        FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

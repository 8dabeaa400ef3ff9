"""One real server beside the simulation: the same requests at the same rates.

    python -m loadtest.fleet.against_server [--seconds 20] [--rounds 3] [--save]

The server has one core and one thread, the generator (loadtest.open_loop) another core. Requests are those of the
users' mix, POST /v1/embeddings, at a Poisson process whose rate is a part of the simulated capacity of a core. Latency
counts from when a request was due. On a machine with other work rounds differ: the one in which the server's threads
waited least for their core is reported, and all are kept. --save writes loadtest/results/fleet_one_server.json.
"""

import argparse
import base64
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest import generators, servers, user_mix
from loadtest.facts import facts
from loadtest.fleet import service_times, traffic
from loadtest.fleet.balancing import RANDOM
from loadtest.fleet.measure import core_seconds
from loadtest.fleet.service_times import ServiceTimes
from loadtest.fleet.simulation import WARM, Scenario, capacity, simulate
from loadtest.generators import BadLoad
from loadtest.open_loop import Order, Tally
from loadtest.processes import (
    RESULTS,
    ROOT,
    Cores,
    NotReady,
    end_on_sigterm,
    python,
    running_on,
    split_cores,
)
from loadtest.servers import RunningServer

FILE = RESULTS / "fleet_one_server.json"
LOADS = (0.5, 0.8)
WARM_SECONDS, TIMEOUT = 3.0, 10.0
BODIES = 4000
SIMULATED_SECONDS = 1200.0
SHORT_RUNS = 100
LEAST_BYTES = 2000  # of an answer with one vector in base64


def bodies(model: str) -> list[str]:
    """Return request bodies of the mix in base64."""
    rng, drawn = random.Random(4), traffic.pool(4)[:BODIES]
    documents = [
        {
            "model": model,
            "encoding_format": "base64",
            "input": [user_mix.text(rng, n - user_mix.SPECIAL_TOKENS) for n in costs],
        }
        for costs in drawn
    ]
    return [base64.b64encode(json.dumps(document).encode()).decode() for document in documents]


def measured(running: RunningServer, model: str, rate: float, seconds: float, core: Cores) -> dict[str, Any]:
    """Return what the generator counted, and the share of its core that the server had."""
    order = Order(
        running.ports["http"],
        "/v1/embeddings",
        {"content-type": "application/json"},
        bodies(model),
        rate=rate,
        seconds=WARM_SECONDS + seconds,
        warm_seconds=WARM_SECONDS,
        timeout_s=TIMEOUT,
        response_bytes=LEAST_BYTES,
    )
    ran_before, waited_before = core_seconds(running.pid)
    with running_on(core):
        limit = order.seconds + order.timeout_s
        printed = generators.output_of(python("-m", "loadtest.open_loop"), limit, json.dumps(asdict(order)))
    tally, (ran, waited) = Tally(**json.loads(printed)), core_seconds(running.pid)
    return {
        "answered": round(tally.accepted / tally.due, 4),
        "p50_ms": tally.p50_ms,
        "p99_ms": tally.p99_ms,
        "lag_p99_ms": tally.lag_p99_ms,
        "busy": round((ran - ran_before) / order.seconds, 3),
        "kept_from_core": round((waited - waited_before) / order.seconds, 3),
    }


def simulated(
    load: float, seconds: float, times: ServiceTimes, requests: Sequence[tuple[int, ...]], full: float
) -> dict[str, Any]:
    """Return the figures of a long simulated run, and which p99 nine in ten runs as short as the measured ones have."""
    long = simulate(Scenario(RANDOM, 1, load, SIMULATED_SECONDS), times, requests, full)
    short = [
        simulate(Scenario(RANDOM, 1, load, seconds / (1 - WARM), seed=seed), times, requests, full)["p99_ms"]
        for seed in range(SHORT_RUNS)
    ]
    ordered, outside = sorted(short), SHORT_RUNS // 20
    figures = {key: long[key] for key in ("answered", "p50_ms", "p99_ms", "busy")}
    return figures | {"p99_ms_of_short_runs": [ordered[outside], ordered[-1 - outside]]}


def scheduling() -> str:
    """Return the priority of this session among those of the machine, where Linux groups processes by session."""
    file = Path("/proc/self/autogroup")
    return file.read_text().strip().partition(" ")[2] if file.exists() else ""


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Return measured and simulated figures at each load."""
    times, _ = service_times.load()
    requests = traffic.pool()
    full = capacity(times, requests)
    cores, load_before = split_cores(pin=True), os.getloadavg()[0]
    spec = servers.inlay_server(options.store, options.model, (*servers.ONE_CORE, "--log-level", "warning"))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as logs, servers.started(spec, Path(logs), cores[0]) as running:
        measured(running, options.model, full / 2, WARM_SECONDS, cores[1])
        for load in LOADS:
            rounds = [
                measured(running, options.model, full * load, options.seconds, cores[1]) for _ in range(options.rounds)
            ]
            row: dict[str, Any] = {"load": load, "rate": round(full * load, 1)}
            row["measured"] = min(rounds, key=lambda one: one["kept_from_core"])
            row["simulated"] = simulated(load, options.seconds, times, requests, full)
            print(json.dumps(row), flush=True)
            rows.append(row | {"rounds": rounds})
    return {
        "command": "python -m loadtest.fleet.against_server --save",
        "facts": facts() | {"load average before": f"{load_before:.2f}"},
        "settings": {
            "model": options.model,
            "seconds": options.seconds,
            "rounds": options.rounds,
            "scheduling": scheduling(),
        },
        "rows": rows,
    }


def main() -> int:
    """Measure, simulate, print and perhaps save."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.fleet.against_server", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="an encoder of that store")
    parser.add_argument("--seconds", type=float, default=20, help="of each round, after three of warm-up")
    parser.add_argument("--rounds", type=int, default=3, help="at each load")
    parser.add_argument("--save", action="store_true", help=f"write {FILE.relative_to(ROOT)}")
    options = parser.parse_args()
    end_on_sigterm()
    try:
        document = compare(options)
    except (NotReady, BadLoad) as failure:
        print(f"fleet: {failure}", file=sys.stderr)
        return 1
    if options.save:
        FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

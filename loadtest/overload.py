"""Goodput and latency at 1, 2, 4 and 8 times what a server can do, beside the same for a plain FastAPI app.

    python -m loadtest.overload [--seconds 30] [--multiples 1,2,4,8] [--only inlay] [--save]

Each server's own capacity is measured first, in a closed loop of one-text requests through the whole encoder. Then
requests arrive as a Poisson process at multiples of it, for --seconds each, at a server started anew; latency counts
from the moment a request was due. The server has one core and the generator another, whose own lag is shown: where it
is large, or the server got less than its core, the row says so and is worth little. Shows what admission does for
requests of one kind and one length over loopback. Says nothing about mixed lengths, gRPC, networks, or clients that
come again when told to.
"""

import argparse
import base64
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadtest import contestants, generators, overload_plot, workload
from loadtest.arrivals import Order, Tally
from loadtest.contestants import Plan, Running
from loadtest.facts import facts
from loadtest.generators import Ask, BadLoad
from loadtest.overload_report import Contest, Level, show, verdicts
from loadtest.processes import (
    ROOT,
    Cores,
    NotReady,
    cpu_seconds,
    end_on_sigterm,
    python,
    running_on,
    split_cores,
)

RESULTS = Path(__file__).parent / "results"
HEADERS = {"content-type": "application/json", "accept": "application/octet-stream"}
VECTOR_BYTES = 384 * 4
TEXTS = 64
WARM_SECONDS = 2  # of closed loop for every server started, so that its drain rate is known


@dataclass(frozen=True)
class Entrant:
    """A server and where it takes texts."""

    plan: Plan
    path: str

    def ask(self, port: int, text: str) -> Ask:
        """One text."""
        return Ask(port, self.path, HEADERS, json.dumps({"inputs": text}).encode(), VECTOR_BYTES)


def entrants(options: argparse.Namespace) -> list[Entrant]:
    """The service and the newcomer's server, or the one that was asked for."""
    plain = contestants.plain_fastapi(options.store / options.model)
    # Its backlog outlives its clients by minutes: at the end it is not waited for.
    plain = replace(plain, command=(*plain.command, "--timeout-graceful-shutdown", "1"))
    found = [
        Entrant(contestants.inlay(options.store, options.model, options.serve.split()), "/embed"),
        Entrant(plain, "/embed_text"),
    ]
    return [one for one in found if not options.only or one.plan.name.startswith(options.only)]


def texts(words: int) -> list[str]:
    """TEXTS texts of as many words, all of them tokens of their own."""
    rng = random.Random(words)
    return [workload.text(rng, words + 2) for _ in range(TEXTS)]


@contextlib.contextmanager
def warm(entrant: Entrant, options: argparse.Namespace, cores: tuple[Cores, Cores]) -> Iterator[Running]:
    """A server started anew that has answered for a while."""
    with tempfile.TemporaryDirectory() as logs, contestants.started(entrant.plan, Path(logs), cores[0]) as running:
        closed_loop(entrant, running, options, cores[1], WARM_SECONDS)
        yield running


def closed_loop(entrant: Entrant, running: Running, options: argparse.Namespace, cores: Cores, seconds: float) -> float:
    """Requests a second while `--calls` are always under way."""
    ask = entrant.ask(running.ports["http"], texts(options.words)[0])
    return generators.run(generators.PYTHON_HTTP, ask, options.calls, seconds, cores).per_second


def level(
    entrant: Entrant, capacity: float, multiple: float, options: argparse.Namespace, cores: tuple[Cores, Cores]
) -> Level:
    """One multiple of the capacity."""
    with warm(entrant, options, cores) as running:
        port = running.ports["http"]
        bodies = [base64.b64encode(entrant.ask(port, text).body).decode() for text in texts(options.words)]
        seconds = options.warm_seconds + options.seconds
        order = Order(
            port,
            entrant.path,
            HEADERS,
            bodies,
            rate=capacity * multiple,
            seconds=seconds,
            warm_seconds=options.warm_seconds,
            timeout_s=options.timeout,
            answer_bytes=VECTOR_BYTES,
            connections=options.connections,
        )
        before, begun = cpu_seconds(running.pid), time.perf_counter()
        with running_on(cores[1]):
            command = python("-m", "loadtest.arrivals")
            said = generators.printed(command, seconds + options.timeout, json.dumps(asdict(order)))
        cpu = (cpu_seconds(running.pid) - before) / (time.perf_counter() - begun)
    return Level(multiple, round(order.rate, 1), round(cpu, 3), Tally(**json.loads(said)))


def contest(entrant: Entrant, options: argparse.Namespace, cores: tuple[Cores, Cores]) -> Contest:
    """The capacity of one server, then every multiple of it."""
    with warm(entrant, options, cores) as running:
        rounds = [
            closed_loop(entrant, running, options, cores[1], options.capacity_seconds) for _ in range(options.rounds)
        ]
    capacity = statistics.median(rounds)
    print(f"{entrant.plan.name}: capacity {capacity:.0f} requests/s ({min(rounds):.0f}-{max(rounds):.0f})", flush=True)
    levels = [level(entrant, capacity, multiple, options, cores) for multiple in options.multiples]
    return Contest(entrant.plan.name, [round(one, 1) for one in rounds], levels)


def document(options: argparse.Namespace, found: Sequence[Contest], placement: str, before: float) -> dict[str, Any]:
    """What is saved."""
    contests = [
        {
            **asdict(one),
            "capacity": one.capacity,
            "levels": [{**asdict(each), "of_first": one.of_first(each), "doubts": each.doubts} for each in one.levels],
        }
        for one in found
    ]
    names = ("model", "words", "seconds", "warm_seconds", "timeout", "calls", "serve")
    settings = {name: getattr(options, name) for name in names} | {"placement": placement}
    settings["load_average_before"] = round(before, 2)
    return {"facts": facts(), "settings": settings, "verdicts": verdicts(found), "contests": contests}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.overload", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="an encoder of width 384 in that store")
    parser.add_argument("--words", type=int, default=20, help="of each text")
    parser.add_argument("--multiples", default="1,2,4,8", help="of capacity, the first is what others compare with")
    parser.add_argument("--seconds", type=float, default=30, help="counted at each multiple")
    parser.add_argument("--warm-seconds", type=float, default=5, help="before these, at the same rate, not counted")
    parser.add_argument("--timeout", type=float, default=10, help="seconds after which a client gives up")
    parser.add_argument("--connections", type=int, default=0, help="open at a time at most; 0: all that may be open")
    parser.add_argument("--calls", type=int, default=64, help="under way at a time while capacity is measured")
    parser.add_argument("--capacity-seconds", type=float, default=8, help="of each of the rounds of that")
    parser.add_argument("--rounds", type=int, default=3, help="of that; capacity is their median")
    parser.add_argument("--serve", default="", help='more flags of serve, as in --serve="--max-queue-seconds 0.5"')
    parser.add_argument("--only", default="", help="one server: inlay or plain")
    parser.add_argument("--no-pin", action="store_true", help="let server and generator share all cores")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/overload.json and overload.png")
    options = parser.parse_args()
    options.multiples = [float(one) for one in options.multiples.split(",")]
    return options


def main() -> int:
    """Measure, print, perhaps save; 0 if every target is met."""
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
        found = [contest(entrant, options, cores) for entrant in entrants(options)]
    except (NotReady, BadLoad) as failure:
        print(f"overload: {failure}", file=sys.stderr)
        return 1
    met = verdicts(found)
    show(found, met)
    if options.save:
        told = document(options, found, placement, before)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "overload.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        overload_plot.draw(told, RESULTS / "overload.png")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Texts a second at 32 connections where texts come again, with and without the vector cache, and where none does.

    python -m loadtest.repeated_texts [--rounds 5] [--seconds 3] [--save]

Servers and kinds of texts are interleaved, round by round. `repeated`: 64 texts in turn, so that two in flight differ
and each comes again. `equal`: one text, so that those in flight are equal. `distinct`: none comes again.
"""

import argparse
import contextlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from loadtest import generators, servers
from loadtest.bench import Case, text_case
from loadtest.facts import facts
from loadtest.processes import ROOT, split_cores
from loadtest.servers import RunningServer, ServerSpec

RESULTS = ROOT / "loadtest/results"
CACHE_BYTES = 64 << 20
DISTINCT = 4096  # of a round: more than a server without answers to repeat gives in it
TEXTS = {"repeated": 64, "equal": 1}
CONNECTIONS = 32


def specs(store: Path, model: str) -> list[ServerSpec]:
    """Return Inlay without a cache and with one."""
    plain = servers.inlay_server(store, model, ("--log-level", "warning"))
    cached = replace(plain, name="inlay, cache", command=(*plain.command, "--vector-cache-bytes", str(CACHE_BYTES)))
    return [plain, cached]


def cases(rounds: int) -> list[dict[str, Case]]:
    """Return the kinds of texts of each round; distinct ones are those of no other round."""
    again = {kind: text_case(kind, CONNECTIONS, texts) for kind, texts in TEXTS.items()}
    every = text_case("distinct", CONNECTIONS, DISTINCT * rounds)
    bodies = [every.body, *every.others]
    listed = []
    for start in range(0, len(bodies), DISTINCT):
        first, *others = bodies[start : start + DISTINCT]
        listed.append({"distinct": replace(every, body=first, others=tuple(others)), **again})
    return listed


def measured(running: list[RunningServer], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each server and kind of texts: texts/s, the median and the greatest of the rounds."""
    cores = split_cores(pin=False)[0]
    speeds: dict[tuple[str, str], list[float]] = {}
    for number, kinds in enumerate(cases(rounds + 1)):
        for kind, case in kinds.items():
            for server in running:
                request = case.request_to(server)
                load = generators.run(generators.choose("http"), request, CONNECTIONS, seconds, cores)
                if number:  # the first round warms up
                    speeds.setdefault((kind, server.spec.name), []).append(load.per_second)
    return [
        {"texts": kind, "server": name, "median": round(median(listed)), "most": round(max(listed))}
        for (kind, name), listed in speeds.items()
    ]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=ROOT / "models/store")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--save", action="store_true", help="write loadtest/results/repeated_texts.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as logs, contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(servers.started(spec, Path(logs), split_cores(pin=False)[0]))
            for spec in specs(options.store, options.model)
        ]
        rows = measured(started, options.rounds, options.seconds)
    print(*[f"{row['texts']:9} {row['server']:13} {row['median']:6} {row['most']:6}" for row in rows], sep="\n")
    if options.save:
        saved = {"facts": facts(), "rounds": options.rounds, "seconds": options.seconds, "texts_per_second": rows}
        (RESULTS / "repeated_texts.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

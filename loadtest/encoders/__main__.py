"""Encoders beside other libraries and servers around the same weights, in one run on one machine.

    python -m loadtest.encoders [--quick] [--parts engines,http] [--rounds N] [--own] [--save]

Engines: Inlay's encoder in each form beside ONNX Runtime, torch, sentence-transformers, OpenVINO and model2vec, each in
a process of its own on one core, in interleaved rounds. HTTP: Inlay with its default settings beside its other layouts,
mosec and FastAPI. Prints times, ratios, cosines, whether a text's batch changes its bits, and verdicts; --save writes
loadtest/results/encoders.json and encoders.md. Exits with 1 if something could not be measured, and with 0 whether or
not the bars are met.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loadtest.encoders import contestants, over_http, report
from loadtest.encoders.contestants import INLAY_INT8, Files, NotPrepared
from loadtest.encoders.engines import Comparison, EngineResult
from loadtest.encoders.workers import Missing
from loadtest.facts import facts, flags
from loadtest.generators import BadLoad
from loadtest.processes import RESULTS, NotReady, end_on_sigterm

PARTS = ("engines", "http")


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.encoders", description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"what to measure: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; figures are their medians")
    parser.add_argument("--seconds", type=float, default=3, help="of each server and number of connections in a round")
    parser.add_argument("--quick", action="store_true", help="2 rounds, for development")
    parser.add_argument("--own", action="store_true", help="Inlay alone, without other libraries and servers")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/encoders.*")
    options = parser.parse_args()
    options.parts = [part for part in options.parts.split(",") if part]
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"--parts {unknown[0]}: the parts are {', '.join(PARTS)}")
    if options.quick:
        options.rounds, options.seconds = 2, 2
    return options


def compare_engines(prepared: Files, options: argparse.Namespace, logs: Path) -> Sequence[EngineResult]:
    """Return the figures of every library."""
    chosen = contestants.own_engines(prepared) if options.own else contestants.engines(prepared)
    core = frozenset([max(os.sched_getaffinity(0))])
    results = Comparison(chosen, core, options.rounds, 0.2).run(logs)
    if "int8" in prepared.missing:
        results.insert(1, EngineResult(INLAY_INT8, prepared.missing["int8"]))
    return results


def measure(options: argparse.Namespace) -> report.Results:
    """Prepare, and measure each part."""
    command = " ".join(["python -m loadtest.encoders", *sys.argv[1:]])
    settings = {"command": command, "processor flags": flags(), "load average before": f"{os.getloadavg()[0]:.1f}"}
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        prepared = contestants.files(logs)
        if not options.own:
            contestants.prepare_peers(prepared.checkpoint)
        engines = compare_engines(prepared, options, logs) if "engines" in options.parts else None
        http = None
        if "http" in options.parts:
            http = over_http.measure(prepared, not options.own, options.rounds, options.seconds, logs)
    return report.Results({**facts(), **settings}, engines, http)


def main() -> int:
    """Run, print and perhaps save."""
    options = arguments()
    end_on_sigterm()
    if not options.own and not contestants.PEERS_PYTHON.exists():
        print("the other libraries are not installed; run: make bench ARGS=--encoders, or give --own", file=sys.stderr)
        return 1
    try:
        results = measure(options)
    except (NotPrepared, NotReady, BadLoad, Missing) as failure:
        print(f"encoders: {failure}", file=sys.stderr)
        return 1
    report.show(results)
    if options.save:
        report.save(results, RESULTS / "encoders")
    return 0


if __name__ == "__main__":
    sys.exit(main())

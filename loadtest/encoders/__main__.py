"""Encoders beside other libraries and servers around the same weights, in one run on one machine.

    python -m loadtest.encoders [--quick] [--parts engines,http,input_layer,growth] [--rounds N] [--own] [--save]

Engines: Inlay's encoder in each form beside ONNX Runtime, torch, sentence-transformers, OpenVINO and model2vec, each in
a process of its own on one core, in interleaved rounds. HTTP: Inlay with its default settings beside its other layouts,
mosec and FastAPI. Input layer: Inlay's beside other forms. Growth: the cost of a token while up to a million wait.

Prints times, ratios, cosines, whether a text's batch changes its bits, and verdicts. --save writes each part, as soon
as it is measured, into loadtest/results/encoders.json, .md and .png beside the parts that were saved before. Exits with
1 if something could not be measured, and with 0 whether or not the bars are met.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.encoders import contestants, over_http, plot, report
from loadtest.encoders.contestants import INLAY_INT8, MODEL, Files, NotPrepared
from loadtest.encoders.engines import Comparison, EngineResult
from loadtest.encoders.report import PARTS, Part
from loadtest.encoders.workers import Missing
from loadtest.facts import facts, flags
from loadtest.generators import BadLoad, output_of
from loadtest.processes import RESULTS, NotReady, end_on_sigterm, python, running_on

WITHIN_S = 280  # of a part that runs in one process of its own


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.encoders", description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"what to measure: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; figures are their medians")
    parser.add_argument("--seconds", type=float, default=2, help="of each server and number of connections in a round")
    parser.add_argument("--quick", action="store_true", help="one round of 1 s, for development")
    parser.add_argument("--own", action="store_true", help="Inlay alone, without other libraries and servers")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/encoders.*")
    options = parser.parse_args()
    options.parts = [part for part in options.parts.split(",") if part]
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"--parts {unknown[0]}: the parts are {', '.join(PARTS)}")
    if options.quick:
        options.rounds, options.seconds = 1, 1
    return options


def compare_engines(prepared: Files, options: argparse.Namespace, logs: Path) -> Sequence[EngineResult]:
    """Return the figures of every library."""
    chosen = contestants.own_engines(prepared) if options.own else contestants.engines(prepared)
    core = frozenset([max(os.sched_getaffinity(0))])
    results = Comparison(chosen, core, options.rounds, 0.2).run(logs)
    if "int8" in prepared.missing:
        results.insert(1, EngineResult(INLAY_INT8, prepared.missing["int8"]))
    return results


def on_cores(module: str, cores: frozenset[int], prepared: Files) -> Any:
    """Return what a module of this package prints about the fp32 model, run on those cores."""
    folder = prepared.stores["fp32"]
    arguments = [str(folder / MODEL)] if module == "input_layer" else [str(folder), MODEL]
    with running_on(cores):
        return json.loads(output_of(python("-m", f"loadtest.encoders.{module}", *arguments), WITHIN_S))


def measure(part: str, prepared: Files, options: argparse.Namespace, logs: Path) -> Part:
    """Return one part, measured."""
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    if part == "engines":
        return report.engines_part(compare_engines(prepared, options, logs))
    if part == "http":
        return report.http_part(over_http.measure(prepared, not options.own, options.rounds, options.seconds, logs))
    if part == "input_layer":
        return report.input_layer_part(on_cores(part, frozenset(cores[:1]), prepared))
    counts = sorted({1, min(2, len(cores))})
    return report.growth_part({str(count): on_cores(part, frozenset(cores[:count]), prepared) for count in counts})


def run(options: argparse.Namespace) -> None:
    """Prepare, and measure, print and perhaps save each part."""
    command = " ".join(["python -m loadtest.encoders", *sys.argv[1:]])
    settings = {"command": command, "processor flags": flags()}
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        prepared = contestants.files(logs)
        if not options.own:
            contestants.prepare_peers(prepared.checkpoint)
        for name in options.parts:
            load = {"load average before": f"{os.getloadavg()[0]:.1f}"}
            part = measure(name, prepared, options, logs)
            report.show(part)
            if options.save:
                report.save(part, {**facts(), **settings, **load}, RESULTS / "encoders")
                plot.draw(RESULTS / "encoders.json", RESULTS / "encoders.png")


def main() -> int:
    """Run, print and perhaps save."""
    options = arguments()
    end_on_sigterm()
    if not options.own and not contestants.PEERS_PYTHON.exists():
        print("the other libraries are not installed; run: make bench ARGS=--encoders, or give --own", file=sys.stderr)
        return 1
    try:
        run(options)
    except (NotPrepared, NotReady, BadLoad, Missing) as failure:
        print(f"encoders: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whole models of several architectures at real sizes: loading, memory and tokens/s, beside torch in the same run.

    python -m loadtest.architectures [--models NAMES] [--rounds N] [--cores N] [--python PATH] [--own] [--save]

Each model is created with random weights from its config in loadtest/architectures/configs, exported whole, and run by
Inlay's pipeline and by transformers with torch's scaled_dot_product_attention (MPNet has none there: eager), each in a
process of its own on the same cores. Needs 5 GB of disk and 10 GB of memory for the largest. A call that would take
over a minute is left out. --save writes loadtest/results/architectures.json and .md. Exits with 1 if a model could not
be measured.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from loadtest.architectures import prepare, report
from loadtest.architectures.cases import Model, models
from loadtest.architectures.comparison import compare
from loadtest.architectures.report import Section
from loadtest.encoders.contestants import PEERS_PYTHON, NotPrepared
from loadtest.encoders.workers import Missing
from loadtest.facts import facts, flags
from loadtest.processes import RESULTS, end_on_sigterm


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    known = [model.name for model in models()]
    parser = argparse.ArgumentParser(prog="python -m loadtest.architectures", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(known), help=f"of {', '.join(known)}")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; figures are their medians")
    parser.add_argument("--seconds", type=float, default=2, help="of each case of each library in a round")
    parser.add_argument("--cores", type=int, default=2, help="that all share; as many threads each")
    parser.add_argument("--python", type=Path, default=PEERS_PYTHON, help="interpreter that has torch and transformers")
    parser.add_argument("--quick", action="store_true", help="one round of 0.2 s, for development")
    parser.add_argument("--own", action="store_true", help="Inlay alone, without torch")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/architectures.*")
    options = parser.parse_args()
    options.models = [name for name in options.models.split(",") if name]
    if unknown := sorted(set(options.models) - set(known)):
        parser.error(f"--models {unknown[0]}: the models are {', '.join(known)}")
    if options.quick:
        options.rounds, options.seconds = 1, 0.2
    return options


def measure(model: Model, options: argparse.Namespace, folder: Path) -> Section:
    """Return the figures of one model, written to a folder."""
    cores = sorted(os.sched_getaffinity(0), reverse=True)[: options.cores]
    prepared = prepare.prepare(model, folder)
    listed = prepare.contenders(model, prepared, len(cores), None if options.own else options.python.absolute())
    results = compare(model, listed, frozenset(cores), options.rounds, options.seconds, folder)
    return Section(model, prepared, results)


def run(options: argparse.Namespace) -> bool:
    """Measure, print and perhaps save; return whether every model was measured."""
    settings = {"command": " ".join(["python -m loadtest.architectures", *_named(sys.argv[1:])])}
    settings |= {"processor flags": flags(), "load average before": f"{os.getloadavg()[0]:.1f}"}
    settings["threads"] = str(min(options.cores, len(os.sched_getaffinity(0))))
    sections: list[Section] = []
    chosen = [model for model in models() if model.name in options.models]
    for model in chosen:
        with tempfile.TemporaryDirectory() as folder:
            try:
                sections.append(measure(model, options, Path(folder)))
            except (NotPrepared, Missing) as failure:
                print(f"architectures: {model.name}: {failure}", file=sys.stderr)
                continue
        report.show(sections[-1])
        if options.save:
            report.save(sections, {**facts(), **settings, **report.versions(sections)}, RESULTS / "architectures")
    print(f"\n{report.NOTE}")
    return len(sections) == len(chosen)


def _named(words: list[str]) -> list[str]:
    """Return the command line with files by their names alone: results hold no paths."""
    return [Path(word).name if "/" in word else word for word in words]


def main() -> int:
    """Run, print and perhaps save."""
    options = arguments()
    end_on_sigterm()
    if not options.own and not options.python.exists():
        print("torch is not installed; run: make architectures, or give --own or --python PATH", file=sys.stderr)
        return 1
    return 0 if run(options) else 1


if __name__ == "__main__":
    sys.exit(main())

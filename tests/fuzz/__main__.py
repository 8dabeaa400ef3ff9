"""Fuzz the decoders of untrusted bytes: `python -m tests.fuzz --seconds 10`, or `make fuzz ARGS="--seconds 60"`.

Every decoder for so many seconds in a process of its own (one.py), then every operation of the OpenAPI document with
schemathesis (operations.py), then requests that may cost others too much (costs.py). Faults are printed with the file
that holds their input; the exit status counts them. `--save` writes results.json and results.md beside this file.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.fuzz.catalogue import TARGETS, folder_of

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SPARE_SECONDS = 120  # for a process to come up, and for a slow last input
OPERATIONS, COSTS = "operations", "costs"
RESULTS = HERE / "results.json"
LIBRARIES = ("atheris", "schemathesis", "hypothesis")


def decoder(name: str, seconds: float) -> dict[str, Any]:
    """What one.py reports of a target; a fault where it ended in another way."""
    with tempfile.TemporaryDirectory(prefix="inlay-fuzz-") as folder:
        report = Path(folder) / "report.json"
        arguments = ["--seconds", str(seconds), "--found", str(folder_of(name)), "--report", str(report)]
        command = [sys.executable, "-m", "tests.fuzz.one", name, *arguments]
        try:
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=seconds + SPARE_SECONDS)
            why = f"it ended with {ended.returncode}: {ended.stderr[-2000:].decode(errors='replace')}"
        except subprocess.TimeoutExpired:
            why = "it hangs"
        if report.exists():
            report_values: dict[str, Any] = json.loads(report.read_text())
            return report_values
        return {"engine": "?", "inputs": 0, "taken": 0, "seconds": seconds, "fault": why}


def main() -> int:
    """How many targets found a fault."""
    parser = argparse.ArgumentParser(description="Fuzz the decoders of untrusted bytes.")
    parser.add_argument("--seconds", type=float, default=10, help="for each decoder [10]")
    parser.add_argument("--examples", type=int, default=25, help="random requests an operation of OpenAPI [25]")
    parser.add_argument("--only", default="", help="targets whose names hold this, e.g. operations, costs")
    parser.add_argument("--part", type=int, default=8, help="of the cases of costs one in so many [8]")
    parser.add_argument("--save", action="store_true", help="write results.json and results.md")
    options = parser.parse_args()
    rows: dict[str, Any] = _kept() if options.only else {}
    faults = 0
    for name in [name for name in TARGETS if options.only in name]:
        rows[name] = decoder(name, options.seconds)
        faults += _record(options, name, rows)
    if options.only in OPERATIONS:
        from tests.fuzz.operations import schemathesis

        rows[OPERATIONS] = schemathesis(options.examples)
        faults += _record(options, OPERATIONS, rows)
    if options.only in COSTS:
        from tests.fuzz import costs

        rows[COSTS] = costs.row(options.part)
        faults += _record(options, COSTS, rows)
    return faults


def _record(options: argparse.Namespace, name: str, rows: dict[str, Any]) -> bool:
    """Print and save the newest row; return whether it is a fault."""
    _say(name, rows[name])
    if options.save:
        _save(options, rows)
    return bool(rows[name]["fault"])


def _kept() -> dict[str, Any]:
    """Return the results saved earlier."""
    return json.loads(RESULTS.read_text())["targets"] if RESULTS.exists() else {}


def _say(name: str, row: dict[str, Any]) -> None:
    print(f"{name:28} {row['inputs']:>9,} inputs in {row['seconds']:>4.0f} s, by {row['engine']}", flush=True)
    if row["fault"]:
        print(
            row["fault"]
            if name in (OPERATIONS, COSTS)
            else f"{row['fault']}\n    the input is kept in {folder_of(name)}",
            flush=True,
        )


def _save(options: argparse.Namespace, rows: dict[str, Any]) -> None:
    command = f"--seconds {options.seconds:g} --examples {options.examples}" + (
        f' --only "{options.only}"' if options.only else ""
    )
    libraries = {name: version for name in LIBRARIES if (version := _version(name))}
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    when = datetime.now(UTC).date().isoformat()
    rows = {name: {"command": command} | row for name, row in rows.items()}  # those kept have their own
    about = {"date": when, "machine": machine, "libraries": libraries}
    RESULTS.write_text(json.dumps(about | {"targets": rows}, indent=1) + "\n")
    named = ", ".join([f"{name} {version}" for name, version in libraries.items()])
    lines = [
        "# Fuzzing",
        "",
        f"{when}, {machine}, {named}; written by `--save`. Taken: what was no refusal. Each row names the ARGS of",
        "`make fuzz` it comes from: rows of several runs may stand together.",
        "",
        "| target | engine | inputs tried | taken | seconds | faults | ARGS |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {name} | {row['engine']} | {row['inputs']:,} | {row['taken']:,} | {row['seconds']:.0f} | "
        f"{int(bool(row['fault']))} | `{row['command']}` |"
        for name, row in rows.items()
    ]
    lines.append(f"| together | | {sum(row['inputs'] for row in rows.values()):,} | | | | |")
    (HERE / "results.md").write_text("\n".join(lines) + "\n")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())

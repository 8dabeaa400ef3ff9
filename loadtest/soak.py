"""An hour of mixed load, and whether the server's memory stays flat; then bursts of its longest inputs.

    python -m loadtest.soak [--minutes 60] [--burst 3] [--workers 1] [--save]

Callers of loadtest.mixed send texts, ids and batches over every protocol, requests that are refused, broken ones, and
leave early. The processes' memory is read every few seconds; a line through what came after the warm-up says how much
it grows in an hour; until then caches and the heap's holes fill up. What a leak grows, anonymous memory, is told of the
second half too. Each burst is many inputs of the greatest length at once; memory is told before it, at
its peak, and when the server has been idle again. Shows leaks and memory that does not come back under this mix. A run
far shorter than an hour proves nothing: its slope is noise, and is said to be. Looks at no answer's numbers, and at no
speed: callers and server share the cores.
"""

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest import soak_plot, workload
from loadtest.facts import facts
from loadtest.mixed import BUSY, RAW, Caller, Crowd, Target
from loadtest.process_memory import Resident, Trend, forget_peak, peak, resident, trend
from loadtest.processes import ROOT, NotReady, end_on_sigterm, free_port, python, server, wait_for

RESULTS = Path(__file__).parent / "results"
FLAT = 2.0  # per cent an hour
LEAST_MINUTES = 20  # after the warm-up, to be judged
WATCHED = ("rss", "private", "anonymous")
LATER = "anonymous, second half"
ROUNDS_APART = 1.02  # what is held after the last burst, of what was held after the first
BURST_S = 180


@dataclass(frozen=True)
class Sample:
    """Seconds since traffic began, the phase, requests sent so far, what was held."""

    second: float
    phase: str
    sent: int
    held: Resident


@dataclass(frozen=True)
class Burst:
    """Megabytes resident before a burst, at its peak by the kernel's count, and idle again; what became of it."""

    before: Resident
    peak_rss: float
    after: Resident
    seconds: float
    outcomes: dict[str, int]


class Watch:
    """Reads the memory of one server into a list of samples."""

    def __init__(self, pid: int, every_s: float) -> None:
        self.pid, self.every_s = pid, every_s
        self.begun = time.monotonic()
        self.samples: list[Sample] = []

    def look(self, phase: str, sent: int) -> Resident:
        """One sample."""
        held = resident(self.pid)
        if not held.rss:
            raise NotReady(f"the server ended {time.monotonic() - self.begun:.0f} s after traffic began")
        self.samples.append(Sample(round(time.monotonic() - self.begun, 2), phase, sent, held))
        return held

    def until(self, deadline: float, phase: str, crowd: Crowd) -> None:
        """A sample every few seconds."""
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(self.every_s, left))
            self.look(phase, crowd.counts.sent)


def soak(watch: Watch, crowd: Crowd, minutes: float, warm_minutes: float) -> None:
    """All the traffic, watched; progress once a minute."""
    with crowd.calling():
        watch.until(watch.begun + warm_minutes * 60, "warm-up", crowd)
        end = watch.begun + (warm_minutes + minutes) * 60
        while time.monotonic() < end:
            watch.until(min(end, time.monotonic() + 60), "soak", crowd)
            last = watch.samples[-1]
            held = last.held
            print(
                f"{last.second / 60:6.1f} min  {last.sent:9d} sent  rss {held.rss:7.1f}  private {held.private:7.1f}  "
                f"anonymous {held.anonymous:7.1f} MB  {held.files} files  {held.threads} threads",
                flush=True,
            )


def burst(watch: Watch, target: Target, longest: int, options: argparse.Namespace, sent: int) -> Burst:
    """Many callers, each with one request of many inputs of the greatest length; refused ones come again."""
    before = watch.look("idle", sent)
    forget_peak(watch.pid)
    begun = time.monotonic()
    with ThreadPoolExecutor(options.burst_calls) as pool:
        calls = [pool.submit(_insist, target, seed, longest, options) for seed in range(options.burst_calls)]
        while not all(call.done() for call in calls):
            time.sleep(0.25)
            watch.look("burst", sent)
    outcomes = Counter(outcome for call in calls for outcome in call.result())
    seconds = time.monotonic() - begun
    highest = peak(watch.pid)
    time.sleep(options.idle)
    return Burst(before, round(highest, 1), watch.look("idle", sent), round(seconds, 1), dict(outcomes))


def _insist(target: Target, seed: int, longest: int, options: argparse.Namespace) -> list[str]:
    """Half of the callers want vectors, half a row for every token; all outcomes on the way."""
    caller = Caller(target, seed)
    outputs = ["sentence_embedding", "last_hidden_state"][seed % 2]
    ids = [workload.ids(caller.rng, longest) for _ in range(options.burst_inputs)]
    outcomes: list[str] = []
    deadline = time.monotonic() + BURST_S
    with contextlib.closing(caller):
        while time.monotonic() < deadline and (not outcomes or outcomes[-1] in BUSY):
            try:
                caller.connection.timeout = BURST_S
                outcomes.append(caller.ask("POST", "/embed", {"inputs": ids, "outputs": [outputs]}, RAW))
            except (OSError, http.client.HTTPException) as error:
                outcomes.append(type(error).__name__)
            if outcomes[-1] in BUSY:
                time.sleep(0.5)
    return outcomes


def longest_input(target: Target) -> int:
    """Tokens that the model reads of one input."""
    connection = http.client.HTTPConnection("127.0.0.1", target.http, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", f"/models/{target.model}")
        return int(json.loads(connection.getresponse().read())["max_tokens"])


def trends(samples: list[Sample]) -> dict[str, Trend | None]:
    """The line through each kind of memory after the warm-up, and through the later part of what a leak grows."""
    soaked = [one for one in samples if one.phase == "soak"]
    lines = {name: _line(soaked, name) for name in WATCHED}
    return lines | {LATER: _line(soaked[len(soaked) // 2 :], "anonymous")}


def _line(samples: list[Sample], name: str) -> Trend | None:
    return trend([one.second for one in samples], [getattr(one.held, name) for one in samples])


def verdicts(
    found: dict[str, Trend | None], minutes: float, wrong: dict[str, dict[str, int]], bursts: list[Burst]
) -> dict[str, bool | None]:
    """The targets and whether each is met; None: the run was too short to say."""
    met: dict[str, bool | None] = {}
    for name, line in found.items():
        if line and name in WATCHED:
            claim = f"{name} grows by {line.percent_an_hour:+.2f} +- {line.error:.2f} % an hour (<= {FLAT:g})"
            met[claim] = None if minutes < LEAST_MINUTES else line.percent_an_hour <= FLAT
    met[
        f"{sum(sum(one.values()) for one in wrong.values())} requests ended otherwise than they should (= 0)"
    ] = not wrong
    if len(bursts) > 1:
        ratio = bursts[-1].after.private / bursts[0].after.private
        met[f"private after the last burst is {ratio:.3f} of that after the first (<= {ROUNDS_APART})"] = (
            ratio <= ROUNDS_APART
        )
    return met


def show(fresh: Resident, crowd: Crowd, bursts: list[Burst], met: dict[str, bool | None]) -> None:
    """Print what was sent, the bursts and the verdicts."""
    print(f"\nfresh, before any request: rss {fresh.rss:.1f} private {fresh.private:.1f} MB")
    for name, outcomes in crowd.counts.outcomes.items():
        print(f"{name:26}", ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items())))
    for one in bursts:
        print(
            f"burst of {one.seconds:.0f} s, {one.outcomes}: rss {one.before.rss:.1f} before, {one.peak_rss:.1f} peak, "
            f"{one.after.rss:.1f} after; private {one.before.private:.1f} before, {one.after.private:.1f} after (MB)"
        )
    for claim, holds in met.items():
        print(f"{'too short to say' if holds is None else 'met    ' if holds else 'NOT met'} {claim}")
    for name, outcomes in crowd.counts.wrong.items():
        print(f"wrong: {name}: {outcomes}")


def settings(flags: list[str]) -> dict[str, Any]:
    """What the server is started with: flags, INLAY_ variables, and every setting with its default."""
    listed = subprocess.run(
        python("-m", "service", "settings"), cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return {
        "flags": flags,
        "variables": {name: value for name, value in os.environ.items() if name.startswith("INLAY_")},
        "defaults": [line for line in listed.stdout.splitlines() if line.startswith("INLAY_")],
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a BERT-like encoder in that store")
    parser.add_argument("--minutes", type=float, default=60, help="of load, after the warm-up; 0: bursts alone")
    parser.add_argument("--warm-minutes", type=float, help="before these; default: a quarter of them, 0.2 to 15")
    parser.add_argument("--callers", type=int, default=8, help="at a time")
    parser.add_argument("--pause", type=float, default=0.1, help="mean seconds between a caller's requests")
    parser.add_argument("--every", type=float, default=5, help="seconds between samples")
    parser.add_argument("--workers", type=int, default=1, help="of the server")
    parser.add_argument("--serve", default="", help='more flags of serve, as in --serve="--max-batch-tokens 256"')
    parser.add_argument("--burst", type=int, default=3, help="bursts at the end, one after the other; 0: none")
    parser.add_argument("--burst-calls", type=int, default=8, help="requests at once in a burst")
    parser.add_argument("--burst-inputs", type=int, default=64, help="inputs of the greatest length in each of these")
    parser.add_argument("--idle", type=float, default=15, help="seconds without traffic before memory is told again")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/soak.json and soak.png")
    options = parser.parse_args()
    if options.warm_minutes is None:
        options.warm_minutes = min(15.0, max(0.2, options.minutes / 4))
    return options


def run(options: argparse.Namespace, logs: Path) -> tuple[dict[str, Any], bool]:
    """Start, soak, burst, print; what is saved, and whether no target was missed."""
    target = Target(free_port(), free_port(), options.model)
    flags = ["--port", str(target.http), "--grpc-port", str(target.grpc), "--store", str(options.store)]
    flags += ["--default-model", options.model, "--device", "cpu", "--workers", str(options.workers)]
    flags += ["--log-level", "error", *options.serve.split()]
    told = settings(flags)
    print("serve", *flags, *(f"{name}={value}" for name, value in told["variables"].items()))
    print(*told["defaults"], sep="\n", flush=True)
    log = logs / "service.log"
    with log.open("wb") as output, server(python("-m", "service", "serve", *flags), output) as process:
        wait_for(process, log, target.http, "/health/ready")
        fresh = resident(process.pid)
        watch = Watch(process.pid, options.every)
        crowd = Crowd(target, options.callers, options.pause)
        soak(watch, crowd, options.minutes, options.warm_minutes)
        sent, longest = crowd.counts.sent, longest_input(target)
        time.sleep(options.idle if options.burst else 0)
        bursts = [burst(watch, target, longest, options, sent) for _ in range(options.burst)]
    found = trends(watch.samples)
    met = verdicts(found, options.minutes, crowd.counts.wrong, bursts)
    show(fresh, crowd, bursts, met)
    if later := found[LATER]:
        print(f"        {LATER}: {later.percent_an_hour:+.2f} +- {later.error:.2f} % an hour")
    names = ("minutes", "warm_minutes", "callers", "pause", "burst_calls", "burst_inputs", "idle", "workers", "model")
    return {
        "facts": facts(),
        "settings": {name: getattr(options, name) for name in names} | {"longest_input": longest},
        "server": told | {"flags": [flag for flag in flags if flag != str(options.store)]},
        "verdicts": met,
        "trends": {name: line and asdict(line) for name, line in found.items()},
        "fresh": asdict(fresh),
        "bursts": [asdict(one) for one in bursts],
        "sent": crowd.counts.sent,
        "outcomes": crowd.counts.outcomes,
        "samples": [asdict(one) for one in watch.samples],
    }, all(holds is not False for holds in met.values())


def main() -> int:
    """Measure, print, perhaps save; 0 if no target is missed."""
    options = arguments()
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as logs:
            told, fine = run(options, Path(logs))
    except (NotReady, subprocess.SubprocessError) as failure:
        print(f"soak: {failure}", file=sys.stderr)
        return 1
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "soak.json").write_text(json.dumps(told) + "\n", encoding="utf-8")
        soak_plot.draw(told, RESULTS / "soak.png")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

"""An hour of mixed load, and whether the server's memory stays flat; then bursts of its longest inputs.

    python -m loadtest.soak [--minutes 60] [--burst 3] [--workers 1] [--save]

Callers of loadtest.mixed_load send texts, ids and batches over every protocol, invalid and malformed requests, and
disconnect early. The processes' memory is read every few seconds. A line through the samples after the warm-up gives
the growth in an hour; during the warm-up caches and the holes of the heap fill. For anonymous memory, which a leak
would grow, the second half has a line of its own. Each burst is many inputs of the greatest length at once; memory is
read before it, at its peak, and when the server is idle again. This shows leaks, and memory that is not returned, under
this mix. The slope of a run far shorter than an hour is noise and is reported as such. Callers and server share the
cores, so speed is not measured; the numbers in answers are not checked.
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
from loadtest.mixed_load import BUSY, RAW, Caller, Target, Traffic
from loadtest.process_memory import MemoryUse, Trend, memory_use, peak, reset_peak, trend
from loadtest.processes import RESULTS, ROOT, NotReady, end_on_sigterm, free_port, inlay, server, wait_for

MOST_GROWTH = 2.0  # per cent an hour
LEAST_MINUTES = 20  # after the warm-up; a shorter run gets no verdict
WATCHED = ("rss", "private", "anonymous")
SECOND_HALF = "anonymous, second half"
MOST_BURST_RATIO = 1.02  # private memory after the last burst over that after the first
BURST_S = 180


@dataclass(frozen=True)
class Sample:
    """Seconds since traffic began, the phase, requests sent so far, and the server's memory."""

    second: float
    phase: str
    sent: int
    memory: MemoryUse


@dataclass(frozen=True)
class Burst:
    """One burst.

    Attributes:
        before: memory of the idle server before it.
        peak_rss: megabytes, the kernel's own count.
        after: memory when the server was idle again.
        seconds: until all requests were answered.
        outcomes: and their counts.
    """

    before: MemoryUse
    peak_rss: float
    after: MemoryUse
    seconds: float
    outcomes: dict[str, int]


class MemoryRecorder:
    """Reads the memory of one server into a list of samples."""

    def __init__(self, pid: int, every_s: float) -> None:
        self.pid, self.every_s = pid, every_s
        self.begun = time.monotonic()
        self.samples: list[Sample] = []

    def sample(self, phase: str, sent: int) -> MemoryUse:
        """Add one sample and return the memory; raises NotReady if the server has ended."""
        memory = memory_use(self.pid)
        if not memory.rss:
            raise NotReady(f"the server ended {time.monotonic() - self.begun:.0f} s after traffic began")
        self.samples.append(Sample(round(time.monotonic() - self.begun, 2), phase, sent, memory))
        return memory

    def sample_until(self, deadline: float, phase: str, traffic: Traffic) -> None:
        """Add a sample every `every_s` seconds."""
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(self.every_s, left))
            self.sample(phase, traffic.counts.sent)


def soak(recorder: MemoryRecorder, traffic: Traffic, minutes: float, warm_minutes: float) -> None:
    """Send all the traffic, record memory, and print progress once a minute."""
    with traffic.running():
        recorder.sample_until(recorder.begun + warm_minutes * 60, "warm-up", traffic)
        end = recorder.begun + (warm_minutes + minutes) * 60
        while time.monotonic() < end:
            recorder.sample_until(min(end, time.monotonic() + 60), "soak", traffic)
            last = recorder.samples[-1]
            memory = last.memory
            print(
                f"{last.second / 60:6.1f} min  {last.sent:9d} sent  rss {memory.rss:7.1f}  "
                f"private {memory.private:7.1f}  anonymous {memory.anonymous:7.1f} MB  "
                f"{memory.files} files  {memory.threads} threads",
                flush=True,
            )


def burst(recorder: MemoryRecorder, target: Target, longest: int, options: argparse.Namespace, sent: int) -> Burst:
    """Send many requests at once, each of many inputs of the greatest length; refused ones are sent again."""
    before = recorder.sample("idle", sent)
    reset_peak(recorder.pid)
    begun = time.monotonic()
    with ThreadPoolExecutor(options.burst_calls) as pool:
        calls = [
            pool.submit(_send_until_accepted, target, seed, longest, options) for seed in range(options.burst_calls)
        ]
        while not all(call.done() for call in calls):
            time.sleep(0.25)
            recorder.sample("burst", sent)
    outcomes = Counter(outcome for call in calls for outcome in call.result())
    seconds = time.monotonic() - begun
    highest = peak(recorder.pid)
    time.sleep(options.idle)
    return Burst(before, round(highest, 1), recorder.sample("idle", sent), round(seconds, 1), dict(outcomes))


def _send_until_accepted(target: Target, seed: int, longest: int, options: argparse.Namespace) -> list[str]:
    """Send one request of a burst and return all its outcomes; odd seeds request a row for every token."""
    caller = Caller(target, seed)
    outputs = ["sentence_embedding", "last_hidden_state"][seed % 2]
    ids = [workload.ids(caller.rng, longest) for _ in range(options.burst_inputs)]
    outcomes: list[str] = []
    deadline = time.monotonic() + BURST_S
    with contextlib.closing(caller):
        while time.monotonic() < deadline and (not outcomes or outcomes[-1] in BUSY):
            try:
                caller.connection.timeout = BURST_S
                outcomes.append(caller.request("POST", "/embed", {"inputs": ids, "outputs": [outputs]}, RAW))
            except (OSError, http.client.HTTPException) as error:
                outcomes.append(type(error).__name__)
            if outcomes[-1] in BUSY:
                time.sleep(0.5)
    return outcomes


def longest_input(target: Target) -> int:
    """Return the most tokens that the model reads of one input."""
    connection = http.client.HTTPConnection("127.0.0.1", target.http, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", f"/models/{target.model}")
        return int(json.loads(connection.getresponse().read())["max_tokens"])


def trends(samples: list[Sample]) -> dict[str, Trend | None]:
    """Return the lines through each kind of memory after the warm-up, and through anonymous memory's second half."""
    soaked = [one for one in samples if one.phase == "soak"]
    lines = {name: _line(soaked, name) for name in WATCHED}
    return lines | {SECOND_HALF: _line(soaked[len(soaked) // 2 :], "anonymous")}


def _line(samples: list[Sample], name: str) -> Trend | None:
    return trend([one.second for one in samples], [getattr(one.memory, name) for one in samples])


def verdicts(
    lines: dict[str, Trend | None], minutes: float, wrong: dict[str, dict[str, int]], bursts: list[Burst]
) -> dict[str, bool | None]:
    """Return the targets and whether each is met; None: the run was too short."""
    met: dict[str, bool | None] = {}
    for name, line in lines.items():
        if line and name in WATCHED:
            claim = f"{name} grows by {line.percent_an_hour:+.2f} +- {line.error:.2f} % an hour (<= {MOST_GROWTH:g})"
            met[claim] = None if minutes < LEAST_MINUTES else line.percent_an_hour <= MOST_GROWTH
    met[f"{sum(sum(one.values()) for one in wrong.values())} requests had an unexpected outcome (= 0)"] = not wrong
    if len(bursts) > 1:
        ratio = bursts[-1].after.private / bursts[0].after.private
        met[f"private after the last burst is {ratio:.3f} of that after the first (<= {MOST_BURST_RATIO})"] = (
            ratio <= MOST_BURST_RATIO
        )
    return met


def show(fresh: MemoryUse, traffic: Traffic, bursts: list[Burst], met: dict[str, bool | None]) -> None:
    """Print the outcomes, the bursts and the verdicts."""
    print(f"\nfresh, before any request: rss {fresh.rss:.1f} private {fresh.private:.1f} MB")
    for name, outcomes in traffic.counts.outcomes.items():
        print(f"{name:26}", ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items())))
    for one in bursts:
        print(
            f"burst of {one.seconds:.0f} s, {one.outcomes}: rss {one.before.rss:.1f} before, {one.peak_rss:.1f} peak, "
            f"{one.after.rss:.1f} after; private {one.before.private:.1f} before, {one.after.private:.1f} after (MB)"
        )
    for claim, holds in met.items():
        print(f"{'too short' if holds is None else 'met    ' if holds else 'NOT met'} {claim}")
    for name, outcomes in traffic.counts.wrong.items():
        print(f"unexpected: {name}: {outcomes}")


def settings(flags: list[str]) -> dict[str, Any]:
    """Return the server's flags, the INLAY_ variables, and every setting with its default."""
    listed = subprocess.run(inlay("settings"), cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return {
        "flags": flags,
        "variables": {name: value for name, value in os.environ.items() if name.startswith("INLAY_")},
        "defaults": [line for line in listed.stdout.splitlines() if line.startswith("INLAY_")],
    }


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a BERT-like encoder in that store")
    parser.add_argument("--minutes", type=float, default=60, help="of load, after the warm-up; 0: bursts alone")
    parser.add_argument("--warm-minutes", type=float, help="before these; default: a quarter of --minutes, 0.2 to 15")
    parser.add_argument("--callers", type=int, default=8, help="at a time")
    parser.add_argument("--pause", type=float, default=0.1, help="mean seconds between a caller's requests")
    parser.add_argument("--every", type=float, default=5, help="seconds between samples")
    parser.add_argument("--workers", type=int, default=1, help="of the server")
    parser.add_argument("--serve", default="", help='more flags of serve, as in --serve="--max-batch-tokens 256"')
    parser.add_argument("--burst", type=int, default=3, help="bursts at the end, one after the other; 0: none")
    parser.add_argument("--burst-calls", type=int, default=8, help="requests at once in a burst")
    parser.add_argument("--burst-inputs", type=int, default=64, help="inputs of the greatest length in each of these")
    parser.add_argument("--idle", type=float, default=15, help="seconds without traffic before memory is read again")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/soak.json and soak.png")
    options = parser.parse_args()
    if options.warm_minutes is None:
        options.warm_minutes = min(15.0, max(0.2, options.minutes / 4))
    return options


def run(options: argparse.Namespace, logs: Path) -> tuple[dict[str, Any], bool]:
    """Measure and print; return what is saved, and whether no target was missed."""
    target = Target(free_port(), free_port(), options.model)
    flags = ["--port", str(target.http), "--grpc-port", str(target.grpc), "--store", str(options.store)]
    flags += ["--default-model", options.model, "--device", "cpu", "--workers", str(options.workers)]
    flags += ["--log-level", "error", *options.serve.split()]
    server_settings = settings(flags)
    print("serve", *flags, *(f"{name}={value}" for name, value in server_settings["variables"].items()))
    print(*server_settings["defaults"], sep="\n", flush=True)
    log = logs / "service.log"
    with log.open("wb") as output, server(inlay("serve", *flags), output) as process:
        wait_for(process, log, target.http, "/health/ready")
        fresh = memory_use(process.pid)
        recorder = MemoryRecorder(process.pid, options.every)
        traffic = Traffic(target, options.callers, options.pause)
        soak(recorder, traffic, options.minutes, options.warm_minutes)
        sent, longest = traffic.counts.sent, longest_input(target)
        time.sleep(options.idle if options.burst else 0)
        bursts = [burst(recorder, target, longest, options, sent) for _ in range(options.burst)]
    lines = trends(recorder.samples)
    met = verdicts(lines, options.minutes, traffic.counts.wrong, bursts)
    show(fresh, traffic, bursts, met)
    if later := lines[SECOND_HALF]:
        print(f"        {SECOND_HALF}: {later.percent_an_hour:+.2f} +- {later.error:.2f} % an hour")
    names = ("minutes", "warm_minutes", "callers", "pause", "burst_calls", "burst_inputs", "idle", "workers", "model")
    return {
        "facts": facts(),
        "settings": {name: getattr(options, name) for name in names} | {"longest_input": longest},
        "server": server_settings | {"flags": [flag for flag in flags if flag != str(options.store)]},
        "verdicts": met,
        "trends": {name: line and asdict(line) for name, line in lines.items()},
        "fresh": asdict(fresh),
        "bursts": [asdict(one) for one in bursts],
        "sent": traffic.counts.sent,
        "outcomes": traffic.counts.outcomes,
        "samples": [asdict(one) for one in recorder.samples],
    }, all(holds is not False for holds in met.values())


def main() -> int:
    """Measure, print and perhaps save; returns 0 if no target is missed."""
    options = arguments()
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as logs:
            document, all_met = run(options, Path(logs))
    except (NotReady, subprocess.SubprocessError) as failure:
        print(f"soak: {failure}", file=sys.stderr)
        return 1
    if options.save:
        (RESULTS / "soak.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
        soak_plot.draw(document, RESULTS / "soak.png")
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())

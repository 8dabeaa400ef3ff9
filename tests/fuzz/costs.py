"""A fuzzer of costs: `python -m tests.fuzz.costs`, or `make fuzz ARGS="--only costs"`.

Requests go to a server of its own, one or two at a time: within its limits, and as large, deep, long-worded, repeated
and varied as these allow. First those of cost_cases.py, then for `--minutes` those of cost_drawn.py, which draws fields
and encodings from the schemas. Beside them others ask for liveness, small vectors and scores, and read the memory of
the server and its children (cost_probes.py). The server has the settings of a container of 2 GiB, and is killed when it
takes more. A case that breaks a bound is repeated, and counts if it does so each time; one beside which a small request
fails counts at once. `--save` writes costs.md; the exit status counts the cases that broke a bound.
"""

import argparse
import math
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import grpc

from service import settings
from service.settings import Settings
from tests.faults.processes import Running, running
from tests.fuzz.cost_cases import FOUND, Case, cases, ordinary
from tests.fuzz.cost_drawn import drawn
from tests.fuzz.cost_probes import CONTAINER_BYTES, Beside, Watch, memory, peak
from tests.fuzz.operations import write_store

LIVENESS_SECONDS, CALLER_SECONDS, PEAK_BYTES = 0.3, 1.0, 200 << 20
LEFT_BYTES = 60 << 20
LEFT_SECONDS = 30.0  # after which memory is measured that was left behind
REST_SECONDS = 5.0  # after the start, after which the memory at rest is measured
GROUP = 200  # drawn cases after which it is
ATTEMPTS = 4  # of a case that breaks a bound: other processes hold up probes too
ANSWER_SECONDS, READ_BYTES = 60.0, 64 << 20  # of an answer; then the client leaves
CALM_MEMORY_SECONDS = 10.0  # within which a case's memory is given back before the next one begins
CALM_SECONDS = 0.03  # between an answer and the reading of the probes: what is freed after it counts too
SHOWN = 20  # of the cases nearest to a bound
ENDED = "ended"  # the status of a case whose server ended
RESULTS = Path(__file__).with_name("costs.md")
FLAGS = ("--table-cache-bytes", str(1 << 20))  # tables have a setting of their own
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _container_settings() -> Settings:
    """Return the settings that a server has by default in a container of CONTAINER_BYTES."""
    with patch.object(settings, "available_memory", return_value=CONTAINER_BYTES):
        return Settings.model_validate({})


CONTAINER = _container_settings()
VARIABLES = {
    f"INLAY_{name.upper()}": str(getattr(CONTAINER, name))
    for name, field in Settings.model_fields.items()
    if field.default_factory is not None and name != "store"
}
CHILDREN_BYTES = CONTAINER.heavy_memory_bytes + (100 << 20)  # the process for large work has its imports besides


class Outcome(NamedTuple):
    """What one request cost.

    Args:
        status: what answered it.
        processor: seconds of the processor that the event loop's thread took.
        grown: the most memory of the server meanwhile, beyond what it had at rest.
        beside: what others met meanwhile.
    """

    case: Case
    status: str
    processor: float
    grown: int
    beside: Beside

    @property
    def words(self) -> str:
        """The outcome as a line."""
        return (
            f"{self.case.road:45} {self.case.name:55} {self.status:4} liveness {self.beside.liveness:.2f} s, callers "
            f"{self.beside.caller:.2f} s, processor {self.processor:.2f} s, memory {self.grown / 2**20:+.0f} MiB "
            f"and {self.beside.children >> 20} MiB of children {'; '.join(self.beside.failed)}"
        )

    @property
    def broken(self) -> bool:
        """Whether it broke a bound, or the server ended."""
        return self.excess > 1

    @property
    def excess(self) -> float:
        """The largest of its figures, as a multiple of its bound."""
        bounds = (LIVENESS_SECONDS, CALLER_SECONDS, PEAK_BYTES, CHILDREN_BYTES)
        figures = zip((self.beside.liveness, self.beside.caller, self.grown, self.beside.children), bounds, strict=True)
        return (
            math.inf
            if self.status == ENDED or self.beside.failed
            else max([figure / bound for figure, bound in figures])
        )


class Memory(NamedTuple):
    """Memory after the cases of a group, beyond what the process had before the first one, and its peak."""

    group: str
    grown: int
    peak: int

    @property
    def words(self) -> str:
        """The figure as a line."""
        return f"{self.group:45} memory {self.grown / 2**20:+.0f} MiB, {self.peak >> 20} MiB at most"

    @property
    def broken(self) -> bool:
        """Whether more was left behind than allowed."""
        return self.grown > LEFT_BYTES


Group = tuple[str, Iterator[Case]]


class Results(NamedTuple):
    """What was measured of all cases, and how long it took."""

    outcomes: list[Outcome]
    memories: list[Memory]
    seconds: float

    @property
    def broken(self) -> list[Outcome | Memory]:
        """What broke a bound."""
        every: list[Outcome | Memory] = [*self.outcomes, *self.memories]
        return [each for each in every if each.broken]

    @property
    def words(self) -> str:
        """The numbers as a sentence."""
        small = sum([outcome.beside.small for outcome in self.outcomes])
        failed = sum([len(outcome.beside.failed) for outcome in self.outcomes])
        ended = sum([outcome.status == ENDED for outcome in self.outcomes])
        return (
            f"{len(self.outcomes)} requests in {self.seconds:.0f} s, {len(self.broken)} bounds broken; "
            f"{small} small requests beside them, {failed} of these failed; the server ended {ended} times."
        )


class Session:
    """A server, the callers beside it, and connections for the cases."""

    def __init__(self, server: Running) -> None:
        self._server, self._pid = server, server.process.pid
        self._watch = Watch(server.address, server.rpc_address, self._pid)
        self.at_rest = 0
        self._channel = grpc.insecure_channel(server.rpc_address, UNLIMITED)

    def close(self) -> None:
        """End the callers."""
        self._watch.close()
        self._channel.close()

    def tried(self, case: Case) -> Outcome:
        """Return what a case costs: the least of several attempts, if the first breaks a bound."""
        best = self._once(case)
        for _ in range(ATTEMPTS - 1):
            if not best.broken or math.isinf(best.excess) or best.grown > PEAK_BYTES:  # which others do not change
                break
            time.sleep(0.2)
            best = min(best, self._once(case), key=lambda outcome: outcome.excess)
        return best

    def _once(self, case: Case) -> Outcome:
        data, at_rest = case.make(), self._calm()
        before, begun = self._processor(), time.monotonic()
        with ThreadPoolExecutor(case.copies) as threads:
            statuses = list(threads.map(lambda _: self._sent(case, data), range(case.copies)))
        time.sleep(CALM_SECONDS)
        beside = self._watch.beside(begun)
        status = ENDED if self._server.process.poll() is not None else statuses[0]
        processor, grown = max(0.0, self._processor() - before), beside.server - at_rest
        return Outcome(case, status, processor, grown, beside)

    def _calm(self) -> int:
        """Wait until an earlier case has left little behind; return the memory that is no part of the next one."""
        end = time.monotonic() + CALM_MEMORY_SECONDS
        while (left := memory(self._pid)) > self.at_rest + LEFT_BYTES and self.at_rest and time.monotonic() < end:
            time.sleep(0.1)
        return self.at_rest if left <= self.at_rest + LEFT_BYTES else left

    def _sent(self, case: Case, data: bytes) -> str:
        """Send a request and return what answered it."""
        return self._call(case, data) if case.streaming else self._post(data)

    def _processor(self) -> float:
        """Return the seconds that the event loop's thread has run."""
        try:
            return int(Path(f"/proc/{self._pid}/task/{self._pid}/schedstat").read_text().split()[0]) / 1e9
        except OSError:  # it has ended
            return 0.0

    def _post(self, data: bytes) -> str:
        """Send a request and return its answer's status; the client leaves after READ_BYTES."""
        answer = b""
        with (
            suppress(OSError),
            socket.create_connection(self._server.address, timeout=ANSWER_SECONDS) as connection,
        ):
            with suppress(BrokenPipeError, ConnectionResetError):  # it may be refused before it is read
                connection.sendall(data)
            answer, read = connection.recv(1 << 16), 0
            while (part := connection.recv(1 << 20)) and read < READ_BYTES:
                read += len(part)
        return (answer[9:12] or b"none").decode()

    def _call(self, case: Case, data: bytes) -> str:
        assert case.streaming is not None
        kind = "_".join(["stream" if each else "unary" for each in case.streaming])
        method = getattr(self._channel, kind)(case.road)
        try:
            answer = method(iter([data]) if case.streaming[0] else data, timeout=ANSWER_SECONDS)
            read = 0
            if case.streaming[1]:
                for part in answer:
                    read += len(part)
                    if read > READ_BYTES:
                        answer.cancel()
                        break
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def peak(self) -> int:
        """Return the most memory that the server ever had, its mapped files included."""
        return peak(self._pid)

    def settled(self, most: int, within: float = LEFT_SECONDS) -> int:
        """Return the memory some seconds from now, or as soon as it is at most `most`."""
        self._watch.pause()
        end = time.monotonic() + within
        while (left := memory(self._pid)) > most and time.monotonic() < end:
            time.sleep(0.5)
        self._watch.pause(False)
        return left


@contextmanager
def session(folder: Path, store: Path) -> Iterator[Session]:
    """Start a server that serves tiny models, use all of it once, and measure its memory at rest."""
    with running(store, folder / "log", *FLAGS, variables=VARIABLES) as server, closing(Session(server)) as opened:
        for case in ordinary():  # imports what is imported once
            opened.tried(case)
        opened.at_rest = opened.settled(0, REST_SECONDS)
        yield opened


def measured(groups: Iterable[Group]) -> Iterator[Outcome | Memory]:
    """Yield what each case costs, and the memory after each group; a server that ended is started again."""
    with tempfile.TemporaryDirectory(prefix="inlay-costs-") as name:
        folder, left = Path(name), iter(groups)
        store = write_store(folder)
        while (first := next(left, None)) is not None:
            left = chain([first], left)
            with session(folder, store) as opened:
                for group, members in left:
                    outcome = None
                    for case in members:
                        yield (outcome := opened.tried(case))
                        if outcome.status == ENDED:
                            left = chain([(group, members)], left)
                            break
                    if outcome and outcome.status == ENDED:
                        break
                    yield Memory(group, opened.settled(opened.at_rest + LEFT_BYTES) - opened.at_rest, opened.peak())


def group_of(case: Case) -> str:
    """Return the protocol of a case, whose memory is measured together."""
    return f"gRPC {case.road.split('/')[1].split('.')[0]}" if case.streaming else "HTTP"


def in_groups(chosen: Sequence[Case]) -> list[Group]:
    """Return cases by protocol."""
    return [(group, iter(list(members))) for group, members in groupby(chosen, group_of)]


def in_minutes(minutes: float, seed: int) -> Iterator[Group]:
    """Yield drawn cases in groups until the time is over."""
    end, seeds = time.monotonic() + 60 * minutes, count(seed)
    while time.monotonic() < end:
        members = (drawn(next(seeds)) for _ in range(GROUP) if time.monotonic() < end)
        yield "drawn", members


def run(groups: Iterable[Group], say: Callable[[str], None]) -> Results:
    """Try cases and say which broke a bound."""
    results, begun = Results([], [], 0.0), time.monotonic()
    for found in measured(groups):
        if isinstance(found, Memory):
            results.memories.append(found)
        else:
            results.outcomes.append(found)
        if found.broken:
            say(f"{found.words} BROKEN")
    return results._replace(seconds=time.monotonic() - begun)


def row(part: int) -> dict[str, Any]:
    """Return what the results of all fuzzers show of this one."""
    results = run(in_groups(cases(part)), print)
    return {
        "engine": "sizes and shapes",
        "inputs": len(results.outcomes),
        "taken": sum([outcome.status in ("200", "OK") for outcome in results.outcomes]),
        "seconds": results.seconds,
        "fault": "\n".join([each.words for each in results.broken]) or None,
    }


def main() -> int:
    """Return how many bounds were broken."""
    parser = argparse.ArgumentParser(description="Look for requests that cost others too much.")
    parser.add_argument("--only", default="", help="roads whose names hold this")
    parser.add_argument("--case", default="", help="cases whose names hold this")
    parser.add_argument("--part", type=int, default=1, help="one in so many cases of each road [1]")
    parser.add_argument("--minutes", type=float, default=0, help="of drawn cases, in place of the listed ones")
    parser.add_argument("--seed", type=int, default=1, help="of the first drawn case [1]")
    parser.add_argument("--count", type=int, default=0, help="drawn cases, in place of the listed ones")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="drawn cases by number")
    parser.add_argument("--found", action="store_true", help="requests that once cost too much, and --count drawn ones")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    results = run(groups(options), lambda words: print(words, flush=True))
    for left in results.memories:
        print(left.words)
    print(f"{results.words} Nearest:")
    for outcome in sorted(results.outcomes, key=lambda outcome: -outcome.excess)[:SHOWN]:
        print(outcome.words)
    if options.save:
        RESULTS.write_text(table(results))
    return len(results.broken)


def groups(options: argparse.Namespace) -> Iterable[Group]:
    """Return the cases that the command line names."""
    seeds = options.seeds or range(options.seed, options.seed + options.count)
    if options.found:
        chosen = [case for case in cases() if case.name.startswith(FOUND)]
        return [*in_groups(chosen), ("drawn", map(drawn, seeds))]
    if options.minutes:
        return in_minutes(options.minutes, options.seed)
    if seeds:
        return [("drawn", map(drawn, seeds))]
    every = cases(options.part)
    return in_groups([case for case in every if options.only in case.road and options.case in case.name])


def table(results: Results) -> str:
    """Return the results as a Markdown document."""
    lines = [*_heading(results), "", "| group | memory left |", "| --- | ---: |"]
    lines += [f"| {each.group} | {each.grown / 2**20:+.0f} MiB |" for each in results.memories]
    lines += [
        "",
        "| road | cases | liveness | small requests | processor | memory | of children | the case nearest to a bound |",
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    by_road = sorted(results.outcomes, key=lambda outcome: outcome.case.road)
    for road, grouped in groupby(by_road, lambda outcome: outcome.case.road):
        members = list(grouped)
        nearest = max(members, key=lambda outcome: outcome.excess)
        costs = zip(*[(each.beside.liveness, each.beside.caller, each.processor) for each in members], strict=True)
        figures = " | ".join([f"{max(each):.2f} s" for each in costs])
        grown = max([each.grown for each in members]) / 2**20
        children = max([each.beside.children for each in members]) >> 20
        sizes = f"{grown:+.0f} MiB | {children} MiB"
        lines.append(f"| `{road}` | {len(members)} | {figures} | {sizes} | {nearest.case.name} |")
    return "\n".join(lines) + "\n"


def _heading(results: Results) -> list[str]:
    load = ", ".join([f"{each:.1f}" for each in os.getloadavg()])
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    return [
        "# Costs",
        "",
        f"{datetime.now(UTC).date().isoformat()}, {machine}, load {load} at the end; written by `--save`.",
        results.words,
        "",
        f"Bounds, while one request is served: {LIVENESS_SECONDS:g} s for an answer to a liveness probe over HTTP or",
        f"gRPC, {CALLER_SECONDS:g} s for one to a small request, {PEAK_BYTES >> 20} MiB of the server beyond what",
        f"it had at rest, {CHILDREN_BYTES >> 20} MiB of its heavy process; {LEFT_BYTES >> 20} MiB more than",
        f"at rest {LEFT_SECONDS:g} s after the last case of a group, read as soon as it is within. At rest means after",
        "one ordinary request of each road: the libraries that draw pictures and write ONNX files are imported then,",
        "and stay. A row has the longest answers beside all cases of a road, and the most time of the processor that",
        "the event loop's thread took for one, small requests included.",
        f"The server ran with `{' '.join(FLAGS)}` and what a container of {CONTAINER_BYTES >> 30} GiB has by default.",
    ]


if __name__ == "__main__":
    sys.exit(main())

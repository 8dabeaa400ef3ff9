"""A fuzzer of costs: `python -m tests.fuzz.costs`, or `make fuzz ARGS="--only costs"`.

One request after the other goes to a server of its own: within its limits, and as large, deep, long-worded, repeated
and varied as these allow. Beside it others ask for liveness and for small vectors (cost_probes.py). A case that holds
them up for longer than a bound is repeated, and counts if it does so each time; memory is measured after each group.
`--save` writes costs.md; the exit status counts the cases that broke a bound.
"""

import argparse
import os
import platform
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from tests.faults.processes import Running, running
from tests.fuzz.cost_cases import Case, cases, ordinary
from tests.fuzz.cost_probes import CALLER, LIVENESS, Watch
from tests.fuzz.operations import write_store

LIVENESS_SECONDS, CALLER_SECONDS, MEMORY_BYTES = 0.3, 1.0, 60 << 20
MEMORY_SECONDS = 30.0  # after which memory is measured
ATTEMPTS = 4  # of a case that breaks a bound: other processes hold up probes too
ANSWER_SECONDS, READ_BYTES = 60.0, 64 << 20  # of an answer; then the client leaves
CALM_SECONDS = 0.03  # between an answer and the reading of the probes: what is freed after it counts too
SHOWN = 20  # of the slowest cases
RESULTS = Path(__file__).with_name("costs.md")
FLAGS = ("--table-cache-bytes", str(1 << 20))  # tables are kept within a setting of their own
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Outcome(NamedTuple):
    """What one request cost.

    Args:
        status: what answered it.
        liveness: the longest answer to a probe meanwhile, in seconds.
        caller: the longest answer to a small request meanwhile.
        processor: seconds of the processor that the event loop's thread took.
    """

    case: Case
    status: str
    liveness: float
    caller: float
    processor: float

    @property
    def words(self) -> str:
        """The outcome as a line."""
        return (
            f"{self.case.road:45} {self.case.name:55} {self.status:4} liveness {self.liveness:.2f} s, "
            f"callers {self.caller:.2f} s, processor {self.processor:.2f} s"
        )

    @property
    def broken(self) -> bool:
        """Whether it held up others for longer than a bound."""
        return self.liveness > LIVENESS_SECONDS or self.caller > CALLER_SECONDS


class Memory(NamedTuple):
    """Memory after the cases of a group, beyond what the process had before the first one."""

    group: str
    grown: int

    @property
    def words(self) -> str:
        """The figure as a line."""
        return f"{self.group:45} memory {self.grown / 2**20:+.0f} MiB"

    @property
    def broken(self) -> bool:
        """Whether more was left behind than allowed."""
        return self.grown > MEMORY_BYTES


class Results(NamedTuple):
    """What was measured of all cases, and how long it took."""

    outcomes: list[Outcome]
    memories: list[Memory]
    seconds: float

    @property
    def broken(self) -> list[Outcome | Memory]:
        """What broke a bound."""
        return [each for each in (*self.outcomes, *self.memories) if each.broken]


class Session:
    """A server, the callers beside it, and connections for the cases."""

    def __init__(self, server: Running) -> None:
        self._server, self._pid = server, server.process.pid
        self._watch = Watch(server.address, server.rpc_address)
        self._channel = grpc.insecure_channel(server.rpc_address, UNLIMITED)

    def close(self) -> None:
        """End the callers."""
        self._watch.close()
        self._channel.close()

    def tried(self, case: Case) -> Outcome:
        """Return what a case costs: the least of several attempts, if the first breaks a bound."""
        best = self._once(case)
        for _ in range(ATTEMPTS - 1):
            if not best.broken:
                break
            time.sleep(0.2)
            again = self._once(case)
            best = min(best, again, key=lambda outcome: max(outcome.liveness, outcome.caller / 3))
        return best

    def _once(self, case: Case) -> Outcome:
        data, before, begun = case.make(), self._processor(), time.monotonic()
        status = self._call(case, data) if case.streaming else self._post(data)
        time.sleep(CALM_SECONDS)
        slowest = self._watch.slowest(begun)
        liveness, caller = (max([slowest[name] for name in names]) for names in (LIVENESS, CALLER))
        return Outcome(case, status, liveness, caller, self._processor() - before)

    def _processor(self) -> float:
        """Return the seconds that the event loop's thread has run."""
        return int(Path(f"/proc/{self._pid}/task/{self._pid}/schedstat").read_text().split()[0]) / 1e9

    def _post(self, data: bytes) -> str:
        """Send a request and return its answer's status; the client leaves after READ_BYTES."""
        with socket.create_connection(self._server.address, timeout=ANSWER_SECONDS) as connection:
            answer = b""
            try:
                with suppress(BrokenPipeError, ConnectionResetError):  # it may be refused before it is read
                    connection.sendall(data)
                answer, read = connection.recv(1 << 16), 0
                while (part := connection.recv(1 << 20)) and read < READ_BYTES:
                    read += len(part)
            except (TimeoutError, ConnectionResetError):
                pass
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

    def memory(self) -> int:
        """Return the process's anonymous memory, in bytes."""
        rollup = Path(f"/proc/{self._pid}/smaps_rollup").read_text()
        return 1024 * int(re.search(r"Anonymous: +(\d+)", rollup)[1])  # type: ignore[index]

    def settled(self, most: int) -> int:
        """Return the memory MEMORY_SECONDS from now, or as soon as it is at most `most`."""
        self._watch.pause()
        end = time.monotonic() + MEMORY_SECONDS
        while (memory := self.memory()) > most and time.monotonic() < end:
            time.sleep(0.5)
        self._watch.pause(False)
        return memory


def measured(chosen: Sequence[Case]) -> Iterator[Outcome | Memory]:
    """Yield what each case costs, and the memory after each group, of a server that serves tiny models."""
    with tempfile.TemporaryDirectory(prefix="inlay-costs-") as name:
        folder = Path(name)
        with running(write_store(folder), folder / "log", *FLAGS) as server:
            session = Session(server)
            try:
                for case in ordinary():  # imports what is imported once
                    session.tried(case)
                first = session.settled(0)
                for group, members in groupby(chosen, group_of):
                    for case in members:
                        yield session.tried(case)
                    yield Memory(group, session.settled(first + MEMORY_BYTES) - first)
            finally:
                session.close()


def group_of(case: Case) -> str:
    """Return the protocol of a case, whose memory is measured together."""
    return f"gRPC {case.road.split('/')[1].split('.')[0]}" if case.streaming else "HTTP"


def run(chosen: Sequence[Case], say: Callable[[str], None]) -> Results:
    """Try cases and say which broke a bound."""
    results, begun = Results([], [], 0.0), time.monotonic()
    for found in measured(chosen):
        if isinstance(found, Memory):
            results.memories.append(found)
        else:
            results.outcomes.append(found)
        if found.broken:
            say(f"{found.words} BROKEN")
    return results._replace(seconds=time.monotonic() - begun)


def row(part: int) -> dict[str, Any]:
    """Return what the results of all fuzzers show of this one."""
    results = run(cases(part), print)
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
    parser.add_argument("--every", action="store_true", help="every shape in every place; hours")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    every = cases(options.part, every=options.every)
    chosen = [case for case in every if options.only in case.road and options.case in case.name]
    results = run(chosen, lambda words: print(words, flush=True))
    for memory in results.memories:
        print(memory.words)
    print(f"{len(results.outcomes)} requests in {results.seconds:.0f} s; {len(results.broken)} bounds broken. Slowest:")
    for outcome in sorted(results.outcomes, key=lambda outcome: -outcome.liveness)[:SHOWN]:
        print(outcome.words)
    if options.save:
        RESULTS.write_text(table(results))
    return len(results.broken)


def table(results: Results) -> str:
    """Return the results as a Markdown document."""
    lines = [*_heading(results), "", "| group | memory left |", "| --- | ---: |"]
    lines += [f"| {each.group} | {each.grown / 2**20:+.0f} MiB |" for each in results.memories]
    lines += ["", "| road | cases | liveness | small requests | processor | slowest case |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | --- |")
    for road, members in groupby(results.outcomes, lambda outcome: outcome.case.road):
        own = list(members)
        slowest = max(own, key=lambda outcome: outcome.liveness)
        costs = zip(*[(each.liveness, each.caller, each.processor) for each in own], strict=True)
        figures = " | ".join([f"{max(each):.2f} s" for each in costs])
        lines.append(f"| `{road}` | {len(own)} | {figures} | {slowest.case.name} |")
    return "\n".join(lines) + "\n"


def _heading(results: Results) -> list[str]:
    load = ", ".join([f"{each:.1f}" for each in os.getloadavg()])
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    return [
        "# Costs",
        "",
        f"{datetime.now(UTC).date().isoformat()}, {machine}, load {load} at the end; written by `--save`.",
        f"{len(results.outcomes)} requests in {results.seconds:.0f} s, {len(results.broken)} bounds broken.",
        "",
        f"Bounds, while one request is served: {LIVENESS_SECONDS:g} s for an answer to a liveness probe over HTTP or",
        f"gRPC, {CALLER_SECONDS:g} s for one to a small request; {MEMORY_BYTES >> 20} MiB more than at first",
        f"{MEMORY_SECONDS:g} s after the last case of a group, read as soon as it is within that. At first means after",
        "one ordinary request of each road: the libraries that draw pictures and write ONNX files are imported then,",
        "and stay. A row has the longest answers beside all cases of a road, and the most time of the processor that",
        "the event loop's thread took for one, small requests included.",
        f"The server ran with `{' '.join(FLAGS)}`.",
    ]


if __name__ == "__main__":
    sys.exit(main())

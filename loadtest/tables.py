"""How fast positional tables leave, and what a large one costs in memory.

    python -m loadtest.tables [--save] [--store DIR --model NAME] [--rounds 5] [--no-pin]

A table of 131072 x 128 from the service's cache against a raw ASGI app that holds the very same bytes, one request at a
time in interleaved rounds; then a table of 2 GB, larger than any cache, read to its end while the kernel notes the
server's largest memory. Where there are two cores the server has one. Linux only. Judges no number in the tables.
"""

import argparse
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest import contestants
from loadtest.contestants import UVICORN, Plan, Running
from loadtest.facts import facts
from loadtest.processes import ROOT, Cores, NotReady, end_on_sigterm, running_on, split_cores

CACHED = "/positions/rope?head_dim=128&length=131072&table={table}&format=raw"
STREAMED = "/positions/rope?head_dim=128&length=4194304&format=raw"  # 2 x 4194304 x 64 x 4 bytes: 2^31
CACHED_BYTES = {"single": 2 * 131072 * 64 * 4, "duplicated": 2 * 131072 * 128 * 4}
STREAMED_BYTES = 2**31
RATIO, PEAK_MB = 0.9, 200.0
READ_BYTES = 1 << 20
MB = 1e6


@dataclass(frozen=True)
class Ratio:
    """Megabytes a second of the service and of the floor, medians of the rounds, and the median of their ratios."""

    table: str
    bytes: int
    inlay: float
    floor: float
    ratio: float


@dataclass(frozen=True)
class Stream:
    """One large table: the server's largest memory before and after, in megabytes, and how fast it came."""

    bytes: int
    before: float
    peak: float
    per_second: float


class BadAnswer(Exception):
    """An answer that is not the table."""


def fetch(port: int, path: str, into: Path | None = None) -> tuple[int, float]:
    """Bytes of the body of one GET, and seconds from the first byte sent to the last received."""
    buffer = bytearray(READ_BYTES)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        file = stack.enter_context(into.open("wb")) if into else None
        begun = time.perf_counter()
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            if not (part := connection.recv(READ_BYTES)):
                raise BadAnswer(f"{path}: the connection ended within the head")
            head += part
        head, _, body = head.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise BadAnswer(f"{path}: {head.splitlines()[0].decode()} {body[:300].decode(errors='replace')}")
        received = len(body)
        if file:
            file.write(body)
        while count := connection.recv_into(buffer):
            received += count
            if file:
                file.write(memoryview(buffer)[:count])
        return received, time.perf_counter() - begun


def rate(running: Running, path: str, size: int) -> float:
    """Megabytes a second of one whole answer; raises BadAnswer for any other size."""
    received, seconds = fetch(running.ports["http"], path)
    if received != size:
        raise BadAnswer(f"{running.plan.name} sent {received} bytes of {size}")
    return received / seconds / MB


def peak_mb(pid: int) -> float:
    """The largest resident memory a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / MB
    raise BadAnswer("the kernel tells no VmHWM")


def against_the_floor(inlay: Running, table: str, folder: Path, cores: Cores, client: Cores, rounds: int) -> Ratio:
    """One cached table, the service and the floor in turn."""
    path, size, file = CACHED.format(table=table), CACHED_BYTES[table], folder / f"{table}.bin"
    fetch(inlay.ports["http"], path, file)
    command = ("-m", "uvicorn", "loadtest.same_bytes:app", "--port", "{http}", *UVICORN)
    plan = Plan(f"same bytes {table}", ("http",), command, env={"SAME_BYTES": str(file)})
    with contestants.started(plan, folder, cores) as floor, running_on(client):
        pairs = [(rate(inlay, path, size), rate(floor, "/", size)) for _ in range(rounds + 1)][1:]  # the first warms
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Ratio(table, size, ours, theirs, statistics.median(one / other for one, other in pairs))


def streamed(inlay: Running, client: Cores) -> Stream:
    """The large table, from a process that has served nothing yet."""
    before = peak_mb(inlay.pid)
    with running_on(client):
        speed = rate(inlay, STREAMED, STREAMED_BYTES)
    return Stream(STREAMED_BYTES, before, peak_mb(inlay.pid), speed)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.tables", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a model in that store")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; figures are their medians")
    parser.add_argument("--no-pin", action="store_true", help="let servers and client share all cores")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/tables.json")
    return parser.parse_args()


def show(ratios: list[Ratio], stream: Stream) -> None:
    """The figures on the screen."""
    for each in ratios:
        met = "met" if each.ratio >= RATIO else "missed"
        print(
            f"131072 x 128, {each.table}, {each.bytes / MB:.0f} MB from the cache: {each.inlay:.0f} MB/s, "
            f"the same bytes from memory {each.floor:.0f} MB/s: {each.ratio:.2f} (target {RATIO}: {met})"
        )
    met = "met" if stream.peak < PEAK_MB else "missed"
    print(
        f"{stream.bytes / MB:.0f} MB streamed at {stream.per_second:.0f} MB/s; largest memory of the server "
        f"{stream.before:.0f} MB before, {stream.peak:.0f} MB after (target below {PEAK_MB:.0f} MB: {met})"
    )


def main() -> int:
    """Run, print, perhaps save; 0 whether or not the targets are met, 1 if something could not be measured."""
    options = arguments()
    end_on_sigterm()
    server_cores, client_cores = split_cores(pin=not options.no_pin)
    plan = contestants.inlay(options.store, options.model)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with contestants.started(plan, folder, server_cores) as inlay:
                stream = streamed(inlay, client_cores)
                ratios = [
                    against_the_floor(inlay, table, folder, server_cores, client_cores, options.rounds)
                    for table in CACHED_BYTES
                ]
    except (NotReady, BadAnswer) as failure:
        print(f"tables: {failure}", file=sys.stderr)
        return 1
    show(ratios, stream)
    if options.save:
        figures = {"facts": facts(), "cached": [asdict(each) for each in ratios], "streamed": asdict(stream)}
        target = Path(__file__).parent / "results/tables.json"
        target.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

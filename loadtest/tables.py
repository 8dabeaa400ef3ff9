"""How fast positional tables are sent, and how much memory a large one costs.

    python -m loadtest.tables [--save] [--store DIR --model NAME] [--rounds 5] [--no-pin]

First a table of 2 GB, larger than the cache, is read to its end while the kernel records the server's peak memory. Then
a table of 131072 x 128 comes from the service's cache, beside a raw ASGI app that holds the same bytes, one request at
a time in interleaved rounds. Where there are two cores the server has one. Linux only. The tables' numbers are not
checked.
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

from loadtest import servers
from loadtest.facts import facts
from loadtest.processes import RESULTS, ROOT, Cores, NotReady, end_on_sigterm, running_on, split_cores
from loadtest.servers import RunningServer

CACHED = "/positions/rope?head_dim=128&length=131072&table={table}&format=raw"
STREAMED = "/positions/rope?head_dim=128&length=4194304&format=raw"  # 2 x 4194304 x 64 x 4 bytes: 2^31
CACHED_BYTES = {"single": 2 * 131072 * 64 * 4, "duplicated": 2 * 131072 * 128 * 4}
STREAMED_BYTES = 2**31
LEAST_RATIO, MOST_PEAK_MB = 0.9, 200.0
READ_BYTES = 1 << 20
MB = 1e6


@dataclass(frozen=True)
class CachedTable:
    """One cached table: megabytes a second of Inlay and of the constant response, medians, and their median ratio."""

    table: str
    bytes: int
    inlay: float
    constant: float
    ratio: float


@dataclass(frozen=True)
class StreamedTable:
    """One large table: the server's peak memory before and after in megabytes, and megabytes a second."""

    bytes: int
    before: float
    peak: float
    per_second: float


class BadAnswer(Exception):
    """A response is not the table."""


def fetch(port: int, path: str, into: Path | None = None) -> tuple[int, float]:
    """Send one GET and read the response.

    Args:
        port: of the server.
        path: with its query.
        into: a file that receives the body.

    Returns:
        Bytes of the body, and seconds from the first byte sent to the last received.

    Raises:
        BadAnswer: the status is not 200.
    """
    buffer = bytearray(READ_BYTES)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        file = stack.enter_context(into.open("wb")) if into else None
        begun = time.perf_counter()
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        body = _after_head(connection, path)
        received = len(body)
        if file:
            file.write(body)
        while count := connection.recv_into(buffer):
            received += count
            if file:
                file.write(memoryview(buffer)[:count])
        return received, time.perf_counter() - begun


def _after_head(connection: socket.socket, path: str) -> bytes:
    """Read status line and headers; return what of the body came with them."""
    head = b""
    while b"\r\n\r\n" not in head:
        if not (part := connection.recv(READ_BYTES)):
            raise BadAnswer(f"{path}: the connection ended within the headers")
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise BadAnswer(f"{path}: {head.splitlines()[0].decode()} {body[:300].decode(errors='replace')}")
    return body


def speed(running: RunningServer, path: str, size: int) -> float:
    """Return the megabytes a second of one whole response; raises BadAnswer if it is not `size` bytes."""
    received, seconds = fetch(running.ports["http"], path)
    if received != size:
        raise BadAnswer(f"{running.spec.name} sent {received} bytes of {size}")
    return received / seconds / MB


def peak_mb(pid: int) -> float:
    """Return the largest resident memory that a process has had, in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / MB
    raise BadAnswer("the kernel gives no VmHWM")


def measure_cached(
    inlay: RunningServer, table: str, folder: Path, cores: tuple[Cores, Cores], rounds: int
) -> CachedTable:
    """Measure one cached table, Inlay and a constant response in turn.

    Args:
        inlay: the running service.
        table: "single" or "duplicated".
        folder: for the table's bytes and logs.
        cores: of the servers and of this client.
        rounds: that count; one more before them warms up.
    """
    path, size, file = CACHED.format(table=table), CACHED_BYTES[table], folder / f"{table}.bin"
    fetch(inlay.ports["http"], path, file)
    spec = servers.constant_file(f"constant {table}", file)
    with servers.started(spec, folder, cores[0]) as constant, running_on(cores[1]):
        pairs = [(speed(inlay, path, size), speed(constant, "/file", size)) for _ in range(rounds + 1)][1:]
    first, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    return CachedTable(table, size, first, other, statistics.median(one / two for one, two in pairs))


def measure_streamed(inlay: RunningServer, client: Cores) -> StreamedTable:
    """Read the large table from a process that has served nothing yet."""
    before = peak_mb(inlay.pid)
    with running_on(client):
        per_second = speed(inlay, STREAMED, STREAMED_BYTES)
    return StreamedTable(STREAMED_BYTES, before, peak_mb(inlay.pid), per_second)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.tables", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a model in that store")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; figures are their medians")
    parser.add_argument("--no-pin", action="store_true", help="let servers and client share all cores")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/tables.json")
    return parser.parse_args()


def show(cached: list[CachedTable], streamed: StreamedTable) -> None:
    """Print the figures."""
    for measured in cached:
        met = "met" if measured.ratio >= LEAST_RATIO else "missed"
        print(
            f"131072 x 128, {measured.table}, {measured.bytes / MB:.0f} MB from the cache: {measured.inlay:.0f} MB/s, "
            f"constant response {measured.constant:.0f} MB/s: {measured.ratio:.2f} (target {LEAST_RATIO}: {met})"
        )
    met = "met" if streamed.peak < MOST_PEAK_MB else "missed"
    print(
        f"{streamed.bytes / MB:.0f} MB streamed at {streamed.per_second:.0f} MB/s; peak memory of the server "
        f"{streamed.before:.0f} MB before, {streamed.peak:.0f} MB after (target below {MOST_PEAK_MB:.0f} MB: {met})"
    )


def main() -> int:
    """Run, print and perhaps save; returns 1 if something could not be measured."""
    options = arguments()
    end_on_sigterm()
    cores = split_cores(pin=not options.no_pin)
    spec = servers.inlay_server(options.store, options.model, servers.ONE_CORE)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with servers.started(spec, folder, cores[0]) as inlay:
                streamed = measure_streamed(inlay, cores[1])
                cached = [measure_cached(inlay, table, folder, cores, options.rounds) for table in CACHED_BYTES]
    except (NotReady, BadAnswer) as failure:
        print(f"tables: {failure}", file=sys.stderr)
        return 1
    show(cached, streamed)
    if options.save:
        figures = {"facts": facts(), "cached": [asdict(rate) for rate in cached], "streamed": asdict(streamed)}
        (RESULTS / "tables.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Starting, pinning, awaiting and ending the processes of a measurement, and what they cost. Measures no request."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
Cores = frozenset[int]


class NotReady(Exception):
    """A server that ended or stayed silent; the message holds the end of what it wrote."""


def free_port() -> int:
    """A loopback TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split_cores(pin: bool) -> tuple[Cores, Cores]:
    """Cores for the server under load and for its load generator: one each where there are two or more to share."""
    cores = sorted(os.sched_getaffinity(0))
    if not pin or len(cores) < 2:
        return frozenset(cores), frozenset(cores)
    return frozenset(cores[:1]), frozenset(cores[1:2])


@contextlib.contextmanager
def running_on(cores: Cores) -> Iterator[None]:
    """Processes started inside inherit `cores`; this one returns to its own."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


@contextlib.contextmanager
def server(
    command: Sequence[str], log: IO[bytes], cores: Cores | None = None, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A running process of the checkout's root; SIGTERM at the end, SIGKILL ten seconds later."""
    with running_on(cores or frozenset(os.sched_getaffinity(0))):
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **(env or {})})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def python(*arguments: str) -> list[str]:
    """The command that runs this interpreter with `arguments`."""
    return [sys.executable, *arguments]


def wait_for(process: subprocess.Popen[bytes], log: Path, port: int, path: str | None, within_s: float = 60) -> float:
    """Seconds until `port` answers GET `path` with 200, or accepts a connection where path is None; raises NotReady."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < within_s:
        if process.poll() is not None:
            raise NotReady(f"{log.stem} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        if _answers(port, path):
            return time.perf_counter() - begun
        time.sleep(0.005)
    raise NotReady(f"{log.stem} was not ready within {within_s:.0f} s:\n{log.read_text()[-2000:]}")


def _answers(port: int, path: str | None) -> bool:
    try:
        if path is None:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def family(pid: int) -> list[int]:
    """`pid` and all its living descendants, parents first."""
    parents = {int(stat.parent.name): _fields(stat)[1] for stat in Path("/proc").glob("[0-9]*/stat") if _fields(stat)}
    found = [pid]
    for ancestor in found:
        found.extend(child for child, parent in parents.items() if parent == str(ancestor))
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time that `pid` and its descendants have used, user and kernel, in steps of one clock tick."""
    # utime and stime are fields 14 and 15 of stat, that is 11 and 12 after the command's closing bracket.
    fields = [_fields(Path(f"/proc/{member}/stat")) for member in family(pid)]
    return sum(int(field[11]) + int(field[12]) for field in fields if field) / TICKS


def _fields(stat: Path) -> list[str]:
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return []


def end_on_sigterm() -> None:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that no server outlives its measurement."""

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, leave)

"""Start, pin, wait for and end the processes of a measurement, and read their processor time."""

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
RESULTS = ROOT / "loadtest/results"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
Cores = frozenset[int]


class NotReady(Exception):
    """A server ended early or did not answer in time; the message holds the end of its log."""


def python(*arguments: str) -> list[str]:
    """Return the command that runs this interpreter with `arguments`."""
    return [sys.executable, *arguments]


def inlay(command: str, *arguments: str) -> list[str]:
    """Return the command line of one of Inlay's own commands, for example `inlay("serve", "--port", "0")`."""
    return [str(Path(sys.executable).with_name("inlay")), command, *arguments]


def free_port() -> int:
    """Return a loopback TCP port on which no process listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split_cores(pin: bool) -> tuple[Cores, Cores]:
    """Return the cores for the server and for its load generator.

    Args:
        pin: give each side one core of its own where there are two or more; otherwise both share all cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not pin or len(cores) < 2:
        return frozenset(cores), frozenset(cores)
    return frozenset(cores[:1]), frozenset(cores[1:2])


@contextlib.contextmanager
def running_on(cores: Cores) -> Iterator[None]:
    """Let processes that are started inside inherit `cores`; this process returns to its own afterwards."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def server(
    command: Sequence[str], log: IO[bytes], cores: Cores | None = None, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in the root of the checkout; end it with SIGTERM, and with SIGKILL ten seconds later.

    Args:
        command: program and arguments.
        log: receives standard output and standard error.
        cores: the cores it may use; None: those of this process.
        env: variables added to the environment.
    """
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


def wait_for(process: subprocess.Popen[bytes], log: Path, port: int, path: str | None, within_s: float = 60) -> float:
    """Wait until a server is ready and return the seconds that took.

    Args:
        process: the server.
        log: the file that it writes to, quoted in the error.
        port: its loopback port.
        path: it is ready when GET `path` gives 200; None: when the port accepts a connection.
        within_s: the longest wait in seconds.

    Raises:
        NotReady: the process ended, or the time ran out.
    """
    begun = time.perf_counter()
    while time.perf_counter() - begun < within_s:
        if process.poll() is not None:
            raise NotReady(f"{log.stem} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        if _is_ready(port, path):
            return time.perf_counter() - begun
        time.sleep(0.005)
    raise NotReady(f"{log.stem} was not ready within {within_s:.0f} s:\n{log.read_text()[-2000:]}")


def _is_ready(port: int, path: str | None) -> bool:
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


def process_tree(pid: int) -> list[int]:
    """Return `pid` and all its living descendants, parents first."""
    parents = {int(stat.parent.name): _fields(stat)[1] for stat in Path("/proc").glob("[0-9]*/stat") if _fields(stat)}
    tree = [pid]
    for ancestor in tree:
        tree.extend(child for child, parent in parents.items() if parent == str(ancestor))
    return tree


def cpu_seconds(pid: int) -> float:
    """Return the processor time that `pid` and its descendants have used, user and kernel, in steps of one tick."""
    # utime and stime are fields 14 and 15 of stat, which are 11 and 12 after the command's closing bracket.
    fields = [_fields(Path(f"/proc/{member}/stat")) for member in process_tree(pid)]
    return sum(int(field[11]) + int(field[12]) for field in fields if field) / TICKS_PER_SECOND


def _fields(stat: Path) -> list[str]:
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:  # the process has ended
        return []


def end_on_sigterm() -> None:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that no server outlives its measurement."""

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, leave)

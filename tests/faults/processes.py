"""The service as real processes that are about to meet a fault, and what /proc, /metrics and its log say of it."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60
MEDDLING = Path(__file__).with_name("meddling.py")
MIB = 1024 * 1024
Found = TypeVar("Found")


def until(look: Callable[[], Found], what: str, seconds: float = PATIENCE_SECONDS) -> Found:
    """The first true thing that `look` sees; fails after `seconds`."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        if result := look():
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


@dataclass(frozen=True)
class Running:
    """A service of its own processes: where it answers, and where its log is."""

    process: "subprocess.Popen[str]"
    url: str
    rpc_address: str
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        parsed = httpx.URL(self.url)
        assert parsed.port
        return parsed.host, parsed.port

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def workers(self) -> list[int]:
        """The process ids of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        pids = []
        for child in children:
            with suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    pids.append(int(child))
        return pids

    def get(self, path: str, timeout: float = 30) -> httpx.Response:
        return httpx.get(self.url + path, timeout=timeout, trust_env=False)

    def embed(self, inputs: object = "hello world", timeout: float = 30, **headers: str) -> httpx.Response:
        return httpx.post(
            f"{self.url}/embed", json={"inputs": inputs}, headers=headers, timeout=timeout, trust_env=False
        )

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every sample of /metrics by name and labels."""
        text = self.get("/metrics").raise_for_status().text
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def measured(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        return sum(
            value
            for (metric, own), value in self.samples().items()
            if metric == name and labels.items() <= dict(own).items()
        )

    def idle(self) -> bool:
        """Whether nothing waits and nothing is served."""
        seen = self.samples()
        return not any(
            value
            for (name, _), value in seen.items()
            if name in ("inlay_queue_items", "inlay_queue_tokens", "inlay_requests_in_flight")
        )

    def private_bytes(self, pid: int | None = None) -> int:
        """Memory that the process shares with none."""
        rollup = Path(f"/proc/{pid or self.process.pid}/smaps_rollup").read_text()
        return 1024 * sum(int(size) for size in re.findall(r"Private_(?:Clean|Dirty): +(\d+) kB", rollup))

    def peak_bytes(self) -> int:
        """The most that was resident since `forget_peak`, or since the start."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert match
        return 1024 * int(match[1])

    def forget_peak(self) -> int:
        """Measure peaks from now on; what is resident now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak_bytes()

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208

    def signal(self, number: int, pid: int | None = None) -> None:
        os.kill(pid or self.process.pid, number)

    def ended(self, seconds: float = PATIENCE_SECONDS) -> int:
        return self.process.wait(seconds)


@contextmanager
def running(
    store: Path,
    log: Path,
    *flags: str,
    meddling: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    files: int | None = None,
    stderr: int | None = None,
) -> Iterator[Running]:
    """A served store, once it says that it serves.

    meddling    what tests/faults/meddling.py does to its processes
    variables   of its environment
    files       that each process may hold open
    stderr      where its log goes instead of to `log`
    """
    program = [str(MEDDLING if meddling is not None else Path(sys.executable).with_name("inlay"))]
    fixed = ["--store", str(store), "--port", "0", "--grpc-port", "0", "--default-model", "bert", "--device", "cpu"]
    made = {f"MEDDLING_{name.upper()}": value for name, value in (meddling or {}).items()}
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", *program, "serve", *fixed, *flags],
            cwd=ROOT,
            env={**os.environ, **made, **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=file if stderr is None else stderr,
            text=True,
            preexec_fn=_limited(files) if files else None,
        )
    assert process.stdout is not None
    given_up = threading.Timer(PATIENCE_SECONDS, process.kill)
    given_up.start()
    try:
        lines = iter(process.stdout.readline, "")
        address = next((match for line in lines if (match := re.search(r"REST (\S+) .* gRPC (\S+)", line))), None)
        assert address, f"it does not serve: {log.read_text()}"
        given_up.cancel()
        workers = Running(process, address[1], address[2], log)
        yield workers
    finally:
        given_up.cancel()
        _end(process)
        process.stdout.close()


def _limited(files: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    return limit


def _end(process: "subprocess.Popen[str]") -> None:
    """Stop it; kill it where it does not stop, and its workers with it."""
    with suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        process.kill()
        process.wait(10)

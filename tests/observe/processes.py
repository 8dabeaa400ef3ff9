"""The service in processes of its own, for tests that observe it from outside."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

ROOT = Path(__file__).parents[2]
SECONDS = 60


@dataclass(frozen=True)
class Running:
    """A running service: its process, its addresses and its log."""

    process: "subprocess.Popen[str]"
    url: str
    rpc_address: str
    log: Path

    def workers(self) -> dict[int, str]:
        """Return the memory maps (/proc/PID/maps) of the workers by process id."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        spawned = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return {int(child): Path(f"/proc/{child}/maps").read_text() for child in spawned}


@contextmanager
def running(store: Path, log: Path, *flags: str) -> Iterator[Running]:
    """Serve a store; enters when the service has announced its addresses."""
    arguments = ["--store", str(store), "--port", "0", "--grpc-port", "0", "--default-model", "bert", *flags]
    with log.open("w") as file:
        command = [sys.executable, "-u", Path(sys.executable).with_name("inlay"), "serve", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, text=True)
    try:
        ends = monotonic() + SECONDS
        while not (address := re.search(r"REST (\S+) .* gRPC ([\w.:]+)", log.read_text())):
            assert process.poll() is None
            assert monotonic() < ends, log.read_text()
            sleep(0.05)
        yield Running(process, address[1], address[2], log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)

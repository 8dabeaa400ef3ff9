"""How much memory a large table takes: a 128256 x 4096 fp16 embedding served by two workers that share its pages.

    python -m loadtest.footprint [--save] [--store DIR --model NAME]

Without --store it creates a random checkpoint and exports it into a temporary folder (2.2 GB of disk), then removes it.
Measures the time from process start to /health/ready with the table dropped from the page cache, has both workers read
rows all over the table, then reads /proc. Linux only.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.facts import facts
from loadtest.processes import RESULTS, ROOT, NotReady, end_on_sigterm, free_port, inlay, process_tree, server, wait_for

VOCAB, WIDTH, WORKERS = 128256, 4096, 2
REQUESTS, IDS = 400, 256  # each worker reads about a third of all rows; the kernel maps 8 rows around each
MOST_READY_S, MOST_PRIVATE_MB, LEAST_SHARED = 3.0, 150.0, 0.9
MB = 1e6
KEYS = ("Rss", "Pss", "Shared_Clean", "Shared_Dirty", "Private_Clean", "Private_Dirty")


@dataclass(frozen=True)
class Memory:
    """Megabytes (10^6 bytes) of one process, or of its mappings of one folder."""

    rss: float
    pss: float
    shared: float
    private_clean: float
    private_dirty: float

    @property
    def private(self) -> float:
        """Megabytes that would be free again if this process ended."""
        return self.private_clean + self.private_dirty


@dataclass(frozen=True)
class Process:
    """One process of the service.

    Attributes:
        role: "worker" if it maps the exported files, otherwise "supervisor" or "other".
        whole: all its memory.
        table: its mappings of the exported files.
    """

    role: str
    whole: Memory
    table: Memory


def _memory(lines: Iterator[str]) -> Memory:
    sums = dict.fromkeys(KEYS, 0.0)
    for line in lines:
        key, _, value = line.partition(":")
        if key in sums:
            sums[key] += int(value.split()[0]) * 1024 / MB
    shared = sums["Shared_Clean"] + sums["Shared_Dirty"]
    figures = (sums["Rss"], sums["Pss"], shared, sums["Private_Clean"], sums["Private_Dirty"])
    return Memory(*(round(figure, 1) for figure in figures))


def _of_folder(smaps: str, folder: Path) -> Iterator[str]:
    """Yield the lines of those mappings whose file lies in `folder`."""
    inside = False
    for line in smaps.splitlines():
        if "-" in line.split(" ", 1)[0]:  # a header: first-last perms offset device inode path
            inside = str(folder) in line
        elif inside:
            yield line


def read_processes(pid: int, folder: Path) -> list[Process]:
    """Return the memory of the service's processes.

    Args:
        pid: of the supervisor.
        folder: the exported model.
    """
    processes = []
    for member in process_tree(pid):
        proc = Path("/proc", str(member))
        whole = _memory(iter((proc / "smaps_rollup").read_text().splitlines()))
        table = _memory(_of_folder((proc / "smaps").read_text(), folder))
        role = "worker" if table.rss else "supervisor" if member == pid else "other"
        processes.append(Process(role, whole, table))
    return processes


def drop_from_page_cache(folder: Path) -> None:
    """Drop the folder's files from the page cache, so that the next start reads them from disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_rows(port: int) -> None:
    """Request random rows, each time on a new connection, so that every worker gets its share."""
    rng = random.Random(4096)
    headers = {"content-type": "application/json", "accept": "application/octet-stream", "connection": "close"}
    for _ in range(REQUESTS):
        ids = [rng.randrange(VOCAB) for _ in range(IDS)]
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("POST", "/embed", json.dumps({"inputs": [ids], "dtype": "float16"}), headers)
            answer = connection.getresponse()
            size = len(answer.read())
        if answer.status != 200 or size != IDS * WIDTH * 2:
            raise NotReady(f"/embed answered {answer.status} with {size} bytes, not {IDS * WIDTH * 2}")


def create_store(folder: Path) -> tuple[Path, str]:
    """Create a store with one random table and return it with the model's name; the checkpoint is removed again."""
    checkpoint, store, name = folder / "checkpoint", folder / "store", "table"
    store.mkdir()
    size = ("--vocab-size", str(VOCAB), "--hidden-size", str(WIDTH))
    create = ("create", str(checkpoint), "--model-type", "llama", *size, "--dtype", "float16", "--std", "0.02")
    for command in (create, ("export", str(checkpoint), str(store / name))):
        begun = time.perf_counter()
        subprocess.run(inlay(*command), cwd=ROOT, check=True)
        print(f"{command[0]}: {time.perf_counter() - begun:.1f} s")
    for file in checkpoint.iterdir():
        file.unlink()
    return store, name


def measure(store: Path, model: str, logs: Path) -> tuple[float, list[Process]]:
    """Return seconds from process start to readiness, and the processes after all workers have read rows."""
    folder = (store / model).resolve()
    drop_from_page_cache(folder)
    port, log = free_port(), logs / "service.log"
    command = ("serve", "--port", str(port), "--grpc-port", str(free_port()), "--store", str(store))
    options = ("--default-model", model, "--workers", str(WORKERS), "--device", "cpu", "--log-level", "warning")
    begun = time.perf_counter()
    with log.open("wb") as output, server(inlay(*command, *options), output) as process:
        wait_for(process, log, port, "/health/ready")
        ready = time.perf_counter() - begun
        read_rows(port)
        return ready, read_processes(process.pid, folder)


def verdicts(ready_s: float, processes: list[Process]) -> dict[str, bool]:
    """Return the targets and whether each is met."""
    workers = [process for process in processes if process.role == "worker"]
    private = max(one.whole.private for one in processes)
    shared = min((one.table.shared / one.table.rss for one in workers), default=0.0)
    return {
        f"ready in {ready_s:.2f} s (< {MOST_READY_S:.0f} s)": ready_s < MOST_READY_S,
        f"{len(workers)} workers map the table (= {WORKERS})": len(workers) == WORKERS,
        f"largest private memory {private:.0f} MB (< {MOST_PRIVATE_MB:.0f} MB)": private < MOST_PRIVATE_MB,
        f"of a worker's pages of the table, {shared:.0%} or more are shared (> {LEAST_SHARED:.0%})": shared
        > LEAST_SHARED,
    }


def show(processes: list[Process], met: dict[str, bool]) -> None:
    """Print the figures and the verdicts."""
    columns = ("rss", "pss", "private", "clean", "dirty", "table rss", "pss", "shared")
    print("MB".ljust(10), *(name.rjust(10) for name in columns))
    for one in processes:
        whole, table = one.whole, one.table
        figures = (whole.rss, whole.pss, whole.private, whole.private_clean, whole.private_dirty)
        print(one.role.ljust(10), *(f"{figure:10.0f}" for figure in (*figures, table.rss, table.pss, table.shared)))
    for claim, holds in met.items():
        print(f"{'met    ' if holds else 'NOT met'} {claim}")


def main() -> int:
    """Measure, print and perhaps save; returns 0 if every target is met."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.footprint", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, help="a store that holds such a table; without it one is created")
    parser.add_argument("--model", default="table", help="its name in that store")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/footprint.json")
    options = parser.parse_args()
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            store, model = (options.store, options.model) if options.store else create_store(Path(scratch))
            ready_s, processes = measure(store, model, Path(scratch))
    except (NotReady, subprocess.CalledProcessError) as failure:
        print(f"footprint: {failure}", file=sys.stderr)
        return 1
    met = verdicts(ready_s, processes)
    show(processes, met)
    if options.save:
        document = {
            "facts": facts(),
            "table": f"{VOCAB} x {WIDTH} fp16",
            "ready_seconds": round(ready_s, 2),
            "verdicts": met,
            "megabytes": [asdict(one) for one in processes],
        }
        (RESULTS / "footprint.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

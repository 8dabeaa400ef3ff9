"""Memory figures match the system's, and memory that long batches leave is given back when the service is idle."""

import asyncio
import mmap
import os
import platform
import subprocess
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from service import machine
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Ids
from service.observability.metrics import Metrics
from service.process import memory_trimmer
from service.process.memory_trimmer import BUSY_SECONDS, GROWTH_BYTES, MemoryTrimmer
from service.registry.registry import open_registry
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.golden_cases import write_tiny_bert

TESTED = ContextVar("tested", default=False)
PAGE = mmap.PAGESIZE


# ---- mapped files


def test_touched_pages_of_a_mapped_file_are_resident(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"1" * 64 * PAGE)
    file = (path.name, path.stat().st_ino)
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)  # else the kernel maps the neighbours of a touched page too
        before = machine.mapped_of([file], machine.mapped_files())
        assert before.mapped == 64 * PAGE
        assert sum(mapped[: 64 * PAGE : PAGE]) == 64 * ord("1")
        assert machine.mapped_of([file], machine.mapped_files()) == (64 * PAGE, 64 * PAGE)
    assert machine.mapped_of([file], machine.mapped_files()) == (0, 0)


def test_renamed_and_removed_mapped_files_are_seen(tmp_path: Path) -> None:
    path, other = tmp_path / "a/table", tmp_path / "b"
    path.parent.mkdir()
    path.write_bytes(b"1" * PAGE)
    file = (path.name, path.stat().st_ino)
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ):
        path.parent.rename(other)
        assert machine.mapped_of([file], machine.mapped_files()).mapped == PAGE
        (other / path.name).unlink()
        assert machine.mapped_of([file], machine.mapped_files()).mapped == PAGE


def test_overlapping_ranges_count_once(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    each = "{} r--p {:08x} fe:00 7                          /store/a table/w\nSize: 8 kB\nRss: {} kB\nPss: 4 kB\n"
    whole, part, apart = ("1000-5000", 0, 16), ("6000-8000", 0x1000, 8), ("9000-a000", 0x9000, 0)
    smaps.write_text("".join(each.format(*one) for one in (whole, part, apart)) + "7f-80 rw-p 0 00:00 0 \nRss: 9 kB\n")
    assert machine.mapped_files(smaps) == {("w", 7): (0x5000, 0x5000)}


def test_nothing_is_mapped_without_proc(tmp_path: Path) -> None:
    assert machine.mapped_files(tmp_path / "none") == {}
    assert machine.mapped_of([("w", 7)], {}) == (0, 0)


# ---- heaps

HEEDED = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
HOLD = """
import ctypes, threading
from service import machine
machine.available_cpus = lambda: 3
limited = machine.limit_heaps()
begun = threading.Barrier(12)
def hold():
    begun.wait()
    libc.malloc(5000)
    begun.wait()
libc = ctypes.CDLL(None)
threads = [threading.Thread(target=hold) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w")))
libc.fflush(None)
print(limited, flush=True)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heaps are glibc's")
@pytest.mark.parametrize(
    ("variables", "heaps", "printed"),
    [
        ({}, 3, "3"),
        ({"MALLOC_ARENA_MAX": "5"}, 5, "None"),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, 4, "None"),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=8"}, 3, "3"),
    ],
)
def test_threads_share_few_heaps_unless_set_otherwise(variables: dict[str, str], heaps: int, printed: str) -> None:
    command = [sys.executable, "-c", HOLD]
    environment = {name: value for name, value in os.environ.items() if name not in HEEDED} | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.count("<heap nr=") == heaps
    assert done.stdout.splitlines()[-1] == printed


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MALLOPT", None)
    assert machine.limit_heaps({}) is None


# ---- giving back


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One encoder that is tiny in all but its longest input."""
    folder = tmp_path_factory.mktemp("trimmer")
    export(write_tiny_bert(folder / "checkpoint", pooling="mean"), folder / "store/a")
    return folder / "store"


class Process:
    """A service whose memory and callers a test decides."""

    def __init__(self, store: Path) -> None:
        self.registry = registry = open_registry(Settings(store=store, device="cpu", threads=1), Metrics())
        self.engine = registry.models["a"].engine
        self.private, self.active, self.now, self.shrunk = 1e9, 0, 0.0, 0
        self.trimmer = MemoryTrimmer(registry, lambda: self.active, lambda: self.private, lambda: self.now)

    def count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def shrink() -> None:
            self.shrunk += 1

        monkeypatch.setattr(self.engine, "shrink", shrink)


async def test_memory_is_given_back_when_idle_after_growth(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(store)
    process.count(monkeypatch)
    shrunk = []
    for private, inside in (
        (1e9, 0),  # what opening the models left
        (1e9 + GROWTH_BYTES - 1, 0),
        (1e9 + GROWTH_BYTES, 1),
        (1e9 + GROWTH_BYTES, 0),
        (1e9 + GROWTH_BYTES, 0),  # it could not be given back: that is the level from now on
        (1e9, 0),
        (1e9 + GROWTH_BYTES, 0),
    ):
        process.private, process.active = private, inside
        await process.trimmer.look()
        shrunk.append(process.shrunk)
    assert shrunk == [1, 1, 1, 2, 2, 2, 3]


async def test_memory_is_given_back_once_a_minute_when_busy(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(store)
    process.count(monkeypatch)
    await process.trimmer.look()
    process.active = 1
    shrunk = []
    for private, now in (
        (1e9, BUSY_SECONDS),  # it has not grown
        (1e9 + GROWTH_BYTES, BUSY_SECONDS),
        (1e9 + GROWTH_BYTES, 2 * BUSY_SECONDS - 1),
        (1e9 + GROWTH_BYTES, 2 * BUSY_SECONDS),
    ):
        process.private, process.now = private, now
        await process.trimmer.look()
        shrunk.append(process.shrunk)
    assert shrunk == [1, 2, 2, 3]


async def test_memory_of_a_model_that_is_gone_is_given_back(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, trimmed = Process(store), []
    TESTED.set(True)  # services of other modules that still run trim too
    monkeypatch.setattr(machine, "trim_heaps", lambda: trimmed.append(1) if TESTED.get() else None)
    for changes in (0, 0, 1, 0):
        if changes:
            await process.registry.unload("a")
        await process.trimmer.look()
    assert len(trimmed) == 2


async def test_what_requests_held_is_given_back_after_them(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """glibc keeps what they free: the process is as large as when memory was given back beside them."""
    process = Process(store)
    process.count(monkeypatch)
    shrunk = []
    for inside, now in ((1, 0), (1, BUSY_SECONDS - 1), (0, BUSY_SECONDS), (0, BUSY_SECONDS), (0, 9 * BUSY_SECONDS)):
        process.active, process.now = inside, now
        await process.trimmer.look()
        shrunk.append(process.shrunk)
    assert shrunk == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_a_models_fault_does_not_prevent_trimming(
    fault: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, trimmed, held = Process(store), list[int](), threading.Event()
    run = process.engine.run

    def faulty(graph: str, *rest: Any) -> Any:
        if fault == "fails":
            raise RuntimeError("no kernel")
        if graph == "encoder":  # in a thread
            held.wait(20)
        return run(graph, *rest)

    monkeypatch.setattr(process.engine, "run", faulty)
    monkeypatch.setattr(memory_trimmer, "RUN_SECONDS", 0.02)
    TESTED.set(True)
    monkeypatch.setattr(machine, "trim_heaps", lambda: trimmed.append(1) if TESTED.get() else None)
    try:
        await asyncio.wait_for(process.trimmer.look(), 10)
    finally:
        held.set()
    assert trimmed == [1]


BURSTS = """
import asyncio, sys
from pathlib import Path

import numpy as np

from service import machine
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import EmbedRequest, Ids
from service.observability.metrics import Metrics
from service.observability.process_stats import private_bytes
from service.process.memory_trimmer import MemoryTrimmer
from service.registry.registry import open_registry
from service.settings import Settings

TOKENS = 32768  # of a batch that takes tens of megabytes

async def main():
    values = dict(store=Path(sys.argv[1]), device="cpu", max_batch_tokens=TOKENS, max_inputs=TOKENS)
    settings = Settings(threads=int(sys.argv[2]), **values)
    registry = open_registry(settings, Metrics())
    embedder, trimmer = EmbeddingPipeline(registry, settings), MemoryTrimmer(registry, lambda: 0)
    longest = registry.models["a"].card.max_tokens or 24
    different = np.random.default_rng(1).integers(5, 9, (TOKENS // longest, longest))

    async def burst():
        await embedder.embed(EmbedRequest([Ids(ids) for ids in different], "a"))

    await burst()
    await trimmer.look()
    for _ in range(5):
        low = private_bytes()
        await burst()
        grown = private_bytes() - low
        await trimmer.look()
        print(grown, private_bytes() - low)

machine.limit_heaps({})
asyncio.run(main())
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_memory_of_longest_inputs_is_given_back(threads: int, store: Path) -> None:
    """Wide bursts on a real engine: the private memory of a process returns to where it was, within a quarter.

    One burst may leave more: it ran in a thread that the executor had not used before, whose heap is new.
    """
    command = [sys.executable, "-c", BURSTS, str(store), str(threads)]
    environment = {name: value for name, value in os.environ.items() if name not in HEEDED}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    bursts = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert all(grown > GROWTH_BYTES for grown, _ in bursts)
    assert sorted(kept / grown for grown, kept in bursts)[-2] < 0.25


# ---- a batch is bounded


async def test_batches_stay_within_the_token_budget(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(store=store, device="cpu", threads=1, max_batch_tokens=8)
    registry = open_registry(settings, Metrics())
    embedder = EmbeddingPipeline(registry, settings)
    engine = registry.models["a"].engine
    run, runs = engine.run, []

    def watched(graph: str, feeds: Any, outputs: Any) -> Any:
        runs.append((len(feeds["lengths"]), int(feeds["lengths"].sum())))
        return run(graph, feeds, outputs)

    monkeypatch.setattr(engine, "run", watched)
    lengths = [3, 20, 8, 1, 7, 9, 2, 2, 2, 2]
    different = [Ids(np.full(length, 5 + number)) for number, length in enumerate(lengths)]
    await embedder.embed(embed_request(different, "a"))
    assert sum(cost for _, cost in runs) == sum(lengths)
    assert all(cost <= 8 or items == 1 for items, cost in runs)
    assert {cost for items, cost in runs if cost > 8} == {9, 20}


async def test_padding_stays_within_the_token_budget(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(store=store, device="cpu", threads=1, max_batch_tokens=64)
    registry = open_registry(settings, Metrics())
    embedder = EmbeddingPipeline(registry, settings)
    engine = registry.models["a"].engine
    run, rectangles = engine.run, []

    def watched(graph: str, feeds: Any, outputs: Any) -> Any:
        rectangles.append((len(feeds["lengths"]), int(feeds["lengths"].max())))
        return run(graph, feeds, outputs)

    monkeypatch.setattr(engine, "run", watched)
    inputs = [Ids(np.full(length, 5 + index)) for index, length in enumerate([1, 24, 2, 1, 20, 1, 1, 5, 1, 1])]
    (together,) = (await embedder.embed(embed_request(inputs, "a"))).outputs
    assert sum(rows for rows, _ in rectangles) == len(inputs)
    assert all(rows * longest <= 64 for rows, longest in rectangles)
    alone = [(await embedder.embed(embed_request([each], "a"))).outputs[0].rows[0] for each in inputs]
    np.testing.assert_allclose(together.rows, alone, rtol=0, atol=1e-6)

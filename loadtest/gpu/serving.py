"""A server on the device: several models, an exchange while it answers, and batches beyond its memory."""

import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.gpu.cases import texts
from loadtest.processes import NotReady, free_port, inlay, server, wait_for

READY_S = 300
SMALL_ARENA = 64 << 20  # bytes of a GPU's memory: for a batch of short texts, not for one of LONG
LONG = 4096
Check = Callable[[Path, str], str]


class Failed(Exception):
    """A check found something else than it should; the message says what."""


def post(port: int, model: str, lengths: list[int]) -> tuple[int, list[list[float]]]:
    """Return the status and the vectors of random texts of so many ids."""
    ids = [[int(word) for word in one.split()] for one in texts(lengths)]
    body = json.dumps({"inputs": ids, "model": model}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/embed", body, {"Content-Type": "application/json", "Accept": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=READY_S) as answer:
            vectors: list[list[float]] = json.load(answer)
            return 200, vectors
    except urllib.error.HTTPError as error:
        error.read()
        return error.code, []


@contextmanager
def serving(store: Path, device: str, *flags: str) -> Iterator[int]:
    """Serve a store; give the port."""
    port = free_port()
    where = ["--port", str(port), "--grpc-port", str(free_port()), "--store", str(store), "--device", device]
    with tempfile.NamedTemporaryFile() as log, server(inlay("serve", *where, *flags), log) as process:
        wait_for(process, Path(log.name), port, "/health/ready", READY_S)
        yield port


def several_models(store: Path, device: str) -> str:
    """Two models answer by turns, each with the vectors that it gave before."""
    with serving(store, device) as port:
        before = [post(port, name, [5, 40]) for name in ("a", "b")]
        if [status for status, _ in before] != [200, 200] or before[0] == before[1]:
            raise Failed(f"two models answered {[status for status, _ in before]}, or alike")
        if [post(port, name, [5, 40]) for name in ("a", "b")] != before:
            raise Failed("a model gave other vectors the second time")
    return "two models answer, each with its own vectors"


def exchange(store: Path, device: str) -> str:
    """A model is exported anew while requests come; none fails, and the new vectors appear."""
    with serving(store, device, "--watch-store", "1") as port:
        old, seen = post(port, "a", [5])[1], [post(port, "a", [5])]
        replaced = threading.Thread(target=_replace, args=(store,))
        replaced.start()
        begun = time.monotonic()
        while seen[-1][1] == old and time.monotonic() - begun < READY_S:
            seen.append(post(port, "a", [5]))
        replaced.join()
    if any(status != 200 for status, _ in seen):
        raise Failed(f"a request got {next(status for status, _ in seen if status != 200)} during the exchange")
    if seen[-1][1] == old:
        raise Failed(f"the new export was not served within {READY_S} s")
    return f"{len(seen)} requests during an exchange, none failed"


def _replace(store: Path) -> None:
    """Put a copy of b in the place of a."""
    shutil.copytree(store / "b", store / ".a")
    card = json.loads((store / ".a/card.json").read_text(encoding="utf-8")) | {"name": "a"}
    (store / ".a/card.json").write_text(json.dumps(card), encoding="utf-8")
    (store / "a").rename(store / ".old")
    (store / ".a").rename(store / "a")


def memory_bound(store: Path, device: str) -> str:
    """A batch beyond `gpu_memory_bytes` gets 503, and the next request is answered."""
    if device != "cuda":
        return "left out: a CPU has no gpu_memory_bytes"
    with serving(store, device, "--gpu-memory-bytes", str(SMALL_ARENA)) as port:
        short = post(port, "a", [8])
        status, _ = post(port, "a", [512] * (LONG // 8))
        after = post(port, "a", [8])
    if (short[0], status) != (200, 503) or after != short:
        raise Failed(f"a short text got {short[0]}, a batch beyond the memory {status}, a short one then {after[0]}")
    return "503 for a batch beyond the memory, and the server answers on"


CHECKS: tuple[Check, ...] = (several_models, exchange, memory_bound)


def check(store: Path, device: str) -> list[tuple[str, str, bool]]:
    """Return each check's name, what it found, and whether that is as it should be; each has a copy of the store."""
    rows = []
    for one in CHECKS:
        with tempfile.TemporaryDirectory() as place:
            copied = Path(place, "store")
            shutil.copytree(store, copied)
            try:
                rows.append((one.__name__.replace("_", " "), one(copied, device), True))
            except (Failed, NotReady, OSError, subprocess.SubprocessError) as reason:
                rows.append((one.__name__.replace("_", " "), " ".join(str(reason).split())[:300], False))
    return rows

"""Callers beside the one that costs: probes of liveness over HTTP and gRPC, small requests, and what reads the memory.

`Watch` starts a process for them and asks it for the slowest answer of each kind in a span of time, and for the small
requests that failed. Those over HTTP come from an address of their own, as another caller's do. It kills a server that
takes more memory than a small container has, as the container's kernel would.
"""

import http.client
import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2

from proto import embed_pb2 as pb
from tests.score_models import RANKER

LIVENESS_SECONDS, CALLER_SECONDS = 0.01, 0.025  # between one question and the next
ANSWER_SECONDS = 60.0
MEMORY_SECONDS = 0.02  # between two readings
CONTAINER_BYTES = 2 << 30
LIVENESS, SERVER, CHILDREN = ("live", "health"), "server", "children"
SMALL: dict[str, dict[str, Any]] = {
    "/embed": {"inputs": "hello world"},
    "/v1/embeddings": {"model": "bert", "input": ["hello world", "hello"], "encoding_format": "base64"},
    "/rerank": {"model": RANKER, "query": "hello", "texts": ["hello world", "world"]},
}
"""Small requests over HTTP by path; one over gRPC is beside them."""
CALLER = (*SMALL, "Embed")
OTHER_ADDRESS = "127.0.0.2"
Answers = deque[tuple[float, float]]


class Beside(NamedTuple):
    """What others met in a span of time.

    Args:
        liveness: the longest answer to a probe of liveness, in seconds.
        caller: the longest answer to a small request.
        server: the most memory of the server, in bytes.
        children: the most memory of its children.
        small: the number of small requests that were answered.
        failed: the small requests that failed, in words.
    """

    liveness: float
    caller: float
    server: int
    children: int
    small: int
    failed: tuple[str, ...]


class Watch:
    """The process of the probes.

    Args:
        address: of HTTP.
        rpc_address: of gRPC.
        pid: of the server.
    """

    def __init__(self, address: tuple[str, int], rpc_address: str, pid: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_probe, args=(address, rpc_address, pid, theirs), daemon=True)
        self._process.start()
        self._pipe.recv()

    def beside(self, since: float) -> Beside:
        """Return what others met; answers count that ended after `since` or are awaited yet.

        Args:
            since: on `time.monotonic`, which all processes of a machine share.
        """
        self._pipe.send(since)
        beside: Beside = self._pipe.recv()
        return beside

    def pause(self, paused: bool = True) -> None:
        """Ask nothing, or go on asking."""
        self._pipe.send(paused)
        self._pipe.recv()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.terminate()
        self._process.join()


def _probe(address: tuple[str, int], rpc_address: str, pid: int, pipe: Connection) -> None:
    channel = grpc.insecure_channel(rpc_address, [("grpc.use_local_subchannel_pool", 1)])
    call = channel.unary_unary
    check, embed = call("/grpc.health.v1.Health/Check"), call("/inlay.v1.Embedder/Embed")
    checked = health_pb2.HealthCheckRequest().SerializeToString()
    embedded = pb.EmbedRequest(inputs=[pb.Input(text="hello world")]).SerializeToString()
    asks: dict[str, Callable[[], Any]] = {
        "live": _http(address, "GET", "/health/live", None),
        "health": lambda: check(checked, timeout=ANSWER_SECONDS),
        "Embed": lambda: embed(embedded, timeout=ANSWER_SECONDS),
    }
    asks |= {path: _http(address, "POST", path, json.dumps(body).encode()) for path, body in SMALL.items()}
    answers: dict[str, Answers] = {name: deque(maxlen=20_000) for name in asks}
    began: dict[str, float] = {}
    failed: deque[tuple[float, str]] = deque(maxlen=100)
    asking = threading.Event()
    asking.set()
    for name, ask in asks.items():
        pause = LIVENESS_SECONDS if name in LIVENESS else CALLER_SECONDS
        threading.Thread(
            target=_ask, args=(name, ask, pause, answers[name], began, asking, failed), daemon=True
        ).start()
    answers |= {name: deque(maxlen=20_000) for name in (SERVER, CHILDREN)}
    threading.Thread(target=_read_memory, args=(pid, answers[SERVER], answers[CHILDREN]), daemon=True).start()
    pipe.send(None)
    with suppress(EOFError):
        while True:
            asked: float | bool = pipe.recv()
            if isinstance(asked, bool):
                (asking.clear if asked else asking.set)()
                pipe.send(None)
            else:
                pipe.send(_beside(asked, answers, began, failed))


def _beside(
    since: float, answers: dict[str, Answers], began: dict[str, float], failed: deque[tuple[float, str]]
) -> Beside:
    now = time.monotonic()
    longest: dict[str, float] = {}
    for name in (*LIVENESS, *CALLER):
        seconds = [end - max(begin, since) for begin, end in tuple(answers[name]) if end >= since]
        if (awaited := began.get(name)) is not None:
            seconds.append(now - max(awaited, since))
        longest[name] = max(seconds, default=0.0)
    most = [
        max([int(size) for when, size in tuple(answers[name]) if when >= since], default=0)
        for name in (SERVER, CHILDREN)
    ]
    small = sum([end >= since for name in CALLER for _, end in tuple(answers[name])])
    words = tuple([words for when, words in tuple(failed) if when >= since])
    liveness, caller = (max([longest[name] for name in names]) for names in (LIVENESS, CALLER))
    return Beside(liveness, caller, *most, small, words)


def _read_memory(pid: int, server_read: Answers, children_read: Answers) -> None:
    """Read the memory of a server and its children until it ends or they take more than they may."""
    while size := memory(pid):
        children = sum([memory(each) for each in family(pid)[1:]])
        server_read.append((time.monotonic(), size))
        children_read.append((time.monotonic(), children))
        if size + children > CONTAINER_BYTES:
            for each in family(pid):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        time.sleep(MEMORY_SECONDS)


def family(pid: int) -> list[int]:
    """Return a process and its descendants; a process that has ended has none."""
    try:
        children = [child for path in Path(f"/proc/{pid}/task").iterdir() for child in _children(path)]
    except OSError:
        return []
    return [pid, *[each for child in children for each in family(child)]]


def _children(task: Path) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in (task / "children").read_text().split()]
    return []


def memory(pid: int) -> int:
    """Return the memory that a process has for itself or shares by name, in bytes; 0 if it has ended."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return 1024 * sum([int(size) for size in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", status)])
    return 0


def peak(pid: int) -> int:
    """Return the most memory that a process ever had, its mapped files included; 0 if it has ended."""
    with suppress(OSError, TypeError):
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]
    return 0


def _ask(
    name: str,
    ask: Callable[[], Any],
    pause: float,
    answers: Answers,
    began: dict[str, float],
    asking: threading.Event,
    failed: deque[tuple[float, str]],
) -> None:
    while asking.wait():
        began[name] = begin = time.monotonic()
        try:
            ask()
        except Exception as error:
            if name in CALLER:
                failed.append((time.monotonic(), f"{name} {' '.join(str(error).split())[:300]}"))
        del began[name]
        answers.append((begin, time.monotonic()))
        time.sleep(pause)


def _http(address: tuple[str, int], verb: str, path: str, body: bytes | None) -> Callable[[], Any]:
    connection = http.client.HTTPConnection(*address, timeout=ANSWER_SECONDS, source_address=(OTHER_ADDRESS, 0))
    headers = {"content-type": "application/json"} if body else {}

    def ask() -> None:
        try:
            connection.request(verb, path, body, headers)
            answer = connection.getresponse()
            words = answer.read()
        except Exception:
            connection.close()
            raise
        if answer.status != 200:
            raise OSError(f"{answer.status} {words[:300].decode(errors='replace')}")

    return ask

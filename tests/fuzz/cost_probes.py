"""Callers beside the one that costs: probes of liveness over HTTP and gRPC, small requests, and what reads the memory.

`Watch` starts a process for them and asks it for the slowest answer of each kind in a span of time. It kills a server
that takes more memory than a small container has, as the container's kernel would.
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
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from proto import embed_pb2 as pb

LIVENESS_SECONDS, CALLER_SECONDS = 0.01, 0.025  # between one question and the next
ANSWER_SECONDS = 60.0
MEMORY_SECONDS = 0.02  # between two readings
CONTAINER_BYTES = 2 << 30
LIVENESS, CALLER, SERVER, CHILDREN = ("live", "health"), ("embed", "Embed"), "server", "children"
BODY = json.dumps({"inputs": "hello world"}).encode()
Answers = deque[tuple[float, float]]


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

    def worst(self, since: float) -> dict[str, float]:
        """Return the longest answer of each kind in seconds, and the most memory in bytes as SERVER and CHILDREN.

        Answers count that ended after `since` or are awaited yet.

        Args:
            since: on `time.monotonic`, which all processes of a machine share.
        """
        self._pipe.send(since)
        worst: dict[str, float] = self._pipe.recv()
        return worst

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
        "embed": _http(address, "POST", "/embed", BODY),
        "health": lambda: check(checked, timeout=ANSWER_SECONDS),
        "Embed": lambda: embed(embedded, timeout=ANSWER_SECONDS),
    }
    answers: dict[str, Answers] = {name: deque(maxlen=20_000) for name in asks}
    began: dict[str, float] = {}
    asking = threading.Event()
    asking.set()
    for name, ask in asks.items():
        pause = LIVENESS_SECONDS if name in LIVENESS else CALLER_SECONDS
        threading.Thread(target=_ask, args=(name, ask, pause, answers[name], began, asking), daemon=True).start()
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
                pipe.send(_worst(asked, answers, began))


def _worst(since: float, answers: dict[str, Answers], began: dict[str, float]) -> dict[str, float]:
    now = time.monotonic()
    worst = {
        name: max([size for when, size in tuple(answers[name]) if when >= since], default=0.0)
        for name in (SERVER, CHILDREN)
    }
    for name in (*LIVENESS, *CALLER):
        seconds = [end - max(begin, since) for begin, end in tuple(answers[name]) if end >= since]
        if (awaited := began.get(name)) is not None:
            seconds.append(now - max(awaited, since))
        worst[name] = max(seconds, default=0.0)
    return worst


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


def _ask(
    name: str,
    ask: Callable[[], Any],
    pause: float,
    answers: Answers,
    began: dict[str, float],
    asking: threading.Event,
) -> None:
    while asking.wait():
        began[name] = begin = time.monotonic()
        with suppress(Exception):  # a refusal is an answer too
            ask()
        del began[name]
        answers.append((begin, time.monotonic()))
        time.sleep(pause)


def _http(address: tuple[str, int], verb: str, path: str, body: bytes | None) -> Callable[[], Any]:
    connection = http.client.HTTPConnection(*address, timeout=ANSWER_SECONDS)
    headers = {"content-type": "application/json"} if body else {}

    def ask() -> None:
        try:
            connection.request(verb, path, body, headers)
            connection.getresponse().read()
        except Exception:
            connection.close()
            raise

    return ask

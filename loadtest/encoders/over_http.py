"""Texts over HTTP: Inlay with its default settings beside its other layouts and the peers, on all cores."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest import servers
from loadtest.bench import Run, text_case
from loadtest.bench_report import Row
from loadtest.encoders.contestants import (
    INLAY_INT8,
    INLAY_OPENVINO,
    MODEL,
    PEERS_PYTHON,
    PREPARED,
    Files,
    with_openvino,
)
from loadtest.processes import NotReady, split_cores
from loadtest.servers import INLAY, UVICORN, ServerSpec

CONNECTIONS = (1, 8, 32)
LAYOUTS = (("workers of one thread", ("--workers", "2", "--threads", "1")), ("one thread", ("--threads", "1")))
ROUNDED = 0.1  # between a value of a faster encoder's unit vector and the fp32 encoder's
LAYOUT = "inlay, "
"""Begins the names of Inlay's layouts that are not its default."""


@dataclass(frozen=True)
class HttpResult:
    """The rows of each number of connections, and why a server took no part, by name."""

    rows: Sequence[Row]
    missing: dict[str, str]


def specs(prepared: Files, with_peers: bool) -> list[ServerSpec]:
    """Return the servers: Inlay with its default settings first, then its layouts, peers and faster encoders."""
    plain, exact = prepared.stores["fp32"], ("--engine", "onnx")
    default = servers.inlay_server(plain, MODEL, exact)
    layouts = [
        replace(servers.inlay_server(plain, MODEL, (*exact, *flags)), name=LAYOUT + name) for name, flags in LAYOUTS
    ]
    openvino = servers.inlay_server(plain, MODEL, ("--engine", "openvino"))
    faster = [replace(openvino, name=INLAY_OPENVINO, env=with_openvino())]
    if "int8" in prepared.stores:
        faster.append(replace(servers.inlay_server(prepared.stores["int8"], MODEL, exact), name=INLAY_INT8))
    faster = [replace(spec, tolerance=ROUNDED) for spec in faster]
    return [default, *layouts, *(peers(prepared.checkpoint) if with_peers else ()), *faster]


def peers(checkpoint: Path) -> list[ServerSpec]:
    """Return the peers, as their documentation sets them up; mosec also with a process for each of two cores."""
    env = {"PEER_CHECKPOINT": str(checkpoint), "PEER_GRAPH": str(PREPARED / "padded.onnx"), "HF_HUB_OFFLINE": "1"}
    python = str(PEERS_PYTHON)

    def fastapi(library: str) -> ServerSpec:
        command = (python, "-m", "uvicorn", "loadtest.encoders.fastapi_text:app", "--port", "{http}", *UVICORN)
        return ServerSpec(
            f"FastAPI, {library}", ("http",), command, "/docs", text_path="/embed", env=env | {"PEER_LIBRARY": library}
        )

    def mosec(name: str, batch: int, processes: int) -> ServerSpec:
        command = (python, "-m", "loadtest.encoders.mosec_text", "--address", "127.0.0.1", "--port", "{http}")
        threads = "1" if processes > 1 else "0"
        more = {"PEER_BATCH": str(batch), "PEER_PROCESSES": str(processes), "PEER_THREADS": threads}
        quiet = ("--log-level", "warning")
        return ServerSpec(
            f"mosec, {name}", ("http",), (*command, *quiet), "/metrics", text_path="/embed", env=env | more
        )

    return [
        fastapi("ORT"),
        fastapi("sentence-transformers"),
        mosec("batching", servers.MOSEC_BATCH, 1),
        mosec("no batching", 1, 1),
        mosec("batching, two processes", servers.MOSEC_BATCH, 2),
    ]


def measure(prepared: Files, with_peers: bool, rounds: int, seconds: float, logs: Path) -> HttpResult:
    """Start every server and load each with every number of connections, round by round.

    Args:
        with_peers: also the other servers.
        rounds: interleaved.
        seconds: of each server and number of connections in a round.
        logs: folder for what the servers print.

    Raises:
        NotReady, BadLoad: Inlay does not start, or an answer is wrong.
    """
    listed = [text_case("one text of 20 words", calls) for calls in CONNECTIONS]
    missing: dict[str, str] = {}
    cores = split_cores(pin=False)[0]
    with contextlib.ExitStack() as stack:
        running = []
        for spec in specs(prepared, with_peers):
            try:
                running.append(stack.enter_context(servers.started(spec, logs, cores)))
            except (NotReady, OSError) as reason:
                if spec.name == INLAY or spec.name.startswith(LAYOUT):
                    raise
                missing[spec.name] = str(reason).splitlines()[-1][:200]
        pairs = [(case, server) for case in listed for server in running]
        return HttpResult(Run(pairs, cores, seconds, rounds, fallback=False).rows(), missing)

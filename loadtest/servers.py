"""The servers of a benchmark: two that compute nothing, two peers, and Inlay itself."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.processes import ROOT, Cores, free_port, inlay, python, server, wait_for

# The leanest flags that uvicorn has.
FLAGS = "--loop uvloop --http httptools --ws none --interface asgi3 --lifespan off --log-level warning"
UVICORN = (*FLAGS.split(), "--no-access-log", "--no-server-header", "--no-proxy-headers")
PEERS_PYTHON = ROOT / ".venv/peers/bin/python"
MOSEC_BATCH = 32
EMPTY, INLAY, FASTAPI = "empty", "inlay", "fastapi"
MOSEC_BATCHING, MOSEC_SINGLE = "mosec, batching", "mosec, no batching"


@dataclass(frozen=True)
class ServerSpec:
    """How to start a server and where it answers.

    Attributes:
        name: what the tables call it.
        protocols: "http", "grpc" or both.
        command: program and arguments; the words {http} and {grpc} stand for its ports.
        ready: path that answers 200 once it serves; None: an open port is enough.
        ids_path: where it takes ids; {rows} stands for their number.
        text_path: where it takes a text; None: it takes none.
        env: variables added to the environment.
        guarded: whether its callers must show a key.
        tolerance: between its numbers and those of the first server that it is compared with.
    """

    name: str
    protocols: tuple[str, ...]
    command: tuple[str, ...]
    ready: str | None = None
    ids_path: str = "/embed"
    text_path: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    guarded: bool = False
    tolerance: float = 1e-5

    @property
    def is_empty(self) -> bool:
        """Whether it computes nothing."""
        return self.name == EMPTY


@dataclass(frozen=True)
class RunningServer:
    """A started server, its process and its ports by protocol."""

    spec: ServerSpec
    pid: int
    ports: Mapping[str, int]


def _uvicorn(app: str) -> tuple[str, ...]:
    return tuple(python("-m", "uvicorn", app, "--port", "{http}", *UVICORN))


def empty_http(reads_body: bool = False) -> ServerSpec:
    """Return the empty uvicorn app, with uvicorn's own protocol on httptools and uvloop.

    Args:
        reads_body: whether the app reads a request's body before it answers.
    """
    path = "/read/{rows}" if reads_body else "/{rows}"
    return ServerSpec(EMPTY, ("http",), _uvicorn("loadtest.constant_response:app"), ids_path=path)


def constant_file(name: str, file: Path) -> ServerSpec:
    """Return the empty uvicorn app that answers GET /file with one file."""
    env = {"CONSTANT_FILE": str(file)}
    return ServerSpec(name, ("http",), _uvicorn("loadtest.constant_response:app"), env=env)


def empty_grpc() -> ServerSpec:
    """Return the empty grpc.aio server."""
    return ServerSpec(EMPTY, ("grpc",), tuple(python("-m", "loadtest.empty_grpc", "{grpc}")))


def inlay_server(store: Path, model: str, flags: Sequence[str] = ()) -> ServerSpec:
    """Return Inlay on CPU with its default settings.

    Args:
        store: folder of exported models.
        model: the default model.
        flags: more flags of `serve`.
    """
    where = ("--port", "{http}", "--grpc-port", "{grpc}", "--store", str(store), "--default-model", model)
    command = inlay("serve", *where, "--device", "cpu", *flags)
    return ServerSpec(INLAY, ("http", "grpc"), tuple(command), ready="/health/ready", text_path="/embed")


ONE_CORE = ("--workers", "1", "--threads", "1")
"""Flags of `serve` for a server that has one core."""


def fastapi_server(folder: Path, threads: int = 0) -> ServerSpec:
    """Return plain FastAPI around the same graphs.

    Args:
        folder: the exported model.
        threads: of one ONNX Runtime run; 0: its own choice.
    """
    env = {"PEER_MODEL": str(folder), "PEER_THREADS": str(threads)}
    command = _uvicorn("loadtest.fastapi_server:app")
    return ServerSpec(FASTAPI, ("http",), command, ready="/docs", text_path="/embed_text", env=env)


def mosec_server(folder: Path, batching: bool) -> ServerSpec:
    """Return mosec around the same graphs.

    Args:
        folder: the exported model.
        batching: gather up to MOSEC_BATCH requests in a batch, or run each on its own.
    """
    command = (str(PEERS_PYTHON), "-m", "loadtest.mosec_server", "--address", "127.0.0.1", "--port", "{http}")
    env = {"PEER_MODEL": str(folder), "PEER_BATCH": str(MOSEC_BATCH if batching else 1)}
    name = MOSEC_BATCHING if batching else MOSEC_SINGLE
    quiet = ("--log-level", "warning")
    return ServerSpec(name, ("http",), (*command, *quiet), ready="/metrics", text_path="/embed_text", env=env)


@contextlib.contextmanager
def started(spec: ServerSpec, logs: Path, cores: Cores) -> Iterator[RunningServer]:
    """Start a server on free ports, wait until it is ready, and end it afterwards.

    Raises:
        NotReady: it did not start; the message holds the end of its log.
    """
    ports = {"http": free_port(), "grpc": free_port()}
    log = logs / f"{spec.name}-{spec.protocols[0]}{'-guarded' * spec.guarded}.log"
    command = [word.format(**ports) if word in ("{http}", "{grpc}") else word for word in spec.command]
    with log.open("wb") as output, server(command, output, cores, spec.env) as process:
        for protocol in spec.protocols:
            wait_for(process, log, ports[protocol], spec.ready if protocol == "http" else None)
        yield RunningServer(spec, process.pid, ports)

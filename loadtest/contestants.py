"""The servers of a benchmark: two that compute nothing, a newcomer's, and the service itself. Measures nothing."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.processes import Cores, free_port, python, server, wait_for

# The flags under which the service runs its own uvicorn: what is compared is the work, not the flags.
FLAGS = "--loop uvloop --http httptools --ws none --interface asgi3 --lifespan off --log-level warning"
UVICORN = (*FLAGS.split(), "--no-access-log", "--no-server-header", "--no-proxy-headers")


@dataclass(frozen=True)
class Plan:
    """How to start a server.

    protocols   of "http" and "grpc", those it answers
    command     {http} and {grpc} stand for its ports
    ready       path that answers 200 once it serves; None: an open port is enough
    reads_text  it takes texts as well as ids
    by_rows     its path is the number of rows to answer with, not /embed
    """

    name: str
    protocols: tuple[str, ...]
    command: tuple[str, ...]
    ready: str | None = None
    reads_text: bool = True
    by_rows: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Running:
    """A started server and its ports."""

    plan: Plan
    pid: int
    ports: Mapping[str, int]


EMPTY_HTTP = Plan(
    "empty", ("http",), ("-m", "uvicorn", "loadtest.empty_http:app", "--port", "{http}", *UVICORN), by_rows=True
)
EMPTY_GRPC = Plan("empty", ("grpc",), ("-m", "loadtest.empty_grpc", "{grpc}"))


def inlay(store: Path, model: str, extra: Sequence[str] = ()) -> Plan:
    """The service: one worker, one ONNX Runtime thread, since it has one core."""
    serve = ("-m", "service", "serve", "--port", "{http}", "--grpc-port", "{grpc}", "--store", str(store))
    options = (
        "--default-model",
        model,
        "--device",
        "cpu",
        "--workers",
        "1",
        "--threads",
        "1",
        "--log-level",
        "warning",
    )
    return Plan("inlay", ("http", "grpc"), (*serve, *options, *extra), ready="/health/ready")


def plain_fastapi(folder: Path) -> Plan:
    """The newcomer's server around the same embedding.onnx."""
    command = ("-m", "uvicorn", "loadtest.plain_fastapi:app", "--port", "{http}", *UVICORN)
    env = {"PLAIN_MODEL": str(folder)}
    return Plan("plain fastapi", ("http",), command, ready="/docs", reads_text=False, env=env)


@contextlib.contextmanager
def started(plan: Plan, logs: Path, cores: Cores) -> Iterator[Running]:
    """The server of `plan`, ready, on free ports; ended afterwards. Raises NotReady with the end of its log."""
    ports = {"http": free_port(), "grpc": free_port()}
    log = logs / f"{plan.name}-{plan.protocols[0]}.log"
    command = python(*(word.format(**ports) if word in ("{http}", "{grpc}") else word for word in plan.command))
    with log.open("wb") as output, server(command, output, cores, plan.env) as process:
        for protocol in plan.protocols:
            wait_for(process, log, ports[protocol], plan.ready if protocol == "http" else None)
        yield Running(plan, process.pid, ports)

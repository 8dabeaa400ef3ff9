"""Ports, processes and what is said at start-up. Binds before it loads: a taken port costs no wait."""

import asyncio
import errno
import gc
import logging
import math
import os
import signal
import socket
import ssl
import sys
from functools import partial
from multiprocessing import current_process
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import TYPE_CHECKING, Any, NoReturn

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from models.artifacts import card as cards
from models.errors import ModelError
from service.errors import StartError
from service.http.server import OneWrite
from service.observability import logs
from service.process import memory
from service.process.supervisor import Supervisor
from service.registry.registry import Catalog, Model, default_name, folders
from service.security import tls
from service.security.api_keys import open_keys, tell_short_keys
from service.settings import Settings

if TYPE_CHECKING:  # a supervisor of workers never imports the application: its workers start sooner
    from service.app import Service
    from service.context import Parts
    from service.observability.metrics import Metrics

ANYWHERE = ("0.0.0.0", "::")
NO_SUCH_HOST = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # another machine's address, or a kind that is switched off
TELL_SECONDS = 1.0
STOPS = (signal.SIGTERM, signal.SIGINT)
ANNOUNCED = "announced"  # a file beside the counts: some worker has served
LAST_SECONDS = 2.0  # for what is left to do once all that was in flight is done or told that it is not
log = logging.getLogger(__name__)


def listen(settings: Settings) -> int:
    """Serve on both ports until a stop signal; the exit code.

    raises   StartError or ModelError before anything is served
    """
    if files := tls.files(settings):
        tls.context(files)
    listener = _bound(settings.host, settings.port, "REST", "port")
    settings = settings.model_copy(update={"port": listener.getsockname()[1]})
    probe = _bound(settings.host, settings.grpc_port, "gRPC", "grpc_port")
    with probe:
        free = probe.getsockname()[1]
    # after a graceful stop the HTTP server raises its signals again, for whoever held them before: this
    for number in STOPS:
        signal.signal(number, _leave)
    if settings.workers == 1:
        config = _config(settings, _application(settings), factory=False)
        listener.listen(config.backlog)  # before it is announced
        uvicorn.Server(config).run([listener])
        return 0
    models = folders(settings)
    for folder in models.values():
        cards.read(folder)  # what would fail in every worker fails here, once
    settings = settings.model_copy(update={"default_model": default_name(settings, models)})
    open_keys(settings)
    with _reserved(settings.host, free), _directory() as directory:
        settings = settings.model_copy(update={"grpc_port": free})
        worker = partial(_worker, settings, Path(directory))
        served = (Path(directory) / ANNOUNCED).exists
        supervisor = Supervisor(_config(settings, worker, factory=True), [listener], served, settings.shutdown_seconds)
        print(f"inlay: starting {settings.workers} workers", flush=True)
        supervisor.run()
        _ignore_stops()
    return max((abs(process.exitcode or 0) == STARTUP_FAILURE for process in supervisor.processes), default=0)


def _leave(number: int, frame: Any) -> NoReturn:
    _ignore_stops()
    sys.exit(0)


def _ignore_stops() -> None:
    """All is done: Python gives handlers up before it has ended, and a second signal would make the exit code -15."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def _directory() -> "TemporaryDirectory[str]":
    """Where the workers keep what they count: in memory where there is such a place; gone with this process."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return TemporaryDirectory(prefix="inlay-", dir=memory)


def _application(settings: Settings, directory: Path | None = None) -> "Service":
    memory.few_heaps()
    from service.app import create_app
    from service.observability.counter_store import Shared
    from service.observability.metrics import Metrics

    store = Shared(directory) if directory else None
    return create_app(settings, partial(_ready, settings, directory), Metrics(store))


def _worker(settings: Settings, directory: Path) -> "Service":
    try:
        return _application(settings, directory)
    except (StartError, ModelError) as error:
        log.error("%s", error)
        sys.exit(STARTUP_FAILURE)


def _ready(settings: Settings, directory: Path | None, parts: "Parts", grpc_port: int) -> None:
    """The last step before serving: what is loaded stays, so the collector need not look at it again, nor often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # requests leave few cycles behind; the default looks for them every few requests
    parts.life.at_stop.append(partial(_end_in, settings.shutdown_seconds + LAST_SECONDS))
    if directory is not None:
        log.info("%s is ready", current_process().name)
        _tell(parts.metrics, asyncio.get_running_loop())
    if directory is None or _first(directory):
        announce(settings, parts, grpc_port)


def _end_in(seconds: float) -> None:
    """End this process by then: Python waits for every thread, and that of a run that was given up may never end."""

    def end() -> None:
        log.error("something did not stop within %g s: ended without it", seconds)
        os._exit(0)

    last = Timer(seconds, end)
    last.daemon = True
    last.start()


def _first(directory: Path) -> bool:
    """Whether no worker was ready before this one."""
    try:
        (directory / ANNOUNCED).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _tell(metrics: "Metrics", loop: asyncio.AbstractEventLoop) -> None:
    """Write down now and then what is only known here, for scrapes that reach another worker."""
    loop.call_later(TELL_SECONDS, _tell, metrics, loop)  # first: a fault now must not be the end of it
    metrics.ask()


def _config(settings: Settings, app: Any, factory: bool) -> uvicorn.Config:
    files = tls.files(settings)
    config = uvicorn.Config(
        app,
        ssl_context_factory=partial(_context, files) if files else None,
        factory=factory,
        loop="uvloop",
        http=OneWrite,
        ws="none",
        interface="asgi3",
        lifespan="on",
        workers=settings.workers,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=logs.config(settings.log_format, settings.log_level, settings.log_inputs),
        log_level="warning",
        timeout_keep_alive=settings.idle_seconds,  # type: ignore[arg-type]  # only ever added to a time
        timeout_graceful_shutdown=math.ceil(settings.shutdown_seconds),
    )
    config.client_seconds = settings.client_seconds  # type: ignore[attr-defined]  # for OneWrite
    return config


def _context(files: tls.Files, config: uvicorn.Config, default: object) -> ssl.SSLContext:
    return tls.renewing(files)


def _bound(host: str, port: int, what: str, setting: str) -> socket.socket:
    """A socket bound to the address, which nobody else may share; StartError where that fails."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a port is taken for a minute after a stop
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = "that port is in use" if error.errno == errno.EADDRINUSE else error.strerror or error
        if isinstance(error, socket.gaierror) or error.errno in NO_SUCH_HOST:
            setting = "host"
        variable, flag = f"INLAY_{setting.upper()}", f"--{setting.replace('_', '-')}"
        raise StartError(
            f"{what} cannot listen on {host}:{port}: {reason}; choose another with {variable} or {flag}"
        ) from error
    return listener


def _reserved(host: str, port: int) -> socket.socket:
    """Hold the gRPC port for the workers, which share it: bound, never listening."""
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((host, port))
    return holder


def introduce(settings: Settings, catalog: Catalog) -> None:
    """Print what is loaded and where it runs, a line a model."""
    for name, model in catalog.models.items():
        card, marks = model.card, ", default" if model is catalog.default else ""
        size = f"{card.hidden_size} wide, {card.parameters / 1e6:.1f} M parameters, {card.bytes / 2**20:.0f} MiB"
        print(f"inlay: {name} ({card.family}{marks}): {size} {card.dtype}, outputs: {', '.join(card.outputs)}")
        print(f"inlay: {name} runs on {model.engine.device} ({_why(settings, model)})")


def _why(settings: Settings, model: Model) -> str:
    if settings.device != "auto" or settings.engine == "reference":
        return "as set"
    from service.runtime.onnx import why

    return why(model.engine.device)


def announce(settings: Settings, parts: "Parts", grpc_port: int) -> None:
    """Print what is loaded, where it answers, and a line to paste."""
    introduce(settings, parts.catalog)
    host = "localhost" if settings.host in ANYWHERE else f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http{'s' if settings.tls_cert else ''}://{host}:{settings.port}"
    model = parts.catalog.default or next(iter(parts.catalog.models.values()))
    print(f"inlay: REST {url} · docs {url}/docs · gRPC {host}:{grpc_port}")
    closed = settings.api_keys or settings.api_keys_file
    if settings.host in ANYWHERE and not (closed or settings.tls_client_ca):
        log.warning("all who reach this machine may call: INLAY_API_KEYS or INLAY_TLS_CLIENT_CA says who may")
    tell_short_keys(settings)
    key = " -H 'authorization: Bearer KEY'" if closed else ""
    example = _example(model, parts.catalog)
    print(f"try: curl {url}/embed{key} -H 'content-type: application/json' -d '{example}'", flush=True)


def _example(model: Model, catalog: Catalog) -> str:
    inputs = '"hello world"' if model.tokenizer else "[1, 2, 3]"
    name = "" if model is catalog.default else f'"model": "{model.card.name}", '
    return f'{{{name}"inputs": {inputs}}}'

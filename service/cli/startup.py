"""Binds the ports, starts the service in this process or in workers, and announces it.

Ports are bound before anything is loaded, so that a taken port is reported at once.
"""

import asyncio
import errno
import gc
import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import TYPE_CHECKING, NamedTuple

from models.artifacts import card as cards
from models.errors import ModelError
from service import machine
from service.cli.announcement import announce
from service.cli.console import say
from service.errors import StartError
from service.observability import logs
from service.process.stop_signals import exit_on_stop, ignore_stops, was_stopped
from service.process.supervisor import START_FAILURE, Supervisor
from service.registry.registry import check_names
from service.registry.shared_changes import SharedChanges
from service.registry.store import configured_folders
from service.security import tls
from service.security.api_keys import open_keys
from service.settings import Settings

if TYPE_CHECKING:  # a supervisor never imports the application, so that its workers start sooner
    from service.context import ServiceContext
    from service.observability.metrics import Metrics

NO_SUCH_HOST = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # another machine's address, or a kind that is switched off
SAVE_SECONDS = 1.0
BALANCED = sys.platform == "linux"  # the system spreads connections over the sockets of a port
ANNOUNCED = "announced"  # a file in the workers' directory: some worker has served
LAST_SECONDS = 2.0  # for what is left to do once requests in flight are finished or refused
log = logging.getLogger(__name__)


class Listeners(NamedTuple):
    """The bound sockets of HTTP; without one for management, its routes are on that of REST."""

    rest: socket.socket
    management: socket.socket | None


def listen(settings: Settings) -> int:
    """Serve on all ports until a stop signal; return the exit code.

    Raises:
        StartError, ModelError: it cannot serve; the message is one line.
    """
    exit_on_stop()
    if settings.log_format == "json":  # gRPC's core writes plain text, of handshakes that failed for example
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if files := tls.files(settings):
        tls.context(files)
    sockets = {
        setting: bind(settings.host, port, what, setting)
        for setting, what in (("port", "REST"), ("management_port", "management"), ("grpc_port", "gRPC"))
        if (port := getattr(settings, setting)) is not None
    }
    settings = settings.model_copy(update={name: each.getsockname()[1] for name, each in sockets.items()})
    sockets["grpc_port"].close()  # it was bound alone to find out whether another service has the port
    listeners = Listeners(sockets["port"], sockets.get("management_port"))
    with _shared(settings.host, settings.grpc_port):
        if settings.workers == 1:
            return 0 if _serve(settings, listeners) else 1
        if BALANCED:
            listeners.rest.close()
            listeners = listeners._replace(rest=_shared(settings.host, settings.port))
        return _supervise(settings, listeners)


def _supervise(settings: Settings, listeners: Listeners) -> int:
    """Serve with several workers."""
    models = configured_folders(settings)
    for name, folder in models.items():
        if not settings.watch_store or name in (*settings.models, *settings.default_model):
            cards.read(folder)  # what would fail in every worker fails here, once
    check_names(settings, models)
    open_keys(settings)
    with shared_directory() as name:
        run = partial(_run_worker, settings, listeners, Path(name))
        served = (Path(name) / ANNOUNCED).exists
        say(settings, f"starting {settings.workers} workers")
        code = Supervisor(run, settings.workers, served, settings.shutdown_seconds, settings.drain_delay).run()
        ignore_stops()
    return code


def _run_worker(settings: Settings, listeners: Listeners, directory: Path, place: int) -> None:
    logs.start_logging(settings.log_format, settings.log_level, settings.log_inputs)
    exit_on_stop()
    supervisor = os.getppid()
    if BALANCED:
        listeners = listeners._replace(rest=_shared(settings.host, settings.port))
    try:
        served = _serve(settings, listeners, directory, place)
    except (StartError, ModelError) as error:
        log.error("%s", error)
        served = False
    except Exception:  # here, because multiprocessing would print it as plain text
        if was_stopped():
            sys.exit(0)
        log.critical("this worker met a fault and ends", exc_info=True)
        sys.exit(1)
    finally:
        if os.getppid() != supervisor:  # it was killed, and removes nothing
            shutil.rmtree(directory, ignore_errors=True)
    if not served:
        sys.exit(START_FAILURE)


def _serve(settings: Settings, listeners: Listeners, directory: Path | None = None, place: int = 0) -> bool:
    """Serve in this process until a stop signal; return whether it ever became ready.

    Args:
        directory: folder that the workers of a service share; None: this process serves alone.
        place: the worker's number.
    """
    machine.limit_heaps()
    from service.app import create_app
    from service.http.listener import BACKLOG, run_http_server
    from service.observability.metric_store import MetricStore
    from service.observability.metrics import Metrics

    listen = partial(listeners.rest.listen, BACKLOG)
    metrics, ready = Metrics(MetricStore(directory, place)), partial(_ready, settings, directory, place, listen)
    if directory is None:
        listen()  # connections wait until the models are loaded; a worker listens once it has loaded them
    return run_http_server(create_app(settings, ready, metrics, listeners.management), listeners.rest, settings)


def _ready(
    settings: Settings,
    directory: Path | None,
    place: int,
    listen: Callable[[], None],
    context: "ServiceContext",
    grpc_port: int,
) -> None:
    """Finish the start: exempt the loaded objects from garbage collection, listen, and announce the service."""
    listen()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # requests leave few cycles behind; the default looks for them every few requests
    context.lifecycle.on_stop.append(partial(_exit_within, settings.shutdown_seconds + LAST_SECONDS))
    if directory is not None:
        log.info("a worker is ready (process %d)", os.getpid())
        if settings.model_control == "explicit":
            registry = context.registry
            changes = {"load": registry.load_here, "unload": registry.unload_here}
            registry.shared = SharedChanges(changes, directory, place)
        _save_repeatedly(context.metrics, asyncio.get_running_loop())
    if directory is None or _first(directory):
        announce(settings, context, grpc_port)


def _exit_within(seconds: float) -> None:
    """End this process within `seconds`, even if a thread is stuck, for which Python would wait."""

    def end() -> None:
        log.error("something did not stop within %g s: ended without it", seconds)
        os._exit(0)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()


def shared_directory() -> "TemporaryDirectory[str]":
    """Yield a folder in which workers share their metrics, in memory if possible; it is removed with this process."""
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    try:
        return TemporaryDirectory(prefix="inlay-", dir=shared_memory)
    except OSError as error:
        raise StartError(
            f"several workers share their metrics in a folder, and none can be made ({error.strerror}): "
            "make /dev/shm or /tmp writable, or set INLAY_WORKERS=1"
        ) from error


def _first(directory: Path) -> bool:
    """Return whether this worker is the first to be ready."""
    try:
        (directory / ANNOUNCED).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _save_repeatedly(metrics: "Metrics", loop: asyncio.AbstractEventLoop) -> None:
    loop.call_later(SAVE_SECONDS, _save_repeatedly, metrics, loop)  # first: a fault now must not be the end of it
    metrics.save()


def bind(host: str, port: int, what: str, setting: str) -> socket.socket:
    """Return a socket bound to the address, which no other process may share; raise StartError if that fails."""
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


def _shared(host: str, port: int) -> socket.socket:
    """Return a socket on a port that this process and its workers share, each with a socket of its own.

    One that never listens keeps the port while models are loaded: another service binds it alone first, and fails.
    """
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((host, port))
    return holder

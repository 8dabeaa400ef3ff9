"""Several workers of a real service that stop: their ports are free, and no client waits for one that hangs."""

import os
import signal
import socket
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import httpx

from service.cli.startup import bind
from tests.service.cli.test_startup import SECONDS, running
from tests.service.process.test_moving_workers import metrics, until, workers
from tests.service.process.test_supervisor import is_alive


def refused(port: int) -> bool:
    """Whether a connection is refused; one that is taken is waited for until it is answered or ended."""
    with socket.socket() as client:
        client.settimeout(SECONDS)
        with suppress(ConnectionError):  # a reset, of connect too: the port was closed before the connection was taken
            try:
                client.connect(("127.0.0.1", port))
            except ConnectionRefusedError:
                return True
            client.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            client.recv(1)
        return False


def test_stop_ends_beside_a_hanging_worker(tiny_store: Path) -> None:
    with running(tiny_store, "--workers", "2") as (process, url, _):
        until(lambda: "inlay_workers_ready 2" in metrics(url))
        hanging, other = workers(process.pid)
        os.kill(hanging, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        until(lambda: not is_alive(other))
        assert is_alive(hanging)
        os.kill(hanging, signal.SIGKILL)
        assert process.wait(SECONDS) == 0
        assert refused(httpx.URL(url).port or 0)


def answers(connection: HTTPConnection) -> bool:
    try:
        connection.request("GET", "/health/live")
        return connection.getresponse().read() is not None
    except (OSError, HTTPException):
        return False


def test_connections_spread_and_a_kill_loses_one_workers(tiny_store: Path) -> None:
    """Of 64 connections opened together, one socket for all workers gave 57 to one of two."""
    with running(tiny_store, "--workers", "2") as (process, url, _):
        until(lambda: "inlay_workers_ready 2" in metrics(url))
        killed = workers(process.pid)[0]
        connections = [HTTPConnection("127.0.0.1", httpx.URL(url).port, timeout=SECONDS) for _ in range(64)]
        assert all(map(answers, connections))
        for connection in connections:
            connection.auto_open = False  # a lost one is not opened again
        os.kill(killed, signal.SIGKILL)
        until(lambda: not is_alive(killed))
        left = sum(map(answers, connections))
        for connection in connections:
            connection.close()
        assert 12 <= left <= 52  # 32 on average; others once in a million


def shared_folder(pid: int) -> Path:
    """The folder in which a worker shares its metrics: it holds a lock there."""
    targets = [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return next(target.parent for target in targets if target.suffix == ".lock")


def test_killed_supervisor_leaves_no_port_or_folder(tiny_store: Path) -> None:
    with running(tiny_store, "--workers", "2") as (process, url, rpc_address):
        until(lambda: "inlay_workers_ready 2" in metrics(url))
        orphans = workers(process.pid)
        folder = shared_folder(orphans[0])
        assert folder.is_dir()
        process.kill()
        until(lambda: not any(is_alive(pid) for pid in orphans))
        assert not folder.exists()
        for port, what in ((httpx.URL(url).port or 0, "REST"), (int(rpc_address.rpartition(":")[2]), "gRPC")):
            bind("127.0.0.1", port, what, "port").close()

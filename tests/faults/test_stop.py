"""Told to stop: what was let in is finished, and the end comes in time, whatever hangs."""

import signal
import socket
import threading
import time
from pathlib import Path

import grpc
import pytest

from tests.faults.conftest import Notes
from tests.faults.processes import running, until
from tests.faults.test_connections import BIG, HEAD
from tests.faults.traffic import traffic

UNTAKEN = str(grpc.StatusCode.CANCELLED)
pytestmark = pytest.mark.faults


@pytest.mark.parametrize("workers", ["1", "2"])
def test_two_stop_signals(store: Path, log: Path, notes: Notes, workers: str) -> None:
    """SIGTERM twice, half a second apart, under traffic: exit code 0; every call that had begun is answered, no later
    one wrongly: they find a closed connection, 503, or gRPC's CANCELLED, as its core has it (grpc/grpc#41785)."""
    with running(store, log, "--workers", workers, meddling={"slow": "0.05"}) as service:
        with traffic(service) as seen:
            until(lambda: len(seen.answered) > 30, "traffic")
            stopped_at = time.monotonic()
            service.signal(signal.SIGTERM)
            threading.Event().wait(0.5)
            service.signal(signal.SIGTERM)
            assert service.ended(20) == 0
            took = time.monotonic() - stopped_at
        inside = [each for each in seen.outcomes if each.began < stopped_at]
        assert not [each for each in inside if each.fault]
        assert not [each for each in seen.wrong if not each.fault.startswith(("503", UNTAKEN))]
        untaken = sum(each.fault.startswith(UNTAKEN) for each in seen.wrong)
        notes(
            f"ended after {took:.1f} s; all {len(inside)} calls that had begun were answered; of the later ones "
            f"{untaken} were told CANCELLED"
        )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_stop_with_a_drain_delay(store: Path, log: Path, notes: Notes, workers: str) -> None:
    """SIGTERM under traffic that ends a second later, as where an endpoint is removed: every call is answered, those of
    new connections too, and the process ends with exit code 0."""
    with running(store, log, "--workers", workers, "--drain-delay", "4", meddling={"slow": "0.05"}) as service:
        with traffic(service) as seen:
            until(lambda: len(seen.answered) > 30, "traffic")
            stopped_at = time.monotonic()
            service.signal(signal.SIGTERM)
            threading.Event().wait(1)
        later = [each for each in seen.outcomes if each.began > stopped_at]
        assert service.ended(20) == 0
        assert later
        assert not seen.wrong
        notes(f"all {len(seen.outcomes)} calls were answered, of which {len(later)} began after SIGTERM")


def test_a_stop_with_clients_that_hang(store: Path, log: Path, notes: Notes) -> None:
    """Clients that have sent half a request, read nothing of a large answer, or hold an idle connection: the process
    ends within shutdown_seconds and a little, exit code 0."""
    with running(store, log, "--shutdown-seconds", "2") as service:
        service.embed().raise_for_status()
        with (
            socket.create_connection(service.address) as half,
            socket.create_connection(service.address) as idle,
            socket.socket() as deaf,
        ):
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(service.address)
            half.sendall(HEAD)
            deaf.sendall(BIG)
            assert deaf.recv(100)
            stopped_at = time.monotonic()
            service.signal(signal.SIGTERM)
            assert service.ended(15) == 0
            took = time.monotonic() - stopped_at
            assert took < 2 + 4
            idle.settimeout(5)
            assert idle.recv(1) == b""
            notes(f"ended after {took:.1f} s of 2 allowed")


def test_a_stop_while_it_starts(store: Path, log: Path) -> None:
    """SIGTERM to a service of two workers the moment it is up: exit code 0, no worker stays."""
    with running(store, log, "--workers", "2") as service:
        workers = service.workers()
        service.signal(signal.SIGTERM)
        assert service.ended(20) == 0
        assert not [pid for pid in workers if Path(f"/proc/{pid}/stat").exists()]

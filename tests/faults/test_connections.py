"""Clients and networks that are slow, silent, half closed or too many: only their own calls suffer, nothing stays."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.faults.conftest import Notes
from tests.faults.processes import MIB, Running, running, until
from tests.faults.proxy import Weather, proxied
from tests.faults.traffic import TEXTS, connected, traffic

pytestmark = pytest.mark.faults
CLIENT_SECONDS = 2.0
COUNT = 50
BODY = json.dumps({"inputs": TEXTS[0]}).encode()
HEAD = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
BIG = b"GET /models/llama/rope?length=1000000 HTTP/1.1\r\nhost: x\r\naccept: application/octet-stream\r\n\r\n"
LONG_TABLE = pb.PositionsRequest(scheme="rope", model="llama")
LONG_TABLE.parameters.update({"length": 1_000_000})
ROWS = b'{"inputs": [%s], "outputs": "token_embeddings"}'
LARGE = ROWS % b",".join([b"[" + b",".join([b"5"] * 40) + b"]"] * 1000)  # of 40 000 rows, 5 MB of answer


@contextmanager
def patient(store: Path, log: Path, *flags: str) -> Iterator[Running]:
    """A service that waits for its clients for CLIENT_SECONDS."""
    with running(store, log, "--client-seconds", str(CLIENT_SECONDS), *flags) as service:
        service.embed().raise_for_status()
        yield service


@contextmanager
def lines(service: Running, count: int, receive_bytes: int | None = None) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            line = socket.socket()
            if receive_bytes:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            line.settimeout(30)
            line.connect(service.address)
            opened.append(stack.enter_context(line))
        yield opened


def received(line: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := line.recv(65536):
            parts.append(part)
    return b"".join(parts)


def drip(each: list[socket.socket], sent: bytes, stop: threading.Event) -> None:
    """Send to all of them, a byte and a tenth of a second at a time, until they do not take it."""
    open_, at = list(each), 0
    while open_ and at < len(sent) and not stop.wait(0.1):
        for line in list(open_):
            try:
                line.send(sent[at : at + 1])
            except OSError:
                open_.remove(line)
        at += 1


@pytest.mark.parametrize("part", ["head", "body", "chunks"])
def test_clients_that_send_slowly(store: Path, log: Path, notes: Notes, part: str) -> None:
    """50 clients send a byte each tenth of a second, of a head, a body, or chunks: each is let go after client_seconds,
    the others' calls are all right meanwhile, open files and requests in flight are back."""
    chunked = HEAD.replace(b"content-length: %d" % len(BODY), b"transfer-encoding: chunked")
    first, slowly = {
        "head": (b"", b"POST /embed HTTP/1.1\r\n" + b"x-a: b\r\n" * 1000),
        "body": (HEAD.replace(b"length: %d" % len(BODY), b"length: 5000"), b" " * 5000),
        "chunks": (chunked, b"1\r\n \r\n" * 1000),
    }[part]
    with patient(store, log) as service:
        files, stop = service.open_files(), threading.Event()
        with traffic(service) as seen, lines(service, COUNT) as slow:
            for line in slow:
                line.sendall(first)
            began = time.monotonic()
            dripping = threading.Thread(target=drip, args=(slow, slowly, stop))
            dripping.start()
            try:
                answers = [received(line) for line in slow]
                took = time.monotonic() - began
            finally:
                stop.set()
                dripping.join()
        assert {answer[:12] for answer in answers} <= {b"HTTP/1.1 408", b""}
        assert took < 4 * CLIENT_SECONDS
        until(lambda: service.open_files() <= files + 4, "their connections are closed")
    assert not seen.wrong
    assert not seen.broken
    notes(f"all {COUNT} let go after {took:.1f} s; {len(seen.answered)} others right")


@pytest.mark.parametrize("what", ["a whole answer", "a stream"])
def test_clients_that_do_not_read(store: Path, log: Path, notes: Notes, what: str) -> None:
    """20 clients ask for megabytes and never read: each is cut off after client_seconds and a look; the others' calls
    are all right; memory, open files and requests in flight are back."""
    request = BIG
    if what == "a whole answer":
        head = (
            b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\naccept: application/octet-stream\r\n"
        )
        request = head + b"content-length: %d\r\n\r\n" % len(LARGE) + LARGE
    with patient(store, log) as service:
        for _ in range(2):
            with lines(service, 1) as [line]:
                line.sendall(request.replace(b"host: x\r\n", b"host: x\r\nconnection: close\r\n"))
                assert len(received(line)) > 4 * MIB
        files, private = service.open_files(), service.private_bytes()
        with traffic(service) as seen, lines(service, 20, receive_bytes=4096) as deaf:
            for line in deaf:
                line.sendall(request)
            began = time.monotonic()
            until(lambda: service.open_files() > files + 15, "they are connected")
            until(lambda: service.open_files() < files + 12, "they are cut off", 8 * CLIENT_SECONDS)
            took = time.monotonic() - began
        assert not seen.wrong
        assert not seen.broken
        until(lambda: service.open_files() <= files + 4, "their connections are closed")
        until(service.idle, "nothing waits")
        until(lambda: service.private_bytes() < private + 40 * MIB, "memory is back")
        notes(f"cut off after {took:.1f} s; {len(seen.answered)} others right; memory "
              f"{(service.private_bytes() - private) / MIB:+.1f} MiB")  # fmt: skip


def test_a_client_that_closes_its_sending_half(store: Path, log: Path) -> None:
    """shutdown(SHUT_WR) behind a whole request: it is answered or closed at once, never left hanging; behind half a
    request: closed. gRPC's half-close ends a stream of requests: each is answered."""
    with patient(store, log) as service:
        for sent in (HEAD + BODY, HEAD + BODY[:5], HEAD[:20], b""):
            with lines(service, 1) as [line]:
                line.sendall(sent)
                line.shutdown(socket.SHUT_WR)
                began = time.monotonic()
                answer = received(line)
                assert answer[:12] in (b"HTTP/1.1 200", b"")
                assert time.monotonic() - began < 1.5 * CLIENT_SECONDS
        request = pb.EmbedRequest(inputs=[pb.Input(text=TEXTS[0])])
        with grpc.insecure_channel(service.rpc_address) as channel:
            answers = list(EmbedderStub(channel).EmbedStream(iter([request] * 5), timeout=20))
        assert [len(answer.response.outputs) for answer in answers] == [1] * 5
        assert service.embed().status_code == 200


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_line_that_is_cut(store: Path, log: Path, protocol: str) -> None:
    """A proxy resets both sides in the middle of a large answer: that client sees it, nobody else; nothing stays."""
    with patient(store, log) as service, traffic(service) as seen:
        host, _, port = service.rpc_address.rpartition(":")
        with proxied(service.address if protocol == "http" else (host, int(port))) as proxy:
            proxy.weather = Weather(cut_after=100_000)
            for _ in range(10):
                if protocol == "http":
                    url = "http://{}:{}/models/llama/rope?length=1000000".format(*proxy.address)
                    with pytest.raises(httpx.TransportError):
                        httpx.get(url, headers={"accept": "application/octet-stream"}, trust_env=False)
                else:
                    with grpc.insecure_channel("{}:{}".format(*proxy.address)) as channel:
                        table = EmbedderStub(channel).Positions(LONG_TABLE, timeout=20)
                        with pytest.raises(grpc.RpcError):
                            list(table)
        until(lambda: len(seen.answered) > 50, "traffic")
    assert not seen.wrong
    assert not seen.broken


def test_a_line_that_is_late_and_slow(store: Path, log: Path) -> None:
    """Through a proxy that adds 20 ms to each piece and passes 2 MB a second, a 5 MB answer arrives whole, though it
    takes longer than client_seconds."""
    with patient(store, log) as service, proxied(service.address) as proxy:
        proxy.weather = Weather(delay_s=0.001, bytes_per_s=1_500_000)
        headers = {"content-type": "application/json", "accept": "application/octet-stream"}
        url = "http://{}:{}/embed".format(*proxy.address)
        began = time.monotonic()
        answer = httpx.post(url, content=LARGE, headers=headers, timeout=60, trust_env=False)
        assert (answer.status_code, len(answer.content)) == (200, 40_000 * 32 * 4)
        assert time.monotonic() - began > CLIENT_SECONDS


def test_lines_that_fall_silent(store: Path, log: Path, notes: Notes) -> None:
    """20 clients ask for a large answer through a line that falls silent in its middle, both ends still up: they are
    let go after client_seconds and a look; over gRPC after two keep-alive times; open files are back."""
    with patient(store, log) as service:
        host, _, port = service.rpc_address.rpartition(":")
        files = service.open_files()
        with proxied(service.address) as proxy, proxied((host, int(port))) as rpc_proxy, ExitStack() as stack:
            proxy.weather = rpc_proxy.weather = Weather(silent_after=100_000)
            for _ in range(20):
                line = stack.enter_context(socket.create_connection(proxy.address))
                line.sendall(BIG)
            for _ in range(5):
                channel = stack.enter_context(
                    grpc.insecure_channel("{}:{}".format(*rpc_proxy.address), [("grpc.use_local_subchannel_pool", 1)])
                )
                stack.callback(EmbedderStub(channel).Positions(LONG_TABLE).cancel)
            until(lambda: service.open_files() > files + 20, "they are connected")
            began = time.monotonic()
            until(lambda: service.open_files() <= files + 4, "they are let go", 10 * CLIENT_SECONDS)
            notes(f"all let go after {time.monotonic() - began:.1f} s")
            assert service.embed().status_code == 200


def test_no_file_descriptors_left(store: Path, log: Path, notes: Notes) -> None:
    """More idle connections than descriptors (RLIMIT_NOFILE 256): connections that are open go on being served, the
    log does not fill, and new ones are served as soon as the idle ones are gone."""
    with running(store, log, "--client-seconds", "60", files=256) as service:
        held = connected(service, 3)
        with ExitStack() as stack:
            for _ in range(400):
                line = stack.enter_context(socket.socket())
                line.settimeout(5)
                with contextlib.suppress(OSError):
                    line.connect(service.address)
            until(lambda: service.open_files() >= 250, "no descriptors left")
            for _ in range(20):
                for client in held:
                    assert client.post("/embed", json={"inputs": "a"}).status_code == 200
            assert held[0].get("/health/live").status_code == 200
            assert held[0].get("/health/ready").status_code == 200
            assert held[0].get("/metrics").status_code == 200
            full = service.open_files()
        began = time.monotonic()
        until(lambda: _answers(service), "new connections are served")
        back = time.monotonic() - began
        said = service.said.splitlines()
        assert len(said) < 50
        for client in held:
            client.close()
        notes(f"{full} descriptors of 256 in use, open connections served; new ones after {back:.1f} s; "
              f"{len(said)} log lines")  # fmt: skip


def _answers(service: Running) -> bool:
    try:
        return service.embed(timeout=2).status_code == 200
    except httpx.TransportError:
        return False

"""PictureFetcher against a server on loopback, whose address counts as public here."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.embedding.picture_fetcher import PictureFetcher, is_public
from service.embedding.requests import Picture
from service.errors import BadInput

FILE = b"a picture" * 100
MOST_BYTES = 10_000


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        port = self.server.server_address[1]
        places = {
            "/moved": f"http://localhost:{port}/file?x=1",
            "/away": "http://example.org/file",
            "/inside": f"http://127.0.0.1:{port}/file",
            "/circle": "/circle",
        }
        if self.path in places:
            self.send_response(302)
            self.send_header("location", places[self.path])
            self.end_headers()
        elif self.path.startswith("/file"):
            self._answer(FILE)
        elif self.path == "/large":
            self._answer(bytes(MOST_BYTES + 1))
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(bytes(1000))
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            self.server.released.wait(30)  # type: ignore[attr-defined]
        else:
            self.send_error(404)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        with suppress(OSError):  # the client has left
            super().handle()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.released = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.released.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


def fetched(url: str, hosts: tuple[str, ...], seconds: float = 30.0) -> bytes:
    fetcher = PictureFetcher(hosts, MOST_BYTES, lambda address: True, seconds)
    return asyncio.run(fetcher.fetched(Picture(b"", url, ("inputs", 0)))).data


def refusal(url: str, hosts: tuple[str, ...], seconds: float = 30.0) -> str:
    with pytest.raises(BadInput) as caught:
        fetched(url, hosts, seconds)
    return caught.value.message


@pytest.mark.parametrize("path", ["/file", "/file?a=b", "/moved"])
def test_a_picture_comes_from_an_allowed_host(path: str, port: int) -> None:
    assert fetched(f"http://localhost:{port}{path}", (f"LOCALHOST:{port}",)) == FILE


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/away", "'example.org' is not among the hosts"),
        ("/inside", "is not among the hosts"),
        ("/circle", "redirects more than 3 times"),
        ("/large", "more than 10000 bytes"),
        ("/endless", "more than 10000 bytes"),
        ("/missing", "answered 404"),
    ],
)
def test_what_leads_elsewhere_or_is_too_large_is_refused(path: str, says: str, port: int) -> None:
    assert says in refusal(f"http://localhost:{port}{path}", (f"localhost:{port}",))


def test_a_server_that_sends_nothing_is_left(port: int) -> None:
    assert "inputs[0] is" in refusal(f"http://localhost:{port}/slow", (f"localhost:{port}",), seconds=0.3)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("http://localhost:{port}/file", ("localhost",)),
        ("http://localhost:{port}/file", ("example.org",)),
        ("http://user@localhost:{port}/file", ("user",)),
        ("http://alocalhost:{port}/file", ("*.localhost:{port}",)),
    ],
)
def test_other_hosts_and_ports_are_not_asked(url: str, hosts: tuple[str, ...], port: int) -> None:
    assert "is not among the hosts" in refusal(url.format(port=port), tuple(host.format(port=port) for host in hosts))


def test_private_addresses_are_not_asked(port: int) -> None:
    fetcher = PictureFetcher((f"localhost:{port}",), MOST_BYTES)
    with pytest.raises(BadInput, match="has no public address"):
        asyncio.run(fetcher.fetched(Picture(b"", f"http://localhost:{port}/file", ("inputs", 0))))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fd00::1", False),
        ("fe80::1", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_private_and_local_addresses_are_not_public(address: str, public: bool) -> None:
    assert is_public(address) == public

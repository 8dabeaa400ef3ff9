"""Two API keys over the wire: no shared vector, and log lines with the caller's own name, whatever the
client's library sends.
"""

import http.client
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest

from proto import embed_pb2 as pb
from service.observability import logs
from tests.served import Served, serving

KEYS = {"one": "correct-horse-battery", "other": "staple.0123456789"}
SETTINGS = {"default_model": "bert", "api_keys": ",".join(f"{name}:{key}" for name, key in KEYS.items())}
JSON = {"content-type": "application/json"}
FORMS: dict[str, dict[str, str]] = {
    "bare": {},
    "curl": {"user-agent": "curl/8.5.0", "accept": "*/*"},
    "requests": {
        "user-agent": "python-requests/2.32.5",
        "accept-encoding": "gzip, deflate",
        "accept": "*/*",
        "connection": "keep-alive",
    },
    "httpx": {
        "accept": "*/*",
        "accept-encoding": "gzip, deflate, br, zstd",
        "connection": "keep-alive",
        "user-agent": "python-httpx/0.28.1",
    },
    "compressed": {"accept-encoding": "gzip"},
    "deadline": {"inlay-timeout-ms": "60000"},
    "traced": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "x-request-id": "mine"},
}
"""What clients send beside the key and the body's type and length."""
SERVERS = {"own": {}, "asgi": {"http": "httptools"}}
"""Inlay's own listener, and the ASGI application behind another server, as Ray Serve calls it."""


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"} if name in KEYS else {"authorization": f"Bearer {name}"}


class Connection:
    """One connection that sends the headers it is given and no others but Host and Content-Length."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._http = http.client.HTTPConnection(*address, timeout=60)

    def embed(self, headers: dict[str, str], text: str, path: str = "/embed") -> tuple[int, str]:
        """Return the status and the request id of the answer."""
        body = json.dumps({"model": "bert", "input": text} if path == "/v1/embeddings" else {"inputs": text}).encode()
        self._http.putrequest("POST", path, skip_accept_encoding=True)
        for name, value in {**JSON, **headers, "content-length": str(len(body))}.items():
            self._http.putheader(name, value)
        self._http.endheaders(body)
        answer = self._http.getresponse()
        answer.read()
        return answer.status, answer.headers["x-request-id"]

    def close(self) -> None:
        self._http.close()


@contextmanager
def connection(service: Served) -> Iterator[Connection]:
    opened = Connection(service.address)
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=SERVERS)
def cached(request: pytest.FixtureRequest, tiny_store: Path) -> Iterator[Served]:
    """A service with two keys and a vector cache."""
    with serving(tiny_store, vector_cache_bytes=1 << 20, **SETTINGS, **SERVERS[request.param]) as service:
        yield service


def hits(service: Served) -> float:
    lines = service.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("inlay_vector_cache_hits_total{"))


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
@pytest.mark.parametrize("form", FORMS)
def test_no_key_finds_vectors_of_another(cached: Served, form: str, path: str) -> None:
    text, before, counted = f"hello {form} {path}", hits(cached), []
    with connection(cached) as client:
        for name in ("one", "other", "one"):
            assert client.embed(bearer(name) | FORMS[form], text, path)[0] == 200
            counted.append(hits(cached) - before)
    assert counted == [0, 0, 1]


@pytest.mark.parametrize("method", ["Embed", "EmbedStream"])
def test_no_key_finds_vectors_of_another_over_grpc(cached: Served, method: str) -> None:
    request, before, counted = pb.EmbedRequest(inputs=[pb.Input(text=f"hello {method}")]), hits(cached), []
    for name in ("one", "other", "one"):
        metadata = [*bearer(name).items()]
        if method == "Embed":
            cached.stub.Embed(request, metadata=metadata)
        else:
            assert len([*cached.stub.EmbedStream(iter([request]), metadata=metadata)]) == 1
        counted.append(hits(cached) - before)
    assert counted == [0, 0, 1]


@pytest.fixture(params=SERVERS)
def logged(request: pytest.FixtureRequest, tiny_store: Path) -> Iterator[tuple[Served, list[dict[str, Any]]]]:
    """A service with two keys and an access log, and the lines of that log."""
    lines: list[dict[str, Any]] = []
    formatter = logs.JsonFormatter()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(formatter.format(record)))

    handler, logger = Kept(), logging.getLogger(logs.ACCESS)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    with serving(tiny_store, access_log=True, **SETTINGS, **SERVERS[request.param]) as service:
        yield service, lines
    logger.removeHandler(handler)
    logger.setLevel(level)


ORDER = ("one", "wrong", "other", "one", "wrong", "wrong", "other")


def test_access_lines_name_their_own_caller(logged: tuple[Served, list[dict[str, Any]]]) -> None:
    service, lines = logged
    expected = []
    for headers in FORMS.values():
        with connection(service) as client:
            for number, name in enumerate(ORDER):
                own = {"x-request-id": f"mine-{number}"} if "x-request-id" in headers else {}
                status, request_id = client.embed(bearer(name) | headers | own, "hello")
                expected.append((status, "" if name == "wrong" else name, request_id))
    for number, name in enumerate(ORDER):
        metadata = [*bearer(name).items(), ("x-request-id", f"grpc-{number}")]
        if name == "wrong":
            with pytest.raises(grpc.RpcError):
                service.stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text="hello")]), metadata=metadata)
            expected.append(("UNAUTHENTICATED", "", f"grpc-{number}"))
        else:
            service.stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text="hello")]), metadata=metadata)
            expected.append(("OK", name, f"grpc-{number}"))
    assert {status for status, _, _ in expected} == {200, 401, "OK", "UNAUTHENTICATED"}
    ends = monotonic() + 60
    while len(lines) < len(expected):  # a line follows its answer
        assert monotonic() < ends
    answered = [(line["status"], line.get("key", ""), line.get("request_id")) for line in lines]
    assert sorted(answered, key=str) == sorted(expected, key=str)

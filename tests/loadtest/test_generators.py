"""The load generators send the request they were given, and fail on answers that are not right."""

import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import grpc
import pytest

from loadtest import generators
from loadtest.generators import BadLoad, LoadRequest
from loadtest.processes import split_cores

ALL_CORES = split_cores(pin=False)[0]
BODY = b'{"inputs": [[101, 102]], "quoted": "]] \\" \\u00e9"}'
HEADERS = {"content-type": "application/json", "x-test": "1"}
VECTOR = bytes(4096)
METHOD = "/test.Service/Call"
HTTP_GENERATORS = sorted({generators.choose("http", fallback) for fallback in (False, True)}, key=lambda one: one.name)
GRPC_GENERATORS = sorted({generators.choose("grpc", fallback) for fallback in (False, True)}, key=lambda one: one.name)


@contextmanager
def http_server(status: int, answer: bytes) -> Iterator[tuple[int, list[tuple[str, str, bytes]]]]:
    """Run a server that records method, path, headers and body of every request; yield its port and the record."""
    seen: list[tuple[str, str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, self.headers["x-test"] + self.headers["content-type"], body))
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def handle(self) -> None:
            with suppress(ConnectionError):  # a generator leaves in the middle of its last answers
                super().handle()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_server(code: grpc.StatusCode, answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Run a server whose one method records its messages; yield its port and the record."""
    seen: list[bytes] = []

    def call(message: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(message)
        if code is not grpc.StatusCode.OK:
            context.abort(code, "refused")
        return answer

    server = grpc.server(futures.ThreadPoolExecutor(4))
    handler = grpc.unary_unary_rpc_method_handler(call)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Call": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, seen
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize("generator", HTTP_GENERATORS, ids=lambda one: one.name)
def test_http_generator_posts_the_given_body(generator: generators.Generator) -> None:
    with http_server(200, VECTOR) as (port, seen):
        result = generators.run(generator, LoadRequest(port, "/embed", HEADERS, BODY, len(VECTOR)), 2, 0.3, ALL_CORES)
    assert result.requests <= len(seen)
    assert set(seen) == {("/embed", "1application/json", BODY)}


@pytest.mark.parametrize("generator", HTTP_GENERATORS, ids=lambda one: one.name)
def test_http_generator_posts_several_bodies_in_turn(generator: generators.Generator) -> None:
    others = (b"1", b"22")
    request = LoadRequest(0, "/embed", HEADERS, BODY, len(VECTOR), others)
    with http_server(200, VECTOR) as (port, seen):
        generators.run(generator, replace(request, port=port), 2, 0.3, ALL_CORES)
    sent = Counter(body for _, _, body in seen)
    assert set(sent) == {BODY, *others}
    assert max(sent.values()) - min(sent.values()) <= 2


@pytest.mark.parametrize(("status", "answer"), [(429, VECTOR), (200, b"short"), (204, b"")])
@pytest.mark.parametrize("generator", HTTP_GENERATORS, ids=lambda one: one.name)
def test_http_generator_rejects_wrong_answers(generator: generators.Generator, status: int, answer: bytes) -> None:
    with http_server(status, answer) as (port, _), pytest.raises(BadLoad):
        generators.run(generator, LoadRequest(port, "/embed", HEADERS, BODY, len(VECTOR)), 2, 0.3, ALL_CORES)


@pytest.mark.parametrize("generator", GRPC_GENERATORS, ids=lambda one: one.name)
def test_grpc_generator_sends_the_given_message(generator: generators.Generator) -> None:
    with grpc_server(grpc.StatusCode.OK, VECTOR) as (port, seen):
        result = generators.run(generator, LoadRequest(port, METHOD, {}, BODY, len(VECTOR)), 2, 0.3, ALL_CORES)
    assert result.requests <= len(seen)
    assert set(seen) == {BODY}


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, VECTOR),
        (grpc.StatusCode.OK, b"short"),
        (grpc.StatusCode.UNIMPLEMENTED, b""),
    ],
)
@pytest.mark.parametrize("generator", GRPC_GENERATORS, ids=lambda one: one.name)
def test_grpc_generator_rejects_wrong_answers(
    generator: generators.Generator, code: grpc.StatusCode, answer: bytes
) -> None:
    with grpc_server(code, answer) as (port, _), pytest.raises(BadLoad):
        generators.run(generator, LoadRequest(port, METHOD, {}, BODY, len(VECTOR)), 2, 0.3, ALL_CORES)

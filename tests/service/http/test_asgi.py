"""Requests that another ASGI server received: answered as HttpProtocol answers them, within the same bounds."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from service.http import asgi
from service.http.client_pace import ConnectionSettings
from service.http.intake import Intake
from service.http.pipeline import Pipeline
from service.http.problem_details import render_problem
from service.http.response import Response, bytes_response
from service.http.router import Router
from service.http.routes import Request, RouteGroup
from service.observability.metrics import Metrics
from service.scheduling.admission import AdmissionController
from tests.served import Served, serving
from tests.service.http.test_http import JSON, REFUSALS
from tests.service.http.toy_server import SECONDS, counted_in, route, running

SETTINGS: dict[str, Any] = {
    "default_model": "bert",
    "max_inputs": 64,
    "max_body_bytes": 100_000,
    "cors_origins": "https://page.example",
}
RAW = {"accept": "application/octet-stream"}
IDS = b'{"inputs": [[1, 2], [3]]}'
OF_THE_SERVER = {"date", "server", "x-request-id"}
TIMES = (
    "x-compute-time",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
    "openai-processing-ms",
)
CREATED = re.compile(rb'"created":\d+')  # the second of the clock
# method, path, headers, body
ANSWERED: list[tuple[str, str, dict[str, str], bytes]] = [
    ("POST", "/embed", JSON, IDS),
    ("POST", "/embed", JSON | RAW, IDS),
    ("POST", "/embed", JSON | {"accept-encoding": "gzip"}, IDS),
    ("POST", "/v1/embeddings", JSON, b'{"model": "bert", "input": [1, 2]}'),
    ("POST", "/embed", JSON | {"origin": "https://page.example"}, IDS),
    ("OPTIONS", "/embed", {"origin": "https://page.example", "access-control-request-method": "POST"}, b""),
    ("GET", "/models/llama/rope?length=8", RAW, b""),
    ("GET", "/positions/sinusoidal?dim=64&length=9000", RAW | {"accept-encoding": "zstd"}, b""),
    ("GET", "/positions/sinusoidal?dim=64&length=900", {}, b""),
    ("HEAD", "/positions/sinusoidal?dim=64&length=900", RAW, b""),
    ("GET", "/models/be%72t", {}, b""),
    ("GET", "/docs", {}, b""),
    ("GET", "/health/ready", {}, b""),
]
ALL = [*ANSWERED, *(row[:4] for row in REFUSALS)]


@pytest.fixture(scope="module")
def own(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, **SETTINGS) as running_service:
        yield running_service


@pytest.fixture(scope="module")
def hosted(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, http="httptools", **SETTINGS) as running_service:
        yield running_service


def compared(answer: httpx.Response) -> tuple[int, list[tuple[str, str]], bytes]:
    headers = [(name, value) for name, value in answer.headers.multi_items() if name not in (*OF_THE_SERVER, *TIMES)]
    return answer.status_code, sorted(headers), CREATED.sub(b"", answer.read())


@pytest.mark.parametrize(("method", "path", "headers", "body"), ALL, ids=[f"{row[0]} {row[1]} {row[2]}" for row in ALL])
def test_answers_are_those_of_the_own_server(
    own: Served, hosted: Served, method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    asked = headers | {"x-request-id": "mine", "accept": headers.get("accept", "*/*")}
    given, expected = (each.http.request(method, path, headers=asked, content=body) for each in (hosted, own))
    assert given.headers["x-request-id"] == "mine"
    left_out = {("connection", "close")}  # of refusals before the body is read, where uvicorn reads it and goes on
    status, lines, content = compared(expected)
    assert compared(given) == (status, [line for line in lines if line not in left_out], content)


def test_chunked_body_over_the_limit_is_refused(hosted: Served) -> None:
    answer = hosted.http.post("/embed", headers=JSON, content=iter([b"a" * 60_000, b"a" * 60_000]))
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


class Host:
    """An ASGI server that asks an application with one route, and what it counted."""

    def __init__(
        self,
        handler: Callable[[Request], Awaitable[Response]],
        *messages: Any,
        client_seconds: float = 60.0,
        receiving_bytes: int = 1 << 20,
    ) -> None:
        self.admission, self.metrics = AdmissionController(8), Metrics()
        row = route("/", handler, "POST", admitted=True)
        router = Router([RouteGroup([row], render_problem)])
        lifecycle = SimpleNamespace(stopping=False)
        self.intake = Intake(1 << 20, receiving_bytes)
        self.app: Any = SimpleNamespace(
            pipeline=Pipeline(router, self.admission, self.metrics, lifecycle, 1 << 20, "asked"),
            connections=ConnectionSettings(client_seconds, 60.0),
            intake=self.intake,
        )
        self.messages = [*messages] or [{"type": "http.request", "body": b"", "more_body": False}]
        self.sent: list[Any] = []
        self.gone = asyncio.Event()

    async def receive(self) -> Any:
        if self.messages:
            return self.messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def serve(self, send: Any = None) -> None:
        headers = [(b"host", b"here"), (b"transfer-encoding", b"chunked")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "client": ("10.1.1.1", 5)}
        async with asyncio.timeout(SECONDS):
            await asgi.serve(self.app, scope, self.receive, send or self.send)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def counted(self) -> dict[tuple[str, str], float]:
        return counted_in(self.metrics)


class Held:
    """A handler that waits until it is cancelled."""

    def __init__(self) -> None:
        self.began, self.cancelled = asyncio.Event(), False

    async def __call__(self, request: Request) -> Response:
        self.began.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


async def answer(request: Request) -> Response:
    return bytes_response(request.body, "text/plain")


async def test_handler_is_cancelled_when_its_client_leaves() -> None:
    held = Held()
    host = Host(held)
    serving_it = asyncio.create_task(host.serve())
    await asyncio.wait_for(held.began.wait(), SECONDS)
    host.gone.set()
    await serving_it
    assert held.cancelled
    assert host.sent == []
    assert (host.counted, host.admission.active) == ({("/", "499"): 1}, 0)


async def test_handler_is_cancelled_with_its_request() -> None:
    held = Held()
    host = Host(held)
    serving_it = asyncio.create_task(host.serve())
    await asyncio.wait_for(held.began.wait(), SECONDS)
    serving_it.cancel()
    with suppress(asyncio.CancelledError):
        await serving_it
    assert held.cancelled
    assert (host.counted, host.admission.active) == ({("/", "499"): 1}, 0)


async def test_client_that_leaves_within_its_body_is_not_answered() -> None:
    host = Host(answer, {"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.disconnect"})
    await host.serve()
    assert (host.sent, host.intake.held) == ([], 0)


async def test_body_that_comes_too_slowly_is_refused() -> None:
    host = Host(answer, {"type": "http.request", "body": b"a", "more_body": True}, client_seconds=0.01)
    await host.serve()
    assert (host.status, host.intake.held) == (408, 0)


async def test_bodies_together_are_bounded() -> None:
    parts = [{"type": "http.request", "body": b"a" * 60_000, "more_body": True}] * 2
    host = Host(answer, *parts, receiving_bytes=100_000)
    await host.serve()
    assert (host.status, host.intake.held) == (429, 0)


async def test_client_that_takes_nothing_is_given_up() -> None:
    host = Host(answer, client_seconds=0.01)

    async def never(message: Any) -> None:
        await asyncio.get_running_loop().create_future()

    await host.serve(never)
    assert (host.counted, host.admission.active) == ({("/", "499"): 1}, 0)


async def parts_of(made: list[int], parts: int, closed: list[bool]) -> AsyncIterator[bytes]:
    try:
        for number in range(parts):
            made.append(number)
            yield b"part"
    finally:
        closed.append(True)


async def test_stream_is_made_no_faster_than_it_is_taken() -> None:
    made: list[int] = []
    closed: list[bool] = []
    most: list[int] = []

    async def stream(request: Request) -> Response:
        return Response(stream=parts_of(made, 3, closed))

    host = Host(stream)

    async def send(message: Any) -> None:
        most.append(len(made))
        await host.send(message)

    await host.serve(send)
    assert most == [0, 1, 2, 3, 3]  # the head, each part once it is made, the end
    assert [message.get("more_body") for message in host.sent] == [None, True, True, True, False]


async def test_stream_is_closed_when_its_client_leaves() -> None:
    made: list[int] = []
    closed: list[bool] = []

    async def stream(request: Request) -> Response:
        return Response(stream=parts_of(made, 1000, closed))

    host = Host(stream)

    async def send(message: Any) -> None:
        if len(made) == 2:
            host.gone.set()
            await asyncio.get_running_loop().create_future()

    await host.serve(send)
    assert (len(made), closed) == (2, [True])


async def test_broken_stream_does_not_look_complete() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"part"
        raise ValueError

    async def stream(request: Request) -> Response:
        return Response(stream=broken())

    async with running([route("/", stream)], http="httptools") as toy, httpx.AsyncClient(timeout=60) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"http://127.0.0.1:{toy.port}/")


@pytest.mark.parametrize(
    ("path", "root", "found"),
    [
        ("/in/embed", "/in", "/embed"),
        ("/in", "/in", "/"),
        ("/inlaid", "/in", "/inlaid"),
        ("/a", "", "/a"),
    ],
)
def test_path_is_below_the_mount(path: str, root: str, found: str) -> None:
    scope = {"method": "GET", "path": path, "root_path": root, "headers": [], "query_string": b"x=1"}
    head, _ = asgi.head_of(scope)
    assert (head.path, head.query) == (found, b"x=1")


def test_repeated_headers_are_joined() -> None:
    headers = [(b"accept", b"a"), (b"accept", b"b")]
    head, _ = asgi.head_of({"method": "GET", "path": "/", "headers": headers})
    assert head.headers == {b"accept": b"a,b"}

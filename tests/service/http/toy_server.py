"""A small HTTP server for tests: toy routes on a real socket, through uvicorn and HttpProtocol."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from service.http import asgi
from service.http.client_pace import ConnectionSettings
from service.http.cors import Cors
from service.http.head_memory import HeadMemory
from service.http.intake import Intake
from service.http.negotiation import Policy
from service.http.pipeline import Pipeline
from service.http.problem_details import render_problem
from service.http.response import Response
from service.http.router import Router
from service.http.routes import Request, Route, RouteGroup
from service.http.server import HttpProtocol
from service.observability.access_log import AccessLog
from service.observability.metrics import Metrics
from service.scheduling.admission import AdmissionController
from service.security.api_keys import Keys

SECONDS = 60  # after which a test that waits has failed
MIB = 2**20
Handler = Callable[[Request], Awaitable[Response]]


def route(path: str, handler: Handler, verb: Any = "GET", **changes: Any) -> Route:
    """A row that needs no documentation."""
    return Route(verb, path, handler, **changes)


@dataclass(frozen=True)
class Toy:
    """A running server and what it is made of."""

    port: int
    server: uvicorn.Server
    metrics: Metrics
    admission: AdmissionController
    lifecycle: SimpleNamespace
    intake: Intake
    heads: HeadMemory

    @property
    def connections(self) -> int:
        """The open connections."""
        return len(self.server.server_state.connections)

    def counted(self) -> dict[tuple[str, str], float]:
        """The requests that were counted, by method and status."""
        return counted_in(self.metrics)


def counted_in(metrics: Metrics) -> dict[tuple[str, str], float]:
    """The requests that metrics counted, by method and status."""
    return {
        (sample.labels["method"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == "inlay_requests_total" and sample.value
    }


@asynccontextmanager
async def running(
    routes: Sequence[Route],
    *,
    client_seconds: float = 60.0,
    idle_seconds: float = 60.0,
    max_body_bytes: int = MIB,
    receiving_bytes: int = 16 * MIB,
    max_requests: int = 1000,
    compression: Policy = "asked",
    keys: Keys | None = None,
    cors: Cors | None = None,
    access_log: AccessLog | None = None,
    **config: Any,
) -> AsyncIterator[Toy]:
    """Serve routes in the running event loop until the block ends."""
    metrics, admission = Metrics(), AdmissionController(max_requests)
    lifecycle, intake = SimpleNamespace(draining=False, stopping=False), Intake(max_body_bytes, receiving_bytes)
    router = Router([RouteGroup(routes, render_problem)])
    pipeline = Pipeline(router, admission, metrics, lifecycle, max_body_bytes, compression, keys, access_log, cors)
    heads = HeadMemory()

    class App:
        def __init__(self) -> None:
            self.pipeline, self.intake, self.heads = pipeline, intake, heads
            self.connections = ConnectionSettings(client_seconds, idle_seconds)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert "http" in config, "HttpProtocol asks no ASGI application"
            await asgi.serve(self, scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        chosen = {"http": HttpProtocol, "ws": "none", "lifespan": "off", "proxy_headers": False}
        chosen |= {"log_config": None, "access_log": False}
        server = uvicorn.Server(uvicorn.Config(App(), interface="asgi3", **(chosen | config)))
        serving = asyncio.create_task(server.serve([listener]))
        async with asyncio.timeout(SECONDS):
            while not server.started:
                await asyncio.sleep(0)
        try:
            yield Toy(listener.getsockname()[1], server, metrics, admission, lifecycle, intake, heads)
        finally:
            server.should_exit = True
            async with asyncio.timeout(SECONDS):
                await serving


class Client:
    """One connection that sends and receives bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        """Send each part in a segment of its own."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def until(self, end: bytes) -> bytes:
        """What comes up to and with `end`."""
        return await asyncio.wait_for(self.reader.readuntil(end), SECONDS)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        return await asyncio.wait_for(self.reader.read(), SECONDS)

    async def answer(self, bodiless: bool = False) -> tuple[int, dict[str, str], bytes]:
        """The next response: status, headers and body."""
        head = await self.until(b"\r\n\r\n")
        status, headers = parsed_head(head)
        if bodiless or status in (204, 304) or status < 200:
            return status, headers, b""
        if "content-length" in headers:
            return (
                status,
                headers,
                await asyncio.wait_for(self.reader.readexactly(int(headers["content-length"])), SECONDS),
            )
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, await self._chunks()
        return status, headers, await self.rest()

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.until(b"\r\n"), 16):
            body += (await asyncio.wait_for(self.reader.readexactly(size + 2), SECONDS))[:-2]
        await self.until(b"\r\n")
        return body

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


def parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    """The status and the headers, which occur once each, but for Vary."""
    line, *lines = head.decode("latin-1").strip().split("\r\n")
    names = [name for each in lines if (name := each.partition(":")[0].lower()) != "vary"]
    assert len(set(names)) == len(names), names
    return int(line.split()[1]), {each.partition(":")[0].lower(): each.partition(":")[2].strip() for each in lines}


@asynccontextmanager
async def connected(port: int, limit: int = 2**16) -> AsyncIterator[Client]:
    """A client connected for the length of a block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def exchange(port: int, *parts: bytes) -> bytes:
    """Send parts on a new connection; return all that comes until the server closes it."""
    async with connected(port) as client:
        await client.send(*parts)
        return await client.rest()


def request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    """A request of HTTP/1.1; `line` is verb and target."""
    length = [b"content-length: %d" % len(body)] if body else []
    return b"\r\n".join((line + b" HTTP/1.1", b"host: x", *headers, *length, b"", b"")) + body


def statuses(answers: bytes) -> list[int]:
    """The statuses of responses one after the other."""
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.001)

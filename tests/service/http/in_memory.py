"""HTTP connections without sockets: bytes given to a server's protocol class, and all that it answers and serves."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.http.client_pace import ConnectionSettings
from service.http.head_memory import HeadMemory
from service.http.intake import Intake
from service.http.pipeline import Pipeline
from service.http.problem_details import render_problem
from service.http.response import Response, bytes_response
from service.http.router import Router
from service.http.routes import Request, Route, RouteGroup
from service.http.server import HttpProtocol
from service.observability.metrics import Metrics
from service.scheduling.admission import AdmissionController
from tests.service.http.toy_server import MIB, route

PATHS = ("/", "/fast", "/batch", "/marker", "/smuggled", "/victim")
TURNS = 8  # of the event loop, in which every request that is whole gets its answer
Served = tuple[bytes, bytes, bytes]


class Exchange(NamedTuple):
    """What a connection gave: statuses and bodies of answers, verb, path and body of requests served, its end."""

    answers: list[tuple[int, bytes]]
    closed: bool
    requests: list[Served]


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; closes as a socket's transport does, in a later turn of the loop."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.received = b""
        self.unsent = 0  # of what is received, as the protocol sees it
        self.ended = self.closed = False
        self._protocol = protocol
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 9), "sockname": ("127.0.0.1", 8)}.get(name, default)

    def write(self, data: Any) -> None:
        assert not self.ended
        if not self.closed:
            self.received += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def converse(protocol: Any, requests: list[Served], parts: Sequence[bytes]) -> Exchange:
    """Give parts to a new connection, each in a turn of its own."""
    transport = MemoryTransport(protocol)
    for part in parts:
        if transport.closed:
            break
        protocol.data_received(part)
        for _ in range(TURNS):
            await asyncio.sleep(0)
    for _ in range(4 * TURNS):
        await asyncio.sleep(0)
    closed = transport.closed or transport.ended
    transport.close()
    await asyncio.sleep(0)
    answers = parsed(transport.received, [verb for verb, _, _ in requests])
    return Exchange([(each.status, each.body if each.status == 200 else b"") for each in answers], closed, requests)


class Repeater:
    """An application that repeats its requests, as Inlay's routes and for ASGI; `requests` are those it served."""

    def __init__(self) -> None:
        self.requests: list[Served] = []

    def routes(self) -> list[Route]:
        """The routes: one is plain, one's vectors go the direct way, one is batched."""
        rows = [route(path, self._repeat, vectors=path in ("/fast", "/batch")) for path in PATHS]
        rows += [route(path, self._repeat, "POST", vectors=path == "/fast") for path in PATHS if path != "/batch"]
        return [*rows, route("/batch", self._repeat, "POST", vectors=True, batch_handler=self._repeat_all)]

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """The same for a server of ASGI."""
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":  # the rest of the body is missing or malformed
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        served = (scope["method"].encode(), scope["path"].encode(), body)
        exists = scope["path"] in PATHS and scope["method"] in ("GET", "HEAD", "POST")
        if exists:
            self.requests.append(served)
        content = b" ".join(served) if exists else b""
        headers = [(b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200 if exists else 404, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _repeat(self, request: Request) -> Response:
        return self._answer(request)

    def _repeat_all(self, requests: Sequence[Request]) -> list[Response]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Response:
        served = (request.head.verb.encode(), request.head.path.encode(), request.body)
        self.requests.append(served)
        return bytes_response(b" ".join(served), "text/plain")


class Ours:
    """Inlay's server for a Repeater; heads are remembered from one connection to the next."""

    def __init__(self, client_seconds: float = 60.0, idle_seconds: float = 60.0) -> None:
        self._repeater = Repeater()
        pipeline = Pipeline(
            Router([RouteGroup(self._repeater.routes(), render_problem)]),
            AdmissionController(1000),
            Metrics(),
            SimpleNamespace(draining=False, stopping=False),
            MIB,
            "asked",
        )
        self._config = SimpleNamespace(
            loaded_app=SimpleNamespace(
                pipeline=pipeline,
                intake=Intake(MIB, 16 * MIB),
                heads=HeadMemory(),
                connections=ConnectionSettings(client_seconds, idle_seconds),
            )
        )

    async def __call__(self, *parts: bytes) -> Exchange:
        self._repeater.requests = []
        return await converse(self.protocol(), self._repeater.requests, parts)

    def protocol(self, loop: Any = None) -> HttpProtocol:
        """A connection; `loop` has the clock, if not the running loop."""
        return HttpProtocol(self._config, ServerState(), {}, loop)


def uvicorns(protocol: Callable[..., Any]) -> Callable[..., Any]:
    """The same on one of uvicorn's protocol classes, as a coroutine function of the parts."""

    async def exchange(*parts: bytes) -> Exchange:
        repeater = Repeater()
        config = uvicorn.Config(
            repeater.asgi, ws="none", lifespan="off", log_config=None, access_log=False, interface="asgi3"
        )
        config.load()
        return await converse(protocol(config, ServerState(), {}), repeater.requests, parts)

    return exchange


through_h11, through_httptools = uvicorns(H11Protocol), uvicorns(HttpToolsProtocol)


class Answer(NamedTuple):
    """A final answer; a status of 0 is for bytes that are none."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def parsed(received: bytes, verbs: Sequence[bytes]) -> list[Answer]:
    """The final answers in what came, as h11's client reads them.

    Args:
        verbs: of the requests with a 200, in order; no other answer may be to HEAD.
    """
    answers: list[Answer] = []
    left = list(verbs)
    while received.startswith(b"HTTP/"):
        found = received[9:12] == b"200"
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=left.pop(0) if found and left else b"GET", target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(received)
        client.receive_data(b"")
        status, headers, body = 0, {}, b""
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status, headers = event.status_code, dict(event.headers)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                assert isinstance(event, h11.InformationalResponse), event
        answers.append(Answer(status, headers, body))
        received = client.trailing_data[0]
    return answers + ([Answer(0, {}, received)] if received else [])

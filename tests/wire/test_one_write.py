"""Answers through the gathering transport: one system call where there were two, and nothing held back for ever."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from service.one_write import OneWrite, _Gathering

Message = dict[str, Any]
HEADERS = [(b"content-length", b"5")]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    status, headers, chunks = {
        "/": (200, HEADERS, [b"hello"]),
        "/chunks": (200, [], [b"he", b"llo"]),
        "/empty": (204, [], [b""]),
        "/unchanged": (304, [], [b""]),
        "/moved": (301, [(b"content-length", b"0")], [b""]),
        "/read": (200, HEADERS, [b"hello"]),
    }[scope["path"]]
    if scope["path"] == "/read":
        await receive()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=OneWrite, lifespan="off", log_config=None, interface="asgi3")
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve([listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await running


async def exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        (b"GET /", b"200", b"hello"),
        (b"HEAD /", b"200", b""),
        (b"GET /chunks", b"200", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        (b"GET /empty", b"204", b""),
        (b"GET /unchanged", b"304", b""),
        (b"GET /moved", b"301", b""),
    ],
)
async def test_every_kind_of_answer_arrives(port: int, line: bytes, status: bytes, body: bytes) -> None:
    answer = await exchange(port, line + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert rest == body


async def test_an_answer_to_head_leaves_while_the_connection_stays(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_client_that_waits_for_100_continue_gets_it(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /read HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\nconnection: close\r\n\r\n"
    )
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).startswith(b"HTTP/1.1 100")
    writer.write(b"x")
    assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"hello")
    writer.close()


async def test_what_is_no_http_is_told_so(port: int) -> None:
    assert (await exchange(port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")


def test_head_and_body_are_one_write() -> None:
    class Transport:
        calls: list[Any]

        def __init__(self) -> None:
            self.calls = []

        def write(self, data: bytes) -> None:
            self.calls.append(data)

        def writelines(self, parts: Any) -> None:
            self.calls.append(b"".join(parts))

    transport = Transport()
    gathering = _Gathering(transport)
    gathering.write(b"HTTP/1.1 200 OK\r\n\r\n")
    gathering.write(b"hello")
    gathering.write(b"more")
    assert transport.calls == [b"HTTP/1.1 200 OK\r\n\r\nhello", b"more"]

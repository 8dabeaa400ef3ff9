"""API keys before HTTP requests: checked before bodies are read, given back however a request ends."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.http.cors import Cors
from service.http.response import Response, bytes_response
from service.http.routes import Handler, Request
from service.request_context import CURRENT_CALL
from service.security.api_keys import Keys
from tests.service.http.toy_server import Client, Toy, connected, exchange, request, route, running, statuses, until

KEY, LIMITED = "correct-horse-battery", "staple.0123456789"
SHOWN = b"authorization: Bearer " + KEY.encode()
ONE_AT_A_TIME = b"authorization: Bearer " + LIMITED.encode()
LAST = b"connection: close"


class Handlers:
    def __init__(self) -> None:
        self.waiting, self.release = asyncio.Event(), asyncio.Event()
        self.names: list[str] = []

    async def echo(self, request: Request) -> Response:
        self.names.append(CURRENT_CALL.get().key_name)
        return bytes_response(request.body or b"hello", "text/plain")

    async def wait(self, request: Request) -> Response:
        self.waiting.set()
        await self.release.wait()
        return bytes_response(b"waited", "text/plain")

    def batch(self, requests: Sequence[Request]) -> list[Handler]:
        return [self.echo] * len(requests)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
async def toy(handlers: Handlers) -> AsyncIterator[Toy]:
    rows = [
        route("/", handlers.echo, "POST"),
        route("/fast", handlers.echo, "POST", vectors=True, batch_handler=handlers.batch),
        route("/wait", handlers.wait),
        route("/open", handlers.echo, needs_key=False),
    ]
    keys = Keys([f"main:{KEY}", f"limited:{LIMITED} concurrent=1"])
    async with running(rows, keys=keys, cors=Cors(["https://a"])) as toy:
        yield toy


@pytest.mark.parametrize("path", [b"/", b"/fast"])
async def test_key_opens_every_route(toy: Toy, handlers: Handlers, path: bytes) -> None:
    async with connected(toy.port) as client:
        for _ in range(3):
            await client.send(request(b"POST " + path, SHOWN, body=b"x"))
            assert (await client.answer())[2] == b"x"
    assert not any(KEY.encode() in head for head in toy.heads.heads)
    assert handlers.names == ["main"] * 3


async def test_heads_of_refused_requests_are_not_kept(toy: Toy) -> None:
    sent = request(b"POST /fast", b"authorization: Bearer wrong", body=b"x")
    assert statuses(await exchange(toy.port, sent)) == [401]
    assert toy.heads.heads == {}


@pytest.mark.parametrize("headers", [[], [b"expect: 100-continue"]], ids=["plain", "expecting"])
async def test_key_is_checked_before_the_body_is_read(toy: Toy, headers: list[bytes]) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"POST /", b"content-length: 1000", *headers))
        assert (await client.answer())[0] == 401
        assert await client.rest() == b""
    assert toy.intake.held == 0


async def leave_while_sending(client: Client, handlers: Handlers) -> None:
    await client.send(request(b"POST /", ONE_AT_A_TIME, b"content-length: 9") + b"abc")


async def leave_while_waiting(client: Client, handlers: Handlers) -> None:
    await client.send(request(b"GET /wait", ONE_AT_A_TIME))
    await handlers.waiting.wait()


async def leave_while_queued(client: Client, handlers: Handlers) -> None:
    await client.send(request(b"GET /wait", SHOWN) + request(b"POST /", ONE_AT_A_TIME))
    await handlers.waiting.wait()


async def send_too_much(client: Client, handlers: Handlers) -> None:
    await client.send(request(b"POST /", ONE_AT_A_TIME, b"content-length: 9000000"))
    assert (await client.answer())[0] == 413


async def send_nonsense(client: Client, handlers: Handlers) -> None:
    await client.send(request(b"POST /", ONE_AT_A_TIME, b"transfer-encoding: chunked") + b"nonsense\r\n")
    assert (await client.answer())[0] == 400


async def send_to_a_wrong_path(client: Client, handlers: Handlers) -> None:
    await client.send(request(b"POST /nowhere", ONE_AT_A_TIME))
    assert (await client.answer())[0] == 404


ENDS = [
    leave_while_sending,
    leave_while_waiting,
    leave_while_queued,
    send_too_much,
    send_nonsense,
    send_to_a_wrong_path,
]


@pytest.mark.parametrize("end", ENDS)
async def test_key_is_free_however_its_request_ends(toy: Toy, handlers: Handlers, end: Any) -> None:
    async with connected(toy.port) as client:
        await end(client, handlers)
    await until(lambda: toy.connections == 0)
    for _ in range(2):
        assert statuses(await exchange(toy.port, request(b"POST /", ONE_AT_A_TIME, LAST))) == [200]


async def test_limit_of_a_key_is_enforced_and_reported(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client, connected(toy.port) as other:
        await client.send(request(b"GET /wait", ONE_AT_A_TIME))
        await handlers.waiting.wait()
        await other.send(request(b"POST /", ONE_AT_A_TIME))
        status, headers, body = await other.answer()
        assert (status, json.loads(body)["code"]) == (429, "key_limited")
        assert int(headers["retry-after"]) >= 1
        await other.send(request(b"POST /", SHOWN))
        assert (await other.answer())[0] == 200
        handlers.release.set()
        assert (await client.answer())[0] == 200
    assert toy.counted() == {("gate", "429"): 1, ("/", "200"): 1, ("/wait", "200"): 1}


@pytest.mark.parametrize("while_served", [[""], [" concurrent=1"], ["", " concurrent=1"]], ids=str)
async def test_key_survives_changes_of_its_limit(handlers: Handlers, tmp_path: Path, while_served: list[str]) -> None:
    """The file sets and lifts the key's limit while one request of the key is being served."""
    now, file = [0.0], tmp_path / "keys"

    def write(limit: str) -> None:
        file.write_text(f"limited:{LIMITED}{limit}")
        now[0] += 1.0  # the file is looked at once a second
        os.utime(file, (now[0], now[0]))

    write("" if while_served[0] else " concurrent=1")
    keys, rows = (
        Keys([], file, clock=lambda: now[0]),
        [route("/wait", handlers.wait), route("/", handlers.echo, "POST")],
    )
    async with running(rows, keys=keys) as toy, connected(toy.port) as client:
        await client.send(request(b"GET /wait", ONE_AT_A_TIME))
        await handlers.waiting.wait()
        for limit in while_served:
            write(limit)
            expected = 429 if limit else 200
            assert statuses(await exchange(toy.port, request(b"POST /", ONE_AT_A_TIME, LAST))) == [expected]
        handlers.release.set()
        assert (await client.answer())[0] == 200
        write(" concurrent=1")
        for _ in range(2):
            assert statuses(await exchange(toy.port, request(b"POST /", ONE_AT_A_TIME, LAST))) == [200]

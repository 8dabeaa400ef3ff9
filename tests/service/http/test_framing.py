"""Borders of requests on real sockets: early errors, remembered heads, batches, pipelines and bodies like requests."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.http.response import Response, bytes_response
from service.http.routes import Request
from tests.service.http.framing_cases import CHUNKED, LENGTH, SMUGGLED, post
from tests.service.http.toy_server import MIB, SECONDS, Toy, connected, exchange, route, running, statuses
from tests.sweeps import sampled

PATHS = ("/", "/fast")


async def echo(request: Request) -> Response:
    return bytes_response(b"%b %b" % (request.head.verb.encode(), request.body), "text/plain")


def echo_batch(requests: Any) -> list[Response]:
    return [bytes_response(b"%b %b" % (each.verb.encode(), each.body), "text/plain") for each in requests]


@pytest.fixture
async def toy() -> AsyncIterator[Toy]:
    rows = [route(path, echo, verb, vectors=path == "/fast") for path in PATHS for verb in ("GET", "POST")]
    rows.append(route("/batch", echo, "POST", vectors=True, batch_handler=echo_batch))
    async with running(rows) as toy:
        yield toy


EARLY = [
    post(b"content-length: 9000000", b"expect: 100-continue"),
    post(b"content-length: 9000000"),
    post(LENGTH, path=b"/nowhere"),
    post(CHUNKED, path=b"/nowhere"),
    post(LENGTH, b"expect: 100-continue", path=b"/nowhere"),
    post(LENGTH, b"content-encoding: br"),
    post(LENGTH, b"inlay-timeout-ms: soon"),
]


@pytest.mark.parametrize("sent", EARLY)
@pytest.mark.parametrize("together", [True, False])
async def test_nothing_after_an_early_error_is_a_request(toy: Toy, sent: bytes, together: bool) -> None:
    """Whether the body follows is not known, so that what follows cannot be told from a body."""
    parts = [sent + SMUGGLED * 3] if together else [sent, SMUGGLED, SMUGGLED * 2]
    answered = statuses(await exchange(toy.port, *parts))
    assert len(answered) == 1
    assert answered[0] >= 400


HEADS = [
    post(b"content-length: 36", path=b"/batch"),
    post(b"content-length: 36", path=b"/fast"),
    post(b"content-length: 3", b"content-type: application/json", path=b"/batch"),
    post(b"content-length: 36"),
    b"GET /fast HTTP/1.1\r\nhost: x\r\n\r\n",
]


def traffic(chance: random.Random, number: int) -> tuple[bytes, list[bytes]]:
    """Pipelined requests whose bodies look like requests, and the body of each."""
    sent, bodies = b"", []
    for _ in range(number):
        head = chance.choice(HEADS)
        size = 36 if b": 36" in head else 3 if b": 3\r" in head else 0
        body = chance.choice([SMUGGLED[:36].ljust(36), HEADS[4][:36].ljust(36), b"\r\n\r\n" * 9])[:size]
        sent += chance.choice([b"", b"", b"\r\n", b"\r\n\r\n"]) + head + body
        bodies.append(body)
    return sent, bodies


@pytest.mark.parametrize("seed", sampled(range(40), 5))
async def test_requests_cut_anywhere_keep_their_bodies(toy: Toy, seed: int) -> None:
    """Heads that are known, batched or pipelined, and bodies that look like them: no cut moves a border."""
    chance = random.Random(seed)
    async with connected(toy.port, MIB) as client:
        for _ in range(12):
            sent, bodies = traffic(chance, chance.randint(1, 4))
            cuts = sorted(chance.sample(range(len(sent)), min(len(sent), chance.randint(0, 3))))
            parts = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
            for part in parts:
                client.writer.write(part)
                await client.writer.drain()
                for _ in range(chance.randint(0, 3)):
                    await asyncio.sleep(0)
            for body in bodies:
                status, _, received = await client.answer()
                assert status == 200
                assert received.partition(b" ")[2] == body


async def test_lines_before_a_request_are_not_taken_for_a_head(toy: Toy) -> None:
    """Else whoever sends an empty line next would send a request that it did not write."""
    body = b"x" * 36
    async with connected(toy.port) as client:
        await client.send(b"\r\n\r\n" + HEADS[0] + body)
        assert (await client.answer())[2] == b"POST " + body
    async with connected(toy.port) as client:
        await client.send(b"\r\n\r\n" + HEADS[4][:31], HEADS[4][31:])
        assert (await client.answer())[2] == b"GET "
    assert b"\r\n\r\n" not in toy.heads.heads


async def test_body_of_a_pipelined_request_is_not_a_request(toy: Toy) -> None:
    """The first is answered at once, so that the connection was idle when the second's body came."""
    body = b"y" * 36
    known = HEADS[0] + body
    async with connected(toy.port) as client:
        await client.send(known)
        await client.answer()
        await client.send(known + post(b"content-length: %d" % len(known)))
        assert (await client.answer())[2] == b"POST " + body
        await client.send(known)
        assert (await asyncio.wait_for(client.answer(), SECONDS))[2] == b"POST " + known

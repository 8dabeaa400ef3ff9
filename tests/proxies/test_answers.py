"""Early errors, large responses and half-closed clients through nginx and HAProxy."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from service.http.response import Response, bytes_response
from service.http.routes import Request
from tests.proxies.programs import PROXIES, running
from tests.service.http.framing_cases import CHUNKED, get, post
from tests.service.http.toy_server import MIB, SECONDS, Client, route
from tests.service.http.toy_server import running as running_toy

LARGE = 16 * MIB


async def repeat(request: Request) -> Response:
    return bytes_response(request.body, "text/plain")


async def large(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(LARGE // 65536):
            yield bytes(65536)

    return Response((), ((b"content-length", b"%d" % LARGE),), 200, parts())


@asynccontextmanager
async def proxied(name: str, folder: Path) -> AsyncIterator[Path]:
    rows = [route("/", repeat, "POST"), route("/large", large)]
    async with running_toy(rows) as toy, running(PROXIES[name], folder / "proxy", toy.port) as listen:
        yield listen


@asynccontextmanager
async def connected(listen: Path) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_unix_connection(str(listen), limit=2 * LARGE)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


BODY = bytes(3 * MIB)
EARLY = {
    "too large": (post(b"content-length: %d" % len(BODY), body=BODY), 413),
    "too large, in chunks": (post(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)), 413),
    "too large, expected": (post(b"expect: 100-continue", b"content-length: %d" % len(BODY), body=BODY), 413),
    "no such path": (post(b"content-length: %d" % len(BODY), body=BODY, path=b"/nowhere"), 404),
    "coding": (post(b"content-length: 3", b"content-encoding: br", body=b"abc"), 415),
    "deadline": (post(b"content-length: 3", b"inlay-timeout-ms: soon", body=b"abc"), 422),
}


@pytest.mark.parametrize("case", EARLY)
@pytest.mark.parametrize("name", PROXIES)
async def test_early_error_reaches_its_client_through(name: str, case: str, tmp_path: Path) -> None:
    """Before the body is whole the server answers and closes; the proxy must get to read that, five times in a row."""
    sent, status = EARLY[case]
    async with proxied(name, tmp_path) as listen:
        for _ in range(5):
            async with connected(listen) as client:
                client.writer.write(sent)
                received = 100
                while received == 100:
                    received, headers, body = await client.answer()
            assert received == status
            assert json.loads(body)["status"] == status
            assert headers["x-request-id"]
            async with connected(listen) as other:
                await other.send(post(b"content-length: 3", body=b"abc"))
                assert (await other.answer())[::2] == (200, b"abc")


@pytest.mark.parametrize("name", PROXIES)
async def test_large_responses_arrive_whole_through(name: str, tmp_path: Path) -> None:
    async with proxied(name, tmp_path) as listen, connected(listen) as client:
        for _ in range(3):
            await client.send(get(line=b"GET /large HTTP/1.1"))
            status, _, body = await client.answer()
            assert (status, len(body)) == (200, LARGE)
            await client.send(get(line=b"HEAD /large HTTP/1.1"))
            assert (await client.answer(bodiless=True))[0] == 200


@pytest.mark.parametrize("name", PROXIES)
async def test_half_closed_client_is_answered_or_closed_through(name: str, tmp_path: Path) -> None:
    async with proxied(name, tmp_path) as listen:
        async with connected(listen) as client:
            await client.send(post(b"content-length: 3", body=b"abc"))
            client.writer.write_eof()
            received = await asyncio.wait_for(client.reader.read(), SECONDS)
            assert received == b"" or received.endswith(b"\r\n\r\nabc")
        async with connected(listen) as other:
            await other.send(post(b"content-length: 3", body=b"def"))
            assert (await other.answer())[::2] == (200, b"def")

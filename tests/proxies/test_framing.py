"""Bytes that servers read differently, through nginx and HAProxy: no answer is another's, none is too many."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn

from tests.proxies.programs import PROXIES, running
from tests.service.http.framing_cases import CASES, MARKER, READ, SAME, post
from tests.service.http.in_memory import Repeater, parsed
from tests.service.http.toy_server import running as running_toy
from tests.service.http.toy_server import until

QUIET_SECONDS = 1.0  # without an answer, after which a connection that stays open waits for the rest of a request
SECONDS = 20
VICTIMS = 3
LAST = b"GET /marker "
MORE = {"upgrade and close": [b"GET /smuggled "]}
"""Requests behind one that says close, which HAProxy passes on or not, by what it has read when it sees the first."""
numbers = count()


class Outcome(NamedTuple):
    """What one case gave.

    Args:
        statuses: of the answers; 0: bytes without a head, as HTTP/0.9 has them.
        by_proxy: whether each is the proxy's own.
        served: the requests that the server answered with 200.
        closed: whether the connection closed.
    """

    statuses: tuple[int, ...]
    by_proxy: tuple[bool, ...]
    served: tuple[bytes, ...]
    closed: bool

    def __str__(self) -> str:
        pairs = zip(self.statuses, self.by_proxy, strict=True)
        answers = [f"({status})" if own else str(status) for status, own in pairs]
        return " ".join(answers if self.closed else [*answers, "waits"])

    def cell(self, theirs: "Outcome") -> str:
        """How it is shown beside h11's."""
        same = self.statuses == theirs.statuses and self.served == theirs.served and self.closed == theirs.closed
        plain = theirs._replace(by_proxy=(False,) * len(theirs.statuses))
        return str(self) if same else f"{self}; h11 {plain}"


class Backend:
    """A server behind a proxy."""

    def __init__(self, listen: Path, repeater: Repeater) -> None:
        self._listen, self._repeater = listen, repeater

    async def send(self, parts: list[bytes]) -> Outcome:
        """Send parts on a connection of their own; then let others send requests, which get their own answers."""
        self._repeater.requests = served = []
        received, closed = await self._exchange(parts)
        await asyncio.sleep(0)
        answers = parsed(received, [verb for verb, _, _ in served])
        seen = tuple(b" ".join(request) for request in served)
        for _ in range(VICTIMS):
            await self._victim()
        by_proxy = tuple(b"x-request-id" not in answer.headers for answer in answers)
        return Outcome(tuple(answer.status for answer in answers), by_proxy, seen, closed)

    async def _victim(self) -> None:
        body = b"victim %d" % next(numbers)
        length = b"content-length: %d" % len(body)
        received, closed = await self._exchange([post(length, b"connection: close", body=body, path=b"/victim")])
        answers = [(answer.status, answer.body) for answer in parsed(received, [b"POST"])]
        assert answers == [(200, b"POST /victim " + body)], received
        assert closed

    async def _exchange(self, parts: list[bytes]) -> tuple[bytes, bool]:
        loop, received = asyncio.get_running_loop(), b""
        with socket.socket(socket.AF_UNIX) as client:  # streams would lose an answer that came before a reset
            client.setblocking(False)
            await loop.sock_connect(client, str(self._listen))
            with suppress(ConnectionError):  # closed before all was sent
                for part in parts:
                    await loop.sock_sendall(client, part)
                    await asyncio.sleep(0)
            try:
                while part := await asyncio.wait_for(loop.sock_recv(client, 2**20), QUIET_SECONDS):
                    received += part
            except ConnectionError:
                return received, True
            except TimeoutError:
                return received, False
        return received, True


@asynccontextmanager
async def ours(repeater: Repeater) -> AsyncIterator[int]:
    async with running_toy(repeater.routes()) as toy:
        yield toy.port


@asynccontextmanager
async def h11(repeater: Repeater) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            repeater.asgi, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, interface="asgi3"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        await until(lambda: server.started)
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving


def ways(sent: bytes) -> list[list[bytes]]:
    """The bytes whole, cut behind each of the first eight lines, and byte by byte."""
    cuts = [at + 2 for at in range(len(sent) - 2) if sent[at : at + 2] == b"\r\n"]
    single = [sent[at : at + 1] for at in range(len(sent))] if len(sent) < 2000 else [sent]
    return [[sent], *[[sent[:cut], sent[cut:]] for cut in cuts[:8]], single]


def fault(case: str, ours: Outcome, theirs: Outcome) -> str:
    """What is wrong: a request without its answer, an answer without its request, or a request that is none."""
    served, whole = len(ours.served), ours.statuses.count(200)
    if not whole <= served <= whole + ours.statuses.count(0):
        return f"{served} requests served, {ours}"
    expected = tuple(READ[case][1]) if case in READ else theirs.served
    left = iter([*(each for each in expected if each != LAST), *MORE.get(case, ()), LAST])
    if not all(request in left for request in ours.served):
        return f"served {ours.served}, expected {expected}"
    if case in SAME and case not in MORE and set(ours.statuses) == {200} and ours.served != theirs.served:
        return f"served {ours.served}, h11 {theirs.served}"
    return "" if ours.closed else "left open"


@pytest.mark.parametrize("name", PROXIES)
async def test_each_request_is_answered_once_to_its_caller(
    name: str, tmp_path: Path, table: dict[str, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    servers: list[Callable[[Repeater], Any]] = [ours, h11]
    faults = []
    async with AsyncExitStack() as stack:
        backends = []
        for server in servers:
            repeater = Repeater()
            port = await stack.enter_async_context(server(repeater))
            listen = await stack.enter_async_context(running(PROXIES[name], tmp_path / server.__name__, port))
            backends.append(Backend(listen, repeater))
        for case, sent in CASES.items():
            theirs = await backends[1].send([sent + MARKER])
            outcomes = []
            for parts in ways(sent + MARKER):
                outcomes.append(outcome := await backends[0].send(parts))
                if fault(case, outcome, theirs) and (text := fault(case, outcome, await backends[1].send(parts))):
                    faults.append(f"{case}, {len(parts)} parts: {text}")
            cells = dict.fromkeys(outcome.cell(theirs) for outcome in outcomes)
            table.setdefault(case, {})[name] = "<br>".join(cells)
    assert faults == []
    assert not [record for record in caplog.records if record.name.startswith("service")]

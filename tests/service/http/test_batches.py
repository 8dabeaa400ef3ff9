"""Remembered heads, and requests that a batch handler answers together."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from service.errors import BadInput, InlayError, Overloaded
from service.http import pipeline
from service.http.cors import Cors
from service.http.head_memory import REMEMBERED_HEAD_BYTES, REMEMBERED_HEADS
from service.http.response import Response, bytes_response
from service.http.routes import Handler, Request
from service.observability.access_log import AccessLog
from service.security.api_keys import Keys
from tests.service.http.toy_server import MIB, Toy, connected, exchange, request, route, running, statuses, until

LAST = b"connection: close"


class Batches:
    """A batch handler that answers bodies in capitals, leaves `alone`, fails at `fault`, and what both saw."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.alone: list[bytes] = []
        self.waiting, self.release = asyncio.Event(), asyncio.Event()
        self.stall = False

    def answer_batch(self, requests: Sequence[Request]) -> list[Response | InlayError | Handler]:
        bodies = [each.body for each in requests]
        self.batches.append(bodies)
        if b"fault" in bodies:
            raise ZeroDivisionError("an inside")
        if b"lost" in bodies:
            return [self.answer] * (len(bodies) - 1)
        if b"split" in bodies:
            return [Response((each,), ((b"x", b"a\r\nb: c"),) if each == b"split" else ()) for each in bodies]
        answers: dict[bytes, InlayError | Handler] = {
            b"alone": self.answer,
            b"bad": self.answer,
            b"refused": Overloaded("is refused", 7.0),
        }
        return [answers.get(each, bytes_response(each.upper(), "text/plain")) for each in bodies]

    async def answer(self, request: Request) -> Response:
        self.alone.append(request.body)
        if request.body == b"bad":
            raise BadInput("is bad", 0)
        if self.stall:
            self.waiting.set()
            await self.release.wait()
        return bytes_response(request.body.upper(), "text/plain")


@pytest.fixture
def handler() -> Batches:
    return Batches()


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
async def toy(handler: Batches, settings: dict[str, Any]) -> AsyncIterator[Toy]:
    rows = [
        route("/batch", handler.answer, "POST", vectors=True, batch_handler=handler.answer_batch),
        route("/other", handler.answer, "POST", vectors=True, batch_handler=handler.answer_batch),
        route("/plain", handler.answer, "POST"),
        route("/wait", wait_for(handler)),
    ]
    async with running(rows, **settings) as toy:
        yield toy


def wait_for(handler: Batches) -> Any:
    async def wait(request: Request) -> Response:
        handler.waiting.set()
        await handler.release.wait()
        return bytes_response(b"waited", "text/plain")

    return wait


def post(body: bytes, *headers: bytes, path: bytes = b"/batch") -> bytes:
    return request(b"POST " + path, *headers, body=body)


# ---- remembered heads


async def test_same_bytes_twice_give_the_same_answer(toy: Toy) -> None:
    async with connected(toy.port) as client:
        for body in (b"one", b"two", b"one"):
            await client.send(post(body))
            assert (await client.answer())[2] == body.upper()
    assert list(toy.heads.heads) == [post(b"")]


@pytest.mark.parametrize("cut", [1, 10, 40, -2, -1])
async def test_known_head_may_come_in_pieces(toy: Toy, cut: int) -> None:
    async with connected(toy.port) as client:
        for _ in range(3):
            await client.send(post(b"abcde"))
            assert (await client.answer())[2] == b"ABCDE"
            await client.send(post(b"fghij")[:cut], post(b"fghij")[cut:])
            assert (await client.answer())[2] == b"FGHIJ"


async def test_known_head_is_answered_beside_pipelined_requests(toy: Toy) -> None:
    async with connected(toy.port) as client:
        await client.send(post(b"one"))
        await client.answer()
        await client.send(post(b"two") + post(b"six") + post(b"three")[:-2])
        assert [(await client.answer())[2] for _ in range(2)] == [b"TWO", b"SIX"]
        await client.send(b"ee")
        assert (await client.answer())[2] == b"THREE"


OWN = [b"x-request-id: %d", b"Traceparent: %d", b"tracestate: a=%d", b"Inlay-Timeout-MS: %d000"]
OWN += [b"x-envoy-expected-rq-timeout-ms: %d000", b"Authorization: Bearer secret%d"]


async def test_headers_of_one_request_alone_are_not_kept(toy: Toy) -> None:
    async with connected(toy.port) as client:
        for number in range(1, 4):
            body = b"x" * number
            await client.send(post(body, *[each % number for each in OWN]))
            _, headers, answer = await client.answer()
            assert (headers["x-request-id"], answer) == (str(number), body.upper())
    assert list(toy.heads.heads) == [post(b"")]


@pytest.mark.parametrize(
    "header",
    [
        b"cookie: secret",
        b"proxy-authorization: secret",
        b"expect: 100-continue",
        b"connection: close",
        b"x-request-id:5",
        b"x-request-id:\t5",
        b"x-request-id: 5 ",
        b"x-request-id:  5",
        b"x-request-id: \xe9",
        b"x-request-id: 5\r\nx-request-id: 6",
        b"content-length : 3",
    ],
)
async def test_heads_of_secrets_and_odd_lines_are_not_kept(toy: Toy, header: bytes) -> None:
    for _ in range(2):
        async with connected(toy.port) as client:
            await client.send(post(b"one", header))
            head = await client.until(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 100", b"HTTP/1.1 400"))
    assert toy.heads.heads == {}


@pytest.mark.parametrize("sent", [post(b"one", path=b"/nowhere"), request(b"GET /wait")])
async def test_heads_of_no_post_are_not_kept(toy: Toy, handler: "Batches", sent: bytes) -> None:
    handler.release.set()
    await exchange(toy.port, sent + request(b"POST /nowhere", LAST))
    assert toy.heads.heads == {}


@pytest.mark.parametrize("second", [b"x-request-id: 5\r\nx-request-id: 6", b"x-request-id: 5\r\n more"])
async def test_known_head_with_an_odd_line_is_parsed(toy: Toy, second: bytes) -> None:
    async with connected(toy.port) as client:
        await client.send(post(b"one"))
        await client.answer()
        await client.send(post(b"two", second))
        status, headers, body = await client.answer()
        assert (status, body) in ((200, b"TWO"), (400, body))
        assert headers["x-request-id"] != "5"


async def test_cached_heads_are_bounded(toy: Toy) -> None:
    async with connected(toy.port) as client:
        for number in range(REMEMBERED_HEADS + 44):
            await client.send(post(b"one", b"n: %d" % number))
            assert (await client.answer())[2] == b"ONE"
            assert len(toy.heads.heads) <= REMEMBERED_HEADS
        await client.send(post(b"one", b"n: " + b"x" * REMEMBERED_HEAD_BYTES))
        await client.answer()
    assert max(map(len, toy.heads.heads)) <= REMEMBERED_HEAD_BYTES
    assert len(toy.heads.heads) == 44


@pytest.mark.parametrize("settings", [{"max_body_bytes": 10}])
async def test_known_heads_keep_the_limit_of_bodies(toy: Toy) -> None:
    for size, status in ((10, 200), (11, 413), (11, 413)):
        assert statuses(await exchange(toy.port, post(b"x" * size), post(b"", LAST)))[0] == status


async def test_answers_from_known_heads_have_ids_of_their_own(toy: Toy) -> None:
    async with connected(toy.port) as client:
        ids = []
        for _ in range(3):
            await client.send(post(b"one"))
            ids.append((await client.answer())[1]["x-request-id"])
    assert len(set(ids)) == 3


# ---- batch handlers


async def together(toy: Toy, bodies: Sequence[bytes], path: bytes = b"/batch") -> list[tuple[int, bytes]]:
    """The answers to requests that are sent at once, each on a connection of its own."""
    clients = [connected(toy.port) for _ in bodies]
    opened = [await each.__aenter__() for each in clients]
    await until(lambda: toy.connections == len(bodies))
    for client, body in zip(opened, bodies, strict=True):
        client.writer.write(post(body, path=path))
    responses = [await client.answer() for client in opened]
    for each in clients:
        await each.__aexit__(None, None, None)
    await until(lambda: toy.connections == 0)
    return [(status, body) for status, _, body in responses]


async def test_requests_that_come_together_share_a_batch(toy: Toy, handler: Batches) -> None:
    bodies = [b"body%d" % number for number in range(32)]
    for _ in range(5):
        assert await together(toy, bodies) == [(200, body.upper()) for body in bodies]
    assert len(handler.batches) < 5 * 32
    assert handler.alone == []
    assert toy.counted() == {("/batch", "200"): 5 * 32}


KEY = "correct-horse-battery"
GUARDED = {"keys": Keys([f"main:{KEY}"]), "access_log": AccessLog(None, True), "cors": Cors(["https://a"])}
FORMS: dict[str, list[bytes]] = {
    "requests": [b"accept-encoding: gzip, deflate", b"accept: */*", b"connection: keep-alive"],
    "per request": [b"x-request-id: 5", b"traceparent: 5", b"inlay-timeout-ms: 60000"],
    "page": [b"origin: https://a"],
    "last": [LAST],
    "chunks": [b"transfer-encoding: chunked"],
}


@pytest.mark.parametrize("settings", [{}, GUARDED], ids=["open", "guarded"])
@pytest.mark.parametrize("form", FORMS)
async def test_every_client_reaches_the_batch_handler(toy: Toy, handler: Batches, form: str) -> None:
    head = [b"authorization: Bearer " + KEY.encode(), *FORMS[form]]
    for _ in range(2):
        async with connected(toy.port) as client:
            await client.send(post(b"", *head) + b"1\r\na\r\n0\r\n\r\n" if form == "chunks" else post(b"a", *head))
            assert (await client.answer())[2] == b"A"
    assert handler.batches == [[b"a"]] * 2
    assert handler.alone == []


@pytest.mark.parametrize("header", [b"accept-encoding: gzip", b"content-encoding: identity"])
async def test_bodies_that_are_coded_pass_the_batch_handler_by(toy: Toy, handler: Batches, header: bytes) -> None:
    async with connected(toy.port) as client:
        await client.send(post(b"a", header))
        assert (await client.answer())[2] == b"A"
    assert (handler.batches, handler.alone) == ([], [b"a"])


async def test_batch_that_ends_after_a_deadline_answers_504(
    toy: Toy, handler: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "perf_counter", lambda: math.inf)
    async with connected(toy.port) as client:
        await client.send(post(b"a", b"inlay-timeout-ms: 60000"))
        assert (await client.answer())[0] == 504


async def test_requests_left_by_a_batch_are_served_alone(toy: Toy, handler: Batches) -> None:
    responses = await together(toy, [b"a", b"alone", b"bad", b"b"])
    assert [status for status, _ in responses] == [200, 200, 422, 200]
    assert [responses[0][1], responses[1][1], responses[3][1]] == [b"A", b"ALONE", b"B"]
    assert json.loads(responses[2][1])["index"] == 0
    assert sorted(handler.alone) == [b"alone", b"bad"]
    assert toy.counted() == {("/batch", "200"): 3, ("/batch", "422"): 1}


async def test_errors_of_a_batch_are_answered_at_once(toy: Toy, handler: Batches) -> None:
    responses = await together(toy, [b"a", b"refused", b"b"])
    assert [status for status, _ in responses] == [200, 429, 200]
    assert "is refused" in json.loads(responses[1][1])["detail"]
    assert handler.alone == []
    assert toy.counted() == {("/batch", "200"): 2, ("/batch", "429"): 1}


@pytest.mark.parametrize("body", [b"fault", b"lost"])
async def test_batch_that_fails_is_served_one_by_one(
    toy: Toy, handler: Batches, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"a", body, b"b", b"c"]
    for _ in range(3):
        assert await together(toy, bodies) == [(200, each.upper()) for each in bodies]
    assert body in handler.alone
    assert "a batch of requests to /batch met a fault" in caplog.text


async def test_response_that_breaks_off_hurts_no_other(toy: Toy, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(toy.port) as broken:
        await broken.send(post(b"split"))
        assert await broken.rest() == b""
    assert await together(toy, [b"a", b"b"]) == [(200, b"A"), (200, b"B")]
    assert "a response broke off" in caplog.text


async def test_batches_of_two_routes_are_apart(toy: Toy, handler: Batches) -> None:
    async with connected(toy.port) as one, connected(toy.port) as other:
        await until(lambda: toy.connections == 2)
        for _ in range(20):
            one.writer.write(post(b"one"))
            other.writer.write(post(b"two", path=b"/other"))
            assert (await one.answer())[2] == b"ONE"
            assert (await other.answer())[2] == b"TWO"
    assert {tuple(each) for each in handler.batches} == {(b"one",), (b"two",)}
    assert toy.counted() == {("/batch", "200"): 20, ("/other", "200"): 20}


async def test_large_bodies_take_several_turns(toy: Toy, handler: Batches) -> None:
    bodies = [bytes([65 + number]) * 8000 for number in range(20)]
    assert await together(toy, bodies) == [(200, body) for body in bodies]
    assert max(map(len, handler.batches)) < 20
    too_long = [b"a" * 9000] * 2
    assert await together(toy, too_long) == [(200, body.upper()) for body in too_long]
    assert handler.alone == too_long


@pytest.mark.parametrize("settings", [{"max_requests": 3}])
async def test_requests_beyond_the_allowed_number_are_refused(toy: Toy, handler: Batches) -> None:
    handler.stall = True
    answering = asyncio.create_task(together(toy, [b"alone"] * 7))
    await handler.waiting.wait()
    await until(lambda: toy.counted() == {("/batch", "429"): 4})
    assert toy.admission.active == 3
    handler.release.set()
    assert sorted(status for status, _ in await answering) == [200] * 3 + [429] * 4
    assert toy.admission.active == 0


@pytest.mark.parametrize("settings", [{"max_requests": 3}])
async def test_batch_larger_than_the_room_is_served_one_by_one(toy: Toy, handler: Batches) -> None:
    for _ in range(5):
        assert await together(toy, [b"a"] * 16) == [(200, b"A")] * 16
    assert max(map(len, handler.batches), default=0) <= 3
    assert handler.alone


async def test_client_that_leaves_while_gathered_is_not_served(toy: Toy, handler: Batches) -> None:
    """It leaves in the turn in which its request is read."""
    for _ in range(20):
        async with connected(toy.port) as stays:
            leaving = [connected(toy.port) for _ in range(8)]
            opened = [await each.__aenter__() for each in leaving]
            for client in opened:
                client.writer.write(post(b"alone"))
                client.writer.transport.abort()
            await stays.send(post(b"stays"))
            assert (await stays.answer())[2] == b"STAYS"
            for each in leaving:
                await each.__aexit__(None, None, None)
        await until(lambda: toy.connections == 0)
    assert toy.admission.active == 0
    counted = toy.counted()
    assert counted[("/batch", "200")] >= 20
    assert sum(counted.values()) <= 20 * 9


@pytest.mark.parametrize("number", [20, 2000])
async def test_pipelined_requests_of_batch_routes_keep_order(toy: Toy, handler: Batches, number: int) -> None:
    bodies = [b"%d" % index for index in range(number)]
    async with connected(toy.port, MIB) as client:
        sent = request(b"GET /wait") + b"".join(map(post, bodies))
        client.writer.write(sent)
        await handler.waiting.wait()
        handler.release.set()
        assert (await client.answer())[2] == b"waited"
        assert [(await client.answer())[2] for _ in bodies] == bodies
        client.writer.write(sent[len(request(b"GET /wait")) :])
        assert [(await client.answer())[2] for _ in bodies] == bodies


async def test_pipelined_requests_leave_turns_to_others(toy: Toy, handler: Batches) -> None:
    async with connected(toy.port, MIB) as client, connected(toy.port) as other:
        for _ in range(2):  # the next request of a lone connection is answered at once
            await client.send(post(b"first"))
            await client.answer()
        client.writer.write(post(b"many") * 500)
        other.writer.write(post(b"other"))
        assert (await other.answer())[2] == b"OTHER"
        seen = [body for batch in handler.batches for body in batch]
        assert seen.index(b"other") < 250
        assert [(await client.answer())[2] for _ in range(500)] == [b"MANY"] * 500


async def test_batches_during_a_stop_close_their_connections(toy: Toy, handler: Batches) -> None:
    async with connected(toy.port) as client:
        await client.send(post(b"one"))
        await client.answer()
        toy.lifecycle.stopping = True
        await client.send(post(b"two"))
        _, headers, body = await client.answer()
        assert (headers["connection"], body) == ("close", b"TWO")
        assert await client.rest() == b""
    assert handler.alone == [b"two"]

"""The plain ASGI pieces: bounded bodies, and clients that leave while they send."""

from collections.abc import Iterable
from typing import Any

import pytest

from service.errors import BodyTooLarge, Overloaded
from service.http.asgi import ClientGone, Receive, read_body
from service.http.intake import Intake

GONE = {"type": "http.disconnect"}


def receiving(messages: Iterable[dict[str, Any]]) -> Receive:
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(left)

    return receive


def piece(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(
    "messages", [[piece(b"abcd", False)], [piece(b"ab"), piece(b"cd", False)], [piece(b"abcd"), piece(b"", False)]]
)
async def test_a_body_is_read_whole(messages: list[dict[str, Any]]) -> None:
    assert await read_body(receiving(messages), None, Intake(4, 99)) == b"abcd"


async def test_a_body_declared_too_large_is_refused_unread() -> None:
    with pytest.raises(BodyTooLarge, match="5 bytes"):
        await read_body(receiving([]), b"5", Intake(4, 99))


@pytest.mark.parametrize("messages", [[piece(b"abcde", False)], [piece(b"abc"), piece(b"de"), piece(b"", False)]])
async def test_a_body_is_refused_as_soon_as_it_is_too_large(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(BodyTooLarge):
        await read_body(receiving(messages), None, Intake(4, 99))


@pytest.mark.parametrize("messages", [[GONE], [piece(b"ab"), GONE]])
async def test_a_client_that_leaves_while_sending_is_no_fault(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(ClientGone):
        await read_body(receiving(messages), None, Intake(4, 99))


async def test_bodies_that_are_still_coming_share_one_bound_and_small_ones_pass() -> None:
    intake, slow = Intake(100, 8), receiving([piece(b"abcdef"), piece(b"g"), piece(b"h", False)])

    async def hold() -> dict[str, Any]:
        message = await slow()
        if message["body"] == b"g":
            with pytest.raises(Overloaded, match="8 of them at a time") as refused:
                await read_body(receiving([piece(b"xyz"), piece(b"", False)]), None, intake)
            assert refused.value.retry_after
            assert await read_body(receiving([piece(b"whole bodies are not counted", False)]), None, intake)
        return message

    assert await read_body(hold, None, intake) == b"abcdefgh"
    assert await read_body(receiving([piece(b"xyz"), piece(b"", False)]), None, intake) == b"xyz"
    assert intake.held == 0


@pytest.mark.parametrize("last", [GONE, piece(b"e" * 100)])
async def test_a_body_that_never_becomes_whole_leaves_its_room(last: dict[str, Any]) -> None:
    intake = Intake(100, 1000)
    with pytest.raises((ClientGone, BodyTooLarge)):
        await read_body(receiving([piece(b"abcd"), last]), None, intake)
    assert intake.held == 0

"""The plain ASGI pieces: bounded bodies, and clients that leave while they send."""

from collections.abc import Iterable
from typing import Any

import pytest

from service.errors import BodyTooLarge
from service.wire.asgi import ClientGone, Receive, read_body

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
    assert await read_body(receiving(messages), None, 4) == b"abcd"


async def test_a_body_declared_too_large_is_refused_unread() -> None:
    with pytest.raises(BodyTooLarge, match="5 bytes"):
        await read_body(receiving([]), b"5", 4)


@pytest.mark.parametrize("messages", [[piece(b"abcde", False)], [piece(b"abc"), piece(b"de"), piece(b"", False)]])
async def test_a_body_is_refused_as_soon_as_it_is_too_large(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(BodyTooLarge):
        await read_body(receiving(messages), None, 4)


@pytest.mark.parametrize("messages", [[GONE], [piece(b"ab"), GONE]])
async def test_a_client_that_leaves_while_sending_is_no_fault(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(ClientGone):
        await read_body(receiving(messages), None, 4)

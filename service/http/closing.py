"""Closes connections: a plain close loses the response if data is unread, and keeps unsent data in memory."""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LINGER_SECONDS = 2.0


def close_in_stages(
    transport: Any, loop: asyncio.AbstractEventLoop, most_seconds: float, received_bytes: Callable[[], int]
) -> None:
    """Stop sending; close once the client has sent nothing for LINGER_SECONDS (RFC 9112, 9.6).

    Args:
        transport: the connection's.
        loop: the event loop whose clock is used.
        most_seconds: seconds after which the connection closes at the next look, whatever the client sends.
        received_bytes: returns a count that grows while the client sends.
    """
    seconds, until = min(LINGER_SECONDS, most_seconds), loop.time() + most_seconds

    def look(before: int) -> None:
        now = received_bytes()
        if now == before or loop.time() >= until:
            transport.close()
        else:
            loop.call_later(seconds, look, now)

    with suppress(OSError):  # the client has reset the connection
        if transport.can_write_eof():
            transport.write_eof()
    loop.call_later(seconds, look, received_bytes())


def reset(transport: Any) -> None:
    """Close at once, and free the up to 4 MiB that the kernel holds for a client that does not read."""
    connection = transport.get_extra_info("socket")
    with suppress(OSError, AttributeError), socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()

"""The pace of a client: how fast it sends its request and reads its response, and when that is too slow."""

import fcntl
import struct
import termios
from typing import Any, NamedTuple

CLIENT_BYTES_PER_SECOND = 4096  # a client that sends or takes less holds its connection up


class ConnectionSettings(NamedTuple):
    """The settings of connections.

    Args:
        client_seconds: how long a client may hold up its request or its response.
        idle_seconds: how long a connection may wait for its next request.
    """

    client_seconds: float
    idle_seconds: float


class ClientPace:
    """Measures the pace of one connection's client between checks.

    Args:
        settings: of connections.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._client_seconds, self._idle_seconds = settings
        self._transfer: object = None
        self._bytes = 0  # that had passed when the client last kept up
        self._since = 0.0  # when that was

    def seconds_to_check(self, idle_since: float | None, now: float) -> float:
        """Return the seconds until the next check.

        Args:
            idle_since: when the connection became idle; None: it is busy.
            now: the time on the clock of `idle_since`.
        """
        seconds = min(self._idle_seconds, self._client_seconds / 2)
        if idle_since is None:
            return seconds
        return min(seconds, max(idle_since + self._idle_seconds - now, 0.01))

    def has_idled_too_long(self, idle_since: float, now: float) -> bool:
        """Return whether a connection has waited `idle_seconds` for its next request."""
        return now - idle_since >= self._idle_seconds

    def is_held_up(self, transfer: object, passed: int, now: float) -> bool:
        """Return whether the client has sent or read too few bytes for `client_seconds`.

        Args:
            transfer: what the client sends or takes, equal at two checks only while `passed` counts on.
            passed: bytes of it that the client has sent or taken.
            now: the time in seconds.
        """
        moved = passed - self._bytes
        if self._transfer != transfer or (moved > 0 and moved >= CLIENT_BYTES_PER_SECOND * (now - self._since)):
            self._transfer, self._bytes, self._since = transfer, passed, now
            return False
        return now - self._since >= self._client_seconds

    def reset(self) -> None:
        """Record that the server waits for nothing from the client."""
        self._transfer = None


def unacknowledged_bytes(transport: Any) -> int:
    """Return the bytes that the kernel holds for the client; they show that a slow but steady client reads."""
    connection = transport.get_extra_info("socket")
    try:
        raw = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, AttributeError, ValueError):
        return 0
    return int(struct.unpack("i", raw)[0])

"""Bounds the calls that are under way, before any of their messages is read.

grpc reads a message whole, up to max_body_bytes, before its handler runs and admission can refuse it. grpc.aio's own
bound, maximum_concurrent_rpcs, counts health checks and idle streams with all others, so that a full server looks dead.
"""

import asyncio
from typing import Any

from service.errors import Overloaded

CALLS_PER_REQUEST = 2  # of those admitted at a time: others are arriving or being sent


class CallLimit:
    """Counts the calls of one sort: requests, streams or probes.

    Args:
        max_requests: admitted at a time; twice as many calls may be under way.
        silent_seconds: how long a call may wait for its first message while others are refused.
    """

    def __init__(self, max_requests: int, silent_seconds: float) -> None:
        self._max_calls = max_requests * CALLS_PER_REQUEST
        self._silent_seconds = silent_seconds
        self._silent: dict[asyncio.Task[Any], float] = {}  # since when, the longest first
        self.active = 0

    def acquire(self, call: asyncio.Task[Any], now: float) -> None:
        """Take a place for a call, if need be that of one that was silent for too long.

        Raises:
            Overloaded: there is none.
        """
        if self.active >= self._max_calls and not self._cancel_silent(now):
            raise Overloaded(
                f"{self._max_calls} calls are under way",
                allowed=f"this server takes {self._max_calls} at a time",
                remedy="try again in a moment",
            )
        self.active += 1
        self._silent[call] = now

    def message_came(self, call: asyncio.Task[Any]) -> None:
        """Note that a call is not silent any more."""
        self._silent.pop(call, None)

    def release(self, call: asyncio.Task[Any]) -> None:
        """Give a call's place back."""
        self.active -= 1
        self._silent.pop(call, None)

    def _cancel_silent(self, now: float) -> bool:
        longest = next(iter(self._silent), None)
        if longest is None or now - self._silent[longest] < self._silent_seconds:
            return False
        del self._silent[longest]
        longest.cancel()
        return True

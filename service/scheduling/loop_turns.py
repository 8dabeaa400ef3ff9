"""Turns of the event loop, for requests whose bodies take a millisecond or more to read and to queue.

Work of a thousand connections that are readable at once would be done in one pass of the loop: 512 bodies of 30 KB with
a thousand inputs each held up all others for 4 s. Here each pass begins a few of them; callers take turns.
"""

import asyncio
from collections import deque

SMALL_BYTES = 2048  # bodies so small do not ask for a turn
TURN_BYTES = 16384  # of the bodies that begin in one pass: about 5 ms

Waiting = deque[tuple[asyncio.Future[None], int]]


class LoopTurns:
    """The requests that wait for a pass of the event loop."""

    def __init__(self) -> None:
        self._begun_bytes = 0  # in this pass; while requests wait it is not 0
        self._callers: dict[str, Waiting] = {}  # first the one whose turn it is

    async def wait(self, size: int, caller: str) -> None:
        """Return at once if little has begun in this pass of the loop, else when it is the caller's turn.

        Args:
            size: bytes of the request's body, more than SMALL_BYTES.
        """
        if not self._begun_bytes:
            asyncio.get_running_loop().call_soon(self._next_pass)
        elif self._callers or self._begun_bytes + size > TURN_BYTES:
            future = asyncio.get_running_loop().create_future()
            self._callers.setdefault(caller, deque()).append((future, size))
            await future
            return
        self._begun_bytes += size

    def _next_pass(self) -> None:
        """Begin the requests of one pass."""
        self._begun_bytes = 0
        while self._callers and self._begun_bytes < TURN_BYTES:
            caller = next(iter(self._callers))
            waiting = self._callers.pop(caller)
            future, size = waiting.popleft()
            if waiting:
                self._callers[caller] = waiting
            if not future.done():  # its client may have left
                future.set_result(None)
                self._begun_bytes += size
        if self._begun_bytes:
            asyncio.get_running_loop().call_soon(self._next_pass)

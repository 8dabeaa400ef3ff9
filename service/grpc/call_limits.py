"""Limits the calls under way, before any of their messages is read, and the calls whose messages are being read.

grpc reads a message whole, up to max_body_bytes, before its handler runs and admission can refuse it; how much of it
has come cannot be seen. grpc.aio's own bound, maximum_concurrent_rpcs, counts health checks and idle streams with all
others, so that a full server looks dead.
"""

import asyncio
from time import perf_counter
from typing import Protocol

from service.errors import Overloaded

CALLS_ALONE = 16  # single calls in a row that show a lone caller, who waits for each answer
SLOW_SECONDS = 5.0  # seconds after which a message that is still coming gives way to one that waits to be read
CALLS_PER_REQUEST = 2  # calls per admitted request: others are arriving or being sent


class LimitedCall(Protocol):
    """What a limit needs to know of a call.

    Attributes:
        arrived: time of arrival, on `time.perf_counter`.
        silent: whether the first message has yet to come.
    """

    arrived: float
    silent: bool

    def cancel(self) -> None:
        """End the call."""
        ...

    def give_way(self) -> None:
        """End a call whose message is being read although it had to wait for its turn."""
        ...


class CallLimit:
    """The calls of one kind (requests, streams or probes) that are under way.

    Args:
        max_requests: admitted at a time; twice as many calls may be under way.
        silent_seconds: how long a call may be silent while others are refused.
        max_readers: calls whose first message may be read at once, and as many that waited for their turn and give way
            to others if their messages come slowly. None: all at once.
    """

    def __init__(self, max_requests: int, silent_seconds: float, max_readers: int | None = None) -> None:
        self._max_readers = 1 << 62 if max_readers is None else max_readers
        self._at_once: set[LimitedCall] = set()
        self._readers: dict[LimitedCall, float] = {}  # that waited: since when each is read, the longest first
        self._places = asyncio.Semaphore(self._max_readers)
        self._max_calls = max_requests * CALLS_PER_REQUEST
        self._silent_seconds = silent_seconds
        self._slow_seconds = min(SLOW_SECONDS, silent_seconds)
        self.calls: dict[LimitedCall, None] = {}  # the longest first
        self._alone = 0  # calls in a row that had no other beside them

    @property
    def concurrent(self) -> bool:
        """Whether there are several callers. Even then few calls overlap: grpc.aio accepts one per turn of the loop."""
        return self._alone < CALLS_ALONE

    @property
    def crowded(self) -> bool:
        """Whether another call has to wait before its message is read."""
        return len(self._at_once) >= self._max_readers

    def begin_reading(self, call: LimitedCall) -> None:
        """Count a call whose first message is read at once; grpc cannot interrupt that."""
        self._at_once.add(call)

    async def turn_to_read(self, call: LimitedCall) -> None:
        """Wait until the message of a call may be read; slow calls give way."""
        while call not in self._readers:
            try:
                async with asyncio.timeout(self._slow_seconds):
                    await self._places.acquire()
                self._readers[call] = perf_counter()
            except TimeoutError:
                self._end_slow()

    def read(self, call: LimitedCall) -> None:
        """Record that the first message of a call has come, or that the call has ended."""
        self._at_once.discard(call)
        if self._readers.pop(call, None) is not None:
            self._places.release()

    def _end_slow(self) -> None:
        """End the call whose message has been read for the longest, if it is slow."""
        call, since = next(iter(self._readers.items()), (None, 0.0))
        if call is not None and perf_counter() - since >= self._slow_seconds:
            self.read(call)
            call.give_way()

    def add(self, call: LimitedCall) -> None:
        """Count a call; if the limit is reached, cancel a call that was silent for too long and take its place.

        Raises:
            Overloaded: all places are taken, and no call was silent for too long.
        """
        if len(self.calls) >= self._max_calls and not self._cancel_silent(call.arrived):
            raise Overloaded(
                f"{self._max_calls} calls are under way",
                allowed=f"this server takes {self._max_calls} at a time",
                remedy="try again in a moment",
            )
        self.calls[call] = None
        self._alone = 0 if len(self.calls) > 1 else self._alone + 1

    def remove(self, call: LimitedCall) -> None:
        """Stop counting a call."""
        self.calls.pop(call, None)
        self.read(call)

    def _cancel_silent(self, now: float) -> bool:
        for call in self.calls:
            if now - call.arrived < self._silent_seconds:
                return False
            if call.silent:
                del self.calls[call]
                call.cancel()
                return True
        return False

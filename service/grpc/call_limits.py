"""Limits the number of calls under way, before any of their messages is read.

grpc reads a message whole, up to max_body_bytes, before its handler runs and admission can refuse it. grpc.aio's own
bound, maximum_concurrent_rpcs, counts health checks and idle streams with all others, so that a full server looks dead.
"""

from typing import Protocol

from service.errors import Overloaded

CALLS_ALONE = 16  # in a row: then there is one caller, who waits for each answer
CALLS_PER_REQUEST = 2  # of those admitted at a time: others are arriving or being sent


class LimitedCall(Protocol):
    """A call as a limit sees it.

    Attributes:
        arrived: on `time.perf_counter`.
        silent: whether its first message is still to come.
    """

    arrived: float
    silent: bool

    def cancel(self) -> None:
        """End the call."""
        ...


class CallLimit:
    """The calls of one kind (requests, streams or probes) that are under way.

    Args:
        max_requests: admitted at a time; twice as many calls may be under way.
        silent_seconds: how long a call may be silent while others are refused.
    """

    def __init__(self, max_requests: int, silent_seconds: float) -> None:
        self._max_calls = max_requests * CALLS_PER_REQUEST
        self._silent_seconds = silent_seconds
        self.calls: dict[LimitedCall, None] = {}  # the longest first
        self._alone = 0  # calls in a row that had no other beside them

    @property
    def concurrent(self) -> bool:
        """Whether there are several callers. Even then few calls overlap: grpc.aio accepts one a turn of the loop."""
        return self._alone < CALLS_ALONE

    def add(self, call: LimitedCall) -> None:
        """Take a place for a call; if there is none, cancel a call that was silent for too long and take its place.

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
        """Give a call's place back."""
        self.calls.pop(call, None)

    def _cancel_silent(self, now: float) -> bool:
        for call in self.calls:
            if now - call.arrived < self._silent_seconds:
                return False
            if call.silent:
                del self.calls[call]
                call.cancel()
                return True
        return False

"""What belongs to one call, over HTTP or gRPC: its id, deadline and caller, and the times of its stages."""

import os
import re
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from time import perf_counter
from typing import NamedTuple

REQUEST_ID: ContextVar[bytes] = ContextVar("request_id", default=b"-")
"""The id of the request that the running task serves; b"-" outside a request."""

KEY_NAME: ContextVar[str] = ContextVar("key_name", default="")
"""The name of the API key that the caller of the running task showed; empty without keys."""

TRACE_ID: ContextVar[str] = ContextVar("trace_id", default="")
"""The id of the trace that the running task adds to, in hexadecimal; empty where nothing is traced."""

_OWN_ID = re.compile(rb"[!-~]{1,128}")
# a random start and a counter: unique like a random id, at an eighth of its cost; workers are spawned, so each draws
_START = os.urandom(8).hex().encode()
_counter = count()


def request_id(own: bytes | None) -> bytes:
    """Return the id of a request: `own` (x-request-id) if it is 1 to 128 visible ASCII characters, else a new one."""
    return own if own and _OWN_ID.fullmatch(own) else b"%b%08x" % (_START, next(_counter))


class StageTimes(NamedTuple):
    """Seconds that a request took, by stage; waiting and running are means over its items."""

    tokenization: float
    queue: float
    inference: float


class Pass(NamedTuple):
    """One pass through the embedding pipeline, which ended at `ended` on the clock of perf_counter."""

    model: str
    tokens: int
    times: StageTimes
    ended: float


class RequestContext:
    """What the embedding pipeline needs to know of a call. One is made for every call, so its defaults are the class's.

    Attributes:
        deadline: when the caller stops waiting, on `time.perf_counter`; None: it did not say.
        caller: who asks, for sharing the engine fairly: the key's name or the address; empty: unknown.
        staggered: concurrent callers of this protocol arrive over several turns of the event loop, as gRPC's do.
        passes: where the passes through the embedding pipeline are collected; None: the call is not traced.
        truncated: numbers of the inputs that were cut.
        encoding: what takes the seconds of writing the response, and when that began; None: nothing was embedded.
        copies: how often the protocol holds an answer's vectors at once, in memory.
        reservations: bytes of memory that are kept for the call, and what takes them back; None: there are none.
    """

    deadline: float | None = None
    caller: str = ""
    staggered: bool = False
    passes: list[Pass] | None = None
    truncated: tuple[int, ...] = ()
    encoding: tuple[Callable[[float], None], float] | None = None
    copies = 1
    reservations: list[tuple[Callable[[int], None], int]] | None = None

    def within(self, deadline: float) -> "RequestContext":
        """Shorten the deadline; return the context."""
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        return self

    def written(self) -> None:
        """Count the time since the last pass: the response has been written."""
        if self.encoding is not None:
            observe, since = self.encoding
            self.encoding = None
            observe(perf_counter() - since)

    def release(self) -> None:
        """Give back what was reserved for the call: its answer has left, or there will be none."""
        reservations, self.reservations = self.reservations, None
        for give_back, size in reservations or ():
            give_back(size)

"""The context of one HTTP or gRPC call: its id, caller, trace and deadline, and the times of its stages."""

import os
import re
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import NamedTuple

BULK = "bulk "
"""How the caller of a request begins that gives way to others: names of keys and addresses hold no space."""
_SENT_ID = re.compile(rb"[!-~]{1,128}")
# a random start and a counter: unique like a random id, at an eighth of its cost; workers are spawned, so each draws
_START = os.urandom(8).hex().encode()
_counter = count()


def request_id(sent: bytes | None) -> bytes:
    """Return the x-request-id that was sent if it is 1 to 128 visible ASCII characters, else a new id."""
    return sent if sent and _SENT_ID.fullmatch(sent) else b"%b%08x" % (_START, next(_counter))


class StageTimes(NamedTuple):
    """Seconds that a request took, by stage; waiting and running are means over its items."""

    tokenization: float
    queue: float
    inference: float


class Pass(NamedTuple):
    """One pass of a request through the embedding pipeline.

    Args:
        tokens: of this request.
        batch: items that ran together, the mean over its runs.
        ended: on the clock of perf_counter.
    """

    model: str
    tokens: int
    batch: float
    times: StageTimes
    ended: float


class KeyUse(NamedTuple):
    """What an API key has used of a model; each is the list of a counter, which holds one number."""

    requests: list[float]
    seconds: list[float]
    tokens: list[float]
    refusals: list[float]


class RequestContext:
    """The caller and the deadline of a call, and what the embedding pipeline measures and reserves for it.

    Each call makes one, so that defaults are attributes of the class.

    Attributes:
        request_id: the x-request-id; b"-" outside a request.
        key_name: the name of the API key that the caller showed, which no run and no cached vector is shared beyond;
            empty without keys.
        trace_id: the id of the trace that the call adds to, in hexadecimal; empty where nothing is traced.
        deadline: when the caller stops waiting, on `time.perf_counter`; None: it did not say.
        caller: who asks, for sharing the engine fairly: the key's name or the address; empty: unknown.
        bulk: it gives way to others; `caller` then begins with BULK.
        staggered: concurrent callers of this protocol arrive over several turns of the event loop, as gRPC's do.
        passes: list that collects the passes through the embedding pipeline; None: the call has no span.
        key_use: the counters of the caller's key and the model of its last pass; None: there are none yet.
        truncated: numbers of the inputs that were cut.
        random_weights: a model of random weights answered, which a header says.
        ignored_fields: names of the body's fields that were not used.
        strict_fields: whether such fields are refused (INLAY_STRICT_FIELDS).
        encoding: what takes the seconds of writing the response, when that began, and the model, the tokens and the
            times of the last pass; None: nothing was embedded.
        copies: how many copies of an answer's vectors the protocol holds in memory at once.
        reservations: bytes of memory that are kept for the call, and what takes them back; None: there are none.
    """

    request_id: bytes = b"-"
    key_name: str = ""
    trace_id: str = ""
    deadline: float | None = None
    caller: str = ""
    bulk: bool = False
    staggered: bool = False
    passes: list[Pass] | None = None
    key_use: KeyUse | None = None
    truncated: tuple[int, ...] = ()
    random_weights = False
    ignored_fields: tuple[str, ...] = ()
    strict_fields: bool = False
    encoding: tuple[Callable[[float], None], float, tuple[str, int, StageTimes]] | None = None
    copies = 1
    reservations: list[tuple[Callable[[int], None], int]] | None = None

    def show_key(self, name: str) -> None:
        """Note the name of the key that the caller has shown."""
        self.key_name = self.caller = name

    def make_bulk(self) -> None:
        """Let the call give way to others that wait for the same model."""
        if not self.bulk:
            self.bulk, self.caller = True, BULK + self.caller

    def log_fields(self) -> dict[str, str]:
        """Return what log lines show of a call: its request id, trace and key, without the empty ones."""
        request_id = "" if self.request_id == b"-" else self.request_id.decode("latin-1")
        named = {"request_id": request_id, "trace_id": self.trace_id, "key": self.key_name}
        return {name: value for name, value in named.items() if value}

    def within(self, deadline: float) -> "RequestContext":
        """Shorten the deadline; return the context."""
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        return self

    def written(self, now: float) -> None:
        """Record the seconds from the last pass to `now`, when the response has been written."""
        if self.encoding is not None:
            observe, began, _ = self.encoding
            self.encoding = None
            observe(now - began)

    def release(self) -> None:
        """Release what was reserved for the call, once its answer has been sent or there will be none."""
        reservations, self.reservations = self.reservations, None
        for give_back, size in reservations or ():
            give_back(size)


NO_CALL = RequestContext()
CURRENT_CALL: ContextVar[RequestContext] = ContextVar("current_call", default=NO_CALL)
"""The call that the running task serves: for log lines and for errors that show their request's id."""

"""Until when the caller of the running task waits. Set where a request comes in, read where work is queued."""

from contextvars import ContextVar
from time import perf_counter

_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)


def current() -> float | None:
    """When the caller stops waiting, on perf_counter; None: it did not say."""
    return _DEADLINE.get()


def allow(seconds: float | None) -> None:
    """The caller waits so long from now, or did not say."""
    _DEADLINE.set(None if seconds is None else perf_counter() + seconds)


def at_most(seconds: float) -> None:
    """The caller waits no longer than that from now, whatever was allowed before."""
    deadline, before = perf_counter() + seconds, _DEADLINE.get()
    _DEADLINE.set(deadline if before is None else min(before, deadline))

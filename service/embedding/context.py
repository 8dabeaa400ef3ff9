"""What the core knows of the call that a request belongs to, besides the request itself."""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestContext:
    """The call behind a request.

    Args:
        deadline: when the caller stops waiting, on `time.perf_counter`; None: it did not say.
        caller: who asks, for sharing the engine fairly: the key's name or the address; empty: unknown.
        staggered: concurrent callers of this protocol arrive over several turns of the event loop, as gRPC's do.
    """

    deadline: float | None = None
    caller: str = ""
    staggered: bool = False


ANONYMOUS = RequestContext()

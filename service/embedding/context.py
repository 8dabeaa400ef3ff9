"""The call behind a request: what the core needs to know of it, and what it leaves for whoever writes the response."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.observability.metrics import Histogram
    from service.observability.stage_times import Pass


class RequestContext:
    """The call that a request belongs to. One is made for every call, so its defaults are the class's.

    Attributes:
        deadline: when the caller stops waiting, on `time.perf_counter`; None: it did not say.
        caller: who asks, for sharing the engine fairly: the key's name or the address; empty: unknown.
        staggered: concurrent callers of this protocol arrive over several turns of the event loop, as gRPC's do.
        passes: where the passes through the embedding pipeline are collected; None: the call is not traced.
        encoding: the histogram and the start of writing the response, set by the last pass; None: there was none.
    """

    deadline: float | None = None
    caller: str = ""
    staggered: bool = False
    passes: "list[Pass] | None" = None
    encoding: "tuple[Histogram, float] | None" = None

    def within(self, deadline: float) -> "RequestContext":
        """Shorten the deadline; return the context."""
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        return self


ANONYMOUS = RequestContext()

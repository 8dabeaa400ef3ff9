"""How callers that are ready come in: all in one turn of the event loop, or one by one. Told by what takes them in."""

from contextvars import ContextVar

ONE_BY_ONE: ContextVar[bool] = ContextVar("one_by_one", default=False)
"""Whether the caller of the running task came so, as gRPC's do: one in a few turns (grpcio 1.85)."""

"""Declarations of gRPC services: a row declares one method, and the pipeline derives everything else from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from service.error_status import STATUSES
from service.errors import InlayError

Handler = Callable[..., Any]
Metadata = Sequence[tuple[str, str]]


def serialize(message: Any) -> bytes:
    """Return a protobuf message's wire bytes."""
    return bytes(message.SerializeToString())


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method. Handlers are called with a request and its RequestContext (service/request_context.py).

    Args:
        request: the class of a request's message.
        handler: for "unary", a coroutine function that returns the answer. For "server_stream", an async generator
            function. For "client_stream", a coroutine function that is given an async iterator of requests. For
            "bidirectional", a coroutine function that answers one request of the stream; answers keep their order.
        serialize: function from an answer to wire bytes.
        admitted: whether a request counts against `max_concurrent_requests` until it is answered.
        probe: whether the method only reports the server's state; full limits of other methods do not refuse it.
        management: whether the method is left out if there is a management port, as REST's probes are.
        error_answer: for "bidirectional", the wire bytes of what stands in the stream for a request that failed, from
            the request (None: it could not be read) and its error; None: the error ends the call.
        initial_metadata: for "unary", metadata sent before the answer.
    """

    name: str
    request: Any
    handler: Handler
    serialize: Callable[[Any], bytes] = serialize
    kind: Literal["unary", "server_stream", "client_stream", "bidirectional"] = "unary"
    admitted: bool = False
    probe: bool = False
    management: bool = False
    error_answer: Callable[[Any, InlayError], bytes] | None = None
    initial_metadata: Callable[[Any], Metadata] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A gRPC service.

    Args:
        name: full name, e.g. inlay.v1.Embedder.
        serving: returns its state in health checks while the server is ready; False: no loaded model supports it.
        metric_prefix: stands before the names of its methods in the metrics.
        status_of: the name of the gRPC status of an error; by default that of inlay.v1.
        message_of: the message of an error.
    """

    name: str
    methods: Sequence[Method]
    serving: Callable[[], bool] = lambda: True
    metric_prefix: str = ""
    status_of: Callable[[InlayError], str] = lambda error: STATUSES[error.code].grpc
    message_of: Callable[[InlayError], str] = lambda error: error.message

"""The one pipeline of gRPC calls: key and call limits, before a message is read.

`Pipeline.service` finds the method of a call and returns a Call (`service/grpc/calls.py`), which serves it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any

import grpc

from service.errors import InlayError
from service.grpc.call_limits import CallLimit
from service.grpc.calls import OTHER, WAITING, Call, Metadata, RefusedCall, ServedMethod, Shared, identity_of
from service.grpc.methods import Method, Service
from service.request_context import RequestContext
from service.security.api_keys import Key

BEARER = b"bearer "
UNKNOWN_SERVICE = Service(name="", methods=())
UNKNOWN_METHOD = Method(name=OTHER, request=None, handler=lambda request, context: None)


class Pipeline(grpc.GenericRpcHandler):
    """Serves the methods of all services.

    Args:
        max_requests: requests admitted at a time; calls of each sort (requests, streams, probes) may be twice as many.
        silent_seconds: how long a call may wait for its first message while others are refused for want of room.
        max_readers: requests whose messages are read at a time, each of which may be as large as one may be.
        open_handlers: handlers that are served without key, limits and metrics, by path.
    """

    def __init__(
        self,
        shared: Shared,
        services: Iterable[Service],
        max_requests: int,
        silent_seconds: float,
        max_readers: int,
        open_handlers: Mapping[str, Any],
    ) -> None:
        self._shared, self._keys = shared, shared.keys
        self._open_handlers = open_handlers
        self._services = {service.name: service for service in services}
        requests = CallLimit(max_requests, silent_seconds, max_readers)
        streams, probes = CallLimit(max_requests, silent_seconds), CallLimit(max_requests, silent_seconds)
        self._requests = requests
        self._methods: dict[str, ServedMethod] = {}
        for service in self._services.values():
            shared.metrics.expect("grpc", service.metric_names)
            for method in service.methods:
                streaming = method.kind in ("client_stream", "bidirectional")
                limit = probes if method.probe else streams if streaming else requests
                self._methods[f"/{service.name}/{method.name}"] = ServedMethod(shared, service, method, limit)
        self._count_refused_at_gate = shared.metrics.gate("grpc")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.calls_taken = 0

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler that serves or refuses a call; None: there is no such method."""
        self.calls_taken += 1
        path, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        served = self._methods.get(path)
        if served is None and path in self._open_handlers:
            return self._open_handlers[path]
        key, identity = None, identity_of(metadata)
        if self._keys is not None:
            began = perf_counter()
            try:
                key = self._keys.acquire(shown_key(metadata), identity)
            except InlayError as error:
                return self._refused_at_gate(path, metadata, identity, error, began)
        if served is None:
            if key is not None and key.limited:
                key.release(0)
            return None
        return self._limited(served, metadata, identity, key)

    def _limited(self, served: ServedMethod, metadata: Metadata, identity: RequestContext, key: Key | None) -> Call:
        """Return the call that serves a method within its limit, or the one that refuses it."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)  # finding the loop each time is a system call (Python 3.11)
        waits = served.limit.crowded and served.call_class in WAITING
        call: Call = (WAITING[served.call_class] if waits else served.call_class)(served, metadata, task, identity, key)
        try:
            served.limit.add(call)
            if not (waits or call.request_streaming):
                served.limit.begin_reading(call)
        except InlayError as error:
            call = refused = RefusedCall(served, metadata, task, identity, key)
            refused.error = error
        task.add_done_callback(call.ended)  # type: ignore[union-attr]  # the call's own task, which ends with it
        return call

    def _refused_at_gate(
        self, path: str, metadata: Metadata, identity: RequestContext, error: InlayError, began: float
    ) -> "RefusedCall":
        service = self._services.get(path[1:].rpartition("/")[0], UNKNOWN_SERVICE)
        self._count_refused_at_gate(error.code, service.status_of(error), perf_counter() - began)
        served = self._methods.get(path) or ServedMethod(self._shared, service, UNKNOWN_METHOD, self._requests)
        task = asyncio.current_task()
        call = RefusedCall(served, metadata, task, identity)
        call.error, call.counted = error, True
        task.add_done_callback(call.ended)  # type: ignore[union-attr]
        return call


def shown_key(metadata: Metadata) -> bytes | None:
    """Return the key that a call shows (RFC 6750)."""
    for name, value in metadata:
        if name == "authorization" and isinstance(value, str):
            raw = value.encode("ascii", "replace")
            return raw[len(BEARER) :].strip() if raw[: len(BEARER)].lower() == BEARER else None
    return None

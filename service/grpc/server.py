"""The gRPC server of one process, and the pipeline that checks keys and call limits before a message is read.

`Pipeline.service` finds the method of a call and returns a Call (`service/grpc/calls.py`), which serves it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import grpc

from service.errors import InlayError, StartError
from service.grpc.call_limits import CallLimit
from service.grpc.calls import (
    OTHER,
    Call,
    Metadata,
    RefusedCall,
    ServedMethod,
    Shared,
    UnaryCall,
    WaitingUnaryCall,
    identity_of,
)
from service.grpc.health import Health, OpenStreams, open_handlers
from service.grpc.methods import Method, Service
from service.observability.metrics import GATE, Metrics
from service.request_context import RequestContext
from service.scheduling.admission import AdmissionController
from service.scheduling.priority import HEADER, is_bulk
from service.security.api_keys import Key
from service.security.tls import Pem, Renewed, contents, files
from service.settings import Settings

HEALTH_SECONDS = 5.0  # seconds between checks whether the models answer
ARRIVED_SECONDS = 0.05  # seconds without a new call that show that grpc would end none with CANCELLED (grpc/grpc#41785)
MAX_ARRIVED_SECONDS = 1.0  # most seconds of that, if clients never cease to call
LEAST_CLIENT_MILLISECONDS = 1000  # with 1, handshakes and pings fail on a busy machine, and clients hang (grpcio 1.85)
log = logging.getLogger(__name__)
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
        bulk_paths: methods whose requests give way to others, by path.
    """

    def __init__(
        self,
        shared: Shared,
        services: Iterable[Service],
        max_requests: int,
        silent_seconds: float,
        max_readers: int,
        open_handlers: Mapping[str, Any],
        bulk_paths: Collection[str] = (),
    ) -> None:
        self._shared, self._keys = shared, shared.keys
        self._open_handlers, self._bulk_paths = open_handlers, bulk_paths
        self._services = {service.name: service for service in services}
        requests = CallLimit(max_requests, silent_seconds, max_readers)
        streams, probes = CallLimit(max_requests, silent_seconds), CallLimit(max_requests, silent_seconds)
        self._requests = requests
        self._methods: dict[str, ServedMethod] = {}
        for service in self._services.values():
            for method in service.methods:
                streaming = method.kind in ("client_stream", "bidirectional")
                limit = probes if method.probe else streams if streaming else requests
                self._methods[f"/{service.name}/{method.name}"] = ServedMethod(shared, service, method, limit)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.calls_taken = 0

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler that serves or refuses a call; None if there is no such method."""
        self.calls_taken += 1
        path, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        served = self._methods.get(path)
        if served is None and path in self._open_handlers:
            return self._open_handlers[path]
        key, identity = None, identity_of(metadata)
        if self._keys is not None:
            try:
                key = self._keys.acquire(shown_key(metadata), identity)
            except InlayError as error:
                return self._refused_at_gate(path, metadata, identity, error)
        if served is None:
            if key is not None:
                key.release(0)
            return None
        return self._limited(served, metadata, identity, key)

    def _limited(self, served: ServedMethod, metadata: Metadata, identity: RequestContext, key: Key | None) -> Call:
        """Return the call that serves a method within its limit, or the one that refuses it."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)  # finding the loop each time is a system call (Python 3.11)
        waits = served.limit.crowded and served.call_class is UnaryCall
        call: Call = (WaitingUnaryCall if waits else served.call_class)(served, metadata, task, identity, key)
        try:
            sent = next((str(value) for name, value in metadata if name == HEADER), None)
            if is_bulk(sent, f"/{served.path}", self._bulk_paths):
                identity.make_bulk()
            served.limit.add(call)
            if not call.request_streaming:
                served.limit.begin_reading(call)
        except InlayError as error:
            call = refused = RefusedCall(served, metadata, task, identity, key)
            refused.error = error
        task.add_done_callback(call.ended)  # type: ignore[union-attr]  # the call's own task, which ends with it
        return call

    def _refused_at_gate(
        self, path: str, metadata: Metadata, identity: RequestContext, error: InlayError
    ) -> RefusedCall:
        service = self._services.get(path[1:].rpartition("/")[0], UNKNOWN_SERVICE)
        served = self._methods.get(path) or ServedMethod(self._shared, service, UNKNOWN_METHOD, self._requests)
        task = asyncio.current_task()
        call = RefusedCall(served, metadata, task, identity)
        call.error, call.metric_name = error, GATE
        task.add_done_callback(call.ended)  # type: ignore[union-attr]
        return call


def shown_key(metadata: Metadata) -> bytes | None:
    """Return the key that a call sends (RFC 6750)."""
    for name, value in metadata:
        if name == "authorization" and isinstance(value, str):
            raw = value.encode("ascii", "replace")
            return raw[len(BEARER) :].strip() if raw[: len(BEARER)].lower() == BEARER else None
    return None


class RpcServer:
    """Every gRPC service on one port, with health and reflection.

    Args:
        shared: the parts that it shares with HTTP; None: parts of its own, without keys and logs.

    Attributes:
        pipeline: serves calls, from `open` or `start` on.
        paths: of its methods.
    """

    def __init__(self, settings: Settings, services: Sequence[Service], shared: Shared | None = None) -> None:
        self._settings, self._services = settings, services
        self._shared = shared or Shared(Metrics(), AdmissionController(settings.max_concurrent_requests))
        self._streams = OpenStreams()
        self.health = Health(self._streams)
        self.paths = {f"/{service.name}/{method.name}" for service in services for method in service.methods}
        self._server: Any = None
        self.pipeline: Pipeline

    def open(self) -> int:
        """Serve the calls that another gRPC server hands to `pipeline`; return 0, since there is no port."""
        settings = self._settings
        self.pipeline = Pipeline(
            self._shared,
            self._services,
            settings.max_concurrent_requests,
            settings.client_seconds,
            max(1, settings.max_receiving_bytes // settings.max_body_bytes // 2),
            open_handlers(self.health, self._streams, [service.name for service in self._services]),
            settings.bulk_paths,
        )
        self._set_health(True)
        return 0

    async def start(self) -> int:
        """Listen and serve; return the port.

        Raises:
            StartError: the address is taken, or the certificate cannot be used.
        """
        settings = self._settings
        client_milliseconds = max(LEAST_CLIENT_MILLISECONDS, int(settings.client_seconds * 1000))
        options = [
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            # keeps the flow-control window at 64 KiB: a call that waits for its turn holds no more of its message
            ("grpc.http2.bdp_probe", 0),
            # shared with other workers, and with the socket that reserves it (cli/startup.py)
            ("grpc.so_reuseport", 1),
            # close connections whose client is gone or never speaks; allow clients that ping now and then
            ("grpc.keepalive_time_ms", client_milliseconds),
            ("grpc.keepalive_timeout_ms", client_milliseconds),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.server_handshake_timeout_ms", client_milliseconds),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ]
        self.open()
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self.pipeline,))
        port = self._bind()
        await self._server.start()
        return port

    async def report(self, check: Callable[[], Awaitable[None]]) -> None:
        """Report to health checks whether `check` passes; raises what it raises besides InlayError."""
        passes = False
        try:
            with suppress(InlayError):
                await check()
                passes = True
        finally:
            self._set_health(passes)

    async def stop(self) -> None:
        """Stop taking calls and finish those in flight, for at most `shutdown_seconds`."""
        self.health.stop()
        deadline, taken = monotonic() + MAX_ARRIVED_SECONDS, -1
        while taken != self.pipeline.calls_taken and monotonic() < deadline:
            taken = self.pipeline.calls_taken
            await asyncio.sleep(ARRIVED_SECONDS)
        if self._server is not None:
            await self._server.stop(self._settings.shutdown_seconds)

    def _set_health(self, ready: bool) -> None:
        for service in self._services:
            self.health.set(service.name, ready and service.serving())

    def _bind(self) -> int:
        settings, chosen = self._settings, files(self._settings)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port}"
        try:
            if chosen:
                return int(self._server.add_secure_port(address, _credentials(Renewed(chosen, contents, "gRPC"))))
            return int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise StartError(f"gRPC cannot listen on {address}: set INLAY_GRPC_PORT or --grpc-port") from error


def _credentials(pair: Renewed[Pem]) -> Any:
    """Return credentials that use the present certificate, and a renewed one from the next handshake on."""

    def renewed() -> Any:
        return _configuration(pair.current) if pair.renew() else None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(pair.current), renewed, require_client_authentication=pair.current.client_ca is not None
    )


def _configuration(pem: Pem) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], root_certificates=pem.client_ca)

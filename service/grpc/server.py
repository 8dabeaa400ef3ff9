"""The gRPC listener of one process, with the standard health and reflection services. Knows no method."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from service.errors import InlayError, StartError
from service.grpc.access_log import sighted
from service.grpc.call_limits import Calls
from service.grpc.health import Health, Reflection, Streams
from service.grpc.key_interceptor import Gate
from service.grpc.methods import Service
from service.grpc.request_ids import numbered
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing
from service.security.tls import Pem, Renewed, files
from service.settings import Settings

HEALTH_SECONDS = 5.0  # between looks at whether the models answer
TAKE_UP_SECONDS = 0.05  # for calls that have arrived; grpc would tell them CANCELLED (grpc/grpc#41785)
log = logging.getLogger(__name__)


class RpcServer:
    """Every gRPC service on one port.

    gate   who may call; None: all
    """

    def __init__(
        self,
        settings: Settings,
        services: Sequence[Service],
        tracing: Tracing | None = None,
        gate: Gate | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._settings = settings
        self._gate = gate
        self._tracing = tracing
        self._metrics = metrics or Metrics()
        self._services = services
        self._strangers = Streams()
        self._health = Health(self._strangers)
        self._server: Any = None

    async def start(self) -> int:
        """Listen and serve; the port.

        raises   StartError if the address is taken, or the certificate does not do
        """
        settings = self._settings
        options = [
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(settings.workers > 1)),
            # a client that is gone without a word, or never says one, is let go; one that asks now and then is not
            ("grpc.keepalive_time_ms", int(settings.client_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", int(settings.client_seconds * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.server_handshake_timeout_ms", int(settings.client_seconds * 1000)),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ]
        self._server = grpc.aio.server(options=options, interceptors=[self._gate] if self._gate else None)
        calls = Calls(settings.max_concurrent_requests, settings.client_seconds, self._metrics, self._followed)
        for each in self._services:
            calls.add(each)
        self._server.add_generic_rpc_handlers((calls,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [*(each.name for each in self._services), health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(Reflection(names, self._strangers), self._server)
        port = self._bind()
        await self._tell(True)
        await self._server.start()
        return port

    async def follow(self, check: Callable[[], Awaitable[None]], seconds: float = HEALTH_SECONDS) -> None:
        """Tell health checks what `check` finds, again and again."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._tell(await _holds(check))
            except Exception:  # what no one foresaw must not end it
                log.exception("telling health checks met a fault")

    async def _tell(self, ready: bool) -> None:
        for each in self._services:
            for name in (each.name, *each.watched):
                self._health.tell(name, ready and each.serving)

    def _bind(self) -> int:
        settings, chosen = self._settings, files(self._settings)
        address = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{address}:{settings.grpc_port}"
        try:
            port: int = (
                self._server.add_secure_port(address, _credentials(Renewed(chosen)))
                if chosen
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise StartError(f"gRPC cannot listen on {address}: set INLAY_GRPC_PORT or --grpc-port") from error
        return port

    def _followed(self, method: str, handler: Any) -> Any:
        lines = self._settings.access_log
        own = sighted(handler, method, self._tracing, lines) if self._tracing or lines else handler
        return numbered(own)

    async def refuse(self) -> None:
        """Say NOT_SERVING to health checks, and end the streams of those who watch."""
        self._health.stop()

    async def stop(self) -> None:
        """Take no new calls and finish those in flight, for at most `shutdown_seconds`."""
        await self.refuse()
        await asyncio.sleep(TAKE_UP_SECONDS)
        await self._server.stop(self._settings.shutdown_seconds)


async def _holds(check: Callable[[], Awaitable[None]]) -> bool:
    try:
        await check()
    except InlayError:
        return False
    except Exception:
        log.exception("whether the models answer cannot be told")
        return False
    return True


def _credentials(pair: Renewed) -> Any:
    """The pair as it is now, and from the next handshake on as it becomes."""

    def renewed() -> Any:
        found = pair.next()
        return _configuration(found) if found else None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(pair.first), renewed, require_client_authentication=pair.first.client_ca is not None
    )


def _configuration(pem: Pem) -> Any:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], root_certificates=pem.client_ca)

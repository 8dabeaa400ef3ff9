"""The gRPC listener of one process, with the standard health and reflection services. Knows no method."""

from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.errors import StartError
from service.settings import Settings
from service.wire.rpc.methods import Service


class RpcServer:
    """Every gRPC service on one port."""

    def __init__(self, settings: Settings, services: Sequence[Service]) -> None:
        self._settings = settings
        self._services = services
        self._health = health.aio.HealthServicer()
        self._server: Any = None

    async def start(self) -> int:
        """Listen and serve; the port.

        raises   StartError if the address is taken
        """
        settings = self._settings
        options = [
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(settings.workers > 1)),
        ]
        self._server = grpc.aio.server(options=options)
        handlers = [grpc.method_handlers_generic_handler(each.name, dict(each.handlers)) for each in self._services]
        self._server.add_generic_rpc_handlers(tuple(handlers))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [each.name for each in self._services]
        reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            port: int = self._server.add_insecure_port(f"{host}:{settings.grpc_port}")
        except RuntimeError as error:
            raise StartError(
                f"gRPC cannot listen on {host}:{settings.grpc_port}: set INLAY_GRPC_PORT or --grpc-port"
            ) from error
        for name in (*names, *(other for each in self._services for other in each.watched)):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        return port

    async def refuse(self) -> None:
        """Say NOT_SERVING to health checks."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Take no new calls and finish those in flight, for at most `shutdown_seconds`."""
        await self._server.stop(self._settings.shutdown_seconds)

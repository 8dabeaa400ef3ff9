"""Inlay as a Ray Serve application: `serve run deploy/ray/serve.yaml`.

Each replica is a whole service without ports: Serve's proxies hand it HTTP requests as ASGI, and gRPC calls as bytes.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import ray
from ray import serve

from deploy.ray import rpc
from deploy.ray.arguments import check_names, replica_settings

ASGIApplication = Callable[[Any, Any, Any], Awaitable[None]]
MAX_ONGOING = 1024
"""Requests that Serve gives a replica at a time, as many as INLAY_MAX_CONCURRENT_REQUESTS: Inlay queues and refuses."""


def application(arguments: dict[str, Any]) -> serve.Application:
    """Return the application.

    Args:
        arguments: settings of each replica by name, such as store and models; they win over INLAY_ variables.

    Raises:
        StartError: there is no setting of that name.
    """
    check_names(arguments)
    return serve.deployment(serve.ingress()(Replica), name="Inlay", max_ongoing_requests=MAX_ONGOING).bind(arguments)


class Replica:
    """One replica: the service in this process."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        from service import machine

        machine.limit_heaps()
        from service.app import create_app
        from service.observability.logs import start_logging

        cores = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
        settings = replica_settings(arguments, cores)
        start_logging(settings.log_format, settings.log_level, settings.log_inputs)
        self._app = create_app(settings, listens=False)

    def __serve_build_asgi_app__(self) -> Any:
        """Return the ASGI application, whose lifespan Serve runs."""
        return without_request_id(self._app)

    async def check_health(self) -> None:
        """Raise an error if a model does not answer; Serve then replaces the replica."""
        await self._app.context.check_ready()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the tokens that wait for the models of this replica."""
        models = self._app.context.registry.models.values()
        return {"tokens": sum(batcher.waiting_cost for model in models for batcher in model.batchers.values())}


def without_request_id(app: ASGIApplication) -> ASGIApplication:
    """Return an ASGI application without the x-request-id of its responses, which Serve adds itself."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def send_without(message: Any) -> None:
            if "headers" in message:
                message["headers"] = [header for header in message["headers"] if header[0] != b"x-request-id"]
            await send(message)

        await app(scope, receive, send_without)

    return answer


def _unary(name: str) -> Callable[..., Awaitable[rpc.Answer]]:
    async def method(self: Any, request: Any, grpc_context: Any) -> rpc.Answer:
        return await rpc.unary(self._app.rpc.pipeline, name, request, grpc_context)

    return method


def _streaming(name: str) -> Callable[..., AsyncIterator[rpc.Answer]]:
    async def method(self: Any, request: Any, grpc_context: Any) -> AsyncIterator[rpc.Answer]:
        async for answer in rpc.streaming(self._app.rpc.pipeline, name, request, grpc_context):
            yield answer

    return method


for name, declared in rpc.METHODS.items():
    setattr(Replica, name, _streaming(name) if declared.server_streaming else _unary(name))

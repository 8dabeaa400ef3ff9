"""The composition root: builds the whole application from the settings; it binds no port."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from models import VERSION
from service.context import Lifecycle, ServiceContext
from service.embedding.images import Images
from service.embedding.model import Models
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.position_tables import Tables
from service.embedding.row_lookup import RowLookup
from service.embedding.vector_cache import VectorCache
from service.grpc.server import RpcServer
from service.http.access_log import AccessLog
from service.http.client_pace import ConnectionSettings
from service.http.cors import Cors
from service.http.docs_pages import docs_application, docs_routes
from service.http.intake import Intake
from service.http.openapi import build_document
from service.http.pipeline import Limits, Pipeline
from service.http.router import Router
from service.http.routes import Head, RouteGroup
from service.machine import available_cpus
from service.observability.metrics import Metrics
from service.observability.stage_times import Stages
from service.observability.tracing import open_tracing
from service.process.background_tasks import background_tasks
from service.process.watchdog import Watchdog
from service.protocols.inlay import routes as inlay_routes
from service.protocols.inlay import rpc as inlay_rpc
from service.protocols.oip import routes as oip
from service.protocols.oip import rpc as oip_rpc
from service.protocols.oip.data_plane import DataPlane
from service.protocols.openai import routes as openai
from service.protocols.tei import routes as tei
from service.protocols.tei import rpc as tei_rpc
from service.registry.readiness import Readiness
from service.registry.registry import open_registry
from service.scheduling.admission import AdmissionController
from service.scheduling.memory_budget import MemoryBudget
from service.security.api_keys import Keys, open_keys
from service.settings import Settings

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
LAME_DUCK_SECONDS = 0.2  # from the stop signal to the closing of idle connections: clients see `connection: close`
Ready = Callable[[ServiceContext, int], None]
ASGIApplication = Callable[[Any, Any, Any], Awaitable[None]]
log = logging.getLogger(__name__)


class Application:
    """The application that uvicorn runs: ASGI for the lifespan alone; HttpProtocol hands HTTP requests to `pipeline`.

    Attributes:
        pipeline: serves HTTP requests.
        connections: the timeouts of client connections.
        intake: bounds the bodies of all connections together.
        heads: parsed request heads, cached by their bytes.
        context: the parts of the service, for handlers.
        api: the FastAPI application: the lifespan and the documentation pages.
    """

    def __init__(
        self,
        api: ASGIApplication,
        pipeline: Pipeline,
        connections: ConnectionSettings,
        intake: Intake,
        context: ServiceContext,
    ) -> None:
        self.api = api
        self.pipeline, self.connections, self.intake = pipeline, connections, intake
        self.heads: dict[bytes, Head] = {}
        self.context = context

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve an ASGI scope, of which uvicorn sends the lifespan alone."""
        await self.api(scope, receive, send)


def create_app(settings: Settings, ready: Ready | None = None, metrics: Metrics | None = None) -> Application:
    """Return the whole service.

    Args:
        ready: called with its context and the gRPC port once both protocols answer.
        metrics: shared with other workers; None: this process serves alone.

    Raises:
        StartError, ModelError: it cannot serve; the message is one line.
    """
    metrics, keys = metrics or Metrics(), open_keys(settings)
    context = _open_context(settings, metrics)
    plane = DataPlane(context)
    groups = _route_groups(context, plane)
    api = docs_application(VERSION, lambda: build_document(router, VERSION, guarded=keys is not None))
    router = Router([groups[0]._replace(routes=[*groups[0].routes, *docs_routes(api)]), *groups[1:]])
    followed = context.tracing is not None or settings.access_log
    pipeline = Pipeline(
        router,
        context.admission,
        metrics,
        context.lifecycle,
        Limits(settings.max_body_bytes, settings.compression),
        keys=keys,
        access_log=AccessLog(context.tracing, settings.access_log) if followed else None,
        cors=Cors(settings.cors_origins) if settings.cors_origins else None,
        budget=context.budget,
    )
    connections = ConnectionSettings(settings.client_seconds, settings.idle_seconds)
    intake = Intake(settings.max_body_bytes, settings.max_receiving_bytes)
    app = Application(api, pipeline, connections, intake, context)
    api.router.lifespan_context = _lifespan(context, plane, ready, keys)
    return app


def _open_context(settings: Settings, metrics: Metrics) -> ServiceContext:
    registry, stages = open_registry(settings, metrics), Stages(metrics)
    budget = MemoryBudget(settings.max_answering_bytes)
    cache = VectorCache(settings.vector_cache_bytes, metrics.cache_lookups)
    context = ServiceContext(
        settings,
        registry,
        EmbeddingPipeline(registry, settings, stages.observe, budget, metrics.truncated, metrics.joined, cache),
        _images(registry, settings, budget),
        RowLookup(registry, settings, stages.observe, budget),
        AdmissionController(settings.max_concurrent_requests),
        metrics,
        VERSION,
        Tables(settings.table_cache_bytes, settings.max_table_bytes, settings.max_streaming_bytes),
        Readiness(registry.models),
        budget,
        Lifecycle(),
        open_tracing(settings),
    )
    metrics.watch("inlay_requests_in_flight", {}, lambda: context.admission.active)
    metrics.watch("inlay_reserved_bytes", {}, lambda: budget.held)
    metrics.watch("inlay_vector_cache_bytes", {}, lambda: cache.held_bytes)
    metrics.watch("inlay_workers_ready", {}, lambda: context.lifecycle.ready and context.readiness.fault is None)
    return context


def _images(registry: Models, settings: Settings, budget: MemoryBudget) -> Images:
    return Images(
        registry,
        max_inputs=settings.max_inputs,
        max_pixels=settings.max_image_pixels,
        max_rows=settings.max_request_tokens,
        max_bytes=settings.max_answer_bytes,
        budget=budget,
        threads=max(1, available_cpus() // settings.workers),
    )


def _route_groups(context: ServiceContext, plane: DataPlane) -> list[RouteGroup]:
    return [inlay_routes.routes(context), openai.routes(context), tei.routes(context), oip.routes(plane)]


def _lifespan(
    context: ServiceContext, plane: DataPlane, ready: Ready | None, keys: Keys | None
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        services = [inlay_rpc.service(context), oip_rpc.service(plane), *tei_rpc.services(context)]
        server = RpcServer(
            context.settings,
            services,
            metrics=context.metrics,
            admission=context.admission,
            keys=keys,
            tracing=context.tracing,
            budget=context.budget,
        )
        port = await server.start()
        stop = asyncio.Event()
        stopping = asyncio.create_task(_stop_after(stop, context, server))
        restore = _on_signals(stop.set)
        watchdog = Watchdog(context.settings.stuck_seconds)
        watchdog.start()
        context.lifecycle.started = True
        if ready:
            ready(context, port)
        try:
            health = server.follow(context.check_ready)
            async with background_tasks(context, health):
                yield
        finally:
            stop.set()
            await stopping
            restore()
            watchdog.stop()
            if context.tracing:
                await asyncio.to_thread(context.tracing.close)
            log.info("stopped")

    return lifespan


async def _stop_after(stop: asyncio.Event, context: ServiceContext, server: RpcServer) -> None:
    """Wait for the stop signal; then fail probes, refuse new calls and finish those in flight."""
    await stop.wait()
    context.lifecycle.stopping = True
    for callback in context.lifecycle.on_stop:
        callback()
    log.info("stopping: finishing requests in flight, for %g s at most", context.settings.shutdown_seconds)
    server.refuse()
    await server.stop()


def _on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` at SIGTERM or SIGINT, the HTTP server's handler a little later; return what restores the handlers.

    A second SIGINT, as of a person who does not want to wait for requests in flight, ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    interrupted = False

    def first(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted and number == signal.SIGINT:
            log.warning("interrupted twice: requests in flight are cut off")
            os._exit(INTERRUPTED)
        interrupted = interrupted or number == signal.SIGINT
        loop.call_soon_threadsafe(stop)
        handler = previous[number]
        if callable(handler):
            loop.call_soon_threadsafe(loop.call_later, LAME_DUCK_SECONDS, handler, number, None)

    for number in previous:
        signal.signal(number, first)

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    return restore

"""The composition root: builds the whole application from the settings, without binding a port."""

import asyncio
import difflib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from models import VERSION
from service.context import ServiceContext
from service.embedding.images import Images
from service.embedding.outputs.rows import RowLookup
from service.embedding.picture_decoder import PictureDecoder
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.position_tables import Tables
from service.embedding.ranking import Scorer
from service.embedding.vector_cache import VectorCache
from service.embedding.word_table import TableComputations
from service.errors import StartError
from service.grpc.calls import Shared
from service.grpc.server import HEALTH_SECONDS, RpcServer
from service.heavy import lane as heavy
from service.http import asgi
from service.http.application import Lifespan, lifespan_application
from service.http.client_pace import ConnectionSettings
from service.http.cors import Cors
from service.http.docs_pages import docs_routes
from service.http.head_memory import HeadMemory
from service.http.intake import Intake
from service.http.listener import serving_beside
from service.http.openapi import PLACEHOLDER, build_document
from service.http.pipeline import Pipeline
from service.http.router import Router
from service.http.routes import RouteGroup
from service.machine import available_cpus
from service.observability.access_log import AccessLog
from service.observability.metrics import Metrics
from service.observability.otlp import exporting
from service.observability.tracing import open_tracing
from service.process.background_tasks import background_tasks, repeated
from service.process.stop_signals import StopSignals
from service.process.watchdog import Watchdog
from service.protocols.cohere import embed as cohere_embed
from service.protocols.cohere import rerank as cohere_rerank
from service.protocols.inlay import routes as inlay_routes
from service.protocols.inlay import rpc as inlay_rpc
from service.protocols.oip import routes as oip
from service.protocols.oip import rpc as oip_rpc
from service.protocols.oip.data_plane import DataPlane
from service.protocols.ollama import routes as ollama
from service.protocols.openai import routes as openai
from service.protocols.tei import routes as tei
from service.protocols.tei import rpc as tei_rpc
from service.registry.readiness import Readiness
from service.registry.registry import open_registry
from service.scheduling.admission import AdmissionController
from service.scheduling.memory_budget import MemoryBudget
from service.security.api_keys import Keys, open_keys
from service.settings import Settings
from service.web import routes as web

Ready = Callable[[ServiceContext, int], None]
ASGIApplication = Callable[[Any, Any, Any], Awaitable[None]]
log = logging.getLogger(__name__)


@dataclass(eq=False)
class Application:
    """The application that uvicorn runs: HttpProtocol gives HTTP requests to `pipeline`; the rest is ASGI.

    Attributes:
        api: the ASGI application that has the lifespan.
        pipeline: serves HTTP requests.
        rpc: serves gRPC calls.
        connections: the timeouts of client connections.
        intake: bounds the bodies of all connections together.
        context: the parts of the service, for handlers.
        heads: request heads received before.
    """

    api: ASGIApplication
    pipeline: Pipeline
    rpc: RpcServer
    connections: ConnectionSettings
    intake: Intake
    context: ServiceContext
    heads: HeadMemory = field(default_factory=HeadMemory)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve an ASGI scope: uvicorn with HttpProtocol sends only the lifespan, other servers send requests too."""
        if scope["type"] == "http":
            await asgi.serve(self, scope, receive, send)
        else:
            await self.api(scope, receive, send)


def create_app(
    settings: Settings,
    ready: Ready | None = None,
    metrics: Metrics | None = None,
    management: socket.socket | None = None,
    listens: bool = True,
) -> Application:
    """Return the whole service.

    Args:
        ready: called with its context and the gRPC port once both protocols answer.
        metrics: shared with other workers; None: this process serves alone.
        management: the bound socket of the management port; None: the application has its routes.
        listens: whether this process has ports and stop signals of its own; False: other servers call the
            application, as ASGI, and `rpc.pipeline`, and end its lifespan.

    Raises:
        StartError, ModelError: it cannot serve; the message is one line.
    """
    metrics, keys = metrics or Metrics(), open_keys(settings)
    if keys and settings.key_metrics:
        metrics.show_keys(partial(keys.label, settings.key_metrics))
    lane = _heavy_lane(settings, metrics)
    context = _open_context(settings, metrics)
    plane = DataPlane(context)
    groups = _route_groups(context, plane)
    rpc = _rpc_server(context, plane, keys)
    _check_paths(settings.bulk_paths, {route.path for group in groups for route in group.routes} | rpc.paths)
    connections = ConnectionSettings(settings.client_seconds, settings.idle_seconds)
    intake = Intake(settings.max_body_bytes, settings.max_receiving_bytes)
    router = _documented(groups if management is None else _with(groups, management=False), context, keys)

    def application(router: Router, lifespan: Lifespan | None = None) -> Application:
        api = lifespan_application(lifespan)
        return Application(api, _pipeline(router, context, keys), rpc, connections, intake, context)

    beside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    if management is not None:
        managed = application(Router(_with(groups, management=True)))
        beside = partial(serving_beside, managed, management, settings)
    return application(router, partial(_lifespan, context, rpc, ready, beside, listens, lane))


def _check_paths(bulk: Collection[str], served: Collection[str]) -> None:
    """Raise StartError if the settings name a path for bulk requests that is not served."""
    for path in bulk:
        if path not in served:
            similar = difflib.get_close_matches(path, served, 1) or ["/v1/embeddings"]
            raise StartError(f"INLAY_BULK_PATHS names {path!r}, which is not served; write it as {similar[0]}")


def _heavy_lane(settings: Settings, metrics: Metrics) -> heavy.HeavyLane:
    """Return the lane for large work, which this process uses while it serves."""
    lane = heavy.HeavyLane(settings.heavy_processes, settings.heavy_memory_bytes, settings.heavy_seconds)
    names = ("tasks", "seconds", "ended", "waiting")
    metrics.watch(lambda: {(f"inlay_heavy_{name}",): getattr(lane, name) for name in names})
    return lane


def _documented(groups: Sequence[RouteGroup], context: ServiceContext, keys: Keys | None) -> Router:
    """Return a router of the groups, the documentation page and the OpenAPI document."""
    # /metrics names models to everyone; where it is on another port and callers need keys, the document names none
    names_models = keys is None or context.settings.management_port is None

    def model() -> str:
        names = [context.registry.default.card.name] if context.registry.default else [*context.registry.offered]
        return names[0] if names and names_models else PLACEHOLDER

    documented = Router(groups)
    documents = docs_routes(partial(build_document, documented, VERSION, guarded=keys is not None), model)
    return Router([groups[0]._replace(routes=[*groups[0].routes, *documents]), *groups[1:]])


def _with(groups: Sequence[RouteGroup], *, management: bool) -> list[RouteGroup]:
    """Return the routes of the management port, or all others."""
    return [
        group._replace(routes=[route for route in group.routes if route.management == management]) for group in groups
    ]


def _pipeline(router: Router, context: ServiceContext, keys: Keys | None) -> Pipeline:
    settings = context.settings
    return Pipeline(
        router,
        context.admission,
        context.metrics,
        context.lifecycle,
        settings.max_body_bytes,
        settings.compression,
        keys=keys,
        access_log=_access_log(context),
        cors=Cors(settings.cors_origins, settings.allowed_hosts),
        budget=context.budget,
        strict_fields=settings.strict_fields,
        bulk_paths=settings.bulk_paths,
    )


def _rpc_server(context: ServiceContext, plane: DataPlane, keys: Keys | None) -> RpcServer:
    oip_service = oip_rpc.service(plane)
    if context.settings.management_port is not None:
        oip_service = replace(oip_service, methods=[each for each in oip_service.methods if not each.management])
    shared = Shared(context.metrics, context.admission, _access_log(context), keys, context.budget)
    return RpcServer(context.settings, [inlay_rpc.service(context), oip_service, *tei_rpc.services(context)], shared)


def _access_log(context: ServiceContext) -> AccessLog | None:
    """Return what follows requests; None without log lines and traces."""
    lines = context.settings.access_log
    return AccessLog(context.tracing, lines) if lines or context.tracing else None


def _open_context(settings: Settings, metrics: Metrics) -> ServiceContext:
    registry = open_registry(settings, metrics)
    budget = MemoryBudget(settings.max_answering_bytes)
    cache = VectorCache(settings.vector_cache_bytes, metrics.cache_lookups)
    decoder = PictureDecoder(settings, budget, max(1, available_cpus() // settings.workers))
    embedder = EmbeddingPipeline(registry, settings, metrics, budget, cache, decoder)
    context = ServiceContext(
        settings=settings,
        registry=registry,
        embedder=embedder,
        images=Images(registry, settings, budget, decoder, metrics),
        lookup=RowLookup(registry, settings, metrics, budget),
        admission=AdmissionController(settings.max_concurrent_requests),
        metrics=metrics,
        version=VERSION,
        tables=Tables(settings.table_cache_bytes, settings.max_table_bytes, settings.max_streaming_bytes),
        readiness=Readiness(registry.models),
        budget=budget,
        scorer=Scorer(embedder, budget, settings),
        computations=TableComputations(),
        tracing=open_tracing(settings),
    )
    metrics.watch(
        lambda: {
            ("inlay_requests_in_flight",): context.admission.active,
            ("inlay_reserved_bytes",): budget.held,
            ("inlay_vector_cache_bytes",): cache.held_bytes,
            ("inlay_default_model_missing",): bool(registry.named_defaults and registry.default is None),
            ("inlay_workers_ready",): context.lifecycle.ready and context.readiness.fault is None,
        }
    )
    return context


def _route_groups(context: ServiceContext, plane: DataPlane) -> list[RouteGroup]:
    return [
        inlay_routes.routes(context),
        cohere_embed.routes(context),
        cohere_rerank.routes(context),
        openai.routes(context),
        ollama.routes(context),
        tei.routes(context, cohere_rerank.answer_of(context, with_documents=True)),
        oip.routes(plane),
        web.routes(context),
    ]


@asynccontextmanager
async def _lifespan(
    context: ServiceContext,
    server: RpcServer,
    ready: Ready | None,
    beside: Callable[[], AbstractAsyncContextManager[None]],
    listens: bool,
    lane: heavy.HeavyLane,
    api: Any,
) -> AsyncIterator[None]:
    """Serve gRPC and run the background tasks while uvicorn serves HTTP."""
    traces = [context.tracing.close] if context.tracing else []
    with heavy.serving(lane):
        port = await server.start() if listens else server.open()
        async with exporting(context.settings, context.metrics, *traces), _stopping_in_order(context, server, listens):
            context.lifecycle.started = True
            if ready:
                ready(context, port)
            health = repeated(partial(server.report, context.check_ready), HEALTH_SECONDS, "reporting to health checks")
            async with beside(), background_tasks(context, health):
                yield


@asynccontextmanager
async def _stopping_in_order(context: ServiceContext, server: RpcServer, listens: bool) -> AsyncIterator[None]:
    """Watch the event loop and the stop signals; at the end of the block stop gRPC."""
    stop = asyncio.Event()
    stopping = asyncio.create_task(_stop_after(stop, context, server))
    signals = StopSignals(context.settings.drain_delay, partial(_drain, context, server), stop.set)
    if listens:
        signals.install()
    watchdog = Watchdog(context.settings.stuck_seconds)
    watchdog.start()
    try:
        yield
    finally:
        stop.set()
        await stopping
        signals.restore()
        watchdog.stop()
        log.info("stopped")


def _drain(context: ServiceContext, server: RpcServer) -> None:
    """Fail the probes and serve on, until load balancers have noticed."""
    context.lifecycle.draining = True
    server.health.drain()


async def _stop_after(stop: asyncio.Event, context: ServiceContext, server: RpcServer) -> None:
    """Wait for the stop signal; then fail probes, refuse new calls and finish those in flight."""
    await stop.wait()
    context.lifecycle.stopping = True
    for callback in context.lifecycle.on_stop:
        callback()
    log.info("stopping: finishing requests in flight, for %g s at most", context.settings.shutdown_seconds)
    server.health.stop()
    await server.stop()

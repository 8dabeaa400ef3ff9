"""The composition root: settings in, one ASGI application out, gRPC in its lifespan. Builds; binds nothing."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from models import VERSION
from service.context import Parts
from service.embedding.pipeline import Encoder
from service.embedding.position_tables import Tables
from service.errors import InlayError, MethodNotAllowed, NoSuchPath
from service.grpc import key_interceptor as rpc_keys
from service.grpc.server import RpcServer
from service.http import cors
from service.http.access_log import Sighted
from service.http.asgi import App
from service.http.compression import Coded
from service.http.endpoint import Endpoint
from service.http.intake import Intake
from service.http.keys import Gate
from service.http.paths import Paths
from service.http.refusals import Refusals
from service.http.request_ids import ID, Numbered
from service.observability.metrics import Metrics
from service.observability.stage_times import Stages
from service.observability.tracing import open_tracing
from service.process.background_tasks import background_tasks
from service.process.watchdog import Watchdog
from service.protocols import openapi
from service.protocols.inlay import (
    analysis,
    embed,
    gradient,
    health,
    images,
    logits,
    models,
    similar,
    similarity,
)
from service.protocols.inlay import rpc as embedder
from service.protocols.inlay.positions import routes as positions
from service.protocols.oip import repository
from service.protocols.oip import routes as oip
from service.protocols.oip import rpc as oip_rpc
from service.protocols.openai import routes as openai
from service.protocols.tei import routes as tei
from service.protocols.tei import rpc as tei_rpc
from service.protocols.words import RPC_WORDS, WORDS
from service.registry.readiness import Readiness
from service.registry.registry import open_catalog
from service.security.api_keys import Keys, open_keys
from service.settings import Settings

PROTOCOLS = (
    embed.routes,
    models.routes,
    positions.routes,
    images.routes,
    similarity.routes,
    similar.routes,
    gradient.routes,
    analysis.routes,
    logits.routes,
    openai.routes,
    tei.routes,
    oip.routes,
    repository.routes,
    health.routes,
)
RPC_FAMILIES = (tei_rpc.services,)  # protocols of several services
RPC_SERVICES = (embedder.service, oip_rpc.service)
OFFLINE_DOCS = "/static-offline-docs"
LAME_DUCK_SECONDS = 0.2  # from the stop signal to the closing of idle connections: clients see `connection: close`
Ready = Callable[[Parts, int], None]
log = logging.getLogger(__name__)


def create_app(
    settings: Settings, ready: Ready | None = None, metrics: Metrics | None = None
) -> "Service":
    """The whole service; `ready` is called with its parts and the gRPC port once both protocols answer.

    metrics   the numbers that it shares with other workers; None: it serves alone

    raises   StartError or models.errors.ModelError, in one line, if it cannot serve
    """
    metrics, tracing, keys = metrics or Metrics(), open_tracing(settings), open_keys(settings)
    encoder = Encoder(open_catalog(settings, metrics), settings, Stages(metrics).embedded)
    parts = Parts(
        settings,
        encoder,
        metrics,
        VERSION,
        Tables(settings.table_cache_bytes, settings.max_table_bytes),
        Readiness(encoder.catalog.models),
        Intake(settings.max_body_bytes, settings.max_receiving_bytes),
        tracing=tracing,
    )
    metrics.watch("inlay_requests_in_flight", {}, lambda: encoder.door.inside)
    metrics.watch("inlay_workers_ready", {}, lambda: parts.life.ready and parts.readiness.fault is None)
    app: FastAPI = FastAPIOffline(
        title="Inlay",
        version=VERSION,
        summary="Input layers, positional encodings and sentence vectors.",
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(parts, ready, keys),
        static_url=OFFLINE_DOCS,
        telemetry={"auto_configure": False},
        responses={"default": openapi.problem_response("What went wrong and what to do.")},
    )
    found: list[BaseRoute] = list(app.router.routes)
    for routes in PROTOCOLS:
        router = routes(parts)
        app.include_router(router)
        found += router.routes
    refusals, paths = Refusals(WORDS, embed.refusal), Paths()
    _answer_refusals(app, refusals, paths)
    openapi.describe(app, guarded=keys is not None)
    coded = Coded(app, settings.compression, lambda scope, error: refusals.response(scope["path"], error))
    gate = partial(Gate, keys, refusals.response, metrics.gate("http"), OFFLINE_DOCS + "/") if keys else None
    service = Service(app, parts, paths, Numbered(coded), gate)
    _enter(paths, found, service.router)
    return service


class Service:
    """The ASGI application: hot routes at once, everything else through FastAPI, whose layers cost more than they do.

    api           the FastAPI application
    router        it, with numbered answers under the coding asked for
    state.parts   what create_app built
    """

    def __init__(
        self, api: FastAPI, parts: Parts, paths: Paths, router: App, gate: Callable[[App], App] | None = None
    ) -> None:
        self.api = api
        self.router = router
        self.state = api.state
        self.state.parts = parts
        self._paths = paths
        origins = parts.settings.cors_origins
        inside: App = gate(self._serve) if gate else self._serve
        self._entrance: App = Numbered(cors.allow(inside, origins)) if origins else inside
        if parts.tracing or parts.settings.access_log:
            self._entrance = Sighted(self._entrance, paths.template, parts.tracing, parts.settings.access_log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            await self._entrance(scope, receive, send)
        else:
            await self.api(scope, receive, send)

    def _serve(self, scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        found = self._paths.find(scope["method"], scope["path"])
        if found is None:
            return self.router(scope, receive, send)
        if found.parameters:
            scope["path_params"] = found.parameters
        return found.app(scope, receive, send)


def _enter(paths: Paths, routes: list[BaseRoute], router: App) -> None:
    """Every path with its verbs: endpoints are reached at once, and what answers GET answers HEAD."""

    async def as_get(scope: Any, receive: Receive, send: Send) -> None:
        async def bodiless(message: Any) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await router({**scope, "method": "GET"}, receive, bodiless)

    for route in routes:
        if not isinstance(route, Route | APIRoute):
            continue
        methods = route.methods or set()
        app = route.app if isinstance(route.app, Endpoint) else None
        paths.add(route.path, methods, app)
        if "GET" in methods and "HEAD" not in methods:
            paths.add(route.path, ("HEAD",), as_get)


def _lifespan(
    parts: Parts, ready: Ready | None, keys: Keys | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        families = [each for services in RPC_FAMILIES for each in services(parts)]
        services = [*(service(parts) for service in RPC_SERVICES), *families]
        for each in services:
            parts.metrics.expect("grpc", [each.counted + name for name in each.handlers])
        gate = rpc_keys.Gate(keys, parts, RPC_WORDS) if keys else None
        server = RpcServer(parts.settings, services, parts.tracing, gate, parts.metrics)
        port = await server.start()
        stop = asyncio.Event()
        stopping = asyncio.create_task(_stop_after(stop, parts, server))
        restore = _on_signals(stop.set)
        watchdog = Watchdog(parts.settings.stuck_seconds)
        watchdog.start()
        parts.life.started = True
        if ready:
            ready(parts, port)
        try:
            health = server.follow(parts.refuse_unready)
            async with background_tasks(parts.settings, parts.encoder, parts.metrics, health):
                yield
        finally:
            stop.set()
            await stopping
            restore()
            watchdog.stop()
            if parts.tracing:
                await asyncio.to_thread(parts.tracing.close)
            log.info("stopped")

    return lifespan


async def _stop_after(stop: asyncio.Event, parts: Parts, server: RpcServer) -> None:
    """Once told to stop: probes fail, no new calls, those in flight are finished."""
    await stop.wait()
    parts.life.stopping = True
    for each in parts.life.at_stop:
        each()
    log.info("stopping: finishing what is in flight, for %g s at most", parts.settings.shutdown_seconds)
    await server.refuse()
    await server.stop()


def _on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` at SIGTERM or SIGINT, the HTTP server's own handler a little later; what is returned undoes it."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def first(number: int, frame: Any) -> None:
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


def _answer_refusals(app: FastAPI, refusals: Refusals, paths: Paths) -> None:
    """Every error leaves as the protocol of its path words it."""

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, InlayError)
        return refusals.response(request.url.path, error)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code != 405:
            return refusals.response(path, NoSuchPath(f"there is no {path} here; /docs lists what there is"))
        allowed = ", ".join(paths.methods(path)) or (error.headers or {}).get("Allow", "")
        response = refusals.response(path, MethodNotAllowed(f"{path} answers {allowed}, not {request.method}"))
        response.headers["allow"] = allowed
        return response

    async def fault(request: Request, error: Exception) -> Response:
        path, number = request.url.path, request.scope.get(ID, b"-").decode()
        route = getattr(request.scope.get("route"), "path", "a path")  # the path itself may be a caller's word
        log.exception("a request to %s met a fault (x-request-id: %s)", route, number)
        return refusals.response(path, InlayError("the service has a fault; its log says more"))

    app.add_exception_handler(InlayError, refuse)
    app.add_exception_handler(HTTPException, unknown)
    app.add_exception_handler(Exception, fault)

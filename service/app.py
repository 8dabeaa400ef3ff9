"""The composition root: settings in, one ASGI application out, gRPC in its lifespan. Builds; binds nothing."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from models import VERSION
from service.catalog import open_catalog
from service.encoder import Encoder
from service.errors import InlayError, MethodNotAllowed, NotFound
from service.metrics import Metrics
from service.settings import Settings
from service.tables import Tables
from service.wire import (
    analysis,
    embed,
    gradient,
    health,
    images,
    logits,
    models,
    openapi,
    positions,
    problems,
    similar,
    similarity,
)
from service.wire.parts import Parts
from service.wire.rpc import embedder
from service.wire.rpc.server import RpcServer

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
    health.routes,
)
RPC_SERVICES = (embedder.service,)
LAME_DUCK_SECONDS = (
    0.2  # from the stop signal to the closing of idle connections: clients see `connection: close` first
)
Ready = Callable[[Parts, int], None]
log = logging.getLogger(__name__)


def create_app(settings: Settings, ready: Ready | None = None) -> "Service":
    """The whole service; `ready` is called with its parts and the gRPC port once both protocols answer.

    raises   StartError or models.errors.ModelError, in one line, if it cannot serve
    """
    metrics = Metrics()
    encoder = Encoder(open_catalog(settings, metrics), settings)
    parts = Parts(settings, encoder, metrics, VERSION, Tables(settings.table_cache_bytes))
    app: FastAPI = FastAPIOffline(
        title="Inlay",
        version=VERSION,
        summary="Input layers, positional encodings and sentence vectors.",
        redoc_url=None,
        lifespan=_lifespan(parts, ready),
        telemetry={"auto_configure": False},
        responses={"default": openapi.problem_response("What went wrong and what to do.")},
    )
    for routes in PROTOCOLS:
        app.include_router(routes(parts))
    _answer_problems(app)
    openapi.describe(app)
    return Service(app, parts, {("POST", embed.PATH): embed.endpoint(parts)})


class Service:
    """The ASGI application: hot routes at once, everything else through FastAPI, whose layers cost more than they do.

    api           the FastAPI application
    state.parts   what create_app built
    """

    def __init__(self, api: FastAPI, parts: Parts, hot: dict[tuple[str, str], ASGIApp]) -> None:
        self.api = api
        self.state = api.state
        self.state.parts = parts
        self._hot = hot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        hot = self._hot.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        await (hot or self.api)(scope, receive, send)


def _lifespan(parts: Parts, ready: Ready | None) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server = RpcServer(parts.settings, [service(parts) for service in RPC_SERVICES])
        port = await server.start()
        stop = asyncio.Event()
        stopping = asyncio.create_task(_stop_after(stop, parts, server))
        restore = _on_signals(stop.set)
        parts.life.started = True
        if ready:
            ready(parts, port)
        try:
            yield
        finally:
            stop.set()
            await stopping
            restore()
            log.info("stopped")

    return lifespan


async def _stop_after(stop: asyncio.Event, parts: Parts, server: RpcServer) -> None:
    """Once told to stop: probes fail, no new calls, those in flight are finished."""
    await stop.wait()
    parts.life.stopping = True
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


def _answer_problems(app: FastAPI) -> None:
    """Every error leaves as a problem document."""

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, InlayError)
        return _response(error)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow") or ""
            response = _response(MethodNotAllowed(f"{request.url.path} answers {allowed}, not {request.method}"))
            response.headers["allow"] = allowed
            return response
        return _response(NotFound(f"there is no {request.url.path} here; /docs lists what there is"))

    async def fault(request: Request, error: Exception) -> Response:
        log.exception("a request to %s met a fault", request.url.path)
        return _response(InlayError("the service has a fault; its log says more"))

    app.add_exception_handler(InlayError, refuse)
    app.add_exception_handler(HTTPException, unknown)
    app.add_exception_handler(Exception, fault)


def _response(error: InlayError) -> Response:
    status, headers, body = problems.answer(error)
    response = Response(body, status)
    response.raw_headers = headers
    return response

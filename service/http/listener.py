"""The HTTP server of one process: uvicorn with our protocol class."""

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import uvicorn
from uvicorn.server import ServerState

from service.http.application import HttpApplication
from service.http.server import HttpProtocol
from service.security import tls
from service.settings import Settings

BACKLOG = 2048


def run_http_server(app: HttpApplication, listener: socket.socket, settings: Settings) -> bool:
    """Serve until a stop signal, then finish requests in flight; return whether the server ever served.

    Args:
        app: the application, whose lifespan starts and stops everything else.
        listener: a bound TCP socket, which the application's start lets listen.
        settings: the settings of timeouts and TLS.
    """
    files = tls.files(settings)
    config = uvicorn.Config(
        app,
        ssl_context_factory=(lambda *_: tls.renewing(files)) if files else None,
        loop="uvloop",
        http=HttpProtocol,
        ws="none",
        interface="asgi3",
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        log_level="warning",
        timeout_keep_alive=math.ceil(settings.idle_seconds),
        timeout_graceful_shutdown=math.ceil(settings.shutdown_seconds),
    )
    server = uvicorn.Server(config)
    server.run([listener])
    return server.started


@asynccontextmanager
async def serving_beside(app: HttpApplication, listener: socket.socket, settings: Settings) -> AsyncIterator[None]:
    """Serve another application in the running event loop; its callers need no certificate, even with mutual TLS.

    Args:
        listener: a bound TCP socket.
        settings: the settings of TLS.
    """
    files, state, config = tls.files(settings), ServerState(), SimpleNamespace(loaded_app=app)
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpProtocol(config, state, {}),
        sock=listener,
        ssl=tls.renewing(files._replace(client_ca=None)) if files else None,
        backlog=BACKLOG,
    )
    try:
        yield
    finally:
        server.close()
        for connection in [*state.connections]:
            connection.shutdown()

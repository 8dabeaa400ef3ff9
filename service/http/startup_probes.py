"""Answers probes on the management port while models load.

It runs in a thread of the process that has bound the port, which with several workers is their supervisor.
"""

import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from service.security import tls

LOOK_SECONDS = 0.05  # between looks whether the application answers by now
CLIENT_SECONDS = 5.0
LIVE = b'{"status":"live"}'
STARTING = b'{"type":"urn:inlay:problem:unavailable","title":"Not available now","status":503,"code":"unavailable",'
STARTING += b'"detail":"the service is starting"}'


class _Handler(BaseHTTPRequestHandler):
    """Answers /health/live with 200, all else with 503."""

    timeout = CLIENT_SECONDS

    def do_GET(self) -> None:
        live = self.path.partition("?")[0] == "/health/live"
        status, body = (200, LIVE) if live else (503, STARTING)
        self.send_response_only(status)
        self.send_header("content-type", "application/json" if live else "application/problem+json")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Log nothing, as the application does for probes."""


class _Server(ThreadingHTTPServer):
    """A server on a socket that listens already."""

    timeout = LOOK_SECONDS

    def __init__(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self._context = listener.dup(), context

    def get_request(self) -> tuple[Any, Any]:
        connection, client = self.socket.accept()
        if self._context is None:
            return connection, client
        connection.settimeout(CLIENT_SECONDS)  # the handshake is made in the connection's thread, by its first read
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), client

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that leaves or does not speak HTTP."""


def answer_until(served: Callable[[], bool], listener: socket.socket, files: tls.Files | None) -> threading.Thread:
    """Answer until the application does; return the thread, which ends then.

    Args:
        served: whether the application answers by now.
        listener: the management port; it listens from now on.
        files: TLS's; callers show no certificate.
    """
    listener.listen()
    server = _Server(listener, tls.context(files._replace(client_ca=None)) if files else None)

    def answer() -> None:
        with server:
            while not served():
                server.handle_request()

    thread = threading.Thread(target=answer, name="startup-probes", daemon=True)
    thread.start()
    return thread

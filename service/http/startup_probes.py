"""Answers probes on the management port while models load.

It runs in a thread of the process that has bound the port, which with several workers is their supervisor.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

from service.security import tls

LOOK_SECONDS = 0.05  # between looks whether the application answers by now
CLIENT_SECONDS = 5.0
HEAD = b"HTTP/1.1 %b\r\ncontent-type: application/%b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
LIVE = b'{"status":"live"}'
STARTING = b'{"type":"urn:inlay:problem:unavailable","title":"Not available now","status":503,"code":"unavailable",'
STARTING += b'"detail":"the service is starting"}'


def answer_until(served: Callable[[], bool], listener: socket.socket, files: tls.Files | None) -> threading.Thread:
    """Answer until the application does; return the thread, which ends then.

    Args:
        served: whether the application answers by now.
        listener: the management port; it listens from now on.
        files: TLS's; callers show no certificate.
    """
    listener.listen()
    context = tls.context(files._replace(client_ca=None)) if files else None
    answering = _answer_until(served, listener.dup(), context)
    thread = threading.Thread(target=asyncio.run, args=(answering,), name="startup-probes", daemon=True)
    thread.start()
    return thread


async def _answer_until(served: Callable[[], bool], listener: socket.socket, context: ssl.SSLContext | None) -> None:
    async with await asyncio.start_server(_answer, sock=listener, ssl=context):
        while not served():
            await asyncio.sleep(LOOK_SECONDS)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer /health/live with 200, all else with 503; ignore a client that leaves or does not speak HTTP."""
    with suppress(OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        async with asyncio.timeout(CLIENT_SECONDS):
            verb, target, _ = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
            live = target.partition(b"?")[0] == b"/health/live"
            status, kind, body = (
                (b"200 OK", b"json", LIVE) if live else (b"503 Service Unavailable", b"problem+json", STARTING)
            )
            writer.write(HEAD % (status, kind, len(body)) + (b"" if verb == b"HEAD" else body))
            await writer.drain()
    writer.close()

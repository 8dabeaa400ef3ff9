"""Serves HTTP requests that another ASGI server has received, for example Ray Serve's, by the one pipeline.

That server parses HTTP and keeps connections open, as `service/http/server.py` does where Inlay listens itself.
Requests that arrive together are not gathered here: each is served in a task of its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from service.errors import InlayError, TooSlow
from service.http.application import HttpApplication
from service.http.client_pace import CLIENT_BYTES_PER_SECOND
from service.http.intake import IncomingBody
from service.http.request_parser import ambiguity, varying_of
from service.http.response import Response
from service.http.response_writer import BODILESS, declared_length, in_pieces
from service.http.routes import GONE, Head, Request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
OF_THE_CONNECTION = (b"connection", b"transfer-encoding")  # headers that the ASGI server sets itself
log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client has left, or was too slow to take its response."""


async def serve(app: HttpApplication, scope: Message, receive: Receive, send: Send) -> None:
    """Answer one HTTP request of another ASGI server."""
    await Exchange(app, scope, receive, send).run()


class Exchange:
    """One request and its response."""

    def __init__(self, app: HttpApplication, scope: Message, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        self._pipeline, self._receive, self._send = app.pipeline, receive, send
        self._client_seconds = app.connections.client_seconds
        head, varying = head_of(scope)
        self._ambiguity = ambiguity(head)
        if self._ambiguity is None:
            self._pipeline.prepare(head)
        self._request = Request(head, (str(client[0]), int(client[1])) if client else None, varying)
        self._body = IncomingBody(app.intake)
        self._status = GONE

    async def run(self) -> None:
        """Read the request and answer it, unless its client leaves before."""
        request = self._request
        try:
            early = await self._read()
            answering = asyncio.create_task(self._answer(early))
            leaving = asyncio.create_task(self._wait_until_gone())
            try:
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    answering.result()
            finally:  # Ray Serve cancels a request whose client leaves
                request.disconnected = not answering.done()
                for task in (answering, leaving):
                    task.cancel()
                await asyncio.gather(answering, leaving, return_exceptions=True)
        except ClientGone:
            log.debug("a client has left (x-request-id: %s)", request.context.request_id.decode())
        finally:
            self._body.drop()
            self._pipeline.finish(request, self._status)

    async def _read(self) -> Response | None:
        """Read the body; return the response if the request is refused."""
        request, pipeline = self._request, self._pipeline
        try:
            if self._ambiguity is not None:
                raise self._ambiguity
            early = pipeline.accept(request)
            if early is None:
                await self._read_body()
        except InlayError as error:
            return pipeline.error_response(request, error)
        return early

    async def _read_body(self) -> None:
        """Read the body, within the bounds of its size and of the client's pace."""
        declared, more = self._request.body_bytes, True
        try:
            async with asyncio.timeout(self._client_seconds) as patience:
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part, more = message.get("body", b""), message.get("more_body", False)
                    if part:
                        self._body.add(part, declared, self._request.context.caller)
                        patience.reschedule((patience.when() or 0) + len(part) / CLIENT_BYTES_PER_SECOND)
        except TimeoutError:
            text = "the request was not sent in time"
            raise TooSlow(text, remedy="send it faster, or in smaller parts") from None
        self._request.body = self._body.complete(self._request.context)

    async def _wait_until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _answer(self, early: Response | None) -> None:
        request = self._request
        response = in_pieces(early or await self._pipeline.respond(request))
        try:
            await self._write(response)
        except ClientGone:
            raise
        except Exception:
            log.exception("a response broke off (x-request-id: %s)", request.context.request_id.decode())
            raise
        self._status = response.status

    async def _write(self, response: Response) -> None:
        """Send a response, a stream no faster than the server takes it."""
        is_head = self._request.head.verb == "HEAD"
        headers = self._headers(response)
        await self._send_within({"type": "http.response.start", "status": response.status, "headers": headers})
        if response.stream is not None and not is_head:
            left = declared_length(response)
            async with aclosing(response.stream) as parts:  # type: ignore[type-var]
                async for part in parts:
                    left = None if left is None else left - len(part)
                    await self._send_body(bytes(part), more=True)
            if left:
                raise ValueError("the response has not as many bytes as it declares")
        body = b"" if is_head or response.status in BODILESS else b"".join(response.body)
        await self._send_body(body, more=False)

    def _headers(self, response: Response) -> list[tuple[bytes, bytes]]:
        headers = [header for header in response.headers if header[0] not in OF_THE_CONNECTION]
        for line in response.lines.split(b"\r\n")[:-1]:
            name, _, value = line.partition(b": ")
            headers.append((name, value))
        size = sum(map(len, response.body))
        is_known = response.stream is None and (size or self._request.head.verb != "HEAD")
        if is_known and response.status not in BODILESS and declared_length(response) is None:
            headers.append((b"content-length", b"%d" % size))
        return [*headers, (b"x-request-id", self._request.context.request_id)]

    async def _send_body(self, body: bytes, more: bool) -> None:
        await self._send_within({"type": "http.response.body", "body": body, "more_body": more}, len(body))

    async def _send_within(self, message: Message, size: int = 0) -> None:
        """Send a message; raise ClientGone if the client takes it too slowly."""
        try:
            async with asyncio.timeout(self._client_seconds + size / CLIENT_BYTES_PER_SECOND):
                await self._send(message)
        except TimeoutError:
            raise ClientGone from None


def head_of(scope: Message) -> tuple[Head, dict[bytes, bytes]]:
    """Return the head of an ASGI scope, its path without the prefix that the application is mounted at, and its headers
    of VARYING.
    """
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers[name] = headers[name] + b"," + value if name in headers else value
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    root = quote(scope.get("root_path", "")).encode().rstrip(b"/")
    if root and (path == root or path.startswith(root + b"/")):
        path = path[len(root) :] or b"/"
    query = scope.get("query_string", b"")
    version = scope.get("http_version", "1.1")
    varying, target = varying_of(headers), path + (b"?" + query if query else b"")
    return Head(scope["method"], target, headers, "1.1" if version == "2" else version), varying

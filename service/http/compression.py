"""Compresses responses as Accept-Encoding says, streams part by part, and decodes the bodies of requests."""

from collections.abc import AsyncIterator

from service.errors import BodyTooLarge
from service.http.content_coding import Encoder, decode
from service.http.response import Headers, Response
from service.http.response_writer import BODILESS, in_pieces
from service.http.routes import Head
from service.http.worker_threads import in_thread

LEAST_BYTES = 1024  # below, a coding's own bytes and time outweigh what it saves
INLINE_BYTES = 16384  # coded or decoded on the event loop, about 0.2 ms; more goes to a thread
DENSE = (b"image/png", b"image/jpeg", b"image/webp", b"font/woff2", b"application/zip", b"application/gzip")
TENSORS = (b"application/octet-stream", b"application/x-npy", b"application/vnd.safetensors")
VARY = (b"vary", b"Accept-Encoding")


async def compressed(response: Response, head: Head) -> Response:
    """Return the response under the coding that its request's head chooses; numbers, only on an explicit choice."""
    assert head.route is not None
    named, vectors = dict(response.headers), head.route.vectors
    media_type = named.get(b"content-type", b"").split(b";")[0].strip().lower()
    floats = media_type in TENSORS
    coding = head.codings[floats or vectors]
    size = _size(response, named)
    if not vectors:
        response = response._replace(headers=_varied(response, head.headers.get(b"if-none-match", b"")))
    if (
        coding is None
        or response.status < 200
        or response.status in BODILESS
        or size == 0
        or b"content-encoding" in named
        or media_type in DENSE
        or (size is not None and size < LEAST_BYTES)
    ):
        return response
    headers = _coded_headers(response.headers, coding)
    response = in_pieces(response)
    if response.stream is not None:
        return response._replace(headers=headers, stream=_coded_stream(response.stream, Encoder(coding, floats=floats)))
    if head.verb == "HEAD":
        return response._replace(headers=headers)
    encoder = Encoder(coding, floats=floats or vectors, size=size)
    body = encoder.last(response.body) if (size or 0) <= INLINE_BYTES else await in_thread(encoder.last, response.body)
    return response._replace(headers=headers, body=(body,))


async def decoded(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Return a request's body without its coding; a large one is decoded in a thread. Raises as `decode`."""
    if not body:
        return body
    if len(body) <= INLINE_BYTES:
        try:
            return decode(body, coding, min(max_bytes, INLINE_BYTES))
        except BodyTooLarge:
            if max_bytes <= INLINE_BYTES:
                raise
    return await in_thread(decode, body, coding, max_bytes)


async def _coded_stream(parts: AsyncIterator[bytes | memoryview], encoder: Encoder) -> AsyncIterator[bytes]:
    async for part in parts:
        coded = encoder.part(part) if len(part) <= INLINE_BYTES else await in_thread(encoder.part, part)
        if coded:
            yield coded
    yield encoder.last([])


def _size(response: Response, named: dict[bytes, bytes]) -> int | None:
    """Return the size of the body in bytes; None if it is unknown before the body is made."""
    size = sum(map(len, response.body)) if response.stream is None else None
    if not size and b"content-length" in named:  # that of a body that is left out of the response to HEAD
        return int(named[b"content-length"])
    return size


def _varied(response: Response, if_none_match: bytes) -> Headers:
    """Return the headers with Vary; a 304 names the tag that its client holds."""
    headers = response.headers
    if not any(name == b"vary" and b"accept-encoding" in value.lower() for name, value in headers):
        headers = (*headers, VARY)
    if response.status != 304:
        return headers
    return tuple(
        (name, b"W/" + value if name == b"etag" and b"W/" + value in if_none_match else value)
        for name, value in headers
    )


def _coded_headers(headers: Headers, coding: str) -> Headers:
    """Return the headers of the coded response: no length, a weak tag (RFC 9110, 8.8.1)."""
    kept = [(name, value) for name, value in headers if name != b"content-length"]
    coded = [(name, b"W/" + value.removeprefix(b"W/") if name == b"etag" else value) for name, value in kept]
    vary = () if any(name == b"vary" and b"accept-encoding" in value.lower() for name, value in coded) else (VARY,)
    return (*coded, *vary, (b"content-encoding", coding.encode()))

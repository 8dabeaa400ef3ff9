"""Compresses responses with the coding that Accept-Encoding selects: whole bodies at once, streams part by part."""

from collections.abc import AsyncIterator, Iterable

from service.http.content_coding import Encoder
from service.http.negotiation import Policy, choose
from service.http.response import Headers, Response
from service.http.response_writer import in_pieces
from service.http.routes import Request
from service.http.worker_threads import in_thread

LEAST_BYTES = 1024  # below, a coding's own bytes and time outweigh what it saves
INLINE_BYTES = 16384  # coded on the event loop, about 0.2 ms; more goes to a thread
BODILESS = (204, 205, 206, 304)  # 206 has a body, but its range is of the plain bytes
DENSE = (b"image/png", b"image/jpeg", b"image/webp", b"font/woff2", b"application/zip", b"application/gzip")
TENSORS = (b"application/octet-stream", b"application/x-npy", b"application/vnd.safetensors")
VARY = (b"vary", b"Accept-Encoding")


async def compressed(response: Response, request: Request, policy: Policy, *, vectors: bool) -> Response:
    """Return the response under the coding that the request's Accept-Encoding asks for.

    Args:
        vectors: the body is numbers, which are compressed only if the header chooses a coding explicitly.

    Raises:
        NotAcceptable: the client accepts neither a coding that this server has nor an uncoded response.
    """
    accept = request.headers.get(b"accept-encoding")
    media_type = _media_type(response.headers)
    floats = media_type in TENSORS
    choice = choose(accept, policy, numbers=floats or vectors)
    if not vectors:
        response = response._replace(headers=_varied(response, request.headers.get(b"if-none-match", b"")))
    coding = choice.coding
    size = _size(response)
    if (
        coding is None
        or response.status < 200
        or response.status in BODILESS
        or size == 0
        or _joined(response.headers, b"content-encoding") is not None
        or (not choice.required and (media_type in DENSE or (size is not None and size < LEAST_BYTES)))
    ):
        return response
    headers = _coded_headers(response.headers, coding)
    response = in_pieces(response)
    if response.stream is not None:
        return response._replace(headers=headers, stream=_coded_stream(response.stream, Encoder(coding, floats=floats)))
    if request.verb == "HEAD":
        return response._replace(headers=headers)
    encoder = Encoder(coding, floats=floats or vectors, size=size)
    body = encoder.last(response.body) if (size or 0) <= INLINE_BYTES else await in_thread(encoder.last, response.body)
    return response._replace(headers=headers, body=(body,))


async def _coded_stream(parts: AsyncIterator[bytes | memoryview], encoder: Encoder) -> AsyncIterator[bytes]:
    async for part in parts:
        coded = encoder.part(part) if len(part) <= INLINE_BYTES else await in_thread(encoder.part, part)
        if coded:
            yield coded
    yield encoder.last([])


def _size(response: Response) -> int | None:
    """Return the size of the body in bytes; None: not known before the body is made."""
    declared = _joined(response.headers, b"content-length")  # that of a body that is left out of the response to HEAD
    size = sum(map(len, response.body)) if response.stream is None else None
    return size or (int(declared) if declared else size)


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
    """Return the headers of the coded response: no length, no ranges, a weak tag (RFC 9110, 8.8.1)."""
    kept = [(name, value) for name, value in headers if name not in (b"content-length", b"accept-ranges")]
    coded = [(name, _weak(value) if name == b"etag" else value) for name, value in kept]
    if not any(name == b"vary" and b"accept-encoding" in value.lower() for name, value in coded):
        coded.append(VARY)
    return (*coded, (b"content-encoding", coding.encode()))


def _media_type(headers: Headers) -> bytes:
    return (_joined(headers, b"content-type") or b"").split(b";")[0].strip().lower()


def _weak(tag: bytes) -> bytes:
    return tag if tag.startswith(b"W/") else b"W/" + tag


def _joined(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    values = [value for header, value in headers if header == name]
    return b",".join(values) if values else None

"""Readers of what stands around a body: negotiation, content codings, paths, deadlines."""

import gzip
import zlib
from functools import partial
from typing import Any

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.errors import InlayError
from service.http import content_coding as codings
from service.http import negotiation
from service.http import timeouts as allowed
from service.http.formats import FORMATS
from service.http.pipeline import shown_key
from service.http.problem_details import render_problem
from service.http.response import Response
from service.http.router import Router
from service.http.routes import Head, Request, Route, RouteGroup
from service.request_context import RequestContext, request_id
from service.security.api_keys import Keys
from tests.fuzz.judging import Target

MOST_DECODED = 1 << 16
ACCEPTS = (
    b"application/json",
    b"application/x-npy;q=0.5, application/*;q=0.1, */*;q=0",
    b"application/octet-stream ; q = 1",
    b"gzip, deflate, br, zstd",
    b"zstd;q=1, identity;q=0, *;q=0.5",
    b"x-gzip, deflate",
    b"bytes=0-9",
    b"bytes=-5",
    b"Bearer aGVsbG8=",
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"1500",
)
KEYS = Keys(["a:aGVsbG8=", "b:d29ybGQ= rate=1000000"])


def _shown(value: bytes) -> None:
    KEYS.acquire(shown_key(value), RequestContext())


def _traced(value: bytes) -> None:
    text = [value.decode("latin-1")]
    TraceContextTextMapPropagator().extract({"traceparent": text, "tracestate": text})


async def _handler(request: Request) -> Response:
    raise AssertionError("a path is looked up here, never called")


def _route(path: str) -> Route:
    return Route("GET", path, _handler)


PATHS = (
    "/",
    "/embed",
    "/models/{name}",
    "/models/{name}/versions/{version}/infer",
    "/models/stats",
    "/files/{file:path}",
)
ROUTER = Router([RouteGroup([_route(path) for path in PATHS], render_problem)])


def _header(data: bytes) -> None:
    """Every reader of one header."""
    for read in READERS:
        try:
            read(data)
        except InlayError:
            continue
    assert request_id(data).isascii()


READERS: tuple[Any, ...] = (
    partial(negotiation.negotiate, offers=tuple(FORMATS)),
    partial(negotiation.negotiate, offers=tuple(FORMATS)[::-1]),
    codings.coding_of,
    _shown,
    _traced,
    lambda value: allowed.allowed_seconds({allowed.OWN: value}),
    *[
        partial(negotiation.choose, policy=policy, numbers=numbers)
        for policy in ("asked", "always", "never")
        for numbers in (False, True)
    ],
)


def _path(data: bytes) -> None:
    head = Head("GET", b"/" + data, {})
    match = ROUTER.find("GET", head.path)
    assert not match or all(match.parameters.values())
    ROUTER.verbs(head.path)
    ROUTER.template(head.path)


def _coding(data: bytes) -> None:
    """1 byte picks the coding. What is decoded never passes the bound."""
    names = list(codings.CODINGS)
    coding = names[(data[:1] or b"\0")[0] % len(names)]
    decoded = codings.decode(data[1:], coding, MOST_DECODED)
    assert len(decoded) <= MOST_DECODED


def _coding_seeds() -> list[bytes]:
    plain = b"hello world " * 20
    seeds = [
        bytes([index]) + codings.Encoder(name, floats=floats).last([plain])
        for index, name in enumerate(codings.CODINGS)
        for floats in (True, False)
    ]
    bomb = bytes(1 << 20)
    return [*seeds, b"\1" + gzip.compress(bomb), b"\2" + zlib.compress(bomb), b"\1" + gzip.compress(plain) * 2]


TARGETS = {
    "headers": Target(
        _header, lambda: list(ACCEPTS), words=(b";q=", b"*/*", b"*", b",", b"bytes=", b"identity", b"nan")
    ),
    "paths": Target(_path, lambda: [b"embed", b"models/a/versions/1/infer", b"models//x", b"models/{}", b"%00/../x"]),
    "content codings": Target(_coding, _coding_seeds),
}

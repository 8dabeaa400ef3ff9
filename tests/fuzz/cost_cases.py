"""What the fuzzer of costs sends to every route and gRPC method: made from their rows, so that none is forgotten."""

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel

from service.app import create_app
from service.grpc.methods import Method
from service.http.openapi import operation_of
from service.http.routes import Route
from service.protocols.inlay import rpc as inlay_rpc
from service.protocols.oip import rpc as oip_rpc
from service.protocols.oip.data_plane import DataPlane
from service.protocols.tei import rpc as tei_rpc
from service.settings import Settings
from tests.fuzz.cost_largest import FOUND_MESSAGES, MESSAGES, found_bodies, json_bodies
from tests.fuzz.cost_shapes import JSON_SHAPES, WORDS, Maker, filled, messages, places

BODY_BYTES = Settings.model_fields["max_body_bytes"].default
SIZES = {"16 MiB": BODY_BYTES - 4096, "512 KiB": 1 << 19}
FEW = 3  # headers of each route, and bodies of other kinds; the next route gets others
LARGEST, FOUND = "largest: ", "found: "
WORD_BYTES = 60_000  # of a request's line or of its headers, which are 64 KiB at most
JSON = b"application/json"
HEADERS = (
    b"accept",
    b"accept-encoding",
    b"content-type",
    b"content-encoding",
    b"traceparent",
    b"tracestate",
    b"x-request-id",
    b"inlay-timeout-ms",
    b"authorization",
    b"origin",
    b"if-none-match",
    b"inference-header-content-length",
    b"cookie",
    b"expect",
    b"unknown",
)
MODELS = {"images": "vit", "similarity": "vit"}
PARTS = {"version": "1", "region": "r", "scheme": "rope", "name": "bert"}


class Case(NamedTuple):
    """One request.

    Args:
        road: verb and path of a route, or the path of a gRPC method.
        name: what it is filled with.
        make: returns the bytes of an HTTP request, or a gRPC message.
        streaming: of a gRPC method, whether requests and answers are streams.
        copies: how often it is sent at a time.
    """

    road: str
    name: str
    make: Callable[[], bytes]
    streaming: tuple[bool, bool] | None = None
    copies: int = 1


class Roads(NamedTuple):
    """Every route, every gRPC method by path, and what the document says of bodies by path."""

    routes: Sequence[Route]
    methods: dict[str, Method]
    operations: dict[str, Any]


@cache
def roads() -> Roads:
    """Return what the application serves."""
    with tempfile.TemporaryDirectory(prefix="inlay-fuzz-") as folder:
        app = create_app(Settings(store=Path(folder), device="cpu"))
    context = app.context
    services = [inlay_rpc.service(context), oip_rpc.service(DataPlane(context)), *tei_rpc.services(context)]
    methods = {f"/{service.name}/{method.name}": method for service in services for method in service.methods}
    router = app.pipeline.router
    described = {
        route.path: operation_of(group, route) for group in router.groups for route in group.routes if route.bodies
    }
    return Roads(router.routes, methods, {path: each for path, each in described.items() if each})


def cases(part: int = 1) -> list[Case]:
    """Return the cases of every route and method: each shape once a road, and each place once a shape.

    Args:
        part: of each road one in so many, and those of LARGEST and FOUND.
    """
    chosen: list[Case] = []
    for turn, route in enumerate(roads().routes):
        chosen += _part(_route(route, turn), turn, part)
    for turn, (path, method) in enumerate(roads().methods.items()):
        chosen += _part(_method(path, method), turn, part)
    return chosen


def ordinary() -> Iterator[Case]:
    """Yield what uses the service as its documentation says: bare paths, examples of routes, empty messages."""
    for route in roads().routes:
        if route.verb == "GET":
            yield Case(f"GET {route.path}", "ordinary", request("GET", path_of(route), None, None))
        for name, example in roads().operations.get(route.path, {}).get("examples", {}).items():
            yield Case(f"POST {route.path}", name, post(path_of(route), partial(orjson.dumps, example)))
    for path, method in roads().methods.items():
        yield Case(path, "empty", bytes, is_streaming(method))


def _part(road: Iterator[Case], turn: int, part: int) -> Iterator[Case]:
    listed = list(road)
    for number, case in enumerate(listed):
        if (number + turn) % min(part, len(listed)) == 0 or case.name.startswith((LARGEST, FOUND)):
            yield case


def _pairs(first: Sequence[Any], second: Sequence[Any], turn: int) -> Iterator[tuple[Any, Any]]:
    """Yield as few pairs as hold each member; `turn` shifts which are together."""
    for number in range(max(len(first), len(second))):
        yield first[number % len(first)], second[(number + turn) % len(second)]


# ---- HTTP


def _route(route: Route, turn: int) -> Iterator[Case]:
    road, path = f"{route.verb} {route.path}", path_of(route)
    query = _fields(route.query) if route.query else []
    words = list(WORDS.items())
    names = [name for name in query if name] or ["unknown"]
    for name, (word, make) in _pairs(names, words if query else words[:FEW], turn):
        yield Case(road, f"query {name}: {word}", request(route.verb, f"{path}?{name}=", make, None))
    yield Case(road, "query: 1000 fields", request(route.verb, f"{path}?", _query, None))
    headers = [HEADERS[(FEW * turn + number) % len(HEADERS)] for number in range(FEW)]
    for header, (word, make) in _pairs(headers, words[turn % len(words) :][:FEW], turn):
        yield Case(road, f"header {header.decode()}: {word}", request(route.verb, path, None, (header, make)))
    yield Case(road, "many headers", request(route.verb, path, None, (b"a: b\r\na", _many_headers)))
    if route.parameters:
        long = route.path.replace("{" + route.parameters[0], "{long")
        long = long.replace("{long:path}", "{long}").replace("{long}", "a" * WORD_BYTES)
        for name, value in PARTS.items():
            long = long.replace(f"{{{name}}}", value)
        yield Case(road, "path: long word", request(route.verb, long, None, None))
    if route.verb == "POST":
        yield from _bodies(road, path, route, turn)


def path_of(route: Route) -> str:
    last = route.path.rpartition("/")[2]
    path = route.path.replace(":path}", "}")
    for name, value in (PARTS | {"name": MODELS.get(last, PARTS["name"])}).items():
        path = path.replace(f"{{{name}}}", value)
    return path


def _query(size: int) -> bytes:
    return b"&".join([b"a%d=%d" % (number, number) for number in range(1000)])


def _many_headers(size: int) -> bytes:
    return b"b" + b"".join([b"\r\na%d: b" % number for number in range(size // 12)])


def _fields(*models: type[BaseModel]) -> list[str]:
    """Return the names of the fields of pydantic models."""
    return list(dict.fromkeys(name for model in models for name in model.model_json_schema()["properties"]))


def request(verb: str, target: str, ending: Maker | None, header: tuple[bytes, Maker] | None) -> Callable[[], bytes]:
    def make() -> bytes:
        line = target.encode() + (ending(WORD_BYTES) if ending else b"")
        line = line.replace(b" ", b"+").replace(b'"', b"%22")[: len(target) + WORD_BYTES] if ending else line
        lines = [b"%s %s HTTP/1.1" % (verb.encode(), line), b"host: a", b"connection: close"]
        names = {header[0]} if header else set()
        if header:
            lines.append(header[0] + b": " + header[1](WORD_BYTES))
        if verb == "POST":
            lines += [b"content-length: 2"] + ([b"content-type: " + JSON] if b"content-type" not in names else [])
        return b"\r\n".join(lines) + b"\r\n\r\n" + (b"{}" if verb == "POST" else b"")

    return make


def post(path: str, body: Callable[[], bytes], content_type: bytes = JSON, *lines: bytes) -> Callable[[], bytes]:
    """Return what makes a POST request."""

    def make() -> bytes:
        data = body()
        head = [b"POST %s HTTP/1.1" % path.encode(), b"host: a", b"connection: close", b"content-type: " + content_type]
        head += [*lines, b"content-length: %d" % len(data)]
        return b"\r\n".join(head) + b"\r\n\r\n" + data

    return make


def _bodies(road: str, path: str, route: Route, turn: int) -> Iterator[Case]:
    described = roads().operations.get(route.path, {})
    examples = [*described.get("examples", {}).values()]
    example: Any = examples[turn % len(examples)] if examples else {}
    names = [name for name in _fields(*route.bodies) if name not in example]
    spots = [*places(example), *[(name,) for name in names], ("unknown",)]
    turns = count(turn)
    for place, (shape, make) in _pairs(spots, list(JSON_SHAPES.items()), turn):
        size, where = list(SIZES)[next(turns) % 2], ".".join(map(str, place)) or "body"
        yield Case(road, f"{where}: {shape}, {size}", post(path, _json(example, place, make, SIZES[size])))
    for name, largest in json_bodies(route.path).items():
        yield Case(road, f"{LARGEST}{name}", post(path, largest))
    for name, body_of in found_bodies(route.path).items():
        yield Case(road, f"{FOUND}{name}", post(path, body_of), copies=2)
    others = list(OTHER_BODIES.items())
    if "content" not in described.get("body", {}):
        others = [others[(FEW * turn + number) % len(others)] for number in range(FEW)]
    for kind, (content_type, lines, other) in others:
        yield Case(road, kind, post(path, other, content_type, *lines))


def _json(example: Any, place: tuple[str | int, ...], make: Maker, size: int) -> Callable[[], bytes]:
    return lambda: filled(example, place, make(size - 4096))


def _infer(tensor: dict[str, Any], raw: bytes) -> bytes:
    size = {"parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor | size]}).encode().ljust(256)
    return head + raw


FULL = SIZES["16 MiB"]
OTHER_BODIES: dict[str, tuple[bytes, tuple[bytes, ...], Callable[[], bytes]]] = {
    "gzip of lists": (JSON, (b"content-encoding: gzip",), lambda: gzip.compress(JSON_SHAPES["empty lists"](FULL), 1)),
    "gzip of a long string": (
        JSON,
        (b"content-encoding: gzip",),
        lambda: gzip.compress(b'{"inputs": "' + b"a" * FULL + b'"}', 1),
    ),
    "many gzip members": (
        JSON,
        (b"content-encoding: gzip",),
        lambda: gzip.compress(b" ") * (FULL // len(gzip.compress(b" "))),
    ),
    "whole body as one input": (
        b"application/octet-stream",
        (b"inference-header-content-length: 0",),
        lambda: b"\x01" * FULL,
    ),
    "whole body as one text": (b"text/plain", (b"inference-header-content-length: 0",), lambda: b"a " * (FULL // 2)),
    "binary strings": (
        b"application/octet-stream",
        (b"inference-header-content-length: 256",),
        lambda: _infer({"name": "text", "datatype": "BYTES", "shape": [FULL // 4]}, bytes(FULL // 4 * 4)),
    ),
    "binary ids": (
        b"application/octet-stream",
        (b"inference-header-content-length: 256",),
        lambda: _infer({"name": "input_ids", "datatype": "INT64", "shape": [FULL // 8]}, bytes(FULL // 8 * 8)),
    ),
}
"""Bodies that no JSON example stands for, sent to every POST route: some read them, others refuse them."""


# ---- gRPC


def _method(path: str, method: Method) -> Iterator[Case]:
    streaming = is_streaming(method)
    for turn, (name, make) in enumerate(messages(method.request.DESCRIPTOR)):
        size = list(SIZES)[turn % 2]
        yield Case(path, f"{name}, {size}", _message(make, SIZES[size]), streaming)
    for name, largest in MESSAGES.get(path, {}).items():
        yield Case(path, f"{LARGEST}{name}", largest, streaming)
    for name, found in FOUND_MESSAGES.get(path, {}).items():
        yield Case(path, f"{FOUND}{name}", found, streaming, copies=2)
    yield Case(path, "empty", bytes, streaming)


def is_streaming(method: Method) -> tuple[bool, bool]:
    return method.kind in ("client_stream", "bidirectional"), method.kind in ("server_stream", "bidirectional")


def _message(make: Maker, size: int) -> Callable[[], bytes]:
    return lambda: make(size)

"""Route rows, and the requests that their handlers receive.

A row declares one route: dispatch, key gate, CORS, metrics, admission, limits and OpenAPI come from it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote

from pydantic import BaseModel

from service.errors import InlayError
from service.request_context import RequestContext, request_id

if TYPE_CHECKING:
    from service.http.response import Headers, Response

GONE = 499  # the status by which a client that left before its response is counted
PARAMETER = re.compile(r"\{([A-Za-z_]\w*)(:path)?\}")
VARYING = frozenset(
    (
        b"content-length",
        b"authorization",
        b"x-request-id",
        b"traceparent",
        b"tracestate",
        b"inlay-timeout-ms",
        b"x-envoy-expected-rq-timeout-ms",
    )
)
"""Headers that may differ in every request of a client, or are secret."""
_NOTHING: Mapping[bytes, bytes] = {}
_ABSOLUTE = re.compile(rb"^[A-Za-z][A-Za-z0-9+.-]*://[^/?]*/?")  # of a target with a host (RFC 9112, 3.2.2)


class Head:
    """The request line and the headers that a client repeats, and what follows from them alone.

    Attributes:
        verb: e.g. "POST".
        path: percent-decoded.
        query: the raw query string.
        headers: by lower-case name; repeated ones joined by commas (RFC 9110, 5.3); without those of VARYING.
        chunked: the body comes in chunks.
        route: the route that matched; None: no route has this path and verb.
        template: the path of the route, or of those that answer other verbs; None: the path is unknown.
        error: why no request with this head is served; None: the head is served.
        cors_headers: headers of responses by which a browser gives them to a page.
        parameters: the values of the route's `{names}`.
        may_compress: whether responses may be compressed, or name Accept-Encoding in Vary.
        codings: the content codings of documents and of numbers; None: they are not coded.
        batched: whether small requests go to the route's batch handler first.
        memo: what the route's handler keeps of it.
    """

    route: "Route | None" = None
    template: str | None = None
    error: InlayError | None = None
    cors_headers: "Headers" = ()
    may_compress = True
    codings: tuple[str | None, str | None] = (None, None)
    batched = False
    memo: Any = None

    def __init__(self, verb: str, target: bytes, headers: dict[bytes, bytes], version: str = "1.1") -> None:
        if not target.startswith(b"/"):
            target = _ABSOLUTE.sub(b"/", target)
        path, _, self.query = target.partition(b"?")
        text = path.decode("latin-1")
        self.verb, self.path = verb, unquote(text) if "%" in text else text
        self.headers, self.version = headers, version
        self.chunked = b"transfer-encoding" in headers
        self.parameters: dict[str, str] = {}


class Request:
    """A request whose body is complete and decoded. Most attributes keep their class's default.

    Args:
        head: the request line and the headers that the client repeats, resolved.

    Attributes:
        varying: the headers of VARYING, by name.
        body_bytes: the declared length of the body, 0 without one; None: it comes in chunks.
        body: without its content coding.
        context: the id, the deadline and the caller, for the core.
        arrived: when the head was complete, on `time.perf_counter`.
        client: the peer's address; None: unknown.
        handler: answers it instead of the route's handler, after the batch handler has read its body.
        refused_at_gate: whether its key was refused, which is counted apart.
        key: the API key that counts it among its requests.
        span: the span that follows it.
        disconnected: whether the client has left.
        render_error: how its errors look, where its route reads the bodies of several protocols; None: as the route's.
    """

    body = b""
    handler: "Handler | None" = None
    key: Any = None
    span: Any = None
    disconnected = False
    refused_at_gate = False
    render_error: "ErrorRenderer | None" = None

    def __init__(
        self, head: Head, client: tuple[str, int] | None = None, varying: Mapping[bytes, bytes] = _NOTHING
    ) -> None:
        self.head, self.client, self.varying = head, client, varying
        self.parameters = head.parameters
        self.arrived = perf_counter()
        self.context = RequestContext()
        self.context.request_id = request_id(varying.get(b"x-request-id"))
        if client is not None:
            self.context.caller = client[0]  # unless it shows a key
        declared = varying.get(b"content-length", b"0")
        self.body_bytes = None if head.chunked or not declared.isdigit() else int(declared)

    def header(self, name: bytes) -> str:
        """Return a header as text, empty if it was not sent."""
        return self.head.headers.get(name, b"").decode("latin-1")

    def holds(self, etag: str) -> bool:
        """Return whether If-None-Match says that the client has the bytes of this tag."""
        held = [tag.strip().removeprefix("W/") for tag in self.header(b"if-none-match").split(",")]
        return etag in held or "*" in held

    @property
    def media_type(self) -> str:
        """The content type in lower case, without its parameters."""
        return self.header(b"content-type").partition(";")[0].strip().lower()


Handler = Callable[[Request], Awaitable["Response"]]
BatchHandler = Callable[[Sequence[Request]], Sequence["Response | InlayError | Handler"]]
ErrorRenderer = Callable[[InlayError], "Response"]
Schema = Mapping[str, Any]


def binary(description: str = "") -> Schema:
    """Return the schema of bytes."""
    return {"type": "string", "format": "binary"} | ({"description": description} if description else {})


class Need(NamedTuple):
    """Something that an operation needs and not every model or server has, for the OpenAPI document.

    Args:
        what: the thing, such as "a model that reads images".
        status: status of the answer if the need is not met.
    """

    what: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBody:
    """The body of a route, for the OpenAPI document.

    Args:
        model: the pydantic model that validates a JSON body.
        schema: the JSON schema, where there is no such model; beside one: another form of body that is read.
        examples: JSON bodies by name; the first is the one that Swagger UI sends. A `model` that one names stands for
            a loaded one.
        other: schemas of further media types.
        description: what the body holds.
        required: whether it may not be left out.
    """

    model: type[BaseModel] | None = None
    schema: Schema | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Schema] = field(default_factory=dict)
    description: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response of a route, for the OpenAPI document.

    Args:
        description: what the response holds.
        content: a schema or a pydantic model, by media type.
        headers: descriptions of response headers by name.
        examples: JSON documents by name.
    """

    description: str = "The answer."
    content: Mapping[str, Schema | type[BaseModel]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """One row: a verb, a path, the handler, and everything else that is known about them.

    Args:
        path: plain segments, `{name}`s, and segments such as `{name}.png` or a last `{name:path}`.
        name: the operation's id in the OpenAPI document.
        query: the pydantic model of the query string, or a JSON schema.
        examples: values of parameters of the path and the query string. {name} needs none: it is a loaded model.
        need: what the route needs that not every model or server has.
        answers: responses by status; 200 at least.
        batch_handler: returns, for each of several requests that arrived together, its response, its error, or the
            handler that answers it in a task of its own.
        needs_key: whether callers must show a key, where the server has any.
        admitted: whether a request counts against `max_concurrent_requests` until its response is made.
        probe: whether it is for probes and scrapers: never refused, counted or timed out.
        changes_state: whether it changes what the server serves, so that pages of foreign origins may not call it.
        management: whether it moves to the management port where there is one.
        vectors: whether responses are numbers, which are compressed only on an explicit wish.
        documented: whether the OpenAPI document lists it.
        render_error: how errors of this route look; None: as its group's.
        other_errors: further schemas of errors by media type, where the route reads the bodies of several protocols.
    """

    verb: Literal["GET", "POST"]
    path: str
    handler: Handler
    name: str
    summary: str
    tag: str
    _: KW_ONLY
    description: str = ""
    query: type[BaseModel] | Schema | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    need: Need | None = None
    body: RequestBody | None = None
    answers: Mapping[int, Answer] = field(default_factory=lambda: {200: Answer()})
    batch_handler: BatchHandler | None = None
    needs_key: bool = True
    admitted: bool = True
    probe: bool = False
    changes_state: bool = False
    management: bool = False
    vectors: bool = False
    documented: bool = True
    render_error: ErrorRenderer | None = None
    other_errors: Mapping[str, Schema] = field(default_factory=dict)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parameters."""
        return tuple(match[1] for match in PARAMETER.finditer(self.path))


class RouteGroup(NamedTuple):
    """The routes of one protocol.

    Args:
        render_error: how the protocol renders errors of its routes.
        prefixes: beginnings of paths whose unknown paths and verbs the protocol answers too.
        error_model: the pydantic model of an error's body, for the OpenAPI document, and its media type.
        tags: descriptions of tags by name, in the order in which the document lists them.
        schemas: further schemas by name, to which the routes' schemas refer.
    """

    routes: Sequence[Route]
    render_error: ErrorRenderer
    prefixes: tuple[str, ...] = ()
    error_model: tuple[type[BaseModel], str] | None = None
    tags: Mapping[str, str] = {}
    schemas: Mapping[str, Schema] = {}

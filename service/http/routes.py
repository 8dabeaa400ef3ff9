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
        bulk: whether its requests give way to others.
        batched: whether small requests go to the route's batch handler first.
        memo: what the route's handler keeps of it.
    """

    route: "Route | None" = None
    template: str | None = None
    error: InlayError | None = None
    cors_headers: "Headers" = ()
    may_compress = True
    codings: tuple[str | None, str | None] = (None, None)
    bulk = False
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


@dataclass(frozen=True, slots=True)
class Route:
    """One row: a verb, a path, the handler, and everything else that is known about them.

    Args:
        path: plain segments, `{name}`s, and segments such as `{name}.png` or a last `{name:path}`.
        query: the pydantic model of the query string.
        bodies: the pydantic models of a JSON body; several: it may be any of them.
        operation: what the OpenAPI document says of it, as in OpenApiData; None: its group's data say so, or the
            document does not list it.
        batch_handler: returns, for each of several requests that arrived together, its response, its error, or the
            handler that answers it in a task of its own.
        needs_key: whether callers must show a key, where the server has any.
        admitted: whether a request counts against `max_concurrent_requests` until its response is made.
        probe: whether it is for probes and scrapers: never refused, counted, timed out or traced.
        changes_state: whether it changes what the server serves, so that pages of foreign origins may not call it.
        management: whether it moves to the management port where there is one.
        vectors: whether responses are numbers, which are compressed only on an explicit wish.
        render_error: how errors of this route look; None: as its group's.
    """

    verb: Literal["GET", "POST"]
    path: str
    handler: Handler
    _: KW_ONLY
    query: type[BaseModel] | None = None
    bodies: tuple[type[BaseModel], ...] = ()
    operation: Schema | None = field(default=None, hash=False)
    batch_handler: BatchHandler | None = None
    needs_key: bool = True
    admitted: bool = True
    probe: bool = False
    changes_state: bool = False
    management: bool = False
    vectors: bool = False
    render_error: ErrorRenderer | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parameters."""
        return tuple(match[1] for match in PARAMETER.finditer(self.path))


class OpenApiData(NamedTuple):
    """The content of an openapi.json.

    {"$part": NAME} stands for a member of `parts`, with the members beside it added, and "$fields" for the properties
    of an object that has them all.

    Args:
        operations: what the document says of a route beside its parameters and bodies, by verb and path: members of an
            OpenAPI operation; its `tag`; what it `needs` that not every model or server has, and the status without;
            `values` of parameters; `examples` of a JSON body; names of schemas of further JSON `bodies`; further
            members of the `body`; `errors`: schemas of other errors than its protocol's by media type; `responses`: the
            name of a schema, the description of an error, or a description, headers by name, schemas by media type and
            JSON examples. {"$like": KEY} begins with the members of an operation before it.
        schemas: JSON schemas of answers by name, for the document's components.
        parts: what stands in others, and the schemas of bodies without a name in the document.
        tags: the descriptions of tags of operations, in the order of the documentation page.
    """

    operations: Mapping[str, Schema]
    schemas: Mapping[str, Schema]
    parts: Mapping[str, Any] = {}
    tags: Mapping[str, str] = {}


class RouteGroup(NamedTuple):
    """The routes of one protocol.

    Args:
        render_error: how the protocol renders errors of its routes.
        prefixes: beginnings of paths whose unknown paths and verbs the protocol answers too.
        error_model: the pydantic model of an error's body, for the OpenAPI document, and its media type.
        data: what the OpenAPI document says of the routes; None: what they say themselves.
    """

    routes: Sequence[Route]
    render_error: ErrorRenderer
    prefixes: tuple[str, ...] = ()
    error_model: tuple[type[BaseModel], str] | None = None
    data: OpenApiData | None = None

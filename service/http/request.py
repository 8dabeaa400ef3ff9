"""One HTTP request as handlers see it."""

import re
from contextvars import Context
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from service.request_context import RequestContext

if TYPE_CHECKING:
    from service.http.routes import Route

_ABSOLUTE = re.compile(rb"^[A-Za-z][A-Za-z0-9+.-]*://[^/?]*/?")  # of a target with a host (RFC 9112, 3.2.2)


class Head:
    """A request line and headers; shared by requests whose heads are the same bytes.

    Attributes:
        verb: e.g. "POST".
        path: percent-decoded.
        query: the raw query string.
        headers: by lower-case name; repeated ones joined by commas (RFC 9110, 5.3).
        body_bytes: the declared length of the body, 0 without one; None: it comes in chunks.
        route: the route that matched; None: no route has this path and verb.
        template: the path of the route, or of those that answer other verbs; None: the path is unknown.
        parameters: the values of the route's `{names}`.
        direct: nothing in the headers asks for more than the route's handler: no deadline, coding or origin.
        batched: requests go to the route's batch handler first.
        memo: what that handler keeps of the head.
    """

    route: "Route | None" = None
    template: str | None = None
    direct = False
    batched = False
    memo: Any = None

    def __init__(self, verb: str, target: bytes, headers: dict[bytes, bytes], version: str = "1.1") -> None:
        if not target.startswith(b"/"):
            target = _ABSOLUTE.sub(b"/", target)
        path, _, self.query = target.partition(b"?")
        text = path.decode("latin-1")
        self.verb, self.path = verb, unquote(text) if "%" in text else text
        self.headers, self.version = headers, version
        declared = headers.get(b"content-length", b"0")
        self.body_bytes = None if b"transfer-encoding" in headers or not declared.isdigit() else int(declared)
        self.parameters: dict[str, str] = {}


class Request:
    """A request whose body has arrived whole and is decoded. Most attributes keep their class's default.

    Attributes:
        head: its line and headers.
        body: without its content coding.
        context: the deadline and the caller, for the core.
        id: the x-request-id.
        arrived: when the head was complete, on `time.perf_counter`.
        client: the peer's address.
        refused_at_gate: whether its key was refused, which is counted apart.
        scope: the context variables of its task.
        key: the API key that it took a place of.
        span: the span that follows it.
        disconnected: whether the client has left.
        admitted: whether it holds a place of the admission controller.
    """

    body = b""
    id = b""
    key: Any = None
    span: Any = None
    scope: Context | None = None
    disconnected = False
    refused_at_gate = False
    admitted = False

    def __init__(self, head: Head, client: tuple[str, int] | None = None) -> None:
        self.head, self.client = head, client
        self.arrived = perf_counter()
        self.context = RequestContext()

    @property
    def route(self) -> "Route | None":
        """The route that matched; None: no route has this path and verb."""
        return self.head.route

    @property
    def verb(self) -> str:
        """The head's verb, "HEAD" where the route answers GET."""
        return self.head.verb

    @property
    def path(self) -> str:
        """The percent-decoded path."""
        return self.head.path

    @property
    def query(self) -> bytes:
        """The raw query string."""
        return self.head.query

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers by lower-case name."""
        return self.head.headers

    @property
    def parameters(self) -> dict[str, str]:
        """The values of the route's `{names}`."""
        return self.head.parameters

    def header(self, name: bytes) -> str:
        """Return a header as text, empty where it was not sent."""
        return self.head.headers.get(name, b"").decode("latin-1")

    @property
    def media_type(self) -> str:
        """The content type in lower case, without its parameters."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

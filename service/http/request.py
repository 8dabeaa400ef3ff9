"""One HTTP request as handlers see it."""

from contextvars import Context
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from service.embedding.context import RequestContext

if TYPE_CHECKING:
    from service.http.routes import Route

Headers = tuple[tuple[bytes, bytes], ...]


class Request:
    """A request whose body has arrived whole and is decoded.

    Attributes:
        verb: e.g. "POST"; "HEAD" where the route answers GET.
        path: percent-decoded.
        query: the raw query string.
        headers: by lower-case name; repeated ones joined by commas (RFC 9110, 5.3).
        body: without its content coding.
        parameters: the values of the route's `{names}`.
        route: the route that matched; None: no route has this path and verb.
        matched: the template of that route's path, kept also where its key was refused.
        context: the deadline and the caller, for the core.
        id: the x-request-id.
        arrived: when the head was complete, on `time.perf_counter`.
        client: the peer's address.
        scope: the context variables of its task.
    """

    __slots__ = (
        "arrived",
        "body",
        "client",
        "context",
        "disconnected",
        "headers",
        "id",
        "key",
        "matched",
        "parameters",
        "path",
        "query",
        "route",
        "scope",
        "span",
        "verb",
        "_admitted",
    )

    def __init__(
        self, verb: str, target: bytes, headers: dict[bytes, bytes], client: tuple[str, int] | None = None
    ) -> None:
        path, _, self.query = target.partition(b"?")
        text = path.decode("latin-1")
        self.verb, self.path = verb, unquote(text) if "%" in text else text
        self.headers, self.client = headers, client
        self.arrived = perf_counter()
        self.body = b""
        self.parameters: dict[str, str] = {}
        self.route: Route | None = None
        self.matched = ""
        self.context = RequestContext()
        self.id = b""
        self.key: Any = None
        self.span: Any = None
        self.disconnected = False
        self.scope: Context | None = None
        self._admitted = False

    def header(self, name: bytes) -> str:
        """Return a header as text, empty where it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def media_type(self) -> str:
        """The content type in lower case, without its parameters."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

"""GET /: the web page for browsers, a greeting in JSON for programs; and the page's files under /web/."""

from typing import Any

from pydantic import BaseModel

from service.context import ServiceContext
from service.errors import NotFound
from service.http.formats import JSON
from service.http.problem_details import MEDIA_TYPE, Problem, render_problem
from service.http.response import Headers, Response, json_response
from service.http.routes import Answer, Request, Route, RouteGroup
from service.web.static_files import StaticFile, read_static_files

PAGE = "index.html"
TAG = "operation"
# Scripts, styles and requests of this origin alone; pictures that the page draws are data: and blob: addresses.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Headers = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),  # asked again each time and answered with 304, so an upgrade is seen at once
)


class Greeting(BaseModel):
    """The name and version of this server, and where its documentation is."""

    service: str
    version: str
    docs: str


def routes(context: ServiceContext) -> RouteGroup:
    """Return GET / and, unless INLAY_WEB is false, the files of the page."""
    files = read_static_files() if context.settings.web else {}

    async def root(request: Request) -> Response:
        if files and prefers_html(request.header(b"accept")):
            return file_response(files[PAGE], request, vary=True)
        await context.check_ready()
        greeting = {"service": "inlay", "version": context.version, "docs": "/docs"}
        return json_response(greeting, headers=((b"vary", b"Accept"),))

    async def static_file(request: Request) -> Response:
        name = request.parameters["file"]
        if name not in files:
            raise NotFound(f"the page has no file {name[:100]!r}")
        return file_response(files[name], request)

    shared: dict[str, Any] = {"verb": "GET", "tag": TAG, "needs_key": False, "admitted": False, "probe": True}
    greeting = {200: Answer(content={JSON: Greeting})}
    about = "A browser gets the web page (`Accept: text/html`), a program this greeting."
    rows = [
        Route(
            path="/",
            handler=root,
            name="greet",
            summary="What this server is",
            description=about,
            answers=greeting,
            **shared,
        )
    ]
    if files:
        page_file: dict[str, Any] = {"name": "web_file", "summary": "A file of the web page", "documented": False}
        rows.append(Route(path="/web/{file:path}", handler=static_file, **page_file, **shared))
    return RouteGroup(rows, render_problem, error_model=(Problem, MEDIA_TYPE))


def file_response(file: StaticFile, request: Request, *, vary: bool = False) -> Response:
    """Return a file, or 304 where the browser holds it.

    Args:
        vary: the address answers others in another form.
    """
    headers: Headers = ((b"etag", file.etag.encode()), *PAGE_HEADERS)
    if vary:
        headers = (*headers, (b"vary", b"Accept, Accept-Encoding"))
    if file.etag in request.header(b"if-none-match"):  # also with W/ before it, as the compressed form has it
        return Response((), headers, 304)
    return Response((file.body,), (*headers, (b"content-type", file.media_type.encode())))


def prefers_html(accept: str) -> bool:
    """Return whether an Accept header names text/html, as browsers do and programs do not."""
    return "text/html" in accept.lower()

"""GET / returns the web page to browsers and a JSON greeting to programs; /web/ serves the page's files."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from service.context import ServiceContext
from service.errors import NotFound
from service.http import openapi_data
from service.http.problem_details import MEDIA_TYPE, Problem, render_problem
from service.http.response import Headers, Response, json_response
from service.http.routes import Request, Route, RouteGroup
from service.http.static_files import StaticFile, file_response, read_static_files

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"
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
VARY = (b"vary", b"Accept, Accept-Encoding")  # programs get another form at the page's address


def routes(context: ServiceContext) -> RouteGroup:
    """Return GET / and, unless INLAY_WEB is false, the files of the page."""
    page = Page(context, _files(context.settings.docs_url) if context.settings.web else {})
    shared: dict[str, Any] = {"needs_key": False, "admitted": False, "probe": True}
    rows = [Route("GET", "/", page.root, **shared)]
    if page.files:
        rows.append(Route("GET", "/web/{file:path}", page.file, **shared))
    return RouteGroup(rows, render_problem, error_model=(Problem, MEDIA_TYPE), data=openapi_data.read(__package__))


class Page:
    """Answers the routes of the page.

    Args:
        files: files of the page by their paths; empty: there is no page.
    """

    def __init__(self, context: ServiceContext, files: Mapping[str, StaticFile]) -> None:
        self._context, self.files = context, files

    async def root(self, request: Request) -> Response:
        """Return the page to a browser, and a greeting to a program once the service is ready."""
        if self.files and prefers_html(request.header(b"accept")):
            return await file_response(self.files[PAGE], request, headers=(*PAGE_HEADERS, VARY))
        await self._context.check_ready()
        greeting = {"service": "inlay", "version": self._context.version, "docs": "/docs"}
        return json_response(greeting, headers=((b"vary", b"Accept"),))

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.parameters["file"]
        if name not in self.files:
            raise NotFound(f"the page has no file {name[:100]!r}")
        return await file_response(self.files[name], request, headers=PAGE_HEADERS)


def _files(docs_url: str | None) -> dict[str, StaticFile]:
    """Return the files of the page, which is told the address of the documentation if there is one."""
    files = read_static_files(FOLDER)
    if docs_url:
        told = f'<meta name="documentation" content="{escape(docs_url)}">\n</head>'
        files[PAGE] = StaticFile.of(files[PAGE].body.replace(b"</head>", told.encode()), ".html")
    return files


def prefers_html(accept: str) -> bool:
    """Return whether an Accept header names text/html, as browsers do and programs do not."""
    return "text/html" in accept.lower()

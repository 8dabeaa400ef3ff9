"""Route rows: each declares one route; dispatch, key gate, CORS, metrics, admission and OpenAPI come from it."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from service.errors import InlayError
from service.http.request import Request
from service.http.response import Response

Handler = Callable[[Request], Awaitable[Response]]
BatchHandler = Callable[[Sequence[Request]], Sequence[Response | None]]
ErrorRenderer = Callable[[InlayError], Response]
Schema = Mapping[str, Any]
_PARAMETER = re.compile(r"\{([A-Za-z_]\w*)(:path)?\}")


def binary(description: str = "") -> Schema:
    """Return the schema of bytes."""
    return {"type": "string", "format": "binary"} | ({"description": description} if description else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBody:
    """What a route reads, for the OpenAPI document.

    Args:
        model: the pydantic model that validates a JSON body.
        schema: the JSON schema, where there is no such model.
        examples: JSON bodies by name.
        other: schemas of further media types.
        description: what the body holds.
    """

    model: type[BaseModel] | None = None
    schema: Schema | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Schema] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response of a route, for the OpenAPI document.

    Args:
        description: what it holds.
        content: a schema or a pydantic model, by media type.
        headers: descriptions of response headers by name.
        examples: JSON documents by name.
    """

    description: str = "The answer."
    content: Mapping[str, Schema | type[BaseModel]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row: a verb, a path, what answers it, and what is known of it.

    Args:
        path: plain segments, `{name}`s, and segments such as `{name}.png` or a last `{name:path}`.
        name: the operation's id in the OpenAPI document.
        query: the pydantic model of the query string, or a JSON schema.
        answers: responses by status; 200 at least.
        batch_handler: answers at once what it can of requests that arrived together; None in the place of a request
            that the handler has to answer.
        needs_key: whether callers must show a key, where the server has any.
        admitted: whether a request counts against `max_concurrent_requests` until its response is sent.
        probe: whether it is for probes and scrapers: never refused, counted or timed out.
        vectors: whether responses are numbers, which are compressed only on an explicit wish.
        documented: whether the OpenAPI document lists it.
        render_error: how errors of this route look; None: as its group's.
    """

    verb: Literal["GET", "POST"]
    path: str
    handler: Handler
    name: str
    summary: str
    tag: str
    description: str = ""
    query: type[BaseModel] | Schema | None = None
    body: RequestBody | None = None
    answers: Mapping[int, Answer] = field(default_factory=lambda: {200: Answer()})
    batch_handler: BatchHandler | None = None
    needs_key: bool = True
    admitted: bool = True
    probe: bool = False
    vectors: bool = False
    documented: bool = True
    render_error: ErrorRenderer | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parameters."""
        return tuple(match[1] for match in _PARAMETER.finditer(self.path))


class RouteGroup(NamedTuple):
    """The routes of one protocol.

    Args:
        render_error: how the protocol renders errors of its routes.
        prefixes: beginnings of paths whose unknown paths and verbs the protocol answers too.
        error_model: the pydantic model of an error's body, for the OpenAPI document, and its media type.
    """

    routes: Sequence[Route]
    render_error: ErrorRenderer
    prefixes: tuple[str, ...] = ()
    error_model: tuple[type[BaseModel], str] | None = None
    tags: Mapping[str, str] = {}


class Match(NamedTuple):
    """The route of a request and the values of its path's parameters."""

    route: Route
    parameters: dict[str, str]


class Router:
    """Finds the route of a verb and a path: one look-up for a plain path, one a segment otherwise."""

    def __init__(self, groups: Iterable[RouteGroup]) -> None:
        self.groups = tuple(groups)
        self._plain: dict[tuple[str, str], Match] = {}
        self._tree: dict[str | None, Any] = {}
        self._renderers: dict[int, ErrorRenderer] = {}
        for group in self.groups:
            for route in group.routes:
                self._renderers[id(route)] = route.render_error or group.render_error
                self._add(route)

    @property
    def routes(self) -> list[Route]:
        """Every route."""
        return [route for group in self.groups for route in group.routes]

    def find(self, verb: str, path: str) -> Match | None:
        """Return the route that answers; HEAD is answered by GET's."""
        verb = "GET" if verb == "HEAD" else verb
        match = self._plain.get((verb, path))
        if match is not None:
            return match
        for leaf, values in self._leaves(path):
            if (route := leaf.get(verb)) is not None:
                return Match(route, dict(zip(route.parameters, values, strict=True)))
        return None

    def verbs(self, path: str) -> tuple[str, ...]:
        """Return the verbs that a path answers."""
        found = {verb for leaf, _ in self._leaves(path) for verb in leaf}
        return tuple(sorted(found | ({"HEAD"} if "GET" in found else set())))

    def template(self, path: str) -> str | None:
        """Return the path, with its `{names}`, of the routes that answer a path."""
        return next((route.path for leaf, _ in self._leaves(path) for route in leaf.values()), None)

    def renderer(self, route: Route | None, path: str) -> ErrorRenderer:
        """Return what renders an error of a route, or of a path that no route has."""
        if route is not None:
            return self._renderers[id(route)]
        for group in self.groups:
            if any(path == prefix or path.startswith(prefix + "/") for prefix in group.prefixes):
                return group.render_error
        return self.groups[0].render_error

    def _add(self, route: Route) -> None:
        if not route.parameters:
            if (route.verb, route.path) in self._plain:
                raise ValueError(f"{route.verb} {route.path} is declared twice")
            self._plain[route.verb, route.path] = Match(route, {})
        node = self._tree
        for segment in route.path.split("/")[1:]:
            node = node.setdefault(_PARAMETER.sub(r"{\2}", segment), {})
        node.setdefault(None, {})[route.verb] = route

    def _leaves(self, path: str) -> Iterable[tuple[dict[str, Route], list[str]]]:
        """Yield what stands at a path, the most exact first, and the values of its parameters."""
        return _walk(self._tree, path.split("/")[1:], [])


def _walk(
    node: dict[str | None, Any], segments: list[str], values: list[str]
) -> Iterable[tuple[dict[str, Route], list[str]]]:
    if not segments:
        if None in node:
            yield node[None], values
        return
    first, rest = segments[0], segments[1:]
    if first in node:
        yield from _walk(node[first], rest, values)
    for pattern in node:
        if pattern and pattern.startswith("{}.") and first.endswith(pattern[2:]) and len(first) > len(pattern) - 2:
            yield from _walk(node[pattern], rest, [*values, first[: 2 - len(pattern)]])
    if first and "{}" in node:
        yield from _walk(node["{}"], rest, [*values, first])
    if first and "{:path}" in node:
        yield from _walk(node["{:path}"], [], [*values, "/".join(segments)])

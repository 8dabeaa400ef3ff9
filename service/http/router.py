"""Finds the route row of a request."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from service.http.routes import PARAMETER, ErrorRenderer, Route, RouteGroup

VALUE, REST = "/", "/:path"  # in place of a parameter; no segment of a path contains a slash


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
        verbs = {verb for leaf, _ in self._leaves(path) for verb in leaf}
        return tuple(sorted(verbs | ({"HEAD"} if "GET" in verbs else set())))

    def template(self, path: str) -> str | None:
        """Return the path, with its `{names}`, of the routes that answer a path."""
        return next((route.path for leaf, _ in self._leaves(path) for route in leaf.values()), None)

    def renderer(self, route: Route | None, path: str) -> ErrorRenderer:
        """Return the function that renders the errors of a route, or of an unknown path."""
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
            node = node.setdefault(PARAMETER.sub(r"/\2", segment), {})
        node.setdefault(None, {})[route.verb] = route

    def _leaves(self, path: str) -> Iterable[tuple[dict[str, Route], list[str]]]:
        """Yield the routes at a path by verb, the most exact first, and the values of the path's parameters."""
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
        ending = pattern.removeprefix(VALUE) if pattern and pattern.startswith(f"{VALUE}.") else ""
        if ending and first.endswith(ending) and len(first) > len(ending):
            yield from _walk(node[pattern], rest, [*values, first.removesuffix(ending)])
    if first and VALUE in node:
        yield from _walk(node[VALUE], rest, [*values, first])
    if first and REST in node:
        yield from _walk(node[REST], [], [*values, "/".join(segments)])

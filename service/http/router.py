"""Finds the route row of a request."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from service.http.routes import PARAMETER, ErrorRenderer, Route, RouteGroup

SEGMENT = "([^/]+)"
MODEL = "models/{name}"


class Match(NamedTuple):
    """The route of a request and the values of its path's parameters."""

    route: Route
    parameters: dict[str, str]


class Router:
    """Finds the route of a verb and a path: by one look-up for a plain path, else by patterns, the most exact first."""

    def __init__(self, groups: Iterable[RouteGroup]) -> None:
        self.groups = tuple(groups)
        self._plain: dict[tuple[str, str], Match] = {}
        self._renderers: dict[int, ErrorRenderer] = {}
        for group in self.groups:
            for route in group.routes:
                if (route.verb, route.path) in self._plain:
                    raise ValueError(f"{route.verb} {route.path} is declared twice")
                self._renderers[id(route)] = route.render_error or group.render_error
                if not route.parameters:
                    self._plain[route.verb, route.path] = Match(route, {})
        ordered = sorted(self.routes, key=_vagueness)
        self._patterns = [(_pattern(route.path), route) for route in ordered]
        self._of_ids = [(_of_id(route.path), route) for route in ordered if MODEL in route.path]

    @property
    def routes(self) -> list[Route]:
        """Every route."""
        return [route for group in self.groups for route in group.routes]

    def find(self, verb: str, path: str) -> Match | None:
        """Return the route that answers; HEAD is answered by GET's.

        The name of a model in a path may be a hub id, org/name, where no other route has the path.
        """
        verb = "GET" if verb == "HEAD" else verb
        if plain := self._plain.get((verb, path)):
            return plain
        matches = [*_matches(self._patterns, path)] or _matches(self._of_ids, path)
        return next((match for match in matches if match.route.verb == verb), None)

    def verbs(self, path: str) -> tuple[str, ...]:
        """Return the verbs that a path answers."""
        verbs = {match.route.verb for match in _matches(self._patterns, path)}
        return tuple(sorted({*verbs, "HEAD"} if "GET" in verbs else verbs))

    def template(self, path: str) -> str | None:
        """Return the path, with its `{names}`, of the routes that answer a path."""
        return next((match.route.path for match in _matches(self._patterns, path)), None)

    def renderer(self, route: Route | None, path: str) -> ErrorRenderer:
        """Return the function that renders the errors of a route, or of an unknown path."""
        if route is not None:
            return self._renderers[id(route)]
        for group in self.groups:
            if any(path == prefix or path.startswith(prefix + "/") for prefix in group.prefixes):
                return group.render_error
        return self.groups[0].render_error


def _matches(patterns: Iterable[tuple[re.Pattern[str], Route]], path: str) -> Iterator[Match]:
    for pattern, route in patterns:
        if (match := pattern.fullmatch(path)) is not None:
            yield Match(route, dict(zip(route.parameters, match.groups(), strict=True)))


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path: a parameter is a segment or the beginning of one, a last `{name:path}` the rest."""
    first, *pieces = PARAMETER.split(path)
    rests, texts = pieces[1::3], pieces[2::3]
    values = [("([^/].*)" if rest else SEGMENT) + re.escape(text) for rest, text in zip(rests, texts, strict=True)]
    return re.compile(re.escape(first) + "".join(values), re.DOTALL)


def _of_id(path: str) -> re.Pattern[str]:
    """Return the pattern of a path whose first parameter, the name of a model, is a hub id."""
    return re.compile(_pattern(path).pattern.replace(SEGMENT, f"({SEGMENT[1:-1]}/{SEGMENT[1:-1]})", 1), re.DOTALL)


def _vagueness(route: Route) -> list[int]:
    """Return, for each segment: 0 a plain one, 1 `{name}.png`, 2 `{name}`, 3 `{name:path}`."""
    segments = route.path.split("/")[1:]
    return [each.startswith("{") + each.endswith("}") + each.endswith(":path}") for each in segments]

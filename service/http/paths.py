"""(verb, path) → the application behind it, in two dictionary look-ups or one a segment. Knows no application.

A router that asks each of sixty routes in turn costs tens of microseconds. What is not found here is left to that
router, so a path with a part it cannot hold (`{name}.png`, `{rest:path}`) is simply not entered.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from service.http.asgi import App

_PARAMETER = re.compile(r"\{([A-Za-z_]\w*)\}")
ANY = ""  # in a node: whatever the segment is; no segment of a request's path that is entered here is empty


class Found(NamedTuple):
    """An application and the parameters of its path."""

    app: App
    parameters: dict[str, str]


class _Leaf(NamedTuple):
    template: str
    names: tuple[str, ...]
    apps: dict[str, App | None]


class Paths:
    """Every path there is, and the applications that are reached at once."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], Found] = {}
        self._root: dict[str | None, Any] = {}

    def add(self, path: str, methods: Iterable[str], app: App | None) -> None:
        """Enter a path of plain segments and `{parameters}`, unless it is there; None: the router answers it."""
        segments = path.split("/")[1:]
        names = tuple(found[1] for each in segments if (found := _PARAMETER.fullmatch(each)))
        if any("{" in each for each in segments if not _PARAMETER.fullmatch(each)):
            return
        if not names and app is not None:
            for method in methods:
                self._exact.setdefault((method, path), Found(app, {}))
        node = self._root
        for each in segments:
            node = node.setdefault(ANY if _PARAMETER.fullmatch(each) else each or "/", {})
        leaf = node.setdefault(None, _Leaf(path, names, {}))
        for method in methods:
            leaf.apps.setdefault(method, app)

    def find(self, method: str, path: str) -> Found | None:
        """What answers at once, if anything does."""
        exact = self._exact.get((method, path))
        if exact is not None:
            return exact
        leaf, values = self._leaf(path)
        app = leaf.apps.get(method) if leaf and values else None
        return Found(app, dict(zip(leaf.names, values, strict=True))) if leaf and app else None

    def methods(self, path: str) -> list[str]:
        """The verbs a path answers."""
        leaf, _ = self._leaf(path)
        return sorted(leaf.apps) if leaf else []

    def template(self, path: str) -> str | None:
        """The path as it was entered, whoever may ask for it and however: of a request's path, what is not its own."""
        leaf, _ = self._leaf(path)
        return leaf.template if leaf else None

    def _leaf(self, path: str) -> tuple[_Leaf | None, list[str]]:
        node, values = self._root, list[str]()
        for each in path.split("/")[1:]:
            below = node.get(each or "/")
            if below is None:
                below = node.get(ANY) if each else None
                if below is None:
                    return None, values
                values.append(each)
            node = below
        leaf: _Leaf | None = node.get(None)
        return leaf, values

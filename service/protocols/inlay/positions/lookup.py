"""Which scheme of which model is meant: what the routes and the methods of gRPC share. Reads no request."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

import orjson

from models.positions.rope.presets import PRESETS
from service.context import ServiceContext
from service.errors import NotFound
from service.protocols.inlay.positions.model_schemes import (
    BOUND,
    Bound,
    Owner,
    check,
)
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme
from service.protocols.inlay.positions.table_call import Call


def scheme(name: str, bound: bool) -> Scheme | Bound:
    """The row of SCHEMES, or of BOUND for a model's own; raises NotFound that names the known."""
    rows: dict[str, Any] = BOUND if bound else SCHEMES
    if name not in rows:
        near = get_close_matches(name, rows, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise NotFound(f"there is no scheme {name[:60]!r}; there are {', '.join(rows)}{hint}")
    found: Scheme | Bound = rows[name]
    return found


def owner(context: ServiceContext, name: str | None, scheme: str = "rope") -> Owner:
    """The loaded model of that name, or the default; raises NotFound, also where it has no such encoding."""
    held = context.registry.get(name)
    found = Owner(held.card, held.weights)
    check(found, scheme)
    return found


def maker(context: ServiceContext, row: Scheme | Bound, model: str) -> Callable[[Any], Call]:
    """What turns an instance of the row's model into a call.

    model    whose encoding it is, where the row is one of BOUND
    raises   NotFound for what is not loaded or what the model has not, before anything else is read
    """
    return row.call if isinstance(row, Scheme) else partial(row.call, owner(context, model, row.name))


def preset(name: str, *, as_text: bool = False) -> dict[str, Any]:
    """A preset as JSON has it; `as_text`: its config as a text."""
    row = PRESETS[name]
    config = {"config_json": orjson.dumps(row.config).decode()} if as_text else {"config": row.config}
    return {"name": name, "title": row.title, "source": row.source, **config}

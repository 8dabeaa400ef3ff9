"""Which scheme of which model is meant: what the routes and the methods of gRPC share. Reads no request."""

from difflib import get_close_matches
from typing import Any

import orjson

from models.positions.presets import PRESETS
from service.errors import NotFound
from service.wire.parts import Parts
from service.wire.positions.bound import BOUND, Bound, Owner
from service.wire.positions.call import Call
from service.wire.positions.schemes import SCHEMES, Scheme


def scheme(name: str, bound: bool) -> Scheme | Bound:
    """The row of SCHEMES, or of BOUND for a model's own; raises NotFound that names the known."""
    rows: dict[str, Any] = BOUND if bound else SCHEMES
    if name not in rows:
        near = get_close_matches(name, rows, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise NotFound(f"there is no scheme {name[:60]!r}; there are {', '.join(rows)}{hint}")
    found: Scheme | Bound = rows[name]
    return found


def owner(parts: Parts, name: str | None) -> Owner:
    """The loaded model of that name, or the default; raises NotFound."""
    card = parts.catalog.get(name).card
    return Owner(card, parts.settings.store / card.name)


def call(parts: Parts, row: Scheme | Bound, model: str, asked: Any) -> Call:
    """What an instance of the row's model asks for."""
    if isinstance(row, Bound):
        return row.call(owner(parts, model), asked)
    return row.call(asked)


def preset(name: str, *, as_text: bool = False) -> dict[str, Any]:
    """A preset as JSON has it; `as_text`: its config as a text."""
    row = PRESETS[name]
    config = {"config_json": orjson.dumps(row.config).decode()} if as_text else {"config": row.config}
    return {"name": name, "title": row.title, "source": row.source, **config}

"""GET {scheme}.png and .svg: which tables a picture shows, how it looks, and that it is kept. Draws no line itself.

compare   what else to show, as often as there is something: a preset's name, names with commas between, or parameters
          written as a query string and escaped once more. These replace those of the picture's own; with scheme=NAME
          first they stand alone: compare=theta%3D500000, compare=scheme%3Dsinusoidal%26dim%3D64
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from models.plots import (
    FIGURES,
    Subject,
    draw,
    figures_of,
)
from models.plots.catalog import HEIGHTS, WIDTHS
from service.embedding.position_tables import Tables
from service.errors import BadRequest, Overloaded
from service.protocols.inlay.positions import (
    answers,
    parameters,
    rope,
)
from service.protocols.inlay.positions import (
    parsing as asked,
)
from service.protocols.inlay.positions.fields import (
    MAX_ROWS,
    choice,
    switch,
    whole,
    word,
)
from service.protocols.inlay.positions.model_schemes import Bound
from service.protocols.inlay.positions.parameters import Parameters
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme
from service.protocols.inlay.positions.table_call import Call, in_the_callers_words

MEDIA_TYPES = {"png": "image/png", "svg": "image/svg+xml"}
MAX_WAITING = 16
ONE_AXIS = ("rope", "sinusoidal", "learned")  # schemes whose positions are one a row
LOOKS: Parameters = {
    "plot": choice(dict.fromkeys(plot for _, plot in FIGURES), "what to draw; left out: the scheme's first", None),
    "width": whole(*WIDTHS, "pixels", 800),
    "height": whole(*HEIGHTS, "pixels; left out: the figure's own", None),
    "dark": switch("light lines on a dark ground", False),
    "axis": choice(("linear", "log"), "of distances and positions; left out: log where they are many", None),
    "compare": word("a preset, or parameters as a query string: what else to show; as often as you like", None),
}
LENGTHS: Parameters = {  # what the tables must be told and a picture need not
    "length": whole(1, MAX_ROWS, "how many positions", 2048),
    "query_length": whole(1, MAX_ROWS, "queries, that is rows", 64),
}
OTHER_NAMES = {"axial": "axial_rope", "sinusoidal-2d": "sinusoidal_grid"}  # routes whose tables are called otherwise


@dataclass(frozen=True, slots=True)
class Shown:
    """One table of a picture, and what to call it; "" leaves that to the figure."""

    call: Call
    name: str


def figured(name: str) -> str:
    """What the figures call a scheme."""
    return OTHER_NAMES.get(name, name)


def drawable(name: str) -> bool:
    """Whether a scheme has figures."""
    return bool(figures_of(figured(name)))


@cache
def model_of(row: Scheme | Bound) -> type[BaseModel]:
    """The parameters of a scheme's picture: the table's, without the form of an answer, and how it looks."""
    plots = choice(figures_of(figured(row.name)), "what to draw; left out: the first of these", None)
    own = {**formless(row), **LOOKS, "plot": plots}
    return parameters.exactly(f"{row.parameters.__name__}Picture", "What to draw.", own)


def formless(row: Scheme | Bound) -> Parameters:
    """A scheme's parameters without those of the form of an answer, lengths with a usual value."""
    fields = row.parameters.model_fields
    own = {name: (Annotated[field.annotation, field], field.default) for name, field in fields.items()}
    usual = {
        name: LENGTHS[name] for name in LENGTHS if name in own and not (name == "length" and isinstance(row, Bound))
    }
    kept = {
        name: value for name, value in own.items() if name not in parameters.ANSWER or name in ("arithmetic", "dtype")
    }
    return {**kept, **usual}


class Pictures:
    """Draws one picture at a time and keeps it among the tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def answer(self, request: Request, shown: list[Shown], looks: Any, form: str, cache: str) -> Response:
        """The picture; raises BadParameters, Overloaded."""
        own = {name: getattr(looks, name) for name in LOOKS if name != "compare"}
        tag = shown[0].call.tag(form, repr(own), *(each.call.tag(each.name) for each in shown))
        headers = {"etag": tag, "cache-control": cache}
        if answers.holds(request.headers.get("if-none-match"), tag):
            return Response(status_code=304, headers=headers)
        body = self._tables.whole(tag) or await self._drawn(tag, shown, own, form)
        return Response(body, headers=headers, media_type=MEDIA_TYPES[form])

    async def _drawn(self, tag: str, shown: list[Shown], looks: dict[str, Any], form: str) -> memoryview:
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{self._waiting} pictures are waiting to be drawn: try again soon")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        drawing = asyncio.create_task(self._kept(tag, shown, looks, form))
        drawing.add_done_callback(self._done)
        return await asyncio.shield(drawing)  # once begun it is finished, whoever leaves

    async def _kept(self, tag: str, shown: list[Shown], looks: dict[str, Any], form: str) -> memoryview:
        if (body := self._tables.whole(tag)) is None:
            body = memoryview(await asyncio.to_thread(_draw, shown, looks, form))
            self._tables.keep(tag, body)
        return body

    def _done(self, drawing: "asyncio.Task[memoryview]") -> None:
        self._turn.release()
        if not drawing.cancelled():
            drawing.exception()  # seen, even if nobody waits for it any more


def name_of(looks: Any) -> str:
    """What a preset's picture is called: the preset and, where layers differ, which; "" without a preset."""
    if not (preset := getattr(looks, "preset", None)):
        return ""
    layer = f"layer {looks.layer}" if looks.layer is not None else looks.layer_type
    return f"{preset} {layer}" if layer else str(preset)


def _draw(shown: list[Shown], looks: dict[str, Any], form: str) -> bytes:
    with in_the_callers_words():
        subjects = [_subject(each, looks["plot"]) for each in shown]
        size = {"width_px": looks["width"], "height_px": looks["height"]}
        return draw(looks["plot"], subjects, format=form, dark=looks["dark"], axis=looks["axis"], **size)  # type: ignore[arg-type]


def _subject(shown: Shown, plot: str | None) -> Subject:
    call = shown.call
    table, twin = call.table(), None
    if plot == "error":
        twin = call.within(arithmetic="exact" if table.arithmetic == "parity" else "parity").table()
    positions = call.arguments.get("positions") if table.scheme in ONE_AXIS else None
    return Subject(table, shown.name, positions, twin)


def compared(request: Request, scheme: str, call: Callable[[Mapping[str, Any]], Call]) -> Iterator[Shown]:
    """What `compare` asks for.

    call    makes the picture's own call of other parameters
    raises  BadRequest
    """
    own = {name: value for name, value in request.query_params.items() if name not in LOOKS}
    for text in request.query_params.getlist("compare"):
        if "=" in text:
            yield Shown(_other(scheme, own, text, call), "")
            continue
        for name in text.split(","):
            kept = {key: value for key, value in own.items() if key not in {**rope.EXPLICIT, **rope.ELSEWHERE}}
            yield Shown(call({**kept, "preset": name.strip()}), name.strip())


def _other(scheme: str, own: Mapping[str, str], text: str, call: Callable[[Mapping[str, Any]], Call]) -> Call:
    given = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    other = given.pop("scheme", scheme)
    if other == scheme:
        return call({**own, **given})
    if other not in SCHEMES or not drawable(other):
        raise BadRequest(f"compare names the scheme {other[:60]!r}; allowed: {', '.join(filter(drawable, SCHEMES))}")
    row = SCHEMES[other]
    shared: dict[str, str] = {
        name: own[name] for name in ("start", "length") if name in own and name in row.parameters.model_fields
    }
    return row.call(asked.validated(model_of(row), {**shared, **given}))

"""GET {scheme}.png, .svg and .json: figures of tables as pictures or numbers, drawn by the heavy process and cached.

`compare` names further tables for the same picture, as often as there is one: a preset, names with commas between, or
parameters as an escaped query string. These replace those of the picture's own table. With scheme=NAME they stand
alone; with model=NAME they are those of a loaded model's encoding: compare=theta%3D500000,
compare=scheme%3Dsinusoidal%26dim%3D64, compare=model%3Dbge-m3%26scheme%3Dlearned
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

import orjson
from pydantic import create_model
from pydantic.fields import FieldInfo

from models.plots import FIGURES, Subject, compose, document, draw, figures_of
from models.plots.catalog import HEIGHTS, WIDTHS
from models.plots.picture import Picture
from models.positions.rope.scaling_parameters import PARAMETERS as SCALING_PARAMETERS
from service.context import ServiceContext
from service.embedding.limits import check_inputs
from service.embedding.position_tables import TableCall, as_bad_parameters
from service.errors import UnknownValue
from service.heavy.lane import run_beside
from service.http.formats import JSON
from service.http.parameter_types import (
    MAX_TEXT,
    ArrayOptions,
    Parameters,
    TableOptions,
    described,
    one_of,
    switch,
    text,
    whole,
)
from service.http.response import Response
from service.http.routes import Request
from service.http.validation_errors import validated
from service.protocols.inlay.parsing import query_pairs, query_values
from service.protocols.inlay.positions.parameters import SIZES, SOURCES, RopeSource
from service.protocols.inlay.positions.responses import REVALIDATE
from service.protocols.inlay.positions.schemes import MODEL_SCHEMES, SCHEMES, Scheme, call_maker

PICTURE_TYPES = {"png": "image/png", "svg": "image/svg+xml"}
DOCUMENT = "json"
FIGURE_TYPES = {**PICTURE_TYPES, DOCUMENT: JSON}
PLOTS = tuple(dict.fromkeys(plot for _, plot in FIGURES))
MAX_COMPARED, MAX_COMPARED_FIELDS = 32, 100  # tables in one picture, parameters of one `compare`
ONE_AXIS = ("rope", "sinusoidal", "learned")  # schemes whose positions are one a row
FIGURE_NAMES = {"axial": "axial_rope", "sinusoidal-2d": "sinusoidal_grid"}  # where figures call a scheme otherwise
USUAL_LENGTHS = {"length": 2048, "query_length": 64}
"""Lengths that a table requires, with the value that a picture or a graph takes without."""


class FigureOptions(Parameters):
    """What a figure shows."""

    plot: str | None = one_of(PLOTS, "what to draw; left out: the first of these", None)
    axis: Literal["linear", "log"] | None = one_of(
        ("linear", "log"), "of distances and positions; left out: log where they are many", None
    )
    compare: str | None = described("a preset, or parameters as a query string: what else to show; repeatable", None)
    label: str | None = text("the table's name in the picture; a compared one has its own; left out: described", None)


class PlotOptions(FigureOptions):
    """What a picture shows, and how it looks."""

    width: int = whole(*WIDTHS, "pixels", 800)
    height: int | None = whole(*HEIGHTS, "pixels; left out: the figure's own", None)
    dark: bool = switch("light lines on a dark ground", False)


@dataclass(frozen=True, slots=True)
class Shown:
    """A table in a picture, its name ("" leaves that to the figure), and whether a model sets its parameters."""

    call: TableCall
    name: str = ""
    of_model: bool = False


Part = TypeVar("Part", bound=Parameters)


def figure_name(scheme: str) -> str:
    """Return the name of a scheme among figures."""
    return FIGURE_NAMES.get(scheme, scheme)


def is_drawable(scheme: str) -> bool:
    """Return whether a scheme has figures."""
    return bool(figures_of(figure_name(scheme)))


LOOKS: dict[str, type[FigureOptions]] = {DOCUMENT: FigureOptions, **dict.fromkeys(PICTURE_TYPES, PlotOptions)}


# ---- parameters of a table without the form of a response


@cache
def figure_parameters(row: Scheme, extension: str = "") -> type[Parameters]:
    """Return the parameters of a figure: those of its table without the form of a response, and how it looks.

    Args:
        extension: one of FIGURE_TYPES; empty: of a graph, which has no looks.
    """
    usual = usual_lengths(row)
    fields: dict[str, Any] = {
        name: (field.annotation, FieldInfo.merge_field_infos(field, default=usual[name]) if name in usual else field)
        for name, field in row.parameters.model_fields.items()
        if name not in ArrayOptions.model_fields
    }
    if extension:
        plots = figures_of(figure_name(row.name))
        fields["plot"] = (str | None, one_of(plots, "what to draw; left out: the first of these", None))
    made: type[Parameters] = create_model("Figure", __base__=LOOKS.get(extension, Parameters), **fields)
    return made


def usual_lengths(row: Scheme) -> dict[str, int]:
    """Return the default lengths of a scheme's pictures and graphs."""
    usual = {name: length for name, length in USUAL_LENGTHS.items() if name in row.parameters.model_fields}
    if row.of_model:  # a missing length is that of the model
        usual.pop("length", None)
    return usual


def parse_source(row: Scheme, values: Mapping[str, str]) -> TableOptions:
    """Return a scheme's parameters from a query string, without those that only shape a response."""
    return _part(validated(figure_parameters(row), dict(values)), row.parameters)


def _part(parameters: Parameters, model: type[Part]) -> Part:
    """Return those parameters of a figure that are fields of a model."""
    names = type(parameters).model_fields.keys() & model.model_fields.keys()
    sent, values = parameters.model_fields_set & names, {name: getattr(parameters, name) for name in names}
    return model.model_construct(sent, **values)


async def figure_response(
    context: ServiceContext,
    row: Scheme,
    extension: str,
    request: Request,
    make_call: Callable[[Any], TableCall],
    cache_control: str,
) -> Response:
    """Return a figure, drawn by the heavy process or cached; raise BadParameters if it cannot be drawn.

    Args:
        extension: one of FIGURE_TYPES.
        make_call: turns the row's parameters into a call.
    """
    sent = validated(figure_parameters(row, extension), query_values(request, repeated=("compare",)))
    parameters, options = _part(sent, row.parameters), _part(sent, LOOKS[extension])
    first = Shown(make_call(parameters), options.label or _preset_name(parameters))
    shown = [first, *_compared(context, request, row, make_call)]
    looks = options.model_dump(exclude={"compare"})
    etag = shown[0].call.etag(extension, repr(looks), *(table.call.etag(table.name) for table in shown))
    if extension == DOCUMENT or any(table.of_model for table in shown):
        cache_control = REVALIDATE  # another version may write the document otherwise, a model may be exchanged
    headers = ((b"etag", etag.encode()), (b"cache-control", cache_control.encode()))
    if request.holds(etag):
        return Response((), headers, 304)
    body = context.tables.cached(etag)
    if body is None:
        body = memoryview(await run_beside(_draw, shown, options, extension))
        context.tables.cache(etag, body)
    return Response((body,), (*headers, (b"content-type", FIGURE_TYPES[extension].encode())))


def _preset_name(parameters: TableOptions) -> str:
    """Return the name of a preset's picture: the preset and, if layers differ, the layer; "" without a preset."""
    if not isinstance(parameters, RopeSource) or not parameters.preset:
        return ""
    layer = f"layer {parameters.layer}" if parameters.layer is not None else parameters.layer_type
    return f"{parameters.preset} {layer}" if layer else parameters.preset


def _draw(shown: list[Shown], options: FigureOptions, extension: str) -> bytes:
    with as_bad_parameters():
        subjects = [_subject(table, options.plot) for table in shown]
        if not isinstance(options, PlotOptions):
            return _document(compose(options.plot, subjects, axis=options.axis), subjects)
        return draw(
            options.plot,
            subjects,
            format=extension,  # type: ignore[arg-type]
            dark=options.dark,
            axis=options.axis,
            width_px=options.width,
            height_px=options.height,
        )


def _document(picture: Picture, subjects: list[Subject]) -> bytes:
    return orjson.dumps(document(picture) | {"tables": [_table_facts(subject) for subject in subjects]})


def _table_facts(subject: Subject) -> dict[str, Any]:
    """Return a table's facts, without its long lists, and the shape of its outputs."""
    table = subject.table
    return {
        "label": subject.label,
        "scheme": table.scheme,
        "arithmetic": table.arithmetic,
        "facts": {name: fact for name, fact in table.facts.items() if not isinstance(fact, list)},
        "notes": table.notes,
        "shapes": {name: output.shape for name, output in table.outputs.items()},
    }


def _subject(shown: Shown, plot: str | None) -> Subject:
    call = shown.call
    table, twin = call.table(), None
    if plot == "error":
        other = "exact" if table.arithmetic == "parity" else "parity"
        twin = replace(call, arguments={**call.arguments, "arithmetic": other}).table()
    positions = call.arguments.get("positions") if table.scheme in ONE_AXIS else None
    return Subject(table, shown.name, positions, twin)


# ---- tables to compare


def _compared(
    context: ServiceContext, request: Request, row: Scheme, make_call: Callable[[Any], TableCall]
) -> Iterator[Shown]:
    """Yield the table of each `compare`; raise BadRequest for one that cannot be drawn."""
    pairs = query_pairs(request)
    sent = {name: value for name, value in pairs if name not in PlotOptions.model_fields}
    compared = [value for name, value in pairs if name == "compare"]
    count = sum(1 if "=" in value else value.count(",") + 1 for value in compared)
    check_inputs(count, MAX_COMPARED, "tables to compare")
    for value in compared:
        if "=" in value:
            yield _other(context, row, make_call, sent, value)
            continue
        for preset in value.split(","):
            kept = {name: value for name, value in sent.items() if name not in (*SIZES, *SOURCES, *SCALING_PARAMETERS)}
            yield Shown(make_call(parse_source(row, {**kept, "preset": preset.strip()})), preset.strip())


def _other(
    context: ServiceContext, row: Scheme, make_call: Callable[[Any], TableCall], sent: Mapping[str, str], compare: str
) -> Shown:
    values = dict(parse_qsl(compare, keep_blank_values=True, max_num_fields=MAX_COMPARED_FIELDS))
    label = values.pop("label", "")[:MAX_TEXT]
    if "scheme" not in values and "model" not in values:
        return Shown(make_call(parse_source(row, {**sent, **values})), label)
    scheme, model = values.pop("scheme", row.name), values.pop("model", None)
    rows = SCHEMES if model is None else MODEL_SCHEMES
    if scheme not in rows or not is_drawable(scheme):
        allowed = f"allowed: {', '.join(filter(is_drawable, rows))}"
        raise UnknownValue(f"names the scheme {scheme[:40]!r}", field=("compare",), allowed=allowed)
    other = rows[scheme]
    make_other = call_maker(context, other, model or "")
    if "positions" not in values:
        shared = {"start", "length"} & sent.keys() & other.parameters.model_fields.keys()
        values = {name: sent[name] for name in shared} | values
    return Shown(make_other(parse_source(other, values)), label, model is not None)

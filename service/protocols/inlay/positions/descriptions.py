"""GET /positions and GET /positions/presets: describe schemes, figures and presets for a page's controls.

All of it comes from the rows that compute, validate and draw: SCHEMES, SCALINGS, FIGURES, PRESETS.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from pydantic.json_schema import JsonSchemaValue

from models.plots import figures_of
from models.plots.catalog import Figure
from models.positions.rope import choice as rope_choice
from models.positions.rope.config import LayerRope, read
from models.positions.rope.conventions import ALL
from models.positions.rope.frequencies import BY_LENGTH
from models.positions.rope.presets import PRESETS
from models.positions.rope.scaling_parameters import PARAMETERS as SCALING_PARAMETERS
from models.positions.rope.scalings import SCALINGS
from service.context import ServiceContext
from service.http.parameter_types import ArrayOptions, TypedArrayOptions
from service.http.response import Response, json_response
from service.http.routes import Request, Route
from service.protocols.inlay.positions.parameters import SIZES, Patches, PositionRange, RopeSource
from service.protocols.inlay.positions.plots import (
    PICTURE_TYPES,
    PlotOptions,
    figure_name,
    usual_lengths,
)
from service.protocols.inlay.positions.schemes import MODEL_SCHEMES, SCHEMES, Scheme

Description = Mapping[str, Any]
_LEFT_OUT = ("title", "default", "anyOf", "properties", "required")  # of a schema, which `_plain` leaves out
_ROPE_DEFAULTS = {"theta": rope_choice.THETA, "rope_type": "default"}
"""The values that RopeSource computes with where a parameter is left out and neither preset nor config is sent."""


@cache
def scheme_list() -> list[Description]:
    """Return every scheme with its parameters, figures and an example."""
    return [_scheme(row) for row in SCHEMES.values()]


def _scheme(row: Scheme) -> Description:
    schema = row.parameters.model_json_schema()
    scales, properties = issubclass(row.parameters, RopeSource), schema["properties"]
    figures = figures_of(figure_name(row.name))
    described = {
        "name": row.name,
        "summary": row.summary,
        "methods": row.methods,
        "paths": [f"/positions/{row.name}"] + ([f"/models/{{name}}/{row.name}"] if row.name in MODEL_SCHEMES else []),
        "required": schema.get("required", []),
        "parameters": {name: entry.get("description", "") for name, entry in properties.items()},
        "plots": {plot: figure.about for plot, figure in figures.items()},
        "fields": _fields(row, schema),
        "model_fields": _model_fields(row.name),
        "exclusive": _exclusive(row),
        "example": row.example,
        "rope_types": [_rope_type(name) for name in SCALINGS] if scales else [],
    }
    return described | _pictured(row, figures if "GET" in row.methods else {})


def _pictured(row: Scheme, figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Return the figures of a scheme and their options; empty for a scheme without figures."""
    extensions = PICTURE_TYPES if figures else ()
    options = PlotOptions.model_json_schema()["properties"] if figures else {}
    return {
        "pictures": [f"/positions/{row.name}.{extension}" for extension in extensions],
        "figures": [
            {"name": plot, "about": figure.about, "max_subjects": figure.max_subjects, "distance_axis": figure.scales}
            for plot, figure in figures.items()
        ],
        "picture_fields": {name: _plain(entry) for name, entry in options.items() if name != "plot"},
        "picture_defaults": usual_lengths(row) if figures else {},
    }


def _model_fields(scheme: str) -> dict[str, Any]:
    """Return the parameters of a model's encoding with their defaults: those of `fields` that its card does not set."""
    if scheme not in MODEL_SCHEMES:
        return {}
    properties = MODEL_SCHEMES[scheme].parameters.model_json_schema()["properties"]
    return {name: _plain(entry) for name, entry in properties.items() if name not in TypedArrayOptions.model_fields}


# ---- parameters


def _fields(row: Scheme, schema: JsonSchemaValue) -> dict[str, Description]:
    """Return the JSON schema of each parameter, with what it is for."""
    scales = issubclass(row.parameters, RopeSource)
    return {
        name: {
            **_plain(entry),
            **(_scalings_of(name) if scales else {}),
            "required": name in schema.get("required", []),
            "role": "output" if name in TypedArrayOptions.model_fields else "encoding",
            "in_pictures": name not in ArrayOptions.model_fields,
        }
        for name, entry in schema["properties"].items()
    }


def _plain(entry: JsonSchemaValue) -> dict[str, Any]:
    """Return a schema without alternatives: null is dropped, and several types become a list of types."""
    options = [option for option in entry.get("anyOf", [entry]) if option != {"type": "null"}]
    field: dict[str, Any] = {}
    for option in options:
        field |= {key: value for key, value in option.items() if key not in _LEFT_OUT}
    types = [option["type"] for option in options]
    field["type"] = types[0] if len(types) == 1 else types
    if entry.get("default") is not None:
        field["default"] = entry["default"]
    return field | {"description": entry.get("description", "")}


def _scalings_of(name: str) -> dict[str, Any]:
    """Return which rope types read a parameter, unless all do, and which require it."""
    parameter = SCALING_PARAMETERS.get(name)
    default = parameter.default if parameter else _ROPE_DEFAULTS.get(name)
    needing = [rope_type for rope_type, row in SCALINGS.items() if name in (*row.required, *row.sizes)]
    reading = [rope_type for rope_type, row in SCALINGS.items() if name in (*row.required, *row.optional)]
    if name == "seq_len":
        reading = list(BY_LENGTH)
    elif name in RopeSource.model_fields:  # a size that every rope type reads
        reading = []
    of_scaling = {
        "default": default,
        "examples": parameter and [parameter.example],
        "rope_types": reading,
        "required_by": needing,
    }
    return {key: value for key, value in of_scaling.items() if value not in (None, [])}


def _exclusive(row: Scheme) -> list[list[tuple[str, ...]]]:
    """Return groups of parameters; a request may use only one group."""
    choices = []
    if issubclass(row.parameters, RopeSource):
        choices.append([("preset",), ("config", "model_type"), tuple(dict.fromkeys((*SIZES, *SCALING_PARAMETERS)))])
    if issubclass(row.parameters, PositionRange):
        choices.append([("start", "length"), ("positions",)])
    if issubclass(row.parameters, Patches):
        choices.append([("grid",), ("positions",)])
    return choices


def _rope_type(name: str) -> Description:
    row = SCALINGS[name]
    required = (*row.required, *row.sizes)
    sizes = {"head_dim": 64, "max_position_embeddings": 4096}
    shown = (*row.required, *(("factor",) if "factor" in row.optional else ()))
    example = {"rope_type": name} | {parameter: SCALING_PARAMETERS[parameter].example for parameter in shown}
    example |= {size: sizes[size] for size in ("head_dim", *row.sizes)}
    by_length = ("seq_len",) if name in BY_LENGTH else ()
    optional = (*row.optional, *by_length)
    return {"name": name, "formula": row.formula, "required": required, "optional": optional, "example": example}


# ---- presets


@cache
def preset_list() -> list[Description]:
    """Return every preset: its config, and the parameters of each layer type."""
    return [
        {
            "name": name,
            "title": row.title,
            "source": row.source,
            "config": row.config,
            "layers": [
                _layer(None if layer_type == ALL else layer_type, layer)
                for layer_type, layer in read(row.config).tables.items()
            ],
        }
        for name, row in PRESETS.items()
    ]


def _layer(layer_type: str | None, layer: LayerRope) -> Description:
    """Return the parameters that give the table of one layer type without the preset."""
    rope = layer.rope
    parameters = {
        "theta": rope.theta,
        "head_dim": rope.head_dim,
        "rotary_dim": rope.rotary_dim,
        "max_position_embeddings": rope.max_position_embeddings,
        "rope_type": rope.rope_type,
        **dict(rope.parameters),
    }
    sent = {name: value for name, value in parameters.items() if value is not None}
    multi_axis = {"sections": layer.sections, "axes": layer.axes} if layer.sections else {}
    about = {"layer_type": layer_type, "parameters": sent, "layout": layer.layout, **multi_axis}
    return about | {"softmax_scale": layer.softmax_scale}


# ---- routes


def routes(context: ServiceContext) -> list[Route]:
    """Return GET /positions and GET /positions/presets."""
    documents = {"/positions": {"schemes": scheme_list()}, "/positions/presets": {"presets": preset_list()}}
    return [Route("GET", path, partial(_answer, document)) for path, document in documents.items()]


async def _answer(document: dict[str, Any], request: Request) -> Response:
    return json_response(document)

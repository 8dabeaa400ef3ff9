"""GET /positions and /positions/presets: what there is, for people and programs that begin here. Computes nothing."""

from typing import Any

import orjson

from models.plots import figures_of
from models.positions.rope.presets import PRESETS
from service.protocols.inlay.positions import lookup
from service.protocols.inlay.positions import plots as pictures
from service.protocols.inlay.positions.model_schemes import BOUND
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme


def schemes() -> bytes:
    """Every scheme: its parameters, figures and paths."""
    return orjson.dumps({"schemes": [_scheme(row) for row in SCHEMES.values()]})


def presets() -> bytes:
    """Every preset, with its source."""
    return orjson.dumps({"presets": [lookup.preset(name) for name in PRESETS]})


def _scheme(row: Scheme) -> dict[str, Any]:
    schema = row.parameters.model_json_schema()
    paths = [f"/positions/{row.name}"] + ([f"/models/{{name}}/{row.name}"] if row.name in BOUND else [])
    return {
        "name": row.name,
        "summary": row.summary,
        "methods": row.methods,
        "paths": paths,
        "required": schema.get("required", []),
        "parameters": {name: about.get("description", "") for name, about in schema["properties"].items()},
        "plots": {plot: figure.about for plot, figure in figures_of(pictures.figured(row.name)).items()},
    }

"""The page of the positional encodings, made from the rows of SCHEMES and the figures of `models.plots`."""

from collections.abc import Iterator

from models.graphs.positions.catalog import GRAPHS
from models.plots import figures_of
from models.positions.rope.presets import PRESETS
from reference_pages.markdown import code, described, heading, page, plain, table
from reference_pages.schemas import meaning, value_cell
from service.http.openapi import query_parameters
from service.protocols.inlay.positions.plots import figure_name
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme

INTRODUCTION = """\
Each scheme is served at `/positions/NAME`: numbers by `GET` and `POST`, a picture at `NAME.png` and `NAME.svg`, of
some an ONNX graph at `NAME.onnx`, and over gRPC by `Positions`. A model's own encodings are at `/models/{name}/NAME`.
`GET /positions` answers with the same as JSON."""


def positions_page() -> str:
    """Return the page: the schemes with their parameters and figures, then the presets."""
    parts = [_scheme(scheme) for scheme in SCHEMES.values()]
    presets = table(
        ["preset", "model", "source"],
        ([code(name), plain(row.title), plain(row.source)] for name, row in PRESETS.items()),
    )
    about = "RoPE configurations of public models, for the parameter `preset`; `GET /positions/presets` has them whole."
    return page("Positional schemes", INTRODUCTION, *parts, f"## Presets\n\n{about}\n\n{presets}")


def _scheme(scheme: Scheme) -> str:
    figures = figures_of(figure_name(scheme.name))
    drawn = table(["figure", "what it shows"], ([code(name), plain(figure.about)] for name, figure in figures.items()))
    parts = [
        heading(2, scheme.name, scheme.name),
        f"{described(scheme.summary)}. Served as {', '.join(_forms(scheme))}.",
        table(["parameter", "type", "meaning"], _parameters(scheme)),
        drawn,
    ]
    return "\n\n".join(part for part in parts if part)


def _parameters(scheme: Scheme) -> Iterator[list[str]]:
    """Yield the rows of a scheme's parameters, as a query has them: what is left out is not null."""
    for each in query_parameters(scheme.parameters):
        kind = value_cell(each["schema"], required=each["required"])
        yield [code(each["name"]), kind, meaning(each)]


def _forms(scheme: Scheme) -> list[str]:
    forms = [f"`{verb} /positions/{scheme.name}`" for verb in scheme.methods]
    if "GET" in scheme.methods:
        forms += ["`.png`", "`.svg`"] if figures_of(figure_name(scheme.name)) else []
        forms += ["`.onnx`"] if scheme.name in GRAPHS else []
    return forms

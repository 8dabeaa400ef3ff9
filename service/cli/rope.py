"""`inlay rope`: writes the cos and sin of a rotary encoding to a file, or prints its frequencies and parameters.

Its options are the parameters of GET /positions/rope, checked by the same pydantic model.
"""
# ruff: noqa: RUF009 (`option` makes fields of dataclasses)

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.console import MISUSED, fail, progress_bars, reporting
from service.cli.flat_options import option

if TYPE_CHECKING:
    from models.positions.rope.config import LayerRope
    from models.positions.table import Positions, Table
    from service.protocols.inlay.positions.parameters import RopeParameters

PICTURES = (".png", ".svg")
GRAPH = ".onnx"
RESPONSE = ("format", "output", "encoding_format")
"""Parameters of the HTTP route that shape a response; the suffix of --out stands for them."""


def rope_options() -> list[Parameter]:
    """Return an option for each parameter of GET /positions/rope that does not shape a response."""
    from service.cli.options import options_of
    from service.protocols.inlay.positions.parameters import RopeParameters

    properties = RopeParameters.model_json_schema()["properties"]
    return options_of({name: schema for name, schema in properties.items() if name not in RESPONSE})


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeOptions:
    """Options of `inlay rope` beyond the parameters of GET /positions/rope."""

    out: Path | None = option(
        "file to write: .npy, .safetensors, .json, .onnx, .png, .svg", "FILE", flags=("--out", "-o")
    )
    plot: str | None = option("for .png and .svg: heatmap, spectrum, decay or error", "NAME")
    compare: list[str] | None = option(
        "for pictures: a preset, or 'rope_type=yarn&factor=4', to show beside it; repeatable", "ENCODING"
    )


@reporting
def rope(values: Mapping[str, Any], options: RopeOptions) -> None:
    """Write the RoPE cos and sin of a preset, a config.json or parameters; without --out, print its frequencies.

    Each option is a parameter of GET /positions/rope. --config also takes a file; --preset list names the presets.
    """
    from service.cli.options import read_options
    from service.protocols.inlay.positions.parameters import RopeParameters

    if values.get("preset") == "list":
        _print_presets()
        return
    if "config" in values:
        values = {**values, "config": _config(values["config"])}
    query = read_options(RopeParameters, values)
    positions = _positions(query, _layer(query))
    table = _table(query, positions)
    compared = [_compared(values, each) for each in options.compare or []]
    if compared and (options.out is None or options.out.suffix not in PICTURES):
        fail(f"--compare needs a picture: give --out a name that ends in {' or '.join(PICTURES)}", MISUSED)
    if options.out is None:
        _print(table)
    else:
        _write(options.out, table, query, positions, options.plot, compared)
        print(f"{options.out}: {options.out.stat().st_size:,} bytes, {query.arithmetic}")
    for note in table.notes:
        print(f"note: {note}")


def _config(text: str) -> dict[str, Any]:
    """Return the config of a JSON text or of a file; raises BadEncoding if it is not a JSON object."""
    from models.errors import BadEncoding

    name, content = ("--config", text) if text.lstrip().startswith("{") else (text, Path(text).read_text("utf-8"))
    try:
        config = json.loads(content)
    except ValueError as error:
        raise BadEncoding(f"{name} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadEncoding(f"{name} holds a JSON {type(config).__name__}; a config.json is an object")
    return config


def _layer(query: "RopeParameters") -> "LayerRope":
    """Return the encoding that a config, a preset or parameters name; end the command if two of them do."""
    from models.positions.rope import choice
    from models.positions.rope.config import LayerRope
    from service.cli.options import flag
    from service.protocols.inlay.positions.parameters import SIZES

    scaling = query.scaling_parameters
    sources = [name for name in ("config", "preset") if getattr(query, name) is not None]
    explicit = [name for name in SIZES if getattr(query, name) is not None] + list(scaling)
    if sources and (others := [*sources[1:], *explicit]):
        fail(f"{flag(sources[0])} and {flag(others[0])} contradict each other: give one of them", MISUSED)
    if query.config is not None:
        return choice.by_config(query.config, query.model_type, query.layer_type, query.layer)[1]
    if query.preset is not None:
        return choice.by_preset(query.preset, query.layer_type, query.layer, listed="--preset list")[1]
    rope = choice.by_parameters(
        theta=query.theta,
        head_dim=query.head_dim,
        rotary_dim=query.rotary_dim,
        rope_type=query.rope_type,
        parameters={**scaling, choice.FRACTION: query.partial_rotary_factor},
        max_position_embeddings=query.max_position_embeddings,
    )
    return LayerRope(rope, query.layout or "half", None, None)


def _positions(query: "RopeParameters", layer: "LayerRope") -> "Positions":
    if query.positions is not None:
        if {"start", "length"} & query.model_fields_set:
            fail("--positions and --start or --length contradict each other: give one or the other", MISUSED)
        positions: Positions = query.positions
        return positions
    stop = layer.rope.max_position_embeddings if query.length is None else query.start + query.length
    if stop is None:
        fail("give --length or --positions: how many positions the model was trained for is not known", MISUSED)
    if query.start >= stop:
        fail(f"--start {query.start} is not among the {stop} positions of the model: give --length too", MISUSED)
    return range(query.start, stop)


def _table(query: "RopeParameters", positions: "Positions") -> "Table":
    from models.positions.rope.table import tabulate

    layer = _layer(query)
    options: dict[str, Any] = {"seq_len": query.seq_len, "table": query.table, "notes": layer.notes}
    return tabulate(layer.rope, positions, arithmetic=query.arithmetic, layout=query.layout or layer.layout, **options)


def _compared(values: Mapping[str, Any], encoding: str) -> tuple[str, "RopeParameters"]:
    """Return the name and the parameters of an encoding to compare: a preset, or the options with some replaced."""
    from urllib.parse import parse_qsl

    from service.cli.options import read_options
    from service.protocols.inlay.positions.parameters import RopeParameters, RopeSource, parameter_names

    if "=" in encoding:
        replaced = dict(parse_qsl(encoding, keep_blank_values=True))
        return replaced.pop("label", ""), read_options(RopeParameters, {**values, **replaced})
    of_source = parameter_names(RopeSource)
    kept = {name: value for name, value in values.items() if name not in of_source}
    return encoding, read_options(RopeParameters, {**kept, "preset": encoding})


def _write(
    out: Path,
    table: "Table",
    query: "RopeParameters",
    positions: "Positions",
    plot: str | None,
    compared: Sequence[tuple[str, "RopeParameters"]],
) -> None:
    """Write a table in the format that the suffix of `out` names."""
    from models.artifacts.table_files import FORMATS, write
    from models.errors import BadEncoding

    if not out.parent.is_dir():
        raise BadEncoding(f"{out}: there is no folder {out.parent}; make it first, or write elsewhere")
    if out.suffix == GRAPH:
        from models.graphs.builder import save
        from models.graphs.positions.rope import rope as graph
        from models.positions.rope.frequencies import frequencies

        save(graph(frequencies(_layer(query).rope, query.arithmetic, query.seq_len)), out)
    elif out.suffix in PICTURES:
        out.write_bytes(_picture([(query.preset or "", query), *compared], positions, plot, out.suffix))
    elif out.suffix in FORMATS:
        with progress_bars() as progress:
            write(table, out, query.dtype, progress)
    else:
        allowed = ", ".join((*FORMATS, GRAPH, *PICTURES))
        raise BadEncoding(f"{out} ends in {out.suffix or 'nothing'!r}; allowed: {allowed}")


def _picture(
    encodings: Sequence[tuple[str, "RopeParameters"]], positions: "Positions", plot: str | None, suffix: str
) -> bytes:
    """Return a picture of named encodings, each beside its table in the other arithmetic."""
    from models.plots import Subject, draw

    subjects = []
    for name, query in encodings:
        other = query.model_copy(update={"arithmetic": "parity" if query.arithmetic == "exact" else "exact"})
        subjects.append(Subject(_table(query, positions), name, positions, _table(other, positions)))
    picture: Any = suffix.removeprefix(".")
    return draw(plot, subjects, format=picture)


def _print_presets() -> None:
    from models.positions.rope.presets import PRESETS

    print("\n".join(f"{name:<28}{preset.title} ({preset.source})" for name, preset in PRESETS.items()))


def _print(table: "Table") -> None:
    for name, value in table.facts.items():
        shown = " ".join(f"{frequency:.9g}" for frequency in value) if name == "inverse_frequency" else value
        print(f"{name:<24} {shown}")
    for name, output in table.outputs.items():
        print(f"{name:<24} {' x '.join(map(str, output.shape))}")

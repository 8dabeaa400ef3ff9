"""Which RoPE is meant: by parameters, by preset, or by a pasted config. Adds nothing to what models/positions decides.

The parameters of scalings are those of SCALINGS, by their names: a new scaling needs nothing here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.positions.rope import choice as rope_choice
from models.positions.rope import multi_axis
from models.positions.rope import table as rope_table
from models.positions.rope.config import LayerRope
from models.positions.rope.frequencies import MAX_ROTARY_DIM, Rope
from models.positions.rope.layers import ALL
from models.positions.rope.rotation import LAYOUTS
from models.positions.rope.scalings import SCALINGS
from models.positions.table import MAX_POSITION, Positions
from service.errors import BadParameters
from service.protocols.inlay.positions import fields
from service.protocols.inlay.positions.fields import (
    Parameter,
    choice,
    number,
    read,
    whole,
    word,
)
from service.protocols.inlay.positions.table_call import Call, in_the_callers_words

Parameters = Mapping[str, Parameter]
MAX_LAYER = 100_000
PRESETS_LISTED = "GET /positions/presets (gRPC: ListPresets)"
_SCALING_VALUE = {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "array", "items": {"type": "number"}}]}


def _scaling_parameters() -> Parameters:
    """Every parameter a row of SCALINGS names, with the rows that take it."""
    users: dict[str, list[str]] = {}
    for rope_type, row in SCALINGS.items():
        for name in (*row.required, *row.optional):
            users.setdefault(name, []).append(rope_type + (" (required)" if name in row.required else ""))
    about = "a number, true or false, or a list of numbers, as config.json has it; of rope_type {}"
    return {
        name: read(fields.parameter, _SCALING_VALUE, about.format(", ".join(types)), None)
        for name, types in users.items()
    }


SCALING: Parameters = _scaling_parameters()
EXPLICIT: Parameters = {
    "theta": number(f"the base of the frequencies, above 1; left out: {rope_choice.THETA:g}", None),
    "head_dim": whole(2, MAX_ROTARY_DIM, "channels of a head", None),
    "rotary_dim": whole(
        2, MAX_ROTARY_DIM, "channels of it that rotate; left out: head_dim times the partial factor", None
    ),
    "rope_type": choice(SCALINGS, "how the frequencies are scaled; left out: default", None),
    "max_position_embeddings": whole(1, MAX_POSITION, "positions the model was trained for", None),
    **SCALING,
    "partial_rotary_factor": number("share of head_dim that rotates, above 0, at most 1", None),
}
ELSEWHERE: Parameters = {
    "preset": word("a name of GET /positions/presets, instead of parameters", None),
    "config": read(fields.document, {"type": "object"}, "a config.json or its rope part, a JSON object", None),
    "model_type": word("whose conventions a config follows that does not say", None),
    "layer_type": word("where layers rotate differently: full_attention, sliding_attention, ...", None),
    "layer": whole(0, MAX_LAYER, "instead of layer_type: the number of a layer", None),
}
SEQ_LEN: Parameters = {
    "seq_len": whole(1, MAX_POSITION, "tokens of the sequence at hand, which dynamic and longrope scale by", None)
}
FIELDS: Parameters = {**EXPLICIT, **ELSEWHERE, **SEQ_LEN}
WIDTH: Parameters = {
    "table": choice(rope_table.WIDTHS, "single: a value a pair of channels. duplicated: a value a channel", "single")
}
LAYOUT: Parameters = {"layout": choice(LAYOUTS, "how channels pair; left out: as the config says, else half", None)}


@dataclass(frozen=True, slots=True)
class Found:
    """The rope a caller means and what goes with it.

    told    where it comes from, for the answer
    """

    layer: LayerRope
    told: Mapping[str, Any]


def found(asked: Any) -> Found:
    """The rope that parameters, a preset or a config stand for.

    asked    an instance of a model with FIELDS
    raises   BadParameters
    """
    sources = [name for name in ("config", "preset") if getattr(asked, name) is not None]
    given = [name for name in EXPLICIT if getattr(asked, name) is not None]
    if len(sources) > 1 or (sources and given):
        raise BadParameters(f"{' and '.join([*sources, *given])} contradict each other: send one of them")
    if not sources and (asked.layer is not None or asked.layer_type is not None):
        raise BadParameters("layer and layer_type choose a table of a config or a preset: send one of these too")
    with in_the_callers_words():
        if not sources:
            return Found(LayerRope(_explicit(asked), "half", None, None), {})
        if asked.preset is not None:
            name, layer = rope_choice.by_preset(asked.preset, asked.layer_type, asked.layer, listed=PRESETS_LISTED)
        else:
            name, layer = rope_choice.by_config(asked.config, asked.model_type, asked.layer_type, asked.layer)
    told = {"preset": asked.preset, "layer_type": name if name != ALL else None, "softmax_scale": layer.softmax_scale}
    return Found(layer, {fact: value for fact, value in told.items() if value is not None})


def _explicit(asked: Any) -> Rope:
    return rope_choice.by_parameters(
        theta=asked.theta,
        head_dim=asked.head_dim,
        rotary_dim=asked.rotary_dim,
        rope_type=asked.rope_type,
        parameters={name: getattr(asked, name) for name in (*SCALING, rope_choice.SHARE)},
        max_position_embeddings=asked.max_position_embeddings,
    )


def table(asked: Any, places: Callable[[Any], Positions]) -> Call:
    """cos and sin of consecutive or listed positions, which `places` reads; a wrong rope is told before them."""
    what = found(asked)
    return Call(
        rope_table.tabulate,
        {
            "rope": what.layer.rope,
            "positions": places(asked),
            "arithmetic": asked.arithmetic,
            "seq_len": asked.seq_len,
            "table": asked.table,
            "layout": asked.layout or what.layer.layout,
            "notes": what.layer.notes,
        },
        what.told,
    )


def mrope(asked: Any) -> Call:
    """cos and sin of positions on three axes."""
    what = found(asked)
    sections, axes = asked.sections or what.layer.sections, asked.axes or what.layer.axes
    return Call(
        multi_axis.tabulate_mrope,
        {
            "rope": what.layer.rope,
            "positions": asked.positions,
            "sections": sections and tuple(sections),
            "axes": axes or "chunked",
            "arithmetic": asked.arithmetic,
            "seq_len": asked.seq_len,
            "table": asked.table,
        },
        what.told,
    )

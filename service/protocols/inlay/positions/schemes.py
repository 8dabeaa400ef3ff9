"""SCHEMES: one row per positional encoding, with its parameters and the function that makes its table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple

from models.positions import alibi, buckets, learned, masks, sinusoidal
from models.positions.rope import axial, multi_axis
from models.positions.rope import choice as rope_choice
from models.positions.rope import table as rope_table
from models.positions.rope.config import LayerRope
from models.positions.rope.conventions import ALL
from models.positions.rope.frequencies import Rope
from models.positions.table import MAX_POSITION, Positions, Table
from service.embedding.position_tables import TableCall, as_bad_parameters
from service.errors import BadParameters
from service.protocols.inlay.parameter_types import MAX_ROWS, TableOptions
from service.protocols.inlay.positions.parameters import (
    SIZES,
    AlibiParameters,
    AxialParameters,
    DebertaParameters,
    LearnedParameters,
    MaskParameters,
    MropeParameters,
    PositionRange,
    RopeParameters,
    RopeSource,
    SinusoidalGridParameters,
    SinusoidalParameters,
    T5Parameters,
)

PRESET_LIST = "GET /positions/presets (gRPC: ListPresets)"


@dataclass(frozen=True, slots=True)
class Scheme:
    """A row of SCHEMES or of MODEL_SCHEMES.

    Args:
        parameters: the model that validates and describes the parameters.
        call: returns the table that they stand for; of a loaded model it takes the CardAndWeights first.
        example: parameters of a small table, as a query string and a JSON body alike have them.
        methods: GET, whose responses can be cached and linked to, and POST, or POST alone.
        has: what a model with this encoding has, such as "rotary positions"; empty: no model has this encoding.
    """

    name: str
    summary: str
    parameters: type[TableOptions]
    call: Callable[..., TableCall]
    example: Mapping[str, Any] = field(hash=False)
    methods: tuple[str, ...] = ("GET", "POST")
    has: str = ""

    @property
    def of_model(self) -> bool:
        """Whether this is the encoding of a loaded model."""
        return bool(self.has)

    @property
    def path(self) -> str:
        """The path of its table."""
        return f"{'/models/{name}' if self.of_model else '/positions'}/{self.name}"


def positions_of(parameters: PositionRange, trained: int | None = None) -> Positions:
    """Return the positions given by start and length, or by a list.

    Args:
        trained: the positions of the model, up to which a missing length goes; None: length is required.

    Raises:
        BadParameters: both were sent, or none, or they pass the highest position.
    """
    if parameters.positions is not None:
        check_positions_alone(parameters)
        return parameters.positions
    start, length = parameters.start, parameters.length
    if length is None:
        if trained is None:
            raise BadParameters(f"send length, 1 to {MAX_ROWS}, or a list of positions")
        if start >= trained:
            raise BadParameters(
                f"is {start}",
                field=("start",),
                allowed=f"the model was trained on {trained} positions",
                remedy="send length too",
            )
        length = min(trained - start, MAX_ROWS)
    if start + length > MAX_POSITION:
        raise BadParameters(f"start + length is {start + length}", allowed=f"allowed: up to {MAX_POSITION}")
    return range(start, start + length)


def check_positions_alone(parameters: PositionRange) -> None:
    """Raise BadParameters if both a list of positions and start or length were sent."""
    if parameters.positions is not None and {"start", "length"} & parameters.model_fields_set:
        raise BadParameters("positions and start or length contradict each other", remedy="send one or the other")


def call_of(
    function: Callable[..., Table], parameters: TableOptions, facts: Mapping[str, Any] | None = None, **others: Any
) -> TableCall:
    """Return the call of a function with its parameters by name.

    Args:
        facts: facts about the call.
        others: arguments that are no parameters, or come in their place.
    """
    if isinstance(parameters, PositionRange) and "positions" not in others:
        others["positions"] = positions_of(parameters)
    taken = [name for name in _argument_names(function) if name in type(parameters).model_fields]
    return TableCall(function, {name: getattr(parameters, name) for name in taken} | others, facts or {})


@cache
def _argument_names(function: Callable[..., Table]) -> tuple[str, ...]:
    return tuple(signature(function).parameters)


# ---- RoPE


class ChosenRope(NamedTuple):
    """The rope that a request names, and facts about its source."""

    layer: LayerRope
    facts: Mapping[str, Any]


def choose_rope(source: RopeSource) -> ChosenRope:
    """Return the rope that parameters, a preset or a config describe.

    Raises:
        BadParameters: these contradict each other, or describe no rope.
    """
    sources = [name for name in ("config", "preset") if getattr(source, name) is not None]
    explicit = [name for name in SIZES if getattr(source, name) is not None] + list(source.scaling_parameters)
    if len(sources) > 1 or (sources and explicit):
        raise BadParameters(f"{' and '.join([*sources, *explicit])} contradict each other", remedy="send one of them")
    if not sources and (source.layer is not None or source.layer_type is not None):
        raise BadParameters(
            "layer and layer_type choose a table of a config or a preset", remedy="send one of these too"
        )
    with as_bad_parameters():
        if source.preset is not None:
            name, layer = rope_choice.by_preset(source.preset, source.layer_type, source.layer, listed=PRESET_LIST)
        elif source.config is not None:
            name, layer = rope_choice.by_config(source.config, source.model_type, source.layer_type, source.layer)
        else:
            return ChosenRope(LayerRope(_explicit_rope(source), "half", None, None), {})
    facts = {"preset": source.preset, "layer_type": name if name != ALL else None, "softmax_scale": layer.softmax_scale}
    return ChosenRope(layer, {fact: value for fact, value in facts.items() if value is not None})


def _explicit_rope(source: RopeSource) -> Rope:
    return rope_choice.by_parameters(
        theta=source.theta,
        head_dim=source.head_dim,
        rotary_dim=source.rotary_dim,
        rope_type=source.rope_type,
        parameters={**source.scaling_parameters, rope_choice.FRACTION: source.partial_rotary_factor},
        max_position_embeddings=source.max_position_embeddings,
    )


def _rope(parameters: RopeParameters) -> TableCall:
    layer, facts = choose_rope(parameters)  # a wrong rope is reported before the positions are read
    layout = parameters.layout or layer.layout
    return call_of(rope_table.tabulate, parameters, facts, rope=layer.rope, layout=layout, notes=layer.notes)


def _mrope(parameters: MropeParameters) -> TableCall:
    layer, facts = choose_rope(parameters)
    sections = parameters.sections or layer.sections
    others = {"sections": sections and tuple(sections), "axes": parameters.axes or layer.axes or "chunked"}
    return call_of(multi_axis.tabulate_mrope, parameters, facts, rope=layer.rope, **others)


# ---- the other schemes


def _learned(parameters: LearnedParameters) -> TableCall:
    return call_of(learned.tabulate, parameters, table=parameters.weights, length=parameters.stretch_to)


def _deberta(parameters: DebertaParameters) -> TableCall:
    norm = (parameters.norm_weight, parameters.norm_bias)
    if (norm[0] is None) != (norm[1] is None):
        raise BadParameters("norm_weight and norm_bias go together", remedy="send both")
    return call_of(buckets.tabulate_deberta, parameters, norm=None if norm[0] is None else norm)


_axial, _alibi, _t5 = [partial(call_of, made) for made in (axial.tabulate_axial, alibi.tabulate, buckets.tabulate_t5)]
_sinusoidal, _sinusoidal_grid = partial(call_of, sinusoidal.tabulate), partial(call_of, sinusoidal.tabulate_grid)
_mask = partial(call_of, masks.tabulate)
_PATCHES = {"grid": "4x4", "dim": 64}
_MROPE = {"positions": "0,1,2;0,0,1;0,1,0", "head_dim": 128, "sections": [16, 24, 24]}
_LEARNED = {"weights": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "length": 3}
_DEBERTA = {"query_length": 8, "max_position_embeddings": 512}
_ROWS = (
    Scheme("rope", "Rotary cos and sin", RopeParameters, _rope, {"head_dim": 64, "length": 8}),
    Scheme("mrope", "M-RoPE cos and sin: time, height and width", MropeParameters, _mrope, _MROPE),
    Scheme(
        "axial", "Rotary cos and sin of an image's patches", AxialParameters, _axial,
        {"kind": "pixtral", "head_dim": 64, "grid": "4x4"},
    ),
    Scheme("sinusoidal", "Sinusoidal positions", SinusoidalParameters, _sinusoidal, {"dim": 64, "length": 8}),
    Scheme(
        "sinusoidal-2d", "Sinusoidal positions of an image's patches", SinusoidalGridParameters, _sinusoidal_grid,
        _PATCHES,
    ),
    Scheme("learned", "Rows of a learned table", LearnedParameters, _learned, _LEARNED, ("POST",)),
    Scheme("alibi", "ALiBi slopes and bias", AlibiParameters, _alibi, {"heads": 8, "query_length": 8}),
    Scheme("t5", "T5's relative buckets, and the bias of a learned table", T5Parameters, _t5, {"query_length": 8}),
    Scheme("deberta", "DeBERTa-v2's relative buckets", DebertaParameters, _deberta, _DEBERTA),
    Scheme(
        "mask", "Attention masks: causal, sliding, chunked, padded, packed", MaskParameters, _mask, {"query_length": 8}
    ),
)  # fmt: skip
SCHEMES = {row.name: row for row in _ROWS}

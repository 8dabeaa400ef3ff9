"""SCHEMES: one row per positional encoding, with its parameters and the table they stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from models.positions import alibi, buckets, learned, masks, sinusoidal
from models.positions.rope import axial, multi_axis
from models.positions.rope import choice as rope_choice
from models.positions.rope import table as rope_table
from models.positions.rope.config import LayerRope
from models.positions.rope.conventions import ALL
from models.positions.rope.frequencies import Rope
from models.positions.table import MAX_POSITION, Positions
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
P = TypeVar("P", bound=TableOptions)


@dataclass(frozen=True, slots=True)
class Scheme(Generic[P]):
    """A row of SCHEMES.

    Args:
        parameters: the model that validates and describes the parameters.
        call: returns the table that they stand for.
        example: parameters of a small table, as a query string and a JSON body alike have them.
        methods: with GET, whose responses can be cached and linked to, or with POST alone.
    """

    name: str
    summary: str
    parameters: type[P]
    call: Callable[[P], TableCall]
    example: Mapping[str, Any] = field(hash=False)
    methods: tuple[str, ...] = ("GET", "POST")


def positions_of(parameters: PositionRange, trained: int | None = None) -> Positions:
    """Return the positions that start and length, or a list, stand for.

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
    """Raise BadParameters where both a list of positions and start or length were sent."""
    if parameters.positions is not None and {"start", "length"} & parameters.model_fields_set:
        raise BadParameters("positions and start or length contradict each other", remedy="send one or the other")


def arguments(parameters: TableOptions, *names: str) -> dict[str, Any]:
    """Return some parameters as arguments of the same names, and the arithmetic."""
    return {name: getattr(parameters, name) for name in (*names, "arithmetic")}


# ---- RoPE


class ChosenRope(NamedTuple):
    """The rope that a caller means, and facts about where it comes from."""

    layer: LayerRope
    facts: Mapping[str, Any]


def choose_rope(source: RopeSource) -> ChosenRope:
    """Return the rope that parameters, a preset or a config stand for.

    Raises:
        BadParameters: they contradict each other, or describe no rope.
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
    own = {"rope": layer.rope, "layout": parameters.layout or layer.layout, "notes": layer.notes}
    own |= {"positions": positions_of(parameters)}
    return TableCall(rope_table.tabulate, arguments(parameters, "seq_len", "table") | own, facts)


def _mrope(parameters: MropeParameters) -> TableCall:
    layer, facts = choose_rope(parameters)
    sections = parameters.sections or layer.sections
    own = {
        "rope": layer.rope,
        "sections": sections and tuple(sections),
        "axes": parameters.axes or layer.axes or "chunked",
    }
    return TableCall(multi_axis.tabulate_mrope, arguments(parameters, "positions", "seq_len", "table") | own, facts)


# ---- the other schemes


def _axial(parameters: AxialParameters) -> TableCall:
    names = ("kind", "head_dim", "grid", "positions", "theta", "merge", "table")
    return TableCall(axial.tabulate_axial, arguments(parameters, *names))


def _sinusoidal(parameters: SinusoidalParameters) -> TableCall:
    own = {"positions": positions_of(parameters)}
    return TableCall(sinusoidal.tabulate, arguments(parameters, "kind", "dim", "theta", "offset", "zero_row") | own)


def _sinusoidal_grid(parameters: SinusoidalGridParameters) -> TableCall:
    return TableCall(sinusoidal.tabulate_grid, arguments(parameters, "dim", "grid", "order", "cls_rows", "theta"))


def _learned(parameters: LearnedParameters) -> TableCall:
    own = {
        "table": parameters.weights,
        "length": parameters.stretch_to,
        "positions": positions_of(parameters),
    }
    return TableCall(learned.tabulate, arguments(parameters, "beyond") | own)


def _alibi(parameters: AlibiParameters) -> TableCall:
    names = ("heads", "form", "query_length", "key_length", "past", "attention_mask", "max_bias")
    return TableCall(alibi.tabulate, arguments(parameters, *names))


def _t5(parameters: T5Parameters) -> TableCall:
    names = ("query_length", "key_length", "past", "bidirectional", "num_buckets", "max_distance", "weights")
    return TableCall(buckets.tabulate_t5, arguments(parameters, *names))


def _deberta(parameters: DebertaParameters) -> TableCall:
    names = ("query_length", "key_length", "position_buckets", "max_relative_positions", "max_position_embeddings")
    norm = (parameters.norm_weight, parameters.norm_bias)
    if (norm[0] is None) != (norm[1] is None):
        raise BadParameters("norm_weight and norm_bias go together", remedy="send both")
    own = {"norm": None if norm[0] is None else norm}
    return TableCall(buckets.tabulate_deberta, arguments(parameters, *names, "weights", "norm_eps") | own)


def _mask(parameters: MaskParameters) -> TableCall:
    names = ("query_length", "key_length", "past", "causal", "window", "chunk", "attention_mask")
    return TableCall(masks.tabulate, arguments(parameters, *names, "position_ids", "form", "fill", "dtype"))


_PATCHES = {"grid": "4x4", "dim": 64}
_MROPE = {"positions": "0,1,2;0,0,1;0,1,0", "head_dim": 128, "sections": [16, 24, 24]}
_LEARNED = {"weights": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "length": 3}
_DEBERTA = {"query_length": 8, "max_position_embeddings": 512}
_ROWS: tuple[Scheme[Any], ...] = (
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
SCHEMES: dict[str, Scheme[Any]] = {row.name: row for row in _ROWS}

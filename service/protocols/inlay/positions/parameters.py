"""The parameters of every scheme; one class serves the query string, JSON body, gRPC struct and OpenAPI schema.

Those of RoPE scalings come from `models.positions.rope.scaling_parameters.PARAMETERS`: a new scaling changes nothing
here.
"""

from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model
from pydantic.json_schema import JsonSchemaValue

from models.positions import alibi, learned, masks, sinusoidal
from models.positions.rope import choice as rope_choice
from models.positions.rope import multi_axis
from models.positions.rope.axial import AXIAL
from models.positions.rope.frequencies import MAX_ROTARY_DIM
from models.positions.rope.rotation import LAYOUTS, WIDTHS
from models.positions.rope.scaling_parameters import PARAMETERS as SCALING_PARAMETERS
from models.positions.rope.scalings import SCALINGS
from models.positions.sinusoidal import MAX_DIM
from models.positions.table import MAX_POSITION, MAX_WIDTH
from service.http.parameter_types import (
    MAX_LISTED,
    MAX_ROWS,
    SCALING_VALUES,
    Grid,
    IntegerRows,
    JsonObject,
    ModelTableOptions,
    Parameters,
    PositionList,
    TableOptions,
    Tensor,
    Triple,
    described,
    number,
    one_of,
    switch,
    text,
    value_of_text,
    whole,
)

MAX_LAYER = 100_000


# ---- parameters that several schemes share


class PositionRange(Parameters):
    """Consecutive positions, or a list of them."""

    start: int = whole(0, MAX_POSITION - 1, "the first position", 0)
    length: int | None = whole(1, MAX_ROWS, "how many positions", None)
    positions: PositionList | None = described(
        "positions with commas between, a-b for a range of them, both ends included, such as "
        f"0,5,100-110; or a list of integers; {MAX_LISTED} at most; instead of start and length",
        None,
    )


class Lengths(Parameters):
    """The numbers of queries and keys of an attention."""

    query_length: int = whole(1, MAX_ROWS, "queries, that is rows")
    key_length: int | None = whole(1, MAX_WIDTH, "keys, that is columns; left out: as many as there must be", None)


class Past(Lengths):
    """The lengths of an attention, and the keys of earlier calls."""

    past: int = whole(0, MAX_POSITION - 1, "keys before the first query", 0)


class Padding(Past):
    """The lengths of an attention, and the padding of a batch."""

    attention_mask: IntegerRows | None = described(
        "1 for a token, 0 for padding, a list a sequence, such as 1,1,0;1,0,0", None
    )


class MaskForm(Padding):
    """The lengths of a mask, packed sequences, and the mask's form."""

    position_ids: IntegerRows | None = described(
        "packed sequences, such as 0,1,0,1,2: a new one begins where these do not rise by 1", None
    )
    form: str = one_of(masks.FORMS, "additive: 0 where a query may look. boolean: true where it may", "additive")
    fill: str = one_of(masks.FILLS, "of an additive mask: the lowest number of its dtype, or -inf", "min")


class Patches(Parameters):
    """The patches of an image."""

    grid: Grid | None = described("patches down x across, such as 14x14", None)
    positions: IntegerRows | None = described("instead of a grid: row and column of each patch, such as 0,0;0,1", None)


class BeyondTable(Parameters):
    """How to treat positions after the last row of a learned table."""

    beyond: str = one_of(learned.BEYOND, "past the last row: refuse, repeat it, or stretch the table", "error")
    stretch_to: int | None = whole(1, MAX_ROWS, "rows of the stretched table; left out: as many as needed", None)


class TableWidth(Parameters):
    """The width of a rotary table."""

    table: str = one_of(WIDTHS, "single: a value a pair of channels. duplicated: a value a channel", "single")


class LayerType(Parameters):
    """The kind of a layer."""

    layer_type: str | None = text("where layers rotate differently: full_attention, sliding_attention, ...", None)


class Layer(LayerType):
    """A layer by its type or its number, and the sequence length that its rotation may depend on."""

    layer: int | None = whole(0, MAX_LAYER, "instead of layer_type: the number of a layer", None)
    seq_len: int | None = whole(1, MAX_POSITION, "tokens of the sequence, which dynamic and longrope scale by", None)


class LayerRange(Layer, PositionRange):
    """The positions that a layer rotates."""


class RopeSource(Layer):
    """A RoPE, given by its parameters, the name of a preset, or a config.json."""

    rope_type: str | None = one_of(SCALINGS, "how the frequencies are scaled; left out: default", None)
    theta: float | None = number(
        f"the base of the frequencies, above 1; left out: {rope_choice.THETA:g}", None, above=1
    )
    head_dim: int | None = whole(2, MAX_ROTARY_DIM, "channels of a head", None)
    rotary_dim: int | None = whole(
        2,
        MAX_ROTARY_DIM,
        "channels of it that rotate, an even number; left out: head_dim times the partial factor",
        None,
        multiple_of=2,
    )
    max_position_embeddings: int | None = whole(1, MAX_POSITION, "positions the model was trained for", None)
    partial_rotary_factor: float | None = number(
        "share of head_dim that rotates, above 0, at most 1", None, above=0, maximum=1
    )
    preset: str | None = text("a name of GET /positions/presets, instead of parameters", None)
    config: JsonObject | None = described("a config.json or its rope part, a JSON object", None)
    model_type: str | None = text("whose conventions a config follows that does not say", None)

    @property
    def scaling_parameters(self) -> dict[str, Any]:
        """The parameters of scalings that were sent."""
        sent = {name: getattr(self, name, None) for name in SCALING_PARAMETERS if name not in RopeSource.model_fields}
        return {name: value for name, value in sent.items() if value is not None}


Source = TypeVar("Source", bound=RopeSource)


def with_scalings(parameters: type[Source]) -> type[Source]:
    """Return the parameters with those of every RoPE scaling, named as in config.json."""
    fields: dict[str, Any] = {
        name: (_scaling_type(name), Field(None, description=_scaling_description(name)))
        for name in SCALING_PARAMETERS
        if name not in parameters.model_fields
    }
    return create_model(parameters.__name__, __base__=parameters, __doc__=parameters.__doc__, **fields)


def _scaling_description(name: str) -> str:
    row = SCALING_PARAMETERS[name]
    types = [
        rope_type + (" (required)" if name in scaling.required else "")
        for rope_type, scaling in SCALINGS.items()
        if name in (*scaling.required, *scaling.optional)
    ]
    return f"a {row.kind.replace('numbers', 'list of numbers')} ({row.description}); of {', '.join(types)}"


def _scaling_type(name: str) -> Any:
    """Return the type of a parameter of scalings, which a query string may hold as text."""
    row = SCALING_PARAMETERS[name]
    least, above, most = row.bounds
    bounds = {"minimum": least, "exclusiveMinimum": above, "maximum": most}
    schema: JsonSchemaValue = {"type": "number"} | {name: bound for name, bound in bounds.items() if bound is not None}
    if row.kind != "number":
        schema = {"type": "boolean"} if row.kind == "boolean" else {"type": "array", "items": schema}
    nullable = WithJsonSchema({"anyOf": [schema, {"type": "null"}]})
    return Annotated[SCALING_VALUES[row.kind] | None, BeforeValidator(partial(value_of_text, row.kind)), nullable]


SIZES = ("theta", "head_dim", "rotary_dim", "max_position_embeddings", "rope_type", "partial_rotary_factor")
"""Fields of RopeSource that make up a rope, besides the parameters of scalings."""
SOURCES = ("preset", "config", "model_type", "layer_type", "layer")
"""Fields of RopeSource that choose a rope from elsewhere."""


class RotaryLayout(Parameters):
    """How the channels of a head are paired."""

    layout: str | None = one_of(LAYOUTS, "how channels pair; left out: as the config says, else half", None)


# ---- one class a scheme


@with_scalings
class RopeParameters(TableOptions, TableWidth, RotaryLayout, PositionRange, RopeSource):
    """A RoPE and the rows of its table to return."""


@with_scalings
class MropeParameters(TableOptions, TableWidth, RopeSource):
    """An M-RoPE and the positions on its three axes."""

    positions: IntegerRows = described("three lists of one length: time, height, width, such as 0,1,2;0,0,1;0,1,0")
    sections: Triple | None = described(
        "three integers that sum to rotary_dim/2, such as 16,24,24; left out: as the config says, else the axes", None
    )
    axes: str | None = one_of(
        multi_axis.AXES, "which axis has which frequency; left out: as the config says, else chunked", None
    )


class AxialParameters(TableOptions, TableWidth, Patches):
    """The rotary encoding of a vision tower and the patches of an image."""

    kind: str = one_of(AXIAL, "whose vision tower")
    head_dim: int = whole(4, MAX_DIM, "channels of a head, a multiple of 4", multiple_of=4)
    theta: float | None = number("the base of the frequencies, above 1; left out: the tower's own", None, above=1)
    merge: int | None = whole(1, 64, "patches come in blocks of merge x merge; left out: as the tower reads them", None)


class SinusoidalParameters(TableOptions, PositionRange):
    """A sinusoidal encoding and the rows to return."""

    kind: str = one_of(sinusoidal.SINUSOIDS, "where sines and cosines stand", "vaswani")
    dim: int = whole(1, MAX_DIM, "channels")
    theta: float = number("the base of the frequencies, above 1", sinusoidal.THETA, above=1)
    offset: int = whole(-(2**31), 2**31, "added to every position, such as 2 in M2M100", 0)
    zero_row: int | None = whole(0, MAX_POSITION - 1, "a position whose row is all zero: padding_idx", None)


class SinusoidalGridParameters(TableOptions):
    """A sinusoidal encoding in two dimensions: its channels and patches."""

    dim: int = whole(4, MAX_DIM, "channels, a multiple of 4", multiple_of=4)
    grid: Grid = described("patches down x across, such as 14x14")
    order: str = one_of(sinusoidal.ORDERS, "hw: the first half for the row. wh: swapped, as ViT-MAE", "hw")
    cls_rows: int = whole(0, 1024, "rows of zeros before the patches", 0)
    theta: float = number("the base of the frequencies, above 1", sinusoidal.THETA, above=1)


class LearnedParameters(TableOptions, BeyondTable, PositionRange):
    """A learned table and the rows to return."""

    weights: Tensor = described("the table [rows, dim]")


class AlibiParameters(TableOptions, Padding):
    """The heads, form and lengths of an ALiBi bias."""

    heads: int = whole(1, MAX_WIDTH, "attention heads")
    form: str = one_of(alibi.FORMS, "what the slopes are multiplied with", "symmetric")
    max_bias: float = number("alibi_bias_max, above 0", alibi.MAX_BIAS, above=0)


class T5Parameters(TableOptions, Past):
    """The lengths and buckets of T5's relative positions."""

    bidirectional: bool = switch("true in encoders, false in decoders", True)
    num_buckets: int = whole(2, MAX_WIDTH, "relative_attention_num_buckets", 32)
    max_distance: int = whole(1, MAX_POSITION, "relative_attention_max_distance", 128)
    weights: Tensor | None = described(
        "relative_attention_bias.weight [num_buckets, heads]; with it comes the bias", None
    )


class DebertaParameters(TableOptions, Lengths):
    """The lengths and buckets of DeBERTa-v2's relative positions."""

    position_buckets: int = whole(-1, MAX_WIDTH, "below 1: no buckets", 256)
    max_relative_positions: int = whole(-1, MAX_POSITION, "below 1: max_position_embeddings", -1)
    max_position_embeddings: int | None = whole(1, MAX_POSITION, "where max_relative_positions is below 1", None)
    weights: Tensor | None = described("rel_embeddings.weight [2 span, dim]", None)
    norm_weight: Tensor | None = described("encoder.LayerNorm.weight [dim], where norm_rel_ebd says layer_norm", None)
    norm_bias: Tensor | None = described("encoder.LayerNorm.bias [dim]", None)
    norm_eps: float = number("layer_norm_eps, 0 or more", 1e-7, minimum=0)


class MaskParameters(TableOptions, MaskForm):
    """The lengths and the form of an attention mask, and which keys a query attends to."""

    causal: bool = switch("a query sees itself and what comes before", True)
    window: int | None = whole(
        0, MAX_POSITION, "causal: tokens it sees, its own counted. Otherwise: to either side", None
    )
    chunk: int | None = whole(1, MAX_POSITION, "tokens of a chunk that sees itself alone", None)


def _of_model(name: str, *parts: type[Parameters]) -> type[ModelTableOptions]:
    """Return the parameters of a model's encoding: those of `parts`, since its card decides the others."""
    bases: Any = (ModelTableOptions, *parts)
    about = "What to return of a model's encoding; its card has the other parameters."
    made: type[ModelTableOptions] = create_model(name, __base__=bases, __doc__=about)
    return made


ModelRopeParameters = _of_model("ModelRopeParameters", TableWidth, LayerRange)
ModelAlibiParameters = _of_model("ModelAlibiParameters", Padding)
ModelT5Parameters = _of_model("ModelT5Parameters", Past)
ModelDebertaParameters = _of_model("ModelDebertaParameters", Lengths)
ModelMaskParameters = _of_model("ModelMaskParameters", LayerType, MaskForm)
ModelLearnedParameters = _of_model("ModelLearnedParameters", BeyondTable, PositionRange)
ModelSinusoidalParameters = _of_model("ModelSinusoidalParameters", PositionRange)
ModelAxialParameters = _of_model("ModelAxialParameters", TableWidth, Patches)

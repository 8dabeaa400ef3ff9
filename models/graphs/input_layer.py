"""Emits the input layer of a recipe as ONNX graphs over packed rows; encoder.py emits the blocks.

    embedding       ids[N], positions[N], types[N or 1]  ->  input_embeddings [N, d]
    components      ids[N], positions[N], types[N]       ->  the looked-up rows of each table [N, width of the table]
    ..._typed       the same with types, where they are added only when sent
    per_layer       ids[N]                               ->  per_layer_embeddings [N, layers * d_pl]

A graph has only the inputs it uses. One type stands for all rows: its row is added to each, which takes a fifth less
time than a type for each (128 rows of MiniLM).
"""

from typing import Any

import numpy as np

from models.graphs.adapters import adapted_rows
from models.graphs.builder import GraphBuilder
from models.graphs.positions import sinusoidal
from models.graphs.row_steps import emit_row_step
from models.recipes.extra_inputs import ATTENDED, IMAGE_ROWS, MASKED, PLACES, SENT, TASKS, WIDTHS
from models.recipes.graph_names import ONE_TYPE
from models.recipes.steps import (
    KEPT_IN_TRAINING,
    AddIndexed,
    AddPosition,
    AddSinusoid,
    AddType,
    Embed,
    MaskRows,
    Recipe,
    Round,
    Scale,
    TokenDropout,
    has_adapters,
)

INPUTS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "ids": ("INT64", ("tokens",)),
    "positions": ("INT64", ("tokens",)),
    "types": ("INT64", ("tokens",)),
    "mask": ("BOOL", ("tokens",)),
    "segments": ("INT64", ("tokens",)),
    "lengths": ("INT64", ("sequences",)),
}
INPUTS |= {name: ("INT64", ("tokens", WIDTHS[name]) if name in WIDTHS else ("tokens",)) for name in (*SENT, PLACES)}
INPUTS[IMAGE_ROWS] = ("FLOAT", ("image_tokens", "columns"))
INPUTS |= {name: ("INT64", ("tokens",)) for name in (MASKED, ATTENDED, TASKS)}
_READS = {Embed: "ids", AddPosition: "positions", AddSinusoid: "positions", AddType: "types", MaskRows: "mask"}
_COMPONENTS = {
    Embed: "token_embeddings",
    AddType: "token_type_embeddings",
    AddPosition: "position_embeddings",
    AddSinusoid: "position_embeddings",
}


def inputs_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the graph inputs that the steps of an input layer read."""
    used = {_READS[type(step)] for step in recipe if type(step) in _READS}
    used |= {step.index for step in recipe if isinstance(step, AddIndexed)}
    if any(isinstance(step, TokenDropout) for step in recipe):
        used |= {MASKED, ATTENDED}
    if has_adapters(recipe):
        used.add(TASKS)
    return tuple(name for name in INPUTS if name in used)


def packed_output(value: str, width: int) -> tuple[str, str, tuple[str, int]]:
    """Return a graph output of float32 rows, one a token."""
    return value, "FLOAT", ("tokens", width)


def embedding(builder: GraphBuilder, recipe: Recipe, width: int) -> Any:
    """Return the ModelProto of the whole input layer."""
    rows = emit_input_layer(builder, recipe)
    inputs = {name: INPUTS[name] for name in inputs_of(recipe)}
    if "types" in inputs:
        inputs["types"] = ("INT64", (ONE_TYPE,))
    return builder.model("embedding", inputs, {"input_embeddings": packed_output(rows, width)})


def components(builder: GraphBuilder, recipe: Recipe) -> Any:
    """Return the ModelProto of the rows each table gives, before they are added.

    Rows are scaled where a Scale follows them; where the Scale is `outside`, the rows before it are an output too.
    """
    values: dict[str, str] = {}
    widths: dict[str, int] = {}
    unscaled: dict[str, str] = {}
    for step in components_of(recipe):
        match step:
            case Embed() | AddType() | AddPosition():
                name = _COMPONENTS[type(step)]
                values[name], widths[name] = _looked_up(builder, step), builder.shape_of(step.table)[1]
            case AddSinusoid(kind, dim, zero_row):
                name = _COMPONENTS[type(step)]
                values[name] = sinusoidal.rows(builder, kind, dim, "positions", zero_row)
                widths[name] = dim
            case Scale() | Round():
                if isinstance(step, Scale) and step.outside:
                    unscaled["unscaled_embeddings"] = values["token_embeddings"]
                    widths["unscaled_embeddings"] = widths["token_embeddings"]
                values = {name: emit_row_step(builder, step, value) for name, value in values.items()}
    outputs = {name: packed_output(value, widths[name]) for name, value in (values | unscaled).items()}
    inputs = inputs_of(components_of(recipe))
    return builder.model("components", {name: INPUTS[name] for name in inputs}, outputs)


def per_layer(builder: GraphBuilder, recipe: Recipe) -> Any:
    """Return the ModelProto of the embeddings each layer has of its own; an id beyond their table reads row 0."""
    rows, width = next(builder.shape_of(step.table) for step in recipe if isinstance(step, Embed))
    inside = builder.op("Less", "ids", builder.scalar(rows, np.int64))
    index = builder.op("Where", inside, "ids", builder.scalar(0, np.int64))
    value = ""
    for step in recipe:
        value = builder.rows(step.table, index) if isinstance(step, Embed) else emit_row_step(builder, step, value)
    return builder.model("per_layer", {"ids": INPUTS["ids"]}, {"per_layer_embeddings": packed_output(value, width)})


def components_of(recipe: Recipe) -> Recipe:
    """Return the steps that `components` reads: lookups and what scales them."""
    return tuple(step for step in recipe if type(step) in _COMPONENTS or isinstance(step, Scale | Round))


def emit_input_layer(builder: GraphBuilder, recipe: Recipe, ids: str = "ids") -> str:
    """Emit the input layer's steps and return the name of the rows after the last."""
    x = ""
    for step in recipe:
        match step:
            case Embed():
                x = _looked_up(builder, step, ids)
            case AddType() | AddPosition():
                x = builder.op("Add", x, _looked_up(builder, step))
            case AddSinusoid(kind, dim, zero_row):
                x = builder.op("Add", x, sinusoidal.rows(builder, kind, dim, "positions", zero_row))
            case AddIndexed():
                x = builder.op("Add", x, _indexed(builder, step))
            case TokenDropout(mask_id):
                x = builder.op("Mul", x, _token_dropout_factor(builder, mask_id))
            case MaskRows():
                x = mask_rows(builder, x)
            case _:
                x = emit_row_step(builder, step, x)
    return x


def mask_rows(builder: GraphBuilder, x: str) -> str:
    """Emit rows that are 0 where the input mask is False."""
    return builder.op("Mul", x, _column(builder, builder.cast("mask", "FLOAT")))


def _looked_up(builder: GraphBuilder, step: Embed | AddType | AddPosition, index: str = "") -> str:
    index = index or _READS[type(step)]
    rows = builder.rows(step.table, index)
    if isinstance(step, AddPosition) or step.adapter is None:
        return rows
    return adapted_rows(builder, step.adapter, rows, index, builder.shape_of(step.table)[0])


def _column(builder: GraphBuilder, value: str) -> str:
    return builder.op("Unsqueeze", value, builder.ints(1))


def _indexed(builder: GraphBuilder, step: AddIndexed) -> str:
    """Emit rows of a table by an extra input, zero where it is -1."""
    index = step.index
    if step.columns:
        selected = [builder.op("Gather", step.index, builder.ints(column), axis=1) for column in step.columns]  # (N, 1)
        index = builder.op("Sub", *selected) if len(selected) == 2 else selected[0]
        index = builder.op("Squeeze", index, builder.ints(1))
    zero = builder.scalar(0, np.int64)
    has_index = _column(builder, builder.op("GreaterOrEqual", index, zero))
    return builder.op("Where", has_index, builder.rows(step.table, builder.op("Max", index, zero)), builder.scalar(0.0))


def _token_dropout_factor(builder: GraphBuilder, mask_id: int) -> str:
    """Emit 0.88 / (1 - masked/attended), or 0 where the token is <mask>: [N, 1]."""
    left = builder.op("Sub", ATTENDED, MASKED)
    none_left = builder.op("Equal", left, builder.scalar(0, np.int64))
    left = builder.op("Where", none_left, builder.scalar(1, np.int64), left)
    share = builder.op("Div", builder.cast(ATTENDED, "FLOAT"), builder.cast(left, "FLOAT"))
    share = builder.op("Mul", share, builder.scalar(KEPT_IN_TRAINING))
    masked = builder.op("Equal", "ids", builder.scalar(mask_id, np.int64))
    return _column(builder, builder.op("Where", masked, builder.scalar(0.0), share))

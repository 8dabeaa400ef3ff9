"""A recipe as ONNX graphs over packed rows. Writes no file and runs nothing; encoder_graph.py emits the blocks.

    embedding       ids[N], positions[N], types[N]  ->  input_embeddings [N, d]
    components      the same                        ->  the looked-up rows of each table [N, d]
    ..._typed       the same with types, where they are added only when sent

A graph has only the inputs it uses.
"""

from typing import Any

import numpy as np

from models.onnx_graph import GraphBuilder
from models.position_graphs import sinusoidal
from models.recipe import AddPosition, AddSinusoid, AddType, Embed, LayerNorm, MaskRows, Recipe, RMSNorm, Scale, Step

INPUTS = {
    "ids": ("INT64", ("tokens",)),
    "positions": ("INT64", ("tokens",)),
    "types": ("INT64", ("tokens",)),
    "mask": ("BOOL", ("tokens",)),
    "lengths": ("INT64", ("sequences",)),
}
_READS = {Embed: "ids", AddPosition: "positions", AddSinusoid: "positions", AddType: "types", MaskRows: "mask"}
_COMPONENTS = {
    AddType: "token_type_embeddings",
    AddPosition: "position_embeddings",
    AddSinusoid: "position_embeddings",
}


def untyped(recipe: Recipe) -> Recipe:
    """The recipe without its type step, for rows whose caller sent no types."""
    return tuple(step for step in recipe if not isinstance(step, AddType))


def inputs_of(recipe: Recipe) -> tuple[str, ...]:
    """The graph inputs that the steps of an input layer read."""
    used = {_READS[type(step)] for step in recipe if type(step) in _READS}
    return tuple(name for name in INPUTS if name in used)


def packed(value: str, width: int) -> tuple[str, str, tuple[str, int]]:
    """A graph output of float32 rows, one a token."""
    return value, "FLOAT", ("tokens", width)


def embedding(builder: GraphBuilder, recipe: Recipe, width: int) -> Any:
    """The whole input layer: rows after the last step, as a ModelProto."""
    rows = input_rows(builder, recipe)
    return builder.model(
        "embedding", {name: INPUTS[name] for name in inputs_of(recipe)}, {"input_embeddings": packed(rows, width)}
    )


def components(builder: GraphBuilder, recipe: Recipe, width: int) -> Any:
    """The rows each table gives, before they are added; token rows after their Scale."""
    values: dict[str, str] = {}
    for step in recipe:
        match step:
            case Embed(table):
                values["token_embeddings"] = builder.rows(table, "ids")
            case Scale() if list(values) == ["token_embeddings"]:
                values["token_embeddings"] = row_step(builder, step, values["token_embeddings"])
            case AddType(table) | AddPosition(table):
                values[_COMPONENTS[type(step)]] = builder.rows(table, _READS[type(step)])
            case AddSinusoid(kind, dim):
                values[_COMPONENTS[type(step)]] = sinusoidal.rows(builder, kind, dim, "positions")
    outputs = {name: packed(value, width) for name, value in values.items()}
    return builder.model("components", {name: INPUTS[name] for name in inputs_of(recipe)}, outputs)


def input_rows(builder: GraphBuilder, recipe: Recipe) -> str:
    """Emit the input layer's steps; the name of the rows they end with."""
    x = ""
    for step in recipe:
        match step:
            case Embed(table):
                x = builder.rows(table, "ids")
            case AddType(table) | AddPosition(table):
                x = builder.op("Add", x, builder.rows(table, _READS[type(step)]))
            case AddSinusoid(kind, dim):
                x = builder.op("Add", x, sinusoidal.rows(builder, kind, dim, "positions"))
            case MaskRows():
                kept = builder.op("Unsqueeze", builder.cast("mask", "FLOAT"), builder.constant(np.array([1])))
                x = builder.op("Mul", x, kept)
            case _:
                x = row_step(builder, step, x)
    return x


def row_step(builder: GraphBuilder, step: Step, x: str) -> str:
    """Emit a step that maps each row by itself; TypeError for any other."""
    match step:
        case Scale(factor):
            return builder.op("Mul", x, builder.scalar(factor))
        case LayerNorm(weight, bias, eps):
            parameters = [builder.weight(name) for name in (weight, bias) if name]
            return builder.op("LayerNormalization", x, *parameters, axis=-1, epsilon=eps)
        case RMSNorm(str(weight), eps):
            return builder.op("RMSNormalization", x, builder.weight(weight), axis=-1, epsilon=eps)
    raise TypeError(f"no ONNX form for the step {step}")

"""Emits a whole encoder as one packed ONNX graph over rows [N, d]; attention.py emits what mixes them.

Measured on one CPU core (ONNX Runtime 1.31, MiniLM, 8 to 256 tokens), this form is at the FLOP or memory limit: merging
query, key and value, transposing weights beforehand, and other Gelu forms are within 3 % of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from models.families.recipe import (
    Activation,
    Attention,
    FeedForward,
    Recipe,
)
from models.graphs.attention import attend, layout, padded_layout, score_bias
from models.graphs.builder import GraphBuilder
from models.graphs.input_layer import (
    INPUTS,
    emit_input_layer,
    emit_row_step,
    inputs_of,
    packed_output,
)
from models.graphs.projections import Float32, Projections, Recorded
from models.tables.int8_matrices import products


def encoder(
    builder: GraphBuilder, recipe: Recipe, blocks: Recipe, width: int, projections: Projections | None = None
) -> Any:
    """Return the ModelProto of the input layer and all blocks.

    Its inputs are those of the input layer, mask bool [N] and lengths int64 [B] (sum N, each at least 1). Its output is
    last_hidden_state float32 [N, d]. No row attends to a row whose mask is False, but it has an output. A sequence
    whose rows are all False attends to all of them, as if its mask were all True.

    Args:
        builder: of the graph.
        recipe, blocks: the steps of the input layer and of all blocks.
        width: d.
        projections: how products are computed; None: in float32. What `Recorded` notes becomes outputs.
    """
    projections = projections or Float32()
    x = emit_input_layer(builder, recipe)
    biases = dict.fromkeys(step.bias for step in blocks if isinstance(step, Attention) and step.bias)
    rows = padded_layout(builder) if biases else layout(builder)
    added = {bias: score_bias(builder, bias) for bias in biases}  # layers share one
    for step in blocks:
        match step:
            case Attention():
                first, last = products((step,))
                read = emit_row_step(builder, step.norm, x) if step.norm else x
                query, key, value = projections.emit(builder, first, read)
                bias = added[step.bias] if step.bias else None
                mixed = attend(builder, (query, key, value), rows, step.heads, width, bias)
                x = builder.op("Add", *projections.emit(builder, last, mixed), x)
            case FeedForward():
                first, last = products((step,))
                read = emit_row_step(builder, step.norm, x) if step.norm else x
                inner = activate(builder, projections.emit(builder, first, read)[0], step.activation)
                x = builder.op("Add", *projections.emit(builder, last, inner), x)
            case _:
                x = emit_row_step(builder, step, x)
    names = (*inputs_of(recipe), "mask", "lengths")
    outputs: dict[str, tuple[str, str, Sequence[str | int]]] = {"last_hidden_state": packed_output(x, width)}
    if isinstance(projections, Recorded):
        outputs |= {name: (value, "FLOAT", ("columns",)) for name, value in projections.largest.items()}
    return builder.model("encoder", {name: INPUTS[name] for name in names}, outputs)


def activate(builder: GraphBuilder, x: str, activation: Activation) -> str:
    """Add an activation of recipe.py."""
    forms: Mapping[Activation, tuple[str, dict[str, Any]]] = {
        "gelu": ("Gelu", {"approximate": "none"}),
        "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
        "relu": ("Relu", {}),
    }
    if activation == "silu":
        return builder.op("Mul", x, builder.op("Sigmoid", x))
    kind, attributes = forms[activation]
    return builder.op(kind, x, **attributes)

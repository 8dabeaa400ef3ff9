"""Counts the arithmetic operations of a recipe from its steps and the shapes of its tensors.

One multiply and one add count as two. Norms and activations count as a fixed number of operations a value, lookups as
none.
"""

from collections.abc import Mapping

from models.families.recipe import (
    AddIndexed,
    AddPosition,
    AddSinusoid,
    AddType,
    Attention,
    Embed,
    FeedForward,
    LayerNorm,
    Linear,
    MaskRows,
    Recipe,
    RMSNorm,
    Round,
    Scale,
    TokenDropout,
)

Shapes = Mapping[str, tuple[int, ...]]

_LAYER_NORM = 8  # mean 1, centre 1, square and sum 2, divide by the root 2, weight 1, bias 1
_RMS_NORM = 5
_ACTIVATION = 8


def flops_per_token(recipe: Recipe, shapes: Shapes, width: int) -> int:
    """Return the operations on one row, attention scores excluded.

    Args:
        shapes: of every tensor the recipe names.
        width: of the rows between blocks.
    """
    total, model_width = 0, width
    for step in recipe:
        match step:
            case Embed(table):
                width = shapes[table][1]
            case AddType() | AddPosition() | AddSinusoid() | AddIndexed() | MaskRows() | Scale() | Round():
                total += width
            case TokenDropout():
                total += width
            case Linear():
                total += _linear(step, shapes)
                width = model_width
            case LayerNorm():
                total += _LAYER_NORM * width
            case RMSNorm():
                total += _RMS_NORM * width
            case Attention(_, query, key, value, output, norm):
                total += sum(_linear(linear, shapes) for linear in (query, key, value, output)) + width
                total += _LAYER_NORM * width if norm else 0
            case FeedForward(up, down, norm=norm):
                total += _linear(up, shapes) + _linear(down, shapes) + _ACTIVATION * shapes[up.weight][0] + width
                total += _LAYER_NORM * width if norm else 0
    return total


def flops_per_token_and_key(recipe: Recipe, width: int) -> int:
    """Return the operations on one row for each row of its sequence: scores and weighted sum, in every Attention."""
    return sum(4 * width for step in recipe if isinstance(step, Attention))


def _linear(linear: Linear, shapes: Shapes) -> int:
    outputs, inputs = shapes[linear.weight]
    return 2 * outputs * inputs + (outputs if linear.bias else 0)

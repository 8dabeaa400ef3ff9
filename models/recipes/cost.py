"""Counts the arithmetic operations of a recipe from its steps and the shapes of its tensors.

One multiply and one add count as two. Norms and activations count as a fixed number of operations a value, lookups as
none.
"""

from collections.abc import Mapping

from models.recipes.steps import (
    AddIndexed,
    AddPosition,
    AddSinusoid,
    AddType,
    Attention,
    Collect,
    ConvolvedInput,
    Decode,
    Embed,
    Experts,
    FeedForward,
    HeadNorms,
    LatentAttention,
    LayerNorm,
    Linear,
    MaskRows,
    Multiply,
    Norm,
    Parallel,
    PerLayerInput,
    Recipe,
    RMSNorm,
    Round,
    Scale,
    ShortConvolution,
    TokenDropout,
    layers,
)

Shapes = Mapping[str, tuple[int, ...]]

_LAYER_NORM = 8  # mean 1, centre 1, square and sum 2, divide by the root 2, weight 1, bias 1
_RMS_NORM = 5
_ACTIVATION = 8


def flops_per_token(recipe: Recipe, shapes: Shapes, width: int) -> int:
    """Return the operations on one row, attention scores excluded.

    Args:
        shapes: shape of every tensor that the recipe names.
        width: width of the rows between blocks.
    """
    total, model_width = 0, width
    for step in recipe:
        match step:
            case Embed(table):
                width = shapes[table][1]
            case AddType() | AddPosition() | AddSinusoid() | AddIndexed() | MaskRows() | Scale() | Round() | Multiply():
                total += width
            case Collect():
                total += 2 * width
            case TokenDropout():
                total += width
            case Linear():
                total += _linear(step, shapes)
                width = model_width
            case LayerNorm():
                total += _LAYER_NORM * width
            case RMSNorm():
                total += _RMS_NORM * width
            case Attention() | FeedForward() | Experts():
                total += _layer(step, shapes, width)
            case ShortConvolution():
                total += _norm(step.norm, width) + _linear(step.input, shapes) + _linear(step.output, shapes)
                total += 2 * width * (step.convolution.size + 1) + width
            case ConvolvedInput(convolution):
                total += 2 * width * width * convolution.size + (_ACTIVATION + 2) * width
            case Decode(steps):
                total += flops_per_token(steps, shapes, width)
            case LatentAttention():
                total += width + _norm(step.norm, width) + _linear(step.query, shapes) + _linear(step.output, shapes)
                total += 4 * step.count * step.heads * step.head_width
            case PerLayerInput():
                total += sum(_linear(linear, shapes) for linear in (step.gate, step.source, step.output)) + width
                total += _norm(step.norm, step.width) + _norm(step.closing, width) + (_ACTIVATION + 2) * step.width
            case Parallel(attention, feed_forward):
                total += _layer(attention, shapes, width) + _layer(feed_forward, shapes, width)
    return total


def _layer(step: Attention | FeedForward | Experts, shapes: Shapes, width: int) -> int:
    total = width + sum(_norm(norm, width) for norm in (step.norm, step.closing))
    if isinstance(step, Attention):
        norms = ((step.query_norm, step.query), (step.key_norm, step.key), (step.value_norm, step.value))
        total += sum(_norm(norm, shapes[linear.weight][0]) for norm, linear in norms) + _norm(step.sum_norm, width)
        total += _norm(step.mixed_norm, width)
        return total + sum(_linear(linear, shapes) for linear in (step.query, step.key, step.value, step.output))
    if isinstance(step, Experts):
        chosen = [*step.experts[: step.chosen], *([step.shared] if step.shared else [])]
        linears = [step.router, *([step.shared_gate] if step.shared_gate else [])]
        return (
            total
            + sum(_layer(expert, shapes, width) + width for expert in chosen)
            + sum(_linear(linear, shapes) for linear in linears)
        )
    inner = shapes[step.up.weight][0]
    total += _linear(step.gate, shapes) + inner if step.gate else 0
    total += _linear(step.up, shapes) + _linear(step.down, shapes) + _norm(step.inner_norm, inner)
    return total + _ACTIVATION * inner


def _norm(norm: Norm | Multiply | HeadNorms | None, width: int) -> int:
    if isinstance(norm, HeadNorms):
        return _LAYER_NORM * width
    if norm is None or isinstance(norm, Multiply):
        return 0 if norm is None else width
    return (_LAYER_NORM if isinstance(norm, LayerNorm) else _RMS_NORM) * width


def flops_per_token_and_key(recipe: Recipe, width: int) -> int:
    """Return the operations on one row for each row of its sequence: scores and weighted sum, in every Attention."""
    attending = [step for step in layers(recipe) if isinstance(step, Attention)]
    return sum(4 * (step.heads * step.head_width or width) for step in attending)


def _linear(linear: Linear, shapes: Shapes) -> int:
    outputs, inputs = shapes[linear.weight]
    product = 2 * outputs * inputs + (outputs if linear.bias else 0)
    return product + (2 * linear.adapter.tasks * linear.adapter.rank * (outputs + inputs) if linear.adapter else 0)

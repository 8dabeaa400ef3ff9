"""The shapes that a config's sizes give the tensors of a recipe."""

from models.families import Family
from models.families.config import Config
from models.families.positional_encodings import Encodings
from models.families.recipe import (
    AddIndexed,
    AddPosition,
    AddType,
    Attention,
    Embed,
    FeedForward,
    LayerNorm,
    Linear,
    Recipe,
    RMSNorm,
    Step,
)

Shape = tuple[int, ...]


def expected_shapes(recipe: Recipe, config: Config, family: Family | None = None) -> dict[str, Shape]:
    """Return the shape of every tensor that a filled recipe names.

    Args:
        recipe: with the config's values filled in.
        config: the sizes.
        family: how many more rows the position table has, and which config keys size the tables of extra inputs.
    """
    shapes: dict[str, Shape] = {}
    width = config.table_width() if any(isinstance(step, Embed) for step in recipe) else config.count("hidden_size")
    for step in recipe:
        if isinstance(step, Linear):
            shapes |= _linear(step, config.count("hidden_size"), width)
            width = config.count("hidden_size")
        else:
            shapes |= _shapes(step, config, family, width, shapes)
    return shapes


def per_layer_shapes(recipe: Recipe, config: Config) -> dict[str, Shape]:
    """Return the shape of the table that gives each layer its own embedding of a token."""
    if not recipe:
        return {}
    width = config.count("num_hidden_layers") * config.count("hidden_size_per_layer_input")
    return {
        step.table: (config.count("vocab_size_per_layer_input"), width) for step in recipe if isinstance(step, Embed)
    }


def _shapes(step: Step, config: Config, family: Family | None, width: int, known: dict[str, Shape]) -> dict[str, Shape]:
    match step:
        case Embed(table):
            return {table: (config.count("vocab_size"), width)}
        case AddType(table):
            return {table: known.get(table) or (config.count("type_vocab_size"), width)}
        case AddPosition(table):
            return {table: (config.count("max_position_embeddings") + (family.offset if family else 0), width)}
        case AddIndexed(table, index) if family:
            return {table: (config.count(family.extras[index].removeprefix("-")), width)}
        case LayerNorm(weight, bias):
            return {name: (width,) for name in (weight, bias) if name}
        case RMSNorm(weight):
            return {weight: (width,)} if weight else {}
        case Attention(_, query, key, value, output, norm, bias):
            linears = (query, key, value, output)
            shapes = {name: shape for linear in linears for name, shape in _linear(linear, width, width).items()}
            shapes |= {bias.table: (bias.buckets, config.count("num_attention_heads"))} if bias else {}
            return shapes | (_shapes(norm, config, family, width, known) if norm else {})
        case FeedForward(up, down, norm=norm):
            inner = config.count("intermediate_size")
            shapes = _linear(up, inner, width) | _linear(down, width, inner)
            return shapes | (_shapes(norm, config, family, width, known) if norm else {})
    return {}


def encoding_shapes(encodings: Encodings, config: Config) -> dict[str, Shape]:
    """Return the shape of every tensor that only the attention's encodings read."""
    if (buckets := encodings.buckets) is None or buckets.table is None:
        return {}
    if buckets.kind == "t5":
        return {buckets.table: (buckets.buckets, config.count("num_attention_heads"))}
    span = buckets.buckets if buckets.buckets > 0 else buckets.reach
    hidden = config.count("hidden_size")
    return {buckets.table: (2 * span, hidden)} | {name: (hidden,) for name in (buckets.norm or ())[:2]}


def _linear(linear: Linear, outputs: int, inputs: int) -> dict[str, Shape]:
    return {linear.weight: (outputs, inputs)} | ({linear.bias: (outputs,)} if linear.bias else {})

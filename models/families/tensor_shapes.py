"""The shapes of a recipe's tensors by the sizes of a config."""

from models.families.config import Config
from models.families.family import Family
from models.recipes.positional_encodings import Encodings
from models.recipes.steps import (
    Adapter,
    AddIndexed,
    AddPosition,
    AddType,
    Attention,
    Convolution,
    ConvolvedInput,
    Decode,
    Disentangled,
    Embed,
    Experts,
    FeedForward,
    HeadNorms,
    LatentAttention,
    LayerNorm,
    Linear,
    Multiply,
    Norm,
    Parallel,
    PerLayerInput,
    Recipe,
    RMSNorm,
    ScoreBias,
    ShortConvolution,
    Step,
)

Shape = tuple[int, ...]


def expected_shapes(recipe: Recipe, config: Config, family: Family | None = None) -> dict[str, Shape]:
    """Return the shape of every tensor that a filled recipe names.

    Args:
        recipe: recipe with the config's values filled in.
        config: the sizes.
        family: how many more rows the position table has, and which config keys size the tables of extra inputs.
    """
    shapes: dict[str, Shape] = {}
    width = config.table_width() if any(isinstance(step, Embed) for step in recipe) else config.count("hidden_size")
    for step in recipe:
        if isinstance(step, Linear):
            outputs = config.count(family.output_width if family and family.output_width else "hidden_size")
            shapes |= _linear(step, outputs, width)
            width = outputs
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
        case Embed(table, adapter):
            return _table(table, adapter, (config.count("vocab_size"), width))
        case AddType(table, adapter):
            return _table(table, adapter, known.get(table) or (config.count("type_vocab_size"), width))
        case AddPosition(table):
            return {table: (config.count("max_position_embeddings") + (family.offset if family else 0), width)}
        case AddIndexed(table, index) if family:
            return {table: (config.count(family.extras[index].removeprefix("-")), width)}
        case LayerNorm() | RMSNorm():
            return _norm(step, width)
        case Attention():
            return _attention(step, width)
        case FeedForward():
            return _feed_forward(step, step.inner or config.inner_width(), width)
        case Experts():
            return _experts(step, width)
        case ShortConvolution():
            shapes = _linear(step.input, 3 * width, width) | _linear(step.output, width, width)
            return shapes | _norm(step.norm, width) | _convolution(step.convolution, width)
        case ConvolvedInput(convolution):
            return _convolution(convolution, width)
        case Decode(steps):
            return expected_shapes(steps, config, family)
        case LatentAttention():
            inner = step.heads * step.head_width
            shapes = {step.latents: (step.count, width)} | _norm(step.norm, width) | _norm(step.latents_norm, width)
            for linear in (step.query, step.key, step.value):
                shapes |= _linear(linear, inner, width)
            return shapes | _linear(step.output, width, inner)
        case Multiply(weight):
            return {weight: (1,)}
        case PerLayerInput():
            shapes = _linear(step.gate, step.width, width) | _linear(step.source, step.width, width)
            shapes |= _linear(step.output, width, step.width)
            return shapes | _norm(step.norm, step.width) | _norm(step.closing, width)
        case Parallel(attention, feed_forward):
            return _attention(attention, width) | _feed_forward(feed_forward, config.inner_width(), width)
    return {}


def _convolution(step: Convolution, width: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {step.weight: (width, 1 if step.by_channel else width, step.size)}
    return shapes | ({step.bias: (width,)} if step.bias else {})


def _attention(step: Attention, width: int) -> dict[str, Shape]:
    head_width = step.head_width or width // step.heads
    queries, keys = step.heads * head_width, (step.key_heads or step.heads) * head_width
    shapes = _linear(step.query, queries, width) | _linear(step.output, width, queries)
    shapes |= _linear(step.key, keys, width) | _linear(step.value, keys, width)
    shapes |= _norm(step.norm, width) | _norm(step.closing, width) | _norm(step.sum_norm, width)
    shapes |= _norm(step.mixed_norm, queries)
    for norm, of_heads in ((step.query_norm, queries), (step.key_norm, keys), (step.value_norm, keys)):
        for own in norm.heads if isinstance(norm, HeadNorms) else (norm,):
            shapes |= _norm(own, head_width if step.norm_of == "head" else of_heads)
    match step.bias:
        case ScoreBias(table, buckets):
            shapes[table] = (buckets, step.heads)
        case Disentangled(relative, unprojected="q" | "qk"):
            shapes[relative] = (2 * step.bias.span - 1, head_width)
        case Disentangled(relative, norm, key, query):
            shapes |= {relative: (2 * step.bias.span, width)} | _norm(norm, width)
            for linear in (key, query):
                shapes |= _linear(linear, queries, width) if linear else {}
    return shapes


def _feed_forward(step: FeedForward, inner: int, width: int) -> dict[str, Shape]:
    shapes = _linear(step.up, inner, width) | _linear(step.down, width, inner)
    shapes |= _linear(step.gate, inner, width) if step.gate else {}
    return shapes | _norm(step.norm, width) | _norm(step.closing, width) | _norm(step.inner_norm, inner)


def _experts(step: Experts, width: int) -> dict[str, Shape]:
    shapes = _linear(step.router, len(step.experts), width) | _norm(step.norm, width) | _norm(step.closing, width)
    for expert in step.experts:
        shapes |= _feed_forward(expert, step.inner, width)
    shapes |= {step.bias: (width,)} if step.bias else {}
    shapes |= _feed_forward(step.shared, step.shared_inner, width) if step.shared else {}
    return shapes | (_linear(step.shared_gate, 1, width) if step.shared_gate else {})


def _norm(norm: Norm | Multiply | None, width: int) -> dict[str, Shape]:
    if norm is None:
        return {}
    names = (norm.weight, norm.bias) if isinstance(norm, LayerNorm) else (norm.weight,)
    return {name: (width,) for name in names if name}


def encoding_shapes(encodings: Encodings, config: Config) -> dict[str, Shape]:
    """Return the shape of every tensor that only the attention's encodings read."""
    if (buckets := encodings.buckets) is None or buckets.table is None:
        return {}
    if buckets.kind == "t5":
        return {buckets.table: (buckets.buckets, config.count("num_attention_heads"))}
    span = buckets.buckets if buckets.buckets > 0 else buckets.reach
    hidden = config.count("hidden_size")
    return {buckets.table: (2 * span, hidden)} | {name: (hidden,) for name in (buckets.norm or ())[:2]}


def _table(name: str, adapter: Adapter | None, shape: Shape) -> dict[str, Shape]:
    rows, width = shape
    if adapter is None:
        return {name: shape}
    columns = adapter.tasks * adapter.rank
    return {name: shape, adapter.lora_a: (adapter.tasks * rows, adapter.rank), adapter.lora_b: (width, columns)}


def _linear(linear: Linear, outputs: int, inputs: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {linear.weight: (outputs, inputs)} | ({linear.bias: (outputs,)} if linear.bias else {})
    if adapter := linear.adapter:
        columns = adapter.tasks * adapter.rank
        shapes |= {adapter.lora_a: (columns, inputs), adapter.lora_b: (outputs, columns)}
    return shapes

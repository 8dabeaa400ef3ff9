"""Fills in the values of blocks that a config sets: heads, widths, masks, rotations, biases, activations.

Tensor names stay those of the base class; fitting.py replaces them by the file's.
"""

import math
from dataclasses import replace
from typing import Any

from models.errors import BadCheckpoint
from models.families.attention_direction import causality_and_window
from models.families.classifier_fitting import is_classifier
from models.families.config import ACTIVATIONS, Config
from models.families.family import ExpertSpec, Family, read_config
from models.families.filling import fill_step, filled_norm, input_layer
from models.families.uncovered import uncovered
from models.positions.alibi import slopes
from models.positions.rope.frequencies import BY_LENGTH
from models.recipes.positional_encodings import EVERY_LAYER, Encodings, Mask
from models.recipes.steps import (
    Attention,
    Collect,
    ConvolvedInput,
    Decode,
    Disentangled,
    DistanceBias,
    Experts,
    FeedForward,
    HeadNorms,
    Linear,
    Multiply,
    Parallel,
    PerLayerInput,
    Recipe,
    ScoreBias,
    ShortConvolution,
    Step,
    renamed,
)

_LAYOUTS = ("half", "interleaved", "half_negative")
_NORMS = ("norm", "closing", "sum_norm", "query_norm", "key_norm", "value_norm", "mixed_norm")  # of an attention step
_LINEARS = ("query", "key", "value", "output")
_UNCERTAIN = {"ntk": "is computed in several ways under one name"}  # rope types that are not computed in blocks


def uncomputed(model_type: str, family: Family, config: Config, encodings: Encodings) -> str | None:
    """Return why the blocks of a model with these encodings cannot be computed; None if they can."""
    if reason := uncovered(model_type, family):
        return reason
    if reason := of_another_form(family, config):
        return reason
    if not family.narrow_blocks and config.table_width() != config.count("hidden_size"):
        return "its tables are narrower than its blocks"
    if "rope" in encodings.refused:
        return encodings.refused["rope"]
    for table in encodings.ropes.values():
        if table.layout not in _LAYOUTS or table.softmax_scale != 1.0:
            return f"its attention rotates in a way that is not computed: layout {table.layout}"
        if "short_mscale" in dict(table.rope.parameters):  # of phimoe alone
            return "its RoPE has a factor for short texts and one for long ones (short_mscale, long_mscale)"
        if table.axes and table.rope.rope_type in BY_LENGTH:
            return f"its RoPE ({table.rope.rope_type}) goes by the length of a text, and by rows and columns of images"
        if reason := _UNCERTAIN.get(table.rope.rope_type):
            return f"its RoPE ({table.rope.rope_type}) {reason}"
    return None


def of_another_form(family: Family, config: Config) -> str | None:
    """Return which value of a config makes the blocks others than the family's; None if none does."""
    for key, value in family.block_if.items():
        if (given := config.inside(key)) not in (None, value):
            return f"its blocks are computed where {key} is {value!r}; config.json says {given!r}"
    return None


def block_steps(family: Family, config: Config, encodings: Encodings) -> Recipe:
    """Return the steps of all blocks and those after the last."""
    count = config.count("num_hidden_layers", least=0)
    masks = _masks(family, config, encodings, count)
    configs = [_of_layer(family, config, encodings, block) for block in range(count)]
    blocks = [
        _filled(step, family, config_of_layer, encodings, masks[block], block)
        for block, config_of_layer in enumerate(configs)
        for step in (family.block_of(config, block) if family.block_of else family.block)
    ]
    ends = tuple(fill_step(step, family, config) for step in family.after_blocks)
    return (*blocks, *ends, *_decoder_steps(family, config, encodings))


def _decoder_steps(family: Family, config: Config, encodings: Encodings) -> Recipe:
    """Return the steps of the decoder behind an encoder whose config names a class that classifies by both (BART)."""
    if family.decoder is None or not family.decoder.block or not is_classifier(config.data):
        return ()
    own = read_config(family.decoder, config.data)
    first = Decode(input_layer(family.decoder, own), own.count("decoder_start_token_id", least=0))  # type: ignore[arg-type]
    return first, *block_steps(family.decoder, own, encodings)


def with_layer_mean(family: Family, blocks: Recipe, first: int, shares: tuple[float, ...]) -> Recipe:
    """Return the steps of all blocks, changed to return the weighted mean of several layers' rows.

    Args:
        family: family of the blocks.
        blocks: the steps of all blocks, and of what is behind the last.
        first: the first layer; 0 is what the first block reads.
        shares: of the layers from `first` to the last, whose rows are those behind all steps.

    Raises:
        BadCheckpoint: there are not as many layers, or the last one's rows are others in transformers or wider.
    """
    if family.text_vector:
        raise BadCheckpoint("WeightedLayerPooling is not computed of a text tower: its last layer is without its norm")
    if family.output_width:
        raise BadCheckpoint("WeightedLayerPooling is not computed of a model that projects its last layer's rows")
    ends = [*range(0, len(blocks) - len(family.after_blocks), len(family.block)), len(blocks)]
    if len(ends[first:]) != len(shares):
        raise BadCheckpoint(
            f"the files weigh {len(shares)} layers from layer {first} on (layer_weights of WeightedLayerPooling); the "
            f"model has {len(ends) - 1}, and layer 0 is its input"
        )
    share_at = dict(zip(ends[first:], shares, strict=True))
    steps: list[Step] = []
    for place in range(len(blocks) + 1):
        steps += [Collect(share_at[place], place == len(blocks))] if place in share_at else []
        steps += blocks[place : place + 1]
    return tuple(steps)


def _of_layer(family: Family, config: Config, encodings: Encodings, block: int) -> Config:
    """Return the config as a layer reads it."""
    if family.layer_keys is None:
        return config
    layer_values = family.layer_keys(config, block, encodings.layers[block] if encodings.layers else None)
    return replace(config, data={**config.data, **layer_values})


def _masks(family: Family, config: Config, encodings: Encodings, count: int) -> list[Mask]:
    """Return what each layer attends to."""
    causal, window = causality_and_window(family, config)
    listed = config.get("layer_types")
    if not listed and family.layer_types:
        listed = family.layer_types(config, count)
    if not listed and encodings.ropes and EVERY_LAYER not in encodings.ropes:  # a table by type of layer
        listed = encodings.layers
    types = list(listed or ["sliding"] * count)
    if len(types) != count:
        raise BadCheckpoint(f"config.json has {len(types)} layer_types, but {count} layers: write one for each")
    return [Mask(causal, window if "sliding" in str(name) else None) for name in types]


def _filled(step: Step, family: Family, config: Config, encodings: Encodings, mask: Mask, block: int) -> Step:
    number = family.shared_block(config, block) if family.shared_block else block
    step = renamed(step, lambda name: name.replace("{block}", str(number)))
    match step:
        case Attention():
            return _attention(step, family, config, encodings, mask, block)
        case FeedForward():
            return filled_feed_forward(step, family, config)
        case Experts() if family.experts:
            return _experts(step, family, family.experts, config, block)
        case ShortConvolution(convolution=convolution):
            size, biased = config.count("conv_L_cache"), bool(config.get("conv_bias"))
            left = size - 1 if mask.causal else size // 2
            bias = convolution.bias if biased else None
            return replace(
                step,
                norm=_norm(family, config, step.norm),
                input=_linear(family, config, step.input),
                output=_linear(family, config, step.output),
                convolution=replace(convolution, size=size, left=left, bias=bias),
            )
        case ConvolvedInput(convolution, activation):
            size = config.count("conv_kernel_size")
            if config.get("conv_act") is not None:
                activation = config.choice("conv_act", ACTIVATIONS)
            return ConvolvedInput(replace(convolution, size=size, left=(size - 1) // 2), activation)
        case PerLayerInput():
            return replace(
                step,
                activation=config.choice("hidden_act", ACTIVATIONS),
                norm=filled_norm(step.norm, family, config),
                closing=filled_norm(step.closing, family, config),
                width=config.count("hidden_size_per_layer_input"),
                scale=config.count("hidden_size") ** -0.5,
            )
        case Parallel(attention, feed_forward):
            return Parallel(
                _attention(attention, family, config, encodings, mask, block),
                filled_feed_forward(feed_forward, family, config),
            )
    return fill_step(step, family, config)


def _attention(
    step: Attention, family: Family, config: Config, encodings: Encodings, mask: Mask, block: int
) -> Attention:
    mask = Mask(False, None) if step.across else mask
    heads, given = config.count("num_attention_heads"), config.get("num_key_value_heads")
    key_heads = heads if given is None else config.count("num_key_value_heads")
    if heads % key_heads:
        raise config.bad_value("num_key_value_heads", key_heads, f"a number that divides the {heads} attention heads")
    width = config.head_dim()
    norms: dict[str, Any] = {
        name: _norm(family, config, getattr(step, name), key_heads if name == "key_norm" else heads) for name in _NORMS
    }
    linears: dict[str, Any] = {name: _linear(family, config, getattr(step, name)) for name in _LINEARS}
    bias = _score_bias(step, config, encodings, family)
    scale = family.score_scale(config) if family.score_scale else None
    if isinstance(step.bias, Disentangled):  # whether or not relative_attention is on
        scale = 1 / math.sqrt(width * (1 + sum(term in _terms(config) for term in ("c2p", "p2c"))))
    return replace(
        step,
        heads=heads,
        key_heads=0 if key_heads == heads else key_heads,
        head_width=0 if width * heads == config.count("hidden_size") else width,
        **norms,
        **linears,
        bias=bias,
        scale=scale,
        rotation=encodings.layers[block] if encodings.ropes else None,
        left=None if mask.window is None else mask.window - mask.causal,
        right=0 if mask.causal else mask.window,
        cap=config.number(family.cap) if family.cap and config.get(family.cap) is not None else None,
        factor=family.factor(config) if family.factor else 1.0,
    )


def filled_feed_forward(step: FeedForward, family: Family, config: Config) -> FeedForward:
    """Return a feed-forward step with its activation, biases and norms."""
    if family.feed_forward:
        step = family.feed_forward(step, config)
    elif config.get("hidden_act") is not None:
        step = replace(step, activation=config.choice("hidden_act", ACTIVATIONS))
    return replace(
        step,
        up=_linear(family, config, step.up),
        down=_linear(family, config, step.down),
        gate=step.gate and _linear(family, config, step.gate),
        norm=_norm(family, config, step.norm),
        closing=_norm(family, config, step.closing),
        inner_norm=_norm(family, config, step.inner_norm),
        inner=config.inner_width() if family.side == "decoder" else step.inner,
        factor=family.factor(config) if family.factor else 1.0,
    )


def _experts(step: Experts, family: Family, spec: ExpertSpec, config: Config, block: int) -> Experts | FeedForward:
    if spec.instead and spec.dense and spec.dense(config, block):
        dense = renamed(spec.instead, lambda name: name.replace("{block}", str(block)))
        return filled_feed_forward(dense, family, config)
    count, chosen = config.count("num_experts"), config.count(spec.chosen)
    if chosen > count:
        raise BadCheckpoint(f"config.json says {spec.chosen} {chosen}; of {count} experts it must be 1 to {count}")

    def expert(step: FeedForward, number: int = 0) -> FeedForward:
        named = renamed(step, lambda name: name.replace("{expert}", str(number)))
        return replace(filled_feed_forward(named, family, config), factor=1.0)

    (first,) = step.experts
    weights = step.weights if spec.normalized is None else "own" if config.get(spec.normalized) else "all"
    return replace(
        step,
        experts=tuple(expert(first, number) for number in range(count)),
        chosen=chosen,
        inner=config.count(spec.inner),
        weights=weights,
        jitter=config.number(spec.jitter) if spec.jitter else 0.0,
        shared=step.shared and expert(step.shared),
        shared_inner=config.count(spec.shared_inner) if spec.shared_inner else 0,
        norm=_norm(family, config, step.norm),
        closing=_norm(family, config, step.closing),
        factor=family.factor(config) if family.factor else 1.0,
    )


def _norm(family: Family, config: Config, norm: Any, heads: int = 0) -> Any:
    """Return a norm with its values, or None where the model has none; a Multiply has no values."""
    if isinstance(norm, Multiply):
        return norm
    if isinstance(norm, HeadNorms):
        if (own := _norm(family, config, norm.heads[0])) is None:
            return None
        return HeadNorms(tuple(replace(own, weight=own.weight.replace("{head}", str(n))) for n in range(heads)))
    if norm is None or (norm.weight or "").removesuffix(".weight") in family.absent:
        return None
    if any(stem in (norm.weight or "") and not config.get(key) for key, stem in family.norm_if.items()):
        return None
    return filled_norm(norm, family, config)


def _linear(family: Family, config: Config, linear: Linear) -> Linear:
    missing = any(stem in linear.weight and not config.get(key) for key, stem in family.bias_if.items())
    return replace(linear, bias=None) if missing else linear


def _terms(config: Config) -> str:
    """Return the position terms of DeBERTa that a config names, as one text."""
    return str(config.get("pos_att_type") or "").lower()


def _score_bias(
    step: Attention, config: Config, encodings: Encodings, family: Family
) -> ScoreBias | DistanceBias | Disentangled | None:
    buckets = encodings.buckets
    match step.bias:
        case ScoreBias():
            if buckets is None:
                raise BadCheckpoint(encodings.refused.get("t5", "the config gives no relative buckets"))
            return replace(step.bias, buckets=buckets.buckets, reach=buckets.reach)
        case DistanceBias():
            alibi = encodings.alibi
            if alibi is None:
                raise BadCheckpoint(encodings.refused.get("alibi", "the config gives no ALiBi"))
            return DistanceBias(tuple(float(slope) for slope in slopes(alibi.heads, alibi.max_bias)))
        case Disentangled(unprojected="q" | "qk"):
            return replace(step.bias, reach=config.count("max_position_embeddings"))
        case Disentangled():
            if buckets is None:
                return None
            terms, shared = _terms(config), bool(config.get("share_att_key"))
            return replace(
                step.bias,
                buckets=buckets.buckets,
                reach=buckets.reach,
                norm=step.bias.norm and replace(step.bias.norm, eps=buckets.norm[2]) if buckets.norm else None,
                key=(step.key if shared else step.bias.key) if "c2p" in terms else None,
                query=(step.query if shared else step.bias.query) if "p2c" in terms else None,
            )
    return None

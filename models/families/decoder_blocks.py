"""The blocks of Llama and its descendants, and of GPT-NeoX; those of GPT-2 and the like are in gpt_blocks.py.

Source: transformers 5.23 (the modeling module of each family).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import (
    Stored,
    TensorPart,
    by_heads,
    equal,
    expert_count,
    fused,
    head_count,
    linear,
    norm,
    rms_norm,
)
from models.recipes.steps import (
    Attention,
    Convolution,
    Experts,
    FeedForward,
    HeadNorms,
    LayerNorm,
    Multiply,
    Norm,
    Parallel,
    PerLayerInput,
    Recipe,
    RMSNorm,
    ShortConvolution,
)

_LAYER = "layers.{block}"
ATTENTION_BIAS = {"attention_bias": ".self_attn."}
BIASES = {**ATTENTION_BIAS, "mlp_bias": ".mlp."}


def attention(
    before: Norm | None = None, *, stem: str = "self_attn", biased: str = "", output: str = "o_proj", **rest: Any
) -> Attention:
    """Return attention with the usual names of its modules; fitting fills in the heads.

    Args:
        before: the norm before it.
        stem: stem of the modules in a layer.
        biased: letters of those of q, k, v, o that have a bias; fitting drops it if the config says so.
        output: the module of the last projection.
        rest: more of Attention.
    """
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": output}
    query, key, value, last = (linear(f"{_LAYER}.{stem}.{name}", letter in biased) for letter, name in names.items())
    return Attention(0, query, key, value, last, norm=before, **rest)


def gated(
    before: Norm | None = None, biased: bool = False, closing: Norm | None = None, stem: str = "mlp"
) -> FeedForward:
    """Return a gated feed-forward step with Llama's names; fitting fills in the activation."""
    up, down, gate = (linear(f"{_LAYER}.{stem}.{name}_proj", biased) for name in ("up", "down", "gate"))
    return FeedForward(up, down, "silu", before, gate, closing)


def routed(before: Norm, *, stem: str = "mlp", router: str = "gate", **rest: Any) -> Experts:
    """Return a mixture of gated experts with the usual names; fitting fills in their number and widths.

    Args:
        before: the norm before it.
        stem: stem of the modules in a layer.
        router: the router's module.
        rest: more of Experts.
    """
    expert = gated(stem=f"{stem}.experts.{{expert}}")
    return Experts(linear(f"{_LAYER}.{stem}.{router}", False), (expert,), 0, 0, norm=before, **rest)


def plain(up: str, down: str, before: Norm | None = None, biased: bool = True) -> FeedForward:
    """Return a feed-forward step without a gate, with the names of its modules in a layer."""
    return FeedForward(linear(f"{_LAYER}.{up}", biased), linear(f"{_LAYER}.{down}", biased), "gelu", before)


def _rms(name: str, offset: float = 0.0) -> RMSNorm:
    return rms_norm(f"{_LAYER}.{name}", offset)


def _layer_norm(name: str) -> LayerNorm:
    return norm(f"{_LAYER}.{name}")


_FIRST, _SECOND = _rms("input_layernorm"), _rms("post_attention_layernorm")
_BY_HEAD: dict[str, Any] = {"query_norm": _rms("self_attn.q_norm"), "key_norm": _rms("self_attn.k_norm")}

LLAMA: Recipe = (attention(_FIRST, biased="qkvo"), gated(_SECOND, biased=True))
ARCEE: Recipe = (attention(_FIRST, biased="qkvo"), plain("mlp.up_proj", "mlp.down_proj", _SECOND))
MISTRAL: Recipe = (attention(_FIRST), gated(_SECOND))
GATED = gated(_SECOND)
QWEN2: Recipe = (attention(_FIRST, biased="qkv"), GATED)
QWEN3: Recipe = (attention(_FIRST, biased="qkvo", **_BY_HEAD), gated(_SECOND))
GEMMA: Recipe = (
    attention(_rms("input_layernorm", 1.0), biased="qkvo"),
    gated(_rms("post_attention_layernorm", 1.0)),
)
_SANDWICHED = attention(_rms("input_layernorm", 1.0), biased="qkvo", closing=_rms("post_attention_layernorm", 1.0))
GEMMA2: Recipe = (
    _SANDWICHED,
    gated(_rms("pre_feedforward_layernorm", 1.0), closing=_rms("post_feedforward_layernorm", 1.0)),
)
GEMMA3: Recipe = (
    replace(_SANDWICHED, query_norm=_rms("self_attn.q_norm", 1.0), key_norm=_rms("self_attn.k_norm", 1.0)),
    GEMMA2[1],
)
_PER_LAYER = PerLayerInput(
    gate=linear(f"{_LAYER}.ple_block.per_layer_input_gate", biased=False),
    source=linear(f"{_LAYER}.ple", biased=False),
    output=linear(f"{_LAYER}.ple_block.per_layer_projection", biased=False),
    activation="gelu_tanh",
    norm=rms_norm("ple.per_layer_projection_norm"),
    closing=_rms("ple_block.post_per_layer_input_norm"),
    width=0,
    scale=1.0,
)
EMBEDDING_GEMMA2: Recipe = (
    attention(_FIRST, biased="qkvo", closing=_SECOND, value_norm=RMSNorm(None, 0.0), **_BY_HEAD),
    gated(_rms("pre_feedforward_layernorm"), closing=_rms("post_feedforward_layernorm")),
    _PER_LAYER,
    Multiply(f"{_LAYER}.layer_scalar"),
)
OLMO2: Recipe = (
    attention(biased="qkvo", closing=_SECOND, norm_of="heads", **_BY_HEAD),
    gated(closing=_rms("post_feedforward_layernorm")),
)
EXAONE4: Recipe = (attention(closing=_SECOND, **_BY_HEAD), gated(closing=_rms("post_feedforward_layernorm")))
GLM4: Recipe = (
    attention(_FIRST, biased="qkv", closing=_rms("post_self_attn_layernorm")),
    gated(_SECOND, closing=_rms("post_mlp_layernorm")),
)
_PLAIN_NORM = LayerNorm(None, None, 0.0)
OLMO: Recipe = (attention(_PLAIN_NORM, biased="qkvo"), gated(_PLAIN_NORM))
NEMOTRON: Recipe = (
    attention(replace(_layer_norm("input_layernorm"), offset=1.0), biased="qkvo"),
    plain("mlp.up_proj", "mlp.down_proj", replace(_layer_norm("post_attention_layernorm"), offset=1.0)),
)
HUNYUAN: Recipe = (
    attention(
        _FIRST,
        biased="qkvo",
        query_norm=_rms("self_attn.query_layernorm"),
        key_norm=_rms("self_attn.key_layernorm"),
        norms_behind=True,
    ),
    GATED,
)
_NO_WEIGHT = RMSNorm(None, 0.0)
NANOCHAT: Recipe = (
    attention(_NO_WEIGHT, biased="qkvo", query_norm=_NO_WEIGHT, key_norm=_NO_WEIGHT, norms_behind=True),
    plain("mlp.fc1", "mlp.fc2", _NO_WEIGHT, biased=False),
)
VAULTGEMMA: Recipe = (GEMMA[0], gated(_rms("pre_feedforward_layernorm", 1.0)))
HYPERCLOVAX: Recipe = (
    attention(_FIRST, biased="qkvo", closing=_rms("post_norm1")),
    gated(_SECOND, biased=True, closing=_rms("post_norm2")),
)
STARCODER2: Recipe = (
    attention(_layer_norm("input_layernorm"), biased="qkvo"),
    plain("mlp.c_fc", "mlp.c_proj", _layer_norm("post_attention_layernorm")),
)
_PER_HEAD: dict[str, Any] = {
    f"{name}_norm": HeadNorms((LayerNorm(f"{_LAYER}.self_attn.{name[0]}_layernorm.norms.{{head}}.weight", None, 0.0),))
    for name in ("query", "key")
}
STABLELM: Recipe = (
    attention(_layer_norm("input_layernorm"), biased="qkv", **_PER_HEAD),
    gated(_layer_norm("post_attention_layernorm")),
)
_COHERE_NORM = replace(_layer_norm("input_layernorm"), bias=None)
COHERE: Recipe = (Parallel(attention(_COHERE_NORM, biased="qkvo"), gated(_COHERE_NORM)),)
PHI: Recipe = (
    Parallel(
        attention(_layer_norm("input_layernorm"), biased="qkvo", output="dense"),
        plain("mlp.fc1", "mlp.fc2", _layer_norm("input_layernorm")),
    ),
)
GPT_NEOX: Recipe = (
    Parallel(
        attention(_layer_norm("input_layernorm"), stem="attention", biased="qkvo", output="dense"),
        plain("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", _layer_norm("post_attention_layernorm")),
    ),
)
PERSIMMON: Recipe = (
    attention(
        _layer_norm("input_layernorm"),
        biased="qkvo",
        output="dense",
        query_norm=_layer_norm("self_attn.q_layernorm"),
        key_norm=_layer_norm("self_attn.k_layernorm"),
    ),
    plain("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", _layer_norm("post_attention_layernorm")),
)


LFM2: Recipe = (
    attention(
        _rms("operator_norm"),
        output="out_proj",
        query_norm=_rms("self_attn.q_layernorm"),
        key_norm=_rms("self_attn.k_layernorm"),
    ),
    FeedForward(
        linear(f"{_LAYER}.feed_forward.w3", False),
        linear(f"{_LAYER}.feed_forward.w2", False),
        "silu",
        _rms("ffn_norm"),
        linear(f"{_LAYER}.feed_forward.w1", False),
    ),
)
_SHORT_CONVOLUTION = ShortConvolution(
    _rms("operator_norm"),
    linear(f"{_LAYER}.conv.in_proj"),
    Convolution(f"{_LAYER}.conv.conv.weight", f"{_LAYER}.conv.conv.bias", by_channel=True),
    linear(f"{_LAYER}.conv.out_proj"),
)


def lfm2_block(config: Config, layer: int) -> Recipe:
    """Return the steps of a layer of LFM2: attention or a short convolution, and a gated step."""
    listed = config.get("layer_types")
    if not isinstance(listed, list) or len(listed) != config.count("num_hidden_layers"):
        raise BadCheckpoint(f"config.json says layer_types {str(listed)[:60]}; it must have one for each layer")
    return (_SHORT_CONVOLUTION, LFM2[1]) if listed[layer] == "conv" else LFM2


def lfm2_values(config: Config) -> Mapping[str, Any]:
    """Return LFM2's inner width and layer types, and that its bidirectional class, by name, attends to both sides."""
    inner = config.count("block_ff_dim" if config.get("block_ff_dim") is not None else "intermediate_size")
    if config.get("block_auto_adjust_ff_dim"):
        inner, unit = int(2 * inner / 3), config.count("block_multiple_of")
        if config.get("block_ffn_dim_multiplier") is not None:
            inner = -(-int(config.number("block_ffn_dim_multiplier") * inner) // unit) * unit
    values: dict[str, Any] = {"intermediate_size": inner}
    if config.get("layer_types") is None:
        count, full = config.count("num_hidden_layers"), config.get("full_attn_idxs")
        attends = [full is None or layer in full for layer in range(count)]
        values["layer_types"] = ["full_attention" if each else "conv" for each in attends]
    if any("Bidirectional" in str(name) for name in config.get("architectures") or ()):
        values["is_causal"] = False
    return values


QKV = ("q_proj", "k_proj", "v_proj")
FUSED_GATE = fused(f"{_LAYER}.mlp", ("gate_proj", "up_proj"), f"{_LAYER}.mlp.gate_up_proj")
PHI3_STORED = FUSED_GATE | fused(f"{_LAYER}.self_attn", QKV, f"{_LAYER}.self_attn.qkv_proj", shares=by_heads)
PERSIMMON_STORED = fused(f"{_LAYER}.self_attn", QKV, f"{_LAYER}.self_attn.query_key_value", groups=head_count)
GPT_NEOX_STORED = fused(f"{_LAYER}.attention", QKV, f"{_LAYER}.attention.query_key_value", groups=head_count)


def stored_experts(
    names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"), file: str = "mlp", stem: str = "mlp"
) -> Stored:
    """Return the places of the experts' matrices in files: each by itself, or all in two tensors, gate before up.

    Args:
        names: names of an expert's modules gate, up and down; with two names, those of the two tensors.
        file: stem of the modules of a layer in published files.
        stem: stem of the class.
    """
    shares = ((0, equal(2)), (1, equal(2)), (0, equal(1)))
    in_one = [f"{stem}.experts.{name}" for name in ("gate_up_proj", "gate_up_proj", "down_proj")]
    if len(names) == 2:
        whole = [f"{file}.{name}.weight" for name in (names[0], *names)]
    places: Stored = {}
    for number, (name, (index, share)) in enumerate(zip(("gate", "up", "down"), shares, strict=True)):
        in_class = TensorPart(f"{_LAYER}.{in_one[number]}", index, share, experts=expert_count)
        published = (
            f"{_LAYER}.{file}.experts.{{expert}}.{names[number]}"
            if len(names) == 3
            else replace(in_class, stem=f"{_LAYER}.{whole[number]}")
        )
        places[f"{_LAYER}.{stem}.experts.{{expert}}.{name}_proj"] = (published, in_class)
    return places


def _module(name: str, in_file: str) -> Stored:
    return {f"{_LAYER}.{name}": (f"{_LAYER}.{in_file}",)}


MIXTRAL: Recipe = (attention(_FIRST), routed(_SECOND))
MIXTRAL_STORED = stored_experts(("w1", "w3", "w2"), "block_sparse_moe") | _module("mlp.gate", "block_sparse_moe.gate")
PHIMOE: Recipe = (
    attention(_layer_norm("input_layernorm"), biased="qkvo"),
    routed(_layer_norm("post_attention_layernorm"), router="router", weights="sparsemixer"),
)
PHIMOE_STORED = stored_experts(("w1", "w3", "w2"), "block_sparse_moe") | _module("mlp.router", "block_sparse_moe.gate")
QWEN2_MOE: Recipe = (
    attention(_FIRST, biased="qkv"),
    routed(
        _SECOND,
        shared=gated(stem="mlp.shared_expert"),
        shared_gate=linear(f"{_LAYER}.mlp.shared_expert_gate", biased=False),
    ),
)
QWEN3_MOE: Recipe = (attention(_FIRST, biased="qkvo", **_BY_HEAD), routed(_SECOND))
OLMOE: Recipe = (attention(_FIRST, biased="qkvo", norm_of="heads", **_BY_HEAD), routed(_SECOND))
GRANITEMOE: Recipe = (attention(_FIRST, biased="qkvo"), routed(_SECOND, stem="block_sparse_moe", router="router"))
GRANITEMOE_STORED = stored_experts(("input_linear", "output_linear"), "block_sparse_moe", "block_sparse_moe") | _module(
    "block_sparse_moe.router", "block_sparse_moe.router.layer"
)


def without_experts(config: Config, layer: int) -> bool:
    """Return whether a layer of Qwen's mixtures has one feed-forward step instead."""
    listed = config.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise BadCheckpoint(f"config.json says mlp_only_layers {listed!r}; it must be a list of layers")
    return (
        layer in listed or config.count("num_experts", 0) == 0 or (layer + 1) % config.count("decoder_sparse_step") != 0
    )


def _by_layers(config: Config) -> tuple[int, ...]:
    return (1,) * config.count("num_hidden_layers")


EMBEDDING_GEMMA2_STORED: Stored = {
    f"{_LAYER}.ple": (TensorPart("ple.per_layer_model_projection", shares=_by_layers, by_block=True),)
}


def wider_if_full(config: Config, layer: int, kind: str | None) -> Mapping[str, Any]:
    """Return the width and number of key heads of a layer of EmbeddingGemma 2, whose full layers have their own.

    Source: transformers 5.23, which writes the layers that differ as per_layer_config.
    """
    listed = config.get("per_layer_config")
    if listed is None:
        sizes = {
            "head_dim": config.get("global_head_dim"),
            "num_key_value_heads": config.get("num_global_key_value_heads"),
        }
        return sizes if kind == "full_attention" else {}
    keys = listed.get(str(layer), {}) if isinstance(listed, Mapping) else None
    if not isinstance(keys, Mapping):
        raise BadCheckpoint(f"config.json says per_layer_config {str(listed)[:60]}; it must be an object of objects")
    return keys


def trained_positions(config: Config) -> int | None:
    """Return the length a model was trained with before its RoPE was scaled; None where the config gives none."""
    trained = config.inside("rope_parameters.original_max_position_embeddings")
    return trained if isinstance(trained, int) else None


def every_layer(config: Config, count: int) -> list[str]:
    """Return the layer types of Qwen 3's mixtures: all layers slide where use_sliding_window is true, or none."""
    return ["sliding_attention" if config.get("use_sliding_window") else "full_attention"] * count


def even_before(config: Config, count: int) -> list[str]:
    """Return the layer types of Qwen 2's mixtures: of those before max_window_layers every other, from the first."""
    first = config.count("max_window_layers", 0) if config.get("use_sliding_window") else 0
    return ["full_attention" if layer % 2 or layer >= first else "sliding_attention" for layer in range(count)]


def alternating(config: Config, count: int) -> list[str]:
    """Return the layer types of Gemma 2: every other layer slides, from the first."""
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(count)]


def behind(config: Config, count: int) -> list[str]:
    """Return the layer types of Qwen: those from max_window_layers on slide where use_sliding_window is true."""
    first = config.count("max_window_layers", 0) if config.get("use_sliding_window") else count
    return ["sliding_attention" if layer >= first else "full_attention" for layer in range(count)]


def every_fourth(config: Config, count: int) -> list[str]:
    """Return the layer types of Cohere 2, OLMo 3 and EXAONE 4: every fourth layer is full."""
    return ["sliding_attention" if (layer + 1) % 4 else "full_attention" for layer in range(count)]

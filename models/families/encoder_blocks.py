"""The blocks of BERT and its descendants, repeated after the input layer.

Source: transformers 5.23 (the modeling module of each family).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from models.families.config import Config
from models.families.family import Stored, TensorPart, equal, expert_count, fused, head_count, linear, norm, rms_norm
from models.families.filling import renamed
from models.recipes.steps import (
    Activation,
    Attention,
    Convolution,
    ConvolvedInput,
    Disentangled,
    DistanceBias,
    Experts,
    FeedForward,
    LatentAttention,
    Linear,
    MaskRows,
    Recipe,
    ScoreBias,
)

_LAYER = "encoder.layer.{block}"


def attention_of(stem: str, query: str, key: str, value: str, output: str) -> Attention:
    """Return attention by the names of its modules; fitting fills in the heads."""
    return Attention(
        heads=0,
        query=linear(f"{stem}.{query}"),
        key=linear(f"{stem}.{key}"),
        value=linear(f"{stem}.{value}"),
        output=linear(f"{stem}.{output}"),
    )


def feed_forward_of(stem: str, up: str, down: str) -> FeedForward:
    """Return a feed-forward step by the names of its modules; fitting fills in the activation."""
    return FeedForward(linear(f"{stem}.{up}"), linear(f"{stem}.{down}"), "gelu")


def _post_norm(attention: Attention, behind_it: str, feed_forward: FeedForward, behind_that: str) -> Recipe:
    """Return a block with each norm, by its module's name, after the sum that it belongs to."""
    return attention, norm(behind_it), feed_forward, norm(behind_that)


_BERT_ATTENTION = attention_of(f"{_LAYER}.attention", "self.query", "self.key", "self.value", "output.dense")
_BERT_FEED_FORWARD = feed_forward_of(_LAYER, "intermediate.dense", "output.dense")
_SHARED = "encoder.albert_layer_groups.{block}.albert_layers.{inner}"
_DISTILBERT_LAYER = "transformer.layer.{block}"

BERT = _post_norm(
    _BERT_ATTENTION, f"{_LAYER}.attention.output.LayerNorm", _BERT_FEED_FORWARD, f"{_LAYER}.output.LayerNorm"
)


def with_distances(factors: Literal["q", "qk"]) -> Recipe:
    """Return BERT's block with an embedding of each distance of query and key, a factor of queries, or of keys too."""
    distances = f"{_LAYER}.attention.self.distance_embedding.weight"
    bias = Disentangled(distances, None, None, None, 0, 0, factors)
    return (replace(_BERT_ATTENTION, bias=bias), *BERT[1:])


DISTILBERT = _post_norm(
    attention_of(f"{_DISTILBERT_LAYER}.attention", "q_lin", "k_lin", "v_lin", "out_lin"),
    f"{_DISTILBERT_LAYER}.sa_layer_norm",
    feed_forward_of(f"{_DISTILBERT_LAYER}.ffn", "lin1", "lin2"),
    f"{_DISTILBERT_LAYER}.output_layer_norm",
)
ALBERT = _post_norm(  # one for all layers of a group
    attention_of(f"{_SHARED}.attention", "query", "key", "value", "dense"),
    f"{_SHARED}.attention.LayerNorm",
    feed_forward_of(_SHARED, "ffn", "ffn_output"),
    f"{_SHARED}.full_layer_layer_norm",
)


def albert_block(config: Config, layer: int) -> Recipe:
    """Return the steps of a layer of ALBERT: all those of its group, of which there is mostly one."""

    def inside(number: int) -> Recipe:
        return tuple(renamed(step, lambda name: name.replace("{inner}", str(number))) for step in ALBERT)

    return tuple(step for number in range(config.count("inner_group_num")) for step in inside(number))


def albert_group(config: Config, layer: int) -> int:
    """Return the group of a layer of ALBERT."""
    return layer * config.count("num_hidden_groups") // config.count("num_hidden_layers")


def longest_of_big_bird(config: Config) -> int | None:
    """Return up to how many tokens BigBird attends to all; beyond, to blocks, some of them drawn at random."""
    if config.get("attention_type") == "original_full":
        return None
    return (5 + 2 * config.count("num_random_blocks", least=0)) * config.count("block_size")


MPNET_BIAS = ScoreBias("encoder.relative_attention_bias.weight", buckets=0, reach=128)  # as written into the class
MPNET = _post_norm(
    replace(attention_of(f"{_LAYER}.attention.attn", "q", "k", "v", "o"), bias=MPNET_BIAS),
    f"{_LAYER}.attention.LayerNorm",
    _BERT_FEED_FORWARD,
    f"{_LAYER}.output.LayerNorm",
)

_XLM_ATTENTION = attention_of("attentions.{block}", "q_lin", "k_lin", "v_lin", "out_lin")
_XLM_FEED_FORWARD = feed_forward_of("ffns.{block}", "lin1", "lin2")
XLM: Recipe = (
    *_post_norm(_XLM_ATTENTION, "layer_norm1.{block}", _XLM_FEED_FORWARD, "layer_norm2.{block}"),
    MaskRows(),
)
FLAUBERT: Recipe = (  # with pre_norm
    replace(_XLM_ATTENTION, norm=norm("layer_norm1.{block}")),
    replace(_XLM_FEED_FORWARD, norm=norm("layer_norm2.{block}")),
    MaskRows(),
)


def xlm_activation(step: FeedForward, config: Config) -> FeedForward:
    """Return XLM's feed-forward step with its activation."""
    return replace(step, activation="gelu" if config.get("gelu_activation") else "relu")


_CLIP_LAYER = "encoder.layers.{block}"
CLIP: Recipe = (  # of both towers, and of SigLIP's
    replace(
        attention_of(f"{_CLIP_LAYER}.self_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
        norm=norm(f"{_CLIP_LAYER}.layer_norm1"),
    ),
    replace(feed_forward_of(f"{_CLIP_LAYER}.mlp", "fc1", "fc2"), norm=norm(f"{_CLIP_LAYER}.layer_norm2")),
)


def pre_norm(attention_norm: str, feed_forward_norm: str) -> Recipe:
    """Return BERT's block with the norms, by the names of their modules in a layer, before what they belong to."""
    return (
        replace(_BERT_ATTENTION, norm=norm(f"{_LAYER}.{attention_norm}")),
        replace(_BERT_FEED_FORWARD, norm=norm(f"{_LAYER}.{feed_forward_norm}")),
    )


_LLAMA_LAYER = "layers.{block}"
_SELF = attention_of(f"{_LLAMA_LAYER}.self_attn", "q_proj", "k_proj", "v_proj", "o_proj")
_QKV = ("q_proj", "k_proj", "v_proj")


def _unbiased(step: Attention) -> Attention:
    query, key, value, output = (
        replace(linear, bias=None) for linear in (step.query, step.key, step.value, step.output)
    )
    return replace(step, query=query, key=key, value=value, output=output)


def _gated(down_biased: bool) -> FeedForward:
    up, gate = (Linear(f"{_LLAMA_LAYER}.mlp.{name}_proj.weight", None) for name in ("up", "gate"))
    return FeedForward(up, linear(f"{_LLAMA_LAYER}.mlp.down_proj", down_biased), "silu", gate=gate)


def _native(attention: Attention, feed_forward: FeedForward) -> Recipe:
    """Return a block with the names that transformers gives remote code's models."""
    return _post_norm(
        attention,
        f"{_LLAMA_LAYER}.post_attention_layernorm",
        feed_forward,
        f"{_LLAMA_LAYER}.post_mlp_layernorm",
    )


def _published(layer: str, places: dict[str, str | TensorPart]) -> Stored:
    """Return the places of a layer's tensors in files of the published code."""
    return {
        f"{_LLAMA_LAYER}.{name}": (
            f"{layer}.{place}" if isinstance(place, str) else replace(place, stem=f"{layer}.{place.stem}"),
        )
        for name, place in places.items()
    }


_PUBLISHED_LAYER = "encoder.layers.{block}"
_NORMS: dict[str, str | TensorPart] = {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}

NOMIC = _native(_unbiased(_SELF), _gated(down_biased=False))
NOMIC_STORED = fused(f"{_LLAMA_LAYER}.self_attn", _QKV, f"{_PUBLISHED_LAYER}.attn.Wqkv") | _published(
    _PUBLISHED_LAYER,
    {
        "self_attn.o_proj": "attn.out_proj",
        "mlp.up_proj": "mlp.fc11",
        "mlp.gate_proj": "mlp.fc12",
        "mlp.down_proj": "mlp.fc2",
        **_NORMS,
    },
)
NOMIC_DENSE = feed_forward_of(f"{_LLAMA_LAYER}.mlp", "fc1", "fc2")
NOMIC_MOE: Recipe = (
    _SELF,
    norm(f"{_LLAMA_LAYER}.post_attention_layernorm"),
    Experts(
        linear(f"{_LLAMA_LAYER}.mlp.router", biased=False),
        (
            FeedForward(
                linear(f"{_LLAMA_LAYER}.mlp.experts.{{expert}}.up", biased=False),
                linear(f"{_LLAMA_LAYER}.mlp.experts.{{expert}}.down", biased=False),
                "gelu",
            ),
        ),
        chosen=0,
        inner=0,
        weights="all",
        bias=f"{_LLAMA_LAYER}.mlp.experts.bias",
    ),
    norm(f"{_LLAMA_LAYER}.post_mlp_layernorm"),
)
_ROWS_OF_EXPERTS = TensorPart("mlp.experts.mlp.w1", experts=expert_count, stacked=False)
NOMIC_MOE_STORED = fused(f"{_LLAMA_LAYER}.self_attn", _QKV, f"{_PUBLISHED_LAYER}.attn.Wqkv") | _published(
    _PUBLISHED_LAYER,
    {
        "self_attn.o_proj": "attn.out_proj",
        "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
        "mlp.router": "mlp.router.layer",
        "mlp.experts": "mlp.experts",  # the bias
        "mlp.experts.{expert}.up": _ROWS_OF_EXPERTS,
        "mlp.experts.{expert}.down": replace(_ROWS_OF_EXPERTS, stem="mlp.experts.mlp.w2", transposed=True),
        **_NORMS,
    },
)


def has_no_experts(config: Config, layer: int) -> bool:
    """Return whether a layer of Nomic has a feed-forward step: only every n-th has experts, from the second."""
    return layer % config.count("moe_every_n_layers") != 1


_NEOBERT_LAYER = "transformer_encoder.{block}"
NEOBERT: Recipe = (
    replace(
        _unbiased(attention_of(_NEOBERT_LAYER, "q", "k", "v", "wo")), norm=rms_norm(f"{_NEOBERT_LAYER}.attention_norm")
    ),
    FeedForward(
        linear(f"{_NEOBERT_LAYER}.ffn.up", biased=False),
        linear(f"{_NEOBERT_LAYER}.ffn.w3", biased=False),
        "silu",
        rms_norm(f"{_NEOBERT_LAYER}.ffn_norm"),
        linear(f"{_NEOBERT_LAYER}.ffn.gate", biased=False),
    ),
)
NEOBERT_STORED = fused(_NEOBERT_LAYER, ("q", "k", "v"), f"{_NEOBERT_LAYER}.qkv", groups=head_count) | fused(
    f"{_NEOBERT_LAYER}.ffn", ("gate", "up"), f"{_NEOBERT_LAYER}.ffn.w12"
)


def neobert_sizes(config: Config) -> dict[str, int]:
    """Return NeoBERT's inner width: two thirds of what its config says, rounded up to a multiple of 8."""
    return {"intermediate_size": (2 * config.count("intermediate_size") // 3 + 7) // 8 * 8}


def _latents(stem: str) -> Recipe:
    """Return NV-Embed's attention to latent rows and the gated step behind it, by the modules' stem."""
    names = {"query": "fn.to_q", "key": "fn.to_k", "value": "fn.to_v", "output": "fn.to_out"}
    linears: dict[str, Any] = {name: linear(f"{stem}.0.{module}", biased=False) for name, module in names.items()}
    norms = [replace(norm(f"{stem}.{module}"), eps=1e-5) for module in ("0.norm", "0.norm_context", "1.norm")]
    latents = f"{stem.rpartition('.')[0]}.latents"
    up, gate, down = (linear(f"{stem}.1.fn.net.{module}") for module in ("up", "gate", "2"))
    return (
        LatentAttention(**linears, norm=norms[0], latents=latents, latents_norm=norms[1]),
        FeedForward(up, down, "gelu", norms[2], gate),
    )


_LATENT_BLOCKS = "latent_attention_model.cross_attend_blocks"
NV_EMBED_LATENTS = _latents(_LATENT_BLOCKS)
_NET = f"{_LATENT_BLOCKS}.{{block}}.fn"
NV_EMBED_STORED = fused(_NET, ("to_k", "to_v"), f"{_NET}.to_kv") | fused(f"{_NET}.net", ("up", "gate"), f"{_NET}.net.0")


def nv_embed_sizes(config: Config) -> dict[str, Any]:
    """Return the values of NV-Embed's nested configs, with which its Mistral attends both ways."""
    return {**config.section("text_config"), **config.section("latent_attention_config"), "is_causal": False}


GTE = _native(_SELF, _gated(down_biased=True))
GTE_STORED = fused(f"{_LLAMA_LAYER}.self_attn", _QKV, f"{_LAYER}.attention.qkv_proj") | _published(
    _LAYER,
    {
        "self_attn.o_proj": "attention.o_proj",
        "mlp.up_proj": TensorPart("mlp.up_gate_proj", 0, equal(2)),
        "mlp.gate_proj": TensorPart("mlp.up_gate_proj", 1, equal(2)),
        "mlp.down_proj": "mlp.down_proj",
        "post_attention_layernorm": "attn_ln",
        "post_mlp_layernorm": "mlp_ln",
    },
)
JINA_V3 = _native(_SELF, feed_forward_of(f"{_LLAMA_LAYER}.mlp", "fc1", "fc2"))
JINA_V3_STORED = fused(f"{_LLAMA_LAYER}.self_attn", _QKV, f"{_PUBLISHED_LAYER}.mixer.Wqkv") | _published(
    _PUBLISHED_LAYER, {"self_attn.o_proj": "mixer.out_proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2", **_NORMS}
)

_MODERN = f"{_LLAMA_LAYER}.attn"
_MODERN_MLP = f"{_LLAMA_LAYER}.mlp"
MODERNBERT: Recipe = (
    replace(attention_of(_MODERN, "q", "k", "v", "Wo"), norm=norm(f"{_LLAMA_LAYER}.attn_norm")),
    replace(
        feed_forward_of(_MODERN_MLP, "up", "Wo"),
        gate=linear(f"{_MODERN_MLP}.gate"),
        norm=norm(f"{_LLAMA_LAYER}.mlp_norm"),
    ),
)
MODERNBERT_STORED = fused(_MODERN, ("q", "k", "v"), f"{_MODERN}.Wqkv") | fused(
    _MODERN_MLP, ("gate", "up"), f"{_MODERN_MLP}.Wi"
)
MODERNBERT_DECODER: Recipe = (
    replace(attention_of(_MODERN, "q_proj", "k_proj", "v_proj", "Wo"), norm=norm(f"{_LLAMA_LAYER}.attn_norm")),
    MODERNBERT[1],
)

_DEBERTA_SELF = f"{_LAYER}.attention.self"
_DEBERTA_OUT = (f"{_LAYER}.attention.output.LayerNorm", _BERT_FEED_FORWARD, f"{_LAYER}.output.LayerNorm")
_REL = "encoder.rel_embeddings.weight"
DEBERTA_V2 = _post_norm(
    replace(
        attention_of(f"{_LAYER}.attention", "self.query_proj", "self.key_proj", "self.value_proj", "output.dense"),
        bias=Disentangled(
            _REL,
            norm("encoder.LayerNorm"),
            linear(f"{_DEBERTA_SELF}.pos_key_proj"),
            linear(f"{_DEBERTA_SELF}.pos_query_proj"),
            0,
            0,
        ),
    ),
    *_DEBERTA_OUT,
)
DEBERTA = _post_norm(
    Attention(
        0,
        Linear(f"{_DEBERTA_SELF}.query.weight", f"{_DEBERTA_SELF}.q_bias"),
        Linear(f"{_DEBERTA_SELF}.key.weight", None),
        Linear(f"{_DEBERTA_SELF}.value.weight", f"{_DEBERTA_SELF}.v_bias"),
        linear(f"{_LAYER}.attention.output.dense"),
        bias=Disentangled(
            _REL,
            None,
            linear(f"{_DEBERTA_SELF}.pos_proj", biased=False),
            linear(f"{_DEBERTA_SELF}.pos_q_proj"),
            0,
            0,
        ),
    ),
    *_DEBERTA_OUT,
)
DEBERTA_STORED = fused(_DEBERTA_SELF, ("query", "key", "value"), f"{_DEBERTA_SELF}.in_proj", groups=head_count)


def deberta_block(config: Config, layer: int) -> Recipe:
    """Return the steps of a layer of DeBERTa v2; behind the first, what its convolution adds."""
    if layer or not config.get("conv_kernel_size"):
        return DEBERTA_V2
    convolution = Convolution("encoder.conv.conv.weight", "encoder.conv.conv.bias")
    return (*DEBERTA_V2, ConvolvedInput(convolution, "tanh"), norm("encoder.conv.LayerNorm"), MaskRows())


def _jina_gated(down: str) -> FeedForward:
    up, gate = (linear(f"{_LAYER}.mlp.{name}", biased=False) for name in ("up", "gate"))
    return FeedForward(up, linear(f"{_LAYER}.mlp.{down}"), "gelu", gate=gate)


JINA_V2 = _post_norm(
    replace(_BERT_ATTENTION, bias=DistanceBias(())),
    f"{_LAYER}.attention.output.LayerNorm",
    _jina_gated("wo"),
    f"{_LAYER}.mlp.layernorm",
)
_FLASH = "encoder.layers.{block}"  # as jina-bert-flash-implementation names a block
JINA_V2_STORED = {
    **fused(f"{_LAYER}.mlp", ("gate", "up"), f"{_FLASH}.mlp.gated_layers"),
    **fused(f"{_LAYER}.attention.self", ("query", "key", "value"), f"{_FLASH}.mixer.Wqkv"),
    f"{_LAYER}.attention.output.dense": (f"{_FLASH}.mixer.out_proj",),
    f"{_LAYER}.attention.output.LayerNorm": (f"{_FLASH}.norm1",),
    f"{_LAYER}.mlp.wo": (f"{_FLASH}.mlp.wo",),
    f"{_LAYER}.mlp.layernorm": (f"{_FLASH}.norm2",),
}
for _name, _places in fused(f"{_LAYER}.mlp", ("gate", "up"), f"{_LAYER}.mlp.gated_layers").items():
    JINA_V2_STORED[_name] = (*JINA_V2_STORED[_name], *_places)

JINA_CODE = _post_norm(
    replace(
        _BERT_ATTENTION,
        bias=DistanceBias(()),
        query_norm=norm(f"{_LAYER}.attention.self.layer_norm_q"),
        key_norm=norm(f"{_LAYER}.attention.self.layer_norm_k"),
        norm_of="heads",
        sum_norm=norm(f"{_LAYER}.attention.output.LayerNorm"),
    ),
    f"{_LAYER}.layer_norm_1",
    _jina_gated("down_layer"),
    f"{_LAYER}.layer_norm_2",
)
JINA_CODE_STORED = fused(f"{_LAYER}.mlp", ("up", "gate"), f"{_LAYER}.mlp.up_gated_layer")

_T5_LAYER = "encoder.block.{block}.layer"


def t5(bias_of: str) -> Recipe:
    """Return the block of T5's encoder, whose bias is that of the layer `bias_of`, a number or {block}."""
    stem = f"{_T5_LAYER}.0.SelfAttention"
    table = f"encoder.block.{bias_of}.layer.0.SelfAttention.relative_attention_bias.weight"
    attention = _unbiased(attention_of(stem, "q", "k", "v", "o"))
    up, gate, down = (Linear(f"{_T5_LAYER}.1.DenseReluDense.{name}.weight", None) for name in ("wi_1", "wi_0", "wo"))
    return (
        replace(attention, norm=rms_norm(f"{_T5_LAYER}.0.layer_norm"), bias=ScoreBias(table, 0, 0)),
        FeedForward(up, down, "relu", rms_norm(f"{_T5_LAYER}.1.layer_norm"), gate),
    )


def t5_feed_forward(step: FeedForward, config: Config) -> FeedForward:
    """Return T5's feed-forward step: with a gate or without, as feed_forward_proj says."""
    up = replace(step.up, weight=step.up.weight.replace("wi_1", "wi"))  # without a gate
    kinds: dict[str, FeedForward] = {
        "relu": replace(step, activation="relu", up=up, gate=None),
        "gated-gelu": replace(step, activation="gelu_tanh"),
        "gated-silu": replace(step, activation="silu"),
    }
    return config.choice("feed_forward_proj", kinds)


def published_gate(key: str) -> Callable[[FeedForward, Config], FeedForward]:
    """Return a function that reads a gate's activation from a key of published code: swiglu, geglu, reglu."""

    def filled(step: FeedForward, config: Config) -> FeedForward:
        kinds: dict[str, Activation] = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}
        return replace(step, activation=config.choice(key, kinds))

    return filled

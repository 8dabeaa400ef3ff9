"""The blocks of GPT, GPT-2 and other decoders that are not built like Llama: BLOOM, Falcon, MPT, OPT, CTRL.

Source: transformers 5.23 (the modeling module of each family).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import Stored, TensorPart, attention_of, feed_forward_of, fused, head_count, linear, norm
from models.recipes.steps import Activation, Attention, DistanceBias, FeedForward, Parallel, Recipe

KeyHeads = Callable[[Config], int]


def _in_groups(stem: str, names: Sequence[str], whole: str, key_heads: KeyHeads = head_count) -> Stored:
    """Return the places of query, key and value in one module: each group holds queries, their key and its value.

    Args:
        stem: stem of the modules in the class.
        names: names of query, key and value.
        whole: the module that holds all.
        key_heads: the number of groups.
    """

    def shares(config: Config) -> tuple[int, ...]:
        return head_count(config) // key_heads(config), 1, 1

    return fused(stem, names, f"{stem}.{whole}", shares=shares, groups=key_heads)


def with_key_heads(key_heads: KeyHeads) -> Callable[[Config, int, str | None], Mapping[str, Any]]:
    """Return Family.layer_keys of models whose number of key heads follows from other keys."""
    return lambda config, layer, kind: {"num_key_value_heads": key_heads(config)}


def one_if_shared(config: Config) -> int:
    """Return the number of key heads: one for all queries where multi_query is true."""
    return 1 if config.get("multi_query") else head_count(config)


def _conv(stem: str) -> tuple[str | TensorPart, ...]:
    return (TensorPart(stem, transposed=True),)


_H = "h.{block}"


def _gpt2(attention: Attention) -> Recipe:
    return (replace(attention, norm=norm(f"{_H}.ln_1")), replace(_GPT2_MLP, norm=norm(f"{_H}.ln_2")))


_QKV = ("query", "key", "value")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
_GPT2_ATTENTION = attention_of(f"{_H}.attn", *"qkv", "c_proj")
_GPT2_MLP = feed_forward_of(f"{_H}.mlp", "c_fc", "c_proj", activation="gelu_tanh")
GPT2 = _gpt2(_GPT2_ATTENTION)
GPT2_STORED: Stored = {
    **fused(f"{_H}.attn", "qkv", f"{_H}.attn.c_attn", transposed=True),
    f"{_H}.attn.c_proj": _conv(f"{_H}.attn.c_proj"),
    f"{_H}.mlp.c_fc": _conv(f"{_H}.mlp.c_fc"),
    f"{_H}.mlp.c_proj": _conv(f"{_H}.mlp.c_proj"),
}
_SELF_ATTENTION = f"{_H}.self_attention"
_MEGATRON = attention_of(_SELF_ATTENTION, *_QKV, "dense")
_MEGATRON_MLP = feed_forward_of(f"{_H}.mlp", "dense_h_to_4h", "dense_4h_to_h", activation="gelu_tanh")
BLOOM: Recipe = (
    replace(_MEGATRON, norm=norm(f"{_H}.input_layernorm"), bias=DistanceBias(())),
    replace(_MEGATRON_MLP, norm=norm(f"{_H}.post_attention_layernorm")),
)
BLOOM_STORED = _in_groups(_SELF_ATTENTION, _QKV, "query_key_value")
GPTJ: Recipe = (
    Parallel(
        attention_of(f"{_H}.attn", *_PROJECTIONS, biased=False, norm=norm(f"{_H}.ln_1")),
        feed_forward_of(f"{_H}.mlp", "fc_in", "fc_out", activation="gelu_tanh", norm=norm(f"{_H}.ln_1")),
    ),
)
GPT_BIGCODE_STORED = _in_groups(f"{_H}.attn", "qkv", "c_attn", one_if_shared)
OPENAI_GPT: Recipe = (_GPT2_ATTENTION, norm(f"{_H}.ln_1"), _GPT2_MLP, norm(f"{_H}.ln_2"))
_NEO = attention_of(f"{_H}.attn.attention", *_PROJECTIONS, biased=False)
GPT_NEO = _gpt2(replace(_NEO, output=linear(f"{_H}.attn.attention.out_proj")))
CODEGEN_STORED = fused(  # of four devices, values before keys
    f"{_H}.attn", ("q_proj", "v_proj", "k_proj"), f"{_H}.attn.qkv_proj", groups=lambda config: 4
)
CTRL: Recipe = (
    attention_of(f"{_H}.multi_head_attention", "Wq", "Wk", "Wv", "dense", norm=norm(f"{_H}.layernorm1")),
    feed_forward_of(f"{_H}.ffn", "0", "2", activation="relu", norm=norm(f"{_H}.layernorm2")),
)
_MPT_LAYER = "blocks.{block}"
MPT: Recipe = (
    attention_of(
        f"{_MPT_LAYER}.attn",
        *_QKV,
        "out_proj",
        biased=False,
        norm=replace(norm(f"{_MPT_LAYER}.norm_1"), bias=None),
        bias=DistanceBias(()),
    ),
    feed_forward_of(
        f"{_MPT_LAYER}.ffn", "up_proj", "down_proj", biased=False, norm=replace(norm(f"{_MPT_LAYER}.norm_2"), bias=None)
    ),
)
MPT_STORED = fused(f"{_MPT_LAYER}.attn", _QKV, f"{_MPT_LAYER}.attn.Wqkv")


def falcon(before: str, feed_forward_before: str, parallel: bool = True) -> Recipe:
    """Return Falcon's block by the modules of its norms."""
    attention = replace(_MEGATRON, norm=norm(f"{_H}.{before}"))
    feed_forward = replace(_MEGATRON_MLP, norm=norm(f"{_H}.{feed_forward_before}"))
    return (Parallel(attention, feed_forward),) if parallel else (attention, feed_forward)


def falcon_key_heads(config: Config) -> int:
    """Return Falcon's number of key heads."""
    if not config.get("new_decoder_architecture"):
        return one_if_shared(config)
    return head_count(config) if config.get("num_kv_heads") is None else config.count("num_kv_heads")


FALCON_STORED = _in_groups(_SELF_ATTENTION, _QKV, "query_key_value", falcon_key_heads)


def fairseq(layer: str, pre_norm: bool = True, across: bool = False) -> Recipe:
    """Return the block of fairseq's models (BART, OPT, XGLM).

    Args:
        layer: stem of its modules.
        pre_norm: norms are before their steps, or after the sums.
        across: it is a decoder's that attends to an encoder's rows too.
    """
    feed_forward = feed_forward_of(layer, "fc1", "fc2", activation="relu")
    steps: list[tuple[Attention | FeedForward, str]]
    steps = [(attention_of(f"{layer}.self_attn", *_PROJECTIONS), "self_attn")]
    steps += [(attention_of(f"{layer}.encoder_attn", *_PROJECTIONS, across=True), "encoder_attn")] * across
    steps.append((feed_forward, "final"))
    normed = [(step, norm(f"{layer}.{name}_layer_norm")) for step, name in steps]
    if pre_norm:
        return tuple(replace(step, norm=own) for step, own in normed)
    return tuple(part for pair in normed for part in pair)


def scale_of_mpt(config: Config) -> float:
    """Return the factor of MPT's scores."""
    given = config.inside("attn_config.softmax_scale")
    return config.head_dim() ** -0.5 if given is None else config.number("attn_config.softmax_scale")


def openai_activation(step: FeedForward, config: Config) -> FeedForward:
    """Return a feed-forward step of the first GPT, whose gelu is the one by tanh."""
    kinds: dict[str, Activation] = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
    return replace(step, activation=config.choice("hidden_act", kinds))


def local_layers(config: Config, count: int) -> list[str]:
    """Return the layer types of GPT-Neo, whose attention_types repeat patterns: [[["global", "local"], 12]].

    Where none are given every other layer is local.
    """
    listed = config.get("attention_types")
    if listed is None:
        listed = [[["global", "local"], count // 2], [["global"], count % 2]]
    try:
        names = [name for pattern, times in listed for _ in range(times) for name in pattern]
    except (TypeError, ValueError):
        names = []
    if not names or not set(names) <= {"global", "local"}:
        raise BadCheckpoint(
            f"config.json says attention_types {str(listed)[:60]}; it must be a list of pairs, each a list of "
            '"global" and "local" and how often it is repeated'
        )
    return ["sliding_attention" if name == "local" else "full_attention" for name in names]

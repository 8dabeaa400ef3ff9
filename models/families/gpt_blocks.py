"""The blocks of GPT, GPT-2 and other decoders that are not built like Llama: BLOOM, Falcon, MPT, OPT, CTRL.

Source: transformers 5.23 (the modeling module of each family).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import Stored, TensorPart, equal, fused, head_count, linear, norm
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


def _of(stems: tuple[str, ...], biased: bool = True) -> Attention:
    """Return attention by the names of its four modules."""
    query, key, value, output = (linear(stem, biased) for stem in stems)
    return Attention(0, query, key, value, output)


def _projections(stem: str, biased: bool = True) -> Attention:
    return _of(tuple(f"{stem}.{name}_proj" for name in ("q", "k", "v", "out")), biased)


def _gpt2(attention: Attention) -> Recipe:
    return (replace(attention, norm=norm(f"{_H}.ln_1")), replace(_GPT2_MLP, norm=norm(f"{_H}.ln_2")))


_GPT2_ATTENTION = _of((f"{_H}.attn.q", f"{_H}.attn.k", f"{_H}.attn.v", f"{_H}.attn.c_proj"))
_GPT2_MLP = FeedForward(linear(f"{_H}.mlp.c_fc"), linear(f"{_H}.mlp.c_proj"), "gelu_tanh")
GPT2 = _gpt2(_GPT2_ATTENTION)
GPT2_STORED: Stored = {
    **{
        f"{_H}.attn.{name}": (TensorPart(f"{_H}.attn.c_attn", index, equal(3), transposed=True),)
        for index, name in enumerate("qkv")
    },
    f"{_H}.attn.c_proj": _conv(f"{_H}.attn.c_proj"),
    f"{_H}.mlp.c_fc": _conv(f"{_H}.mlp.c_fc"),
    f"{_H}.mlp.c_proj": _conv(f"{_H}.mlp.c_proj"),
}
_SELF_ATTENTION = f"{_H}.self_attention"
_MEGATRON = _of(tuple(f"{_SELF_ATTENTION}.{name}" for name in ("query", "key", "value", "dense")))
_MEGATRON_MLP = FeedForward(linear(f"{_H}.mlp.dense_h_to_4h"), linear(f"{_H}.mlp.dense_4h_to_h"), "gelu_tanh")
BLOOM: Recipe = (
    replace(_MEGATRON, norm=norm(f"{_H}.input_layernorm"), bias=DistanceBias(())),
    replace(_MEGATRON_MLP, norm=norm(f"{_H}.post_attention_layernorm")),
)
_QKV = ("query", "key", "value")
BLOOM_STORED = _in_groups(_SELF_ATTENTION, _QKV, "query_key_value")
GPTJ: Recipe = (
    Parallel(
        replace(_projections(f"{_H}.attn", biased=False), norm=norm(f"{_H}.ln_1")),
        FeedForward(linear(f"{_H}.mlp.fc_in"), linear(f"{_H}.mlp.fc_out"), "gelu_tanh", norm(f"{_H}.ln_1")),
    ),
)
GPT_BIGCODE_STORED = _in_groups(f"{_H}.attn", "qkv", "c_attn", one_if_shared)
OPENAI_GPT: Recipe = (_GPT2_ATTENTION, norm(f"{_H}.ln_1"), _GPT2_MLP, norm(f"{_H}.ln_2"))
_NEO = _projections(f"{_H}.attn.attention", biased=False)
GPT_NEO = _gpt2(replace(_NEO, output=linear(f"{_H}.attn.attention.out_proj")))
CODEGEN_STORED: Stored = {  # of four devices, values before keys
    f"{_H}.attn.{name}_proj": (TensorPart(f"{_H}.attn.qkv_proj", index, equal(3), lambda config: 4),)
    for index, name in enumerate("qvk")
}
CTRL: Recipe = (
    replace(
        _of(tuple(f"{_H}.multi_head_attention.{name}" for name in ("Wq", "Wk", "Wv", "dense"))),
        norm=norm(f"{_H}.layernorm1"),
    ),
    FeedForward(linear(f"{_H}.ffn.0"), linear(f"{_H}.ffn.2"), "relu", norm(f"{_H}.layernorm2")),
)
_MPT_LAYER = "blocks.{block}"
MPT: Recipe = (
    replace(
        _of(tuple(f"{_MPT_LAYER}.attn.{name}" for name in ("query", "key", "value", "out_proj")), biased=False),
        norm=replace(norm(f"{_MPT_LAYER}.norm_1"), bias=None),
        bias=DistanceBias(()),
    ),
    FeedForward(
        linear(f"{_MPT_LAYER}.ffn.up_proj", biased=False),
        linear(f"{_MPT_LAYER}.ffn.down_proj", biased=False),
        "gelu",
        replace(norm(f"{_MPT_LAYER}.norm_2"), bias=None),
    ),
)
MPT_STORED: Stored = {
    f"{_MPT_LAYER}.attn.{name}": (TensorPart(f"{_MPT_LAYER}.attn.Wqkv", index, equal(3)),)
    for index, name in enumerate(_QKV)
}


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
    feed_forward = FeedForward(linear(f"{layer}.fc1"), linear(f"{layer}.fc2"), "relu")
    steps: list[tuple[Attention | FeedForward, str]] = [(_projections(f"{layer}.self_attn"), "self_attn")]
    steps += [(replace(_projections(f"{layer}.encoder_attn"), across=True), "encoder_attn")] * across
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

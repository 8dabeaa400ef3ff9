"""FAMILIES: one row a model_type, its recipe as data. Fits no checkpoint (plan.py does) and computes nothing.

Tensor names in a row are those of the base class (`BertModel`). Steps leave out what a config decides: plan.py fills in
eps, heads and activation.

source   transformers 5.23: the modeling and configuration modules of each family (orders of sums, defaults)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from models.config import Config
from models.errors import UnknownFamily
from models.positions.learned import Kind
from models.recipe import Activation, AddPosition, AddType, Attention, Embed, FeedForward, LayerNorm, Linear, Recipe

Types = Literal["zeros", "optional", "none"]


@dataclass(frozen=True, slots=True)
class Family:
    """One row of FAMILIES.

    prefix       what files of the family's other classes put before every tensor name
    defaults     what transformers' config class assumes where config.json is silent, under the config's own names
    names        one word per idea -> the config's own name for it, where that differs
    input_layer  the steps before the first block
    block        the steps of one block, `{block}` its number; empty: whole encoders of this family are not exported
    numbering    how positions are counted; `offset` is added to the first
    eps          a config key or a number
    rope         the attention rotates queries and keys; None: it does not
    """

    prefix: str
    defaults: Mapping[str, Any]
    input_layer: Recipe
    block: Recipe = ()
    names: Mapping[str, str] = field(default_factory=dict)
    numbering: Kind = "arange"
    types: Types = "none"
    eps: str | float = "layer_norm_eps"
    rope: Literal["half", "interleaved"] | None = None


def _norm(stem: str) -> LayerNorm:
    return LayerNorm(f"{stem}.weight", f"{stem}.bias", eps=0.0)


def _linear(stem: str) -> Linear:
    return Linear(f"{stem}.weight", f"{stem}.bias")


_BERT_BLOCK: Recipe = (
    Attention(
        heads=0,
        query=_linear("encoder.layer.{block}.attention.self.query"),
        key=_linear("encoder.layer.{block}.attention.self.key"),
        value=_linear("encoder.layer.{block}.attention.self.value"),
        output=_linear("encoder.layer.{block}.attention.output.dense"),
    ),
    _norm("encoder.layer.{block}.attention.output.LayerNorm"),
    FeedForward(
        up=_linear("encoder.layer.{block}.intermediate.dense"),
        down=_linear("encoder.layer.{block}.output.dense"),
        activation="gelu",
    ),
    _norm("encoder.layer.{block}.output.LayerNorm"),
)

_DISTILBERT_BLOCK: Recipe = (
    Attention(
        heads=0,
        query=_linear("transformer.layer.{block}.attention.q_lin"),
        key=_linear("transformer.layer.{block}.attention.k_lin"),
        value=_linear("transformer.layer.{block}.attention.v_lin"),
        output=_linear("transformer.layer.{block}.attention.out_lin"),
    ),
    _norm("transformer.layer.{block}.sa_layer_norm"),
    FeedForward(
        up=_linear("transformer.layer.{block}.ffn.lin1"),
        down=_linear("transformer.layer.{block}.ffn.lin2"),
        activation="gelu",
    ),
    _norm("transformer.layer.{block}.output_layer_norm"),
)

_BERT_INPUT: Recipe = (
    Embed("embeddings.word_embeddings.weight"),
    AddType("embeddings.token_type_embeddings.weight"),
    AddPosition("embeddings.position_embeddings.weight"),
    _norm("embeddings.LayerNorm"),
)

_BERT_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}

_BERT = Family("bert.", _BERT_DEFAULTS, _BERT_INPUT, _BERT_BLOCK, types="zeros")
_ROBERTA = replace(
    _BERT,
    prefix="roberta.",
    defaults=_BERT_DEFAULTS | {"vocab_size": 50265, "pad_token_id": 1},
    numbering="cumsum_non_pad",
)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "camembert": replace(_ROBERTA, defaults={**_ROBERTA.defaults, "vocab_size": 30522}),
    "xlm-roberta": replace(_ROBERTA, defaults={**_ROBERTA.defaults, "vocab_size": 30522}),
    "distilbert": Family(
        prefix="distilbert.",
        defaults={
            "vocab_size": 30522,
            "dim": 768,
            "n_layers": 6,
            "n_heads": 12,
            "hidden_dim": 3072,
            "activation": "gelu",
            "max_position_embeddings": 512,
            "pad_token_id": 0,
        },
        names={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        input_layer=(
            Embed("embeddings.word_embeddings.weight"),
            AddPosition("embeddings.position_embeddings.weight"),
            _norm("embeddings.LayerNorm"),
        ),
        block=_DISTILBERT_BLOCK,
        eps=1e-12,  # written into the class, not the config
    ),
    "gpt2": Family(
        prefix="transformer.",
        defaults={
            "vocab_size": 50257,
            "n_embd": 768,
            "n_positions": 1024,
            "n_layer": 12,
            "n_head": 12,
            "pad_token_id": None,
        },
        names={
            "hidden_size": "n_embd",
            "max_position_embeddings": "n_positions",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
        },
        input_layer=(Embed("wte.weight"), AddPosition("wpe.weight"), AddType("wte.weight")),
        types="optional",
    ),
    "llama": Family(
        prefix="model.",
        defaults={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "head_dim": None,
            "pad_token_id": None,
        },
        input_layer=(Embed("embed_tokens.weight"),),
        rope="half",
    ),
}

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def family_of(model_type: str) -> Family:
    """The row of a model_type.

    raises   UnknownFamily naming the known ones
    """
    if model_type not in FAMILIES:
        raise UnknownFamily(f"model_type {model_type!r} is not one of {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def config_of(model_type: str, data: Mapping[str, Any]) -> Config:
    """config.json seen through its family's names and defaults; raises UnknownFamily."""
    family = family_of(model_type)
    return Config(data, family.defaults, family.names)

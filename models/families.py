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
from models.recipe import (
    Activation,
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
    Scale,
)

Types = Literal["zeros", "optional", "none"]


@dataclass(frozen=True, slots=True)
class AlibiRow:
    """The ALiBi of a family: a row of alibi.FORMS, and the config's keys for it, dotted where they are nested.

    switch    must be true; None: always on
    max_bias  None: it is 8
    """

    form: str
    switch: str | None = None
    max_bias: str | None = None


@dataclass(frozen=True, slots=True)
class BucketRow:
    """The relative buckets of a family: encodings.Buckets' kind and table, and the config keys of its numbers.

    switch   config key that must be true; None: always on
    norm     stem of a norm over the table, there where the config's `norm_switch` holds `norm_word`
    """

    kind: Literal["t5", "deberta"]
    table: str
    count: str
    reach: str
    bidirectional: bool
    switch: str | None = None
    norm: str | None = None
    norm_switch: str = ""
    norm_word: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """Stands for the value of another key of the config."""

    name: str


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
    biased_if    the config key without which norms have no bias; None: they have what the row says
    only_if      kinds of step -> the config key without which a checkpoint has no such step
    only         config keys, dotted where nested -> the one value this row computes; others are refused
    held_as      tensors -> the name under which some files hold them, which counts where both are there
    scaled_if    the config key that says token rows are multiplied by sqrt(hidden_size)
    rotates      the attention rotates queries and keys, as positions/conventions.py says
    causal       a token attends to those before it alone: True, False, or the config key that says so
    window       the config key of the width of sliding layers, both sides together where they are not causal
    """

    prefix: str
    defaults: Mapping[str, Any]
    input_layer: Recipe
    block: Recipe = ()
    names: Mapping[str, str] = field(default_factory=dict)
    numbering: Kind = "arange"
    types: Types = "none"
    eps: str | float = "layer_norm_eps"
    biased_if: str | None = None
    only_if: Mapping[type[Any], str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    held_as: Mapping[str, str] = field(default_factory=dict)
    scaled_if: str | None = None
    rotates: bool = False
    causal: bool | str = False
    window: str | None = None
    alibi: AlibiRow | None = None
    buckets: BucketRow | None = None


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

_BERT = Family("bert.", _BERT_DEFAULTS, _BERT_INPUT, _BERT_BLOCK, types="zeros", causal="is_decoder")
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
        causal=True,
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
        rotates=True,
        causal=True,
    ),
    "gpt_neox": Family(
        prefix="gpt_neox.",
        defaults={
            "vocab_size": 50432,
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "max_position_embeddings": 2048,
            "pad_token_id": None,
        },
        input_layer=(Embed("embed_in.weight"),),
        rotates=True,
        causal=True,
    ),
    "modernbert": Family(
        prefix="model.",
        defaults={
            "vocab_size": 50368,
            "hidden_size": 768,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "max_position_embeddings": 8192,
            "norm_eps": 1e-5,
            "norm_bias": False,
            "local_attention": 128,
            "pad_token_id": 50283,
        },
        input_layer=(Embed("embeddings.tok_embeddings.weight"), _norm("embeddings.norm")),
        eps="norm_eps",
        biased_if="norm_bias",
        rotates=True,
        window="local_attention",
    ),
    "bloom": Family(
        prefix="transformer.",
        defaults={
            "vocab_size": 250880,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 8,
            "layer_norm_epsilon": 1e-5,
            "pad_token_id": None,
        },
        names={"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        input_layer=(Embed("word_embeddings.weight"), _norm("word_embeddings_layernorm")),
        eps="layer_norm_epsilon",
        causal=True,
        alibi=AlibiRow("bloom"),
    ),
    "mpt": Family(
        prefix="transformer.",
        defaults={
            "vocab_size": 50368,
            "d_model": 2048,
            "n_layers": 24,
            "n_heads": 16,
            "max_seq_len": 2048,
            "pad_token_id": None,
        },
        names={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        input_layer=(Embed("wte.weight"),),
        only={"attn_config.alibi": True, "attn_config.prefix_lm": False},
        causal=True,
        alibi=AlibiRow("mpt", max_bias="attn_config.alibi_bias_max"),
    ),
    "falcon": Family(
        prefix="transformer.",
        defaults={
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "max_position_embeddings": 2048,
            "alibi": False,
            "pad_token_id": None,
        },
        names={"hidden_size": "n_embed"},
        input_layer=(Embed("word_embeddings.weight"),),
        rotates=True,
        causal=True,
        alibi=AlibiRow("falcon", switch="alibi"),
    ),
    "t5": Family(
        prefix="",
        defaults={
            "vocab_size": 32128,
            "d_model": 512,
            "num_layers": 6,
            "num_heads": 8,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "pad_token_id": 0,
        },
        names={"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
        input_layer=(Embed("shared.weight"),),
        held_as={"shared.weight": "encoder.embed_tokens.weight"},
        buckets=BucketRow(
            "t5",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            count="relative_attention_num_buckets",
            reach="relative_attention_max_distance",
            bidirectional=True,
        ),
    ),
    "deberta-v2": Family(
        prefix="deberta.",
        defaults={
            "vocab_size": 128100,
            "hidden_size": 1536,
            "num_hidden_layers": 24,
            "num_attention_heads": 24,
            "max_position_embeddings": 512,
            "type_vocab_size": 0,
            "layer_norm_eps": 1e-7,
            "relative_attention": False,
            "max_relative_positions": -1,
            "position_buckets": -1,
            "norm_rel_ebd": "none",
            "position_biased_input": True,
            "pad_token_id": 0,
        },
        input_layer=(
            Embed("embeddings.word_embeddings.weight"),
            AddPosition("embeddings.position_embeddings.weight"),
            AddType("embeddings.token_type_embeddings.weight"),
            _norm("embeddings.LayerNorm"),
            MaskRows(),
        ),
        types="zeros",
        only_if={AddPosition: "position_biased_input", AddType: "type_vocab_size"},
        only={"embedding_size": Key("hidden_size")},
        buckets=BucketRow(
            "deberta",
            "encoder.rel_embeddings.weight",
            count="position_buckets",
            reach="max_relative_positions",
            bidirectional=True,
            switch="relative_attention",
            norm="encoder.LayerNorm",
            norm_switch="norm_rel_ebd",
            norm_word="layer_norm",
        ),
    ),
    "marian": Family(
        prefix="model.",
        defaults={
            "vocab_size": 58101,
            "d_model": 1024,
            "encoder_layers": 12,
            "encoder_attention_heads": 16,
            "max_position_embeddings": 1024,
            "scale_embedding": False,
            "pad_token_id": 58100,
        },
        names={
            "hidden_size": "d_model",
            "num_hidden_layers": "encoder_layers",
            "num_attention_heads": "encoder_attention_heads",
        },
        input_layer=(Embed("shared.weight"), Scale(0.0), AddSinusoid("marian", 0)),
        held_as={"shared.weight": "encoder.embed_tokens.weight"},
        scaled_if="scale_embedding",
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

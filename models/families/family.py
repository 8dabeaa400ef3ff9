"""What one row of FAMILIES says. Holds no row and reads no config.

Tensor names in a row are those of the base class (`BertModel`). Steps leave out what a config decides: plan.py fills in
eps, factors, widths, heads and activation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from models.families.recipe import LayerNorm, Linear, Recipe
from models.positions.learned import Kind

Types = Literal["zeros", "optional", "none"]
Side = Literal["encoder", "decoder"]
HandedOver = Literal["token_embeddings", "unscaled_embeddings", "input_embeddings"]


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

    table    None: every layer has a table of its own, and none is exported
    count, reach  a config key, or the number itself
    switch   config key that must be true; None: always on
    norm     stem of a norm over the table, there where the config's `norm_switch` holds `norm_word`
    """

    kind: Literal["t5", "deberta"]
    table: str | None
    count: str | int
    reach: str | int
    bidirectional: bool
    switch: str | None = None
    norm: str | None = None
    norm_switch: str = ""
    norm_word: str = ""


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """The factor of a row's Scale.

    key      of a config value that is the factor; None: it is sqrt(hidden_size)
    switch   config key without which there is no Scale; None: always
    rounded  weights: the factor is rounded to the word table's dtype and the product again (Gemma's embedding module).
             bfloat16: the factor is rounded to bfloat16 whatever the dtype, the product to the table's
    """

    key: str | None = None
    switch: str | None = None
    rounded: Literal["weights", "bfloat16"] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """Stands for the value of another key of the config."""

    name: str


@dataclass(frozen=True, slots=True)
class Family:
    """One row of FAMILIES.

    prefix       what files of the family's other classes put before every tensor name
    defaults     what transformers' config class assumes where config.json is silent, under the config's own names
    names        one word per idea -> the config's own name for it, where that differs; `table_width` is the width of
                 the tables before a Linear
    input_layer  the steps before the first block
    block        the steps of one block, `{block}` its number; empty: whole encoders of this family are not exported
    numbering    how positions are counted
    offset       is added to the first position, and the position table has so many rows more (BART)
    eps          a config key or a number
    biased_if    the config key without which norms have no bias; None: they have what the row says
    only_if      kinds of step -> the conditions without which a checkpoint has no such step: "key" must be true,
                 "key>1" above 1, "key=word" that word
    projected    a Linear of the input layer is always there, or only where the tables are narrower than the model
    only         config keys, dotted where nested -> the one value this row computes; others are refused
    held_as      tensors -> the names under which some files hold them, which count before the usual one
    else_as      tensors -> the names that count where the usual one is missing, because files hold tied tensors once
    stored       the tensor of sinusoids that some files hold, which counts before the formula
    scale        the factor of Scale
    extras       names of AddIndexed -> the config key of their rows; "-" before it: nothing is added where none is sent
    per_layer    steps that give each layer its own embedding of the token (Gemma 3n): a further output
    mask_from    sent: no mask means all tokens are attended to. pad_count: as many from the left as are no pad (XLM)
    decoder      the row of the decoder side, where this one is the encoder's
    side         which side this row is, where the model has two
    rotates      the attention rotates queries and keys, as positions/conventions.py says; or the condition for it
    causal       a token attends to those before it alone: True, False, or the config key that says so
    window       the config key of the width of sliding layers, both sides together where they are not causal
    own_mask     its class makes its mask itself, so that the config's is_causal says nothing
    both_ways    of a causal family: the condition on which it attends both ways, and what is then added to half the
                 window (EmbeddingGemma)
    handed_over  the output with which the same model elsewhere, given it as inputs_embeds, computes what it makes of
                 the ids. token_embeddings: the word table's rows, scaled where their module scales (Gemma, BART);
                 unscaled_embeddings: what comes behind inputs_embeds scales them (Granite); input_embeddings: nothing
                 of the input layer comes behind them (ESM). vLLM decides where it has the family, else transformers
    mixed_masks  no mask is told: sliding and full layers share one RoPE table, layers are recurrent, or attention is
                 by blocks (BigBird, Longformer)
    """

    prefix: str
    defaults: Mapping[str, Any]
    input_layer: Recipe
    block: Recipe = ()
    names: Mapping[str, str] = field(default_factory=dict)
    numbering: Kind = "arange"
    offset: int = 0
    types: Types = "none"
    eps: str | float = "layer_norm_eps"
    biased_if: str | None = None
    only_if: Mapping[type[Any], tuple[str, ...]] = field(default_factory=dict)
    projected: Literal["always", "if_narrower"] = "if_narrower"
    only: Mapping[str, Any] = field(default_factory=dict)
    held_as: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    else_as: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stored: str | None = None
    scale: ScaleRow | None = None
    extras: Mapping[str, str] = field(default_factory=dict)
    per_layer: Recipe = ()
    mask_from: Literal["sent", "pad_count"] = "sent"
    decoder: "Family | None" = None
    side: Side | None = None
    rotates: bool | str = False
    causal: bool | str = False
    window: str | None = None
    own_mask: bool = False
    both_ways: tuple[str, int] | None = None
    handed_over: HandedOver = "token_embeddings"
    mixed_masks: bool = False
    alibi: AlibiRow | None = None
    buckets: BucketRow | None = None


def norm(stem: str) -> LayerNorm:
    """A LayerNorm by its module's name."""
    return LayerNorm(f"{stem}.weight", f"{stem}.bias", eps=0.0)


def linear(stem: str) -> Linear:
    """A Linear by its module's name."""
    return Linear(f"{stem}.weight", f"{stem}.bias")

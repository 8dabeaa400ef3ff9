"""`Family`: the recipe of one model_type and the config keys that complete it.

Tensor names are those of the base class (`BertModel`). Steps leave out what a config decides: fitting.py fills in eps,
factors, widths, heads and activation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from models.families.config import Config
from models.positions.learned import Kind
from models.recipes.steps import FeedForward, LayerNorm, Linear, Recipe, RMSNorm

Types = Literal["zeros", "optional", "none"]
Side = Literal["encoder", "decoder"]
PromptEmbedsOutput = Literal["token_embeddings", "unscaled_embeddings", "input_embeddings"]


Shares = Callable[[Config], tuple[int, ...]]


def equal(count: int) -> Shares:
    """Return the shares of `count` equal parts."""
    return lambda config: (1,) * count


def head_count(config: Config) -> int:
    """Return the number of attention heads."""
    return config.count("num_attention_heads")


def by_heads(config: Config) -> tuple[int, ...]:
    """Return the shares of queries, keys and values of all heads."""
    heads = head_count(config)
    keys = heads if config.get("num_key_value_heads") is None else config.count("num_key_value_heads")
    return heads, keys, keys


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor as part of another.

    Attributes:
        stem: stem of the other tensor, its block's number written as {block}.
        index: number of the part.
        shares: how its rows are divided.
        groups: into how many groups the rows are divided first, each of which holds all parts (GPT-NeoX: one a head).
        transposed: the file holds [in, out] (GPT-2's Conv1D).
        by_block: whether the number of the block is the index.
        experts: number of experts in a tensor with all their matrices; `stem` is then its whole name.
        stacked: whether that tensor has a dimension of experts, or their rows lie behind one another.
        expert: number of the expert whose matrix is read.
    """

    stem: str
    index: int = 0
    shares: Shares = field(default=equal(1))
    groups: Callable[[Config], int] = field(default=lambda config: 1)
    transposed: bool = False
    by_block: bool = False
    experts: Callable[[Config], int] | None = None
    stacked: bool = True
    expert: int = 0


Stored = dict[str, tuple[str | TensorPart, ...]]
"""Stem of a tensor -> where files hold it, tried in order."""


def fused(stem: str, names: Sequence[str], whole: str, **how: Any) -> Stored:
    """Return where modules lie that files hold as one.

    Args:
        stem: of the modules in the class.
        names: of the modules, in the order of their parts.
        whole: the module that holds all.
        how: more of TensorPart; by default all parts are equal.
    """
    how = {"shares": equal(len(names))} | how
    return {f"{stem}.{name}": (TensorPart(whole, index, **how),) for index, name in enumerate(names)}


def expert_count(config: Config) -> int:
    """Return the number of experts."""
    return config.count("num_experts")


@dataclass(frozen=True, slots=True)
class AlibiSpec:
    """Which ALiBi a family uses, and the config keys of its parameters, dotted where nested.

    Attributes:
        form: a key of alibi.FORMS.
        switch: config key that must be true; None: always on.
        max_bias: config key of the largest bias; None: it is 8.
    """

    form: str
    switch: str | None = None
    max_bias: str | None = None


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """Which relative buckets a family uses, and the config keys of their sizes.

    Attributes:
        kind: as in positional_encodings.Buckets.
        table: the table's tensor; None: every layer has a table of its own, and none is exported.
        count, reach: a config key, or the number itself.
        switch: config key that must be true; None: always on.
        norm: stem of a norm over the table, present where the config's `norm_switch` contains `norm_word`.
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
class ScaleSpec:
    """Where the factor of a family's Scale step comes from.

    Attributes:
        key: config key of the factor; None: it is sqrt(hidden_size).
        switch: config key without which there is no Scale; None: always.
        rounded: weights: the factor is rounded to the word table's dtype, and so is the product (Gemma's embedding
            module). bfloat16: the factor is rounded to bfloat16 whatever the dtype, the product to the table's.
    """

    key: str | None = None
    switch: str | None = None
    rounded: Literal["weights", "bfloat16"] | None = None


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """Which config keys, besides num_experts, complete a family's mixtures of experts.

    Attributes:
        chosen: number of experts of a row.
        inner: width of an expert between up and down.
        shared_inner: width of the shared expert between up and down; None: there is none.
        normalized: true: the weights of a row's experts are softmax over their own scores; false: over all; None: as
            the recipe says.
        jitter: jitter of sparsemixer; None: none.
        dense: whether a layer has the step `instead` in place of experts; None: none has.
        instead: a feed-forward step.
    """

    chosen: str = "num_experts_per_tok"
    inner: str = "intermediate_size"
    shared_inner: str | None = None
    normalized: str | None = None
    jitter: str | None = None
    dense: Callable[[Config, int], bool] | None = None
    instead: FeedForward | None = None


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A required value that is the value of another config key."""

    name: str


@dataclass(frozen=True, slots=True)
class TextVector:
    """How a family makes the vector of a text without files that describe it.

    Attributes:
        mode: cls: the first row; eos: the row of the token that ends the text; lasttoken: the last row.
        projection: behind it, in the tower or beside it; a file may hold none.
        filled: texts are filled with pad tokens up to the longest input, and these are attended to.
        lowercase: texts are lowercased, whatever the tokenizer's file says.
    """

    mode: Literal["cls", "eos", "lasttoken"]
    projection: Linear
    filled: bool = False
    lowercase: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One model_type: its recipe, and the config keys that complete it.

    Attributes:
        prefix: prefix of every tensor name in files of the family's other classes.
        names: usual key -> the config's own name for it, where they differ; `table_width` is the width of the tables
            before a Linear.
        input_layer: the steps before the first block.
        block: the steps of one block, `{block}` its number; empty: they are not computed, as uncovered.py says.
        after_blocks: the steps behind the last block.
        stored: stem of a tensor of the blocks, its number written as {block} -> where else files hold it, tried first.
        block_of: the steps of one block, by its number, where they differ; None: those of `block`.
        derived: config values that the class derives from others; None: none.
        shared_block: the number that {block} stands for in a layer's names, where layers share tensors (ALBERT's
            groups); None: its own.
        longest: up to how many tokens the blocks compute what the class does; None: any.
        absent: stems of norms of single blocks that are not there.
        experts: what completes the Experts of `block`, which name one expert for all, {expert} its number.
        feed_forward: changes that the config makes to the feed-forward step; None: none.
        bias_if: config key that must be true -> what the names of the Linear steps contain that have a bias only then.
        norm_if: config key that must be true -> what the names of the blocks' norms contain that are there only then.
        score_scale: the factor of attention scores; None: 1 / sqrt(width of a head).
        layer_keys: the config keys that a layer has of its own, by its number and type; None: none.
        output_width: config key of the width behind `after_blocks`, which end in a Linear; None: they do not.
        factor: the factor of what attention and feed-forward add (Granite); None: 1.
        cap: config key of the cap of scores; None: there is none.
        layer_types: the type of each layer where the config does not list them and they share one RoPE table: those
            with "sliding" in it have a window.
        variants: condition on the config, or ".part." of the name of a tensor in the file -> what it is instead:
            published code that uses another family's model_type.
        narrow_blocks: whether the blocks of models with narrower tables are as `block` says.
        block_if: config key, dotted where nested -> the one value with which the blocks are as `block` says; with
            others only the input layer is exported.
        numbering: how positions are counted.
        offset: added to the first position; the position table has as many rows more (BART).
        eps: a config key or a number.
        biased_if: config key without which norms have no bias; None: norms are as the recipe says.
        present_if: kind of step -> the conditions without which a checkpoint has no such step: "key" must be true,
            "key>1" above 1, "key=word" that word.
        projected: whether the input layer's Linear is always there, or only where the tables are narrower than the
            model.
        required_values: config key, dotted where nested -> the one value that is computed; others are rejected.
        preferred_names: tensor -> names under which some files hold it, tried before the usual one.
        fallback_names: tensor -> names tried where the usual one is missing, because files store tied tensors once.
        sinusoid_table: tensor of sinusoids that some files hold; where it is there, it is used instead of the formula.
        scale: the factor of Scale.
        extras: name of an AddIndexed -> the config key of its rows; "-" before it: nothing is added if none is sent.
        per_layer: steps that give each layer its own embedding of the token (Gemma 3n), a further output.
        mask_from: sent: no mask means all tokens are attended to. pad_count: the first n tokens, n the count of tokens
            that are not padding (XLM).
        decoder: the decoder's side, where this family is the encoder's.
        side: the side that this is, if the model has two.
        rotates: whether the attention rotates queries and keys, as positions/rope/conventions.py says; or the
            condition.
        stored_frequencies: how names of tensors end that hold the frequencies of its rotation, used instead of the
            formula's (ESM-2 was trained with frequencies rounded to float16); None: files hold none.
        causal: whether a token attends only to those before it: True, False, or the config key that says so.
        window: config key of the width of sliding layers.
        window_of: where they are not causal: whether that is the width of both sides together, or of each. half: that
            a token, causal or not, sees half of it (ModernBERT's decoder).
        builds_own_mask: the class builds its mask itself, so that the config's is_causal has no effect.
        bidirectional_if: of a causal family: the condition on which it attends both ways, and what is then added to
            half the window (EmbeddingGemma).
        prompt_embeds_output: the output that another server of the same model takes as inputs_embeds (prompt_embeds)
            in place of the ids. token_embeddings: the word table's rows, scaled where their module scales (Gemma,
            BART); unscaled_embeddings: the forward pass scales inputs_embeds itself (Granite);
            input_embeddings: it adds nothing of the input layer to them (ESM). Follows vLLM where it has the family,
            else transformers.
        omits_masks: no mask is exported: sliding and full layers share one RoPE table, layers are recurrent, or
            attention is by blocks (BigBird, Longformer).
        text_vector: how it makes the vector of a text; None: only files of sentence-transformers say so.
        alibi: ALiBi of the family; None: none.
        buckets: relative buckets of the family; None: none.
        defaults: what transformers' config class assumes for keys that config.json omits, under the class's own names:
            those of class_defaults.json, in which a row here has only what differs (published code).
    """

    prefix: str
    input_layer: Recipe
    block: Recipe = ()
    after_blocks: Recipe = ()
    stored: Mapping[str, tuple["str | TensorPart", ...]] = field(default_factory=dict)
    block_of: Callable[[Config, int], Recipe] | None = None
    derived: Callable[[Config], Mapping[str, Any]] | None = None
    shared_block: Callable[[Config, int], int] | None = None
    longest: Callable[[Config], int | None] | None = None
    absent: tuple[str, ...] = ()
    experts: ExpertSpec | None = None
    feed_forward: Callable[[FeedForward, Config], FeedForward] | None = None
    bias_if: Mapping[str, str] = field(default_factory=dict)
    norm_if: Mapping[str, str] = field(default_factory=dict)
    score_scale: Callable[[Config], float] | None = None
    layer_keys: Callable[[Config, int, str | None], Mapping[str, Any]] | None = None
    output_width: str | None = None
    factor: Callable[["Config"], float] | None = None
    cap: str | None = None
    layer_types: Callable[[Config, int], Sequence[str]] | None = None
    narrow_blocks: bool = True
    variants: Mapping[str, tuple[str, "Family"]] = field(default_factory=dict)
    block_if: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    numbering: Kind = "arange"
    offset: int = 0
    types: Types = "none"
    eps: str | float = "layer_norm_eps"
    biased_if: str | None = None
    present_if: Mapping[type[Any], tuple[str, ...]] = field(default_factory=dict)
    projected: Literal["always", "if_narrower"] = "if_narrower"
    required_values: Mapping[str, Any] = field(default_factory=dict)
    preferred_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fallback_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sinusoid_table: str | None = None
    scale: ScaleSpec | None = None
    extras: Mapping[str, str] = field(default_factory=dict)
    per_layer: Recipe = ()
    mask_from: Literal["sent", "pad_count"] = "sent"
    decoder: "Family | None" = None
    side: Side | None = None
    rotates: bool | str = False
    stored_frequencies: str | None = None
    causal: bool | str = False
    window: str | None = None
    window_of: Literal["both", "each", "half"] = "both"
    builds_own_mask: bool = False
    bidirectional_if: tuple[str, int] | None = None
    prompt_embeds_output: PromptEmbedsOutput = "token_embeddings"
    omits_masks: bool = False
    text_vector: TextVector | None = None
    alibi: AlibiSpec | None = None
    buckets: BucketSpec | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


def read_config(family: Family, data: Mapping[str, Any]) -> Config:
    """Return a config.json seen through the names and defaults of a family, with the values that its class derives."""
    config = Config(data, family.defaults, family.names)
    return replace(config, data={**data, **family.derived(config)}) if family.derived else config


def norm(stem: str) -> LayerNorm:
    """Return a LayerNorm by its module's name; fitting fills in eps."""
    return LayerNorm(f"{stem}.weight", f"{stem}.bias", eps=0.0)


def rms_norm(stem: str, offset: float = 0.0) -> RMSNorm:
    """Return an RMSNorm by its module's name; fitting fills in eps."""
    return RMSNorm(f"{stem}.weight", 0.0, offset)


def linear(stem: str, biased: bool = True) -> Linear:
    """Return a Linear by its module's name."""
    return Linear(f"{stem}.weight", f"{stem}.bias" if biased else None)

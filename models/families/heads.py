"""HEADS: how the hidden states of each model_type become logits, as data.

    logits = cap * tanh(after * (transform(h) * before @ matrix.T + bias) / cap)

`h` is what the family's base class returns as last_hidden_state (its final norm included). Tensor names are those of
the class with the head; a file may put a prefix before them. head_fitting.py fits a head to a checkpoint.

Source: transformers 5.23 (the modeling and configuration modules of each family).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from models.families.config import Config

Tie = Literal["config", "forced", "never"]


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """The output head of one model_type.

    Attributes:
        matrix: names of the output matrix where it is a tensor of its own, tried in order.
        bias: names of the bias, tried in order; (): the head has none.
        bias_if: config key without which there is no bias.
        tie: config: the matrix is tied if tie_word_embeddings says so; forced: always; never.
        tied_to: tables the matrix may be tied to, tried in order; (): the table of the input layer.
        dense, norm: stems of the transform's linear and norm; "": it has none.
        activation: a config key, or the activation itself after "=".
        eps: epsilon of the norm: a config key, or the number itself.
        needs_bias: a file without the bias is one without the head; else a missing bias is zero.
        optional_tensors: tensors of the transform that a config may switch off: a missing one counts as none.
        before, after: factors of hidden states and of logits.
        cap: config key of the soft cap.
        required_values: config key -> the one value that is computed.
        defaults: defaults of transformers' config class for keys that config.json omits.
        fallback: the head of files that do not hold this one's tensors.
    """

    matrix: tuple[str, ...] = ("lm_head.weight",)
    bias: tuple[str, ...] = ()
    bias_if: str | None = None
    tie: Tie = "config"
    tied_to: tuple[str, ...] = ()
    dense: str = ""
    norm: str = ""
    activation: str = "hidden_act"
    eps: str | float = "layer_norm_eps"
    needs_bias: bool = True
    optional_tensors: tuple[str, ...] = ()
    before: Callable[[Config, int], float] = lambda values, width: 1.0
    after: Callable[[Config], float] = lambda values: 1.0
    cap: str | None = None
    required_values: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fallback: "HeadSpec | None" = None


def _t5(values: Config, width: int) -> float:
    """Return d^-0.5, but 1 for T5 1.1, whose tie_word_embeddings means this; saved again, it has a key of its own."""
    switch = values.get("scale_decoder_outputs")
    scaled = values.get("tie_word_embeddings") is not False if switch is None else bool(switch)
    return _root(values, width) if scaled else 1.0


def _root_if_tied(values: Config, width: int) -> float:
    return _root(values, width) if values.get("tie_word_embeddings") else 1.0


def _root(values: Config, width: int) -> float:
    return 1.0 / math.sqrt(width)


def _minicpm(values: Config, width: int) -> float:
    return 1.0 if values.get("dim_model_base") is None else values.number("dim_model_base", above_zero=True) / width


def _times(key: str) -> Callable[[Config], float]:
    return lambda values: 1.0 if values.get(key) is None else values.number(key, above_zero=True)


def _divided_by(key: str) -> Callable[[Config], float]:
    return lambda values: 1.0 if values.get(key) is None else 1.0 / values.number(key, above_zero=True)


_TIED: dict[str, Any] = {"tie_word_embeddings": True}
_UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
_GELU: dict[str, Any] = {"hidden_act": "gelu"}

PLAIN = HeadSpec(defaults=_UNTIED)
_PLAIN_TIED = HeadSpec(defaults=_TIED)
_BERT = HeadSpec(
    ("cls.predictions.decoder.weight",),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    defaults=_TIED | _GELU | {"layer_norm_eps": 1e-12},
)
_DEBERTA_OWN = HeadSpec(
    (),
    ("lm_predictions.lm_head.bias",),
    tie="forced",
    dense="lm_predictions.lm_head.dense",
    norm="lm_predictions.lm_head.LayerNorm",
    defaults=_TIED | _GELU | {"layer_norm_eps": 1e-7},
)
_DEBERTA = replace(_BERT, fallback=_DEBERTA_OWN, defaults=_DEBERTA_OWN.defaults)
_ROBERTA = HeadSpec(
    ("lm_head.decoder.weight",),
    ("lm_head.decoder.bias", "lm_head.bias"),
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    activation="=gelu",
    defaults=_TIED | {"layer_norm_eps": 1e-12},
)
_XLM_R = replace(_ROBERTA, defaults=_TIED | {"layer_norm_eps": 1e-5})
_ELECTRA = HeadSpec(
    ("generator_lm_head.weight",),
    ("generator_lm_head.bias",),
    dense="generator_predictions.dense",
    norm="generator_predictions.LayerNorm",
    activation="=gelu",
    defaults=_TIED | {"layer_norm_eps": 1e-12},
)
_MODERNBERT = HeadSpec(
    ("decoder.weight",),
    ("decoder.bias",),
    bias_if="decoder_bias",
    dense="head.dense",
    norm="head.norm",
    activation="classifier_activation",
    eps="norm_eps",
    optional_tensors=("head.dense.bias", "head.norm.bias"),
    defaults=_TIED | {"decoder_bias": True, "classifier_activation": "gelu", "norm_eps": 1e-5},
)
_XLM = HeadSpec(("pred_layer.proj.weight",), ("pred_layer.proj.bias",), required_values={"asm": False}, defaults=_TIED)
_UNTIED_WITH_BIAS = HeadSpec(bias=("lm_head.bias",), defaults=_UNTIED)
_BART = HeadSpec(
    bias=("final_logits_bias",),
    tied_to=("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight"),
    needs_bias=False,
    defaults=_TIED,
)
_SHARED = replace(_BART, bias=())
_T5 = replace(_SHARED, tie="forced", before=_t5)
_GRANITE = replace(PLAIN, after=_divided_by("logits_scaling"))
_COHERE = HeadSpec(after=_times("logit_scale"), defaults=_TIED | {"logit_scale": 0.0625})
_CAPPED = HeadSpec(cap="final_logit_softcapping", defaults=_TIED)
_GEMMA2 = replace(_CAPPED, defaults=_TIED | {"final_logit_softcapping": 30.0})

_PLAIN_TYPES = (
    "llama llama_bidirec mistral ministral ministral3 mixtral qwen2 qwen2_moe qwen3 qwen3_moe qwen2_vl qwen2_vl_text "
    "qwen2_5_vl "
    "qwen2_5_vl_text qwen3_vl qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text olmo olmo2 olmo3 olmoe hunyuan_v1_moe "
    "exaone4 apertus arcee seed_oss dots1 bitnet minimax jamba phi3 phimoe stablelm persimmon nemotron deepseek_v2 "
    "deepseek_v3 glm glm4 glm4_moe gpt_oss llama4 llama4_text helium afmoe hunyuan_v1_dense mamba2 eurobert dbrx "
    "solar_open llava"
)
_TIED_TYPES = (
    "gpt2 gpt_neo gpt_bigcode openai-gpt bloom mpt falcon opt xglm gemma gemma3 smollm3 starcoder2 ernie4_5 mamba "
    "falcon_mamba lfm2 zamba zamba2 jetmoe mistral3"
)
# heads of bge-reranker-v2-minicpm-layerwise, one a layer; that of the last layer counts, as in FlagEmbedding 1.3
_LAYERWISE = tuple(f"lm_head.{number}.linear_head.weight" for number in reversed(range(64)))
_GRANITE_TYPES = ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid")

HEADS: dict[str, HeadSpec] = {
    **dict.fromkeys(_PLAIN_TYPES.split(), PLAIN),
    **dict.fromkeys(_TIED_TYPES.split(), _PLAIN_TIED),
    **dict.fromkeys(("bert", "ernie", "megatron-bert", "layoutlm", "roformer"), _BERT),
    "big_bird": replace(_BERT, defaults={**_BERT.defaults, "hidden_act": "gelu_new"}),
    "nomic_bert": replace(
        _BERT, norm="cls.predictions.transform.layer_norm", defaults={**_BERT.defaults, "hidden_act": "silu"}
    ),
    **dict.fromkeys(("deberta", "deberta-v2"), _DEBERTA),
    "rembert": replace(_BERT, dense="cls.predictions.dense", norm="cls.predictions.LayerNorm", tie="never"),
    "albert": replace(
        _BERT,
        matrix=("predictions.decoder.weight",),
        bias=("predictions.decoder.bias", "predictions.bias"),
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        defaults=_TIED | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12},
    ),
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta", "longformer", "luke", "mpnet", "esm", "xmod"), _ROBERTA),
    **dict.fromkeys(("data2vec-text", "roberta-prelayernorm"), _ROBERTA),
    "gte": replace(_ROBERTA, norm="lm_head.norm"),
    **dict.fromkeys(("xlm-roberta-xl", "jina_embeddings_v3"), _XLM_R),
    "electra": _ELECTRA,
    "convbert": _ELECTRA,
    "neobert": HeadSpec(("decoder.weight",), ("decoder.bias",), defaults=_UNTIED),
    "distilbert": HeadSpec(
        ("vocab_projector.weight",),
        ("vocab_projector.bias",),
        dense="vocab_transform",
        norm="vocab_layer_norm",
        activation="activation",
        eps=1e-12,  # written into the class, not the config
        defaults=_TIED | {"activation": "gelu"},
    ),
    "modernbert": _MODERNBERT,
    "modernbert-decoder": replace(
        _MODERNBERT,
        dense="lm_head.dense",
        norm="lm_head.norm",
        optional_tensors=("lm_head.dense.bias", "lm_head.norm.bias"),
    ),
    "funnel": HeadSpec(bias=("lm_head.bias",), defaults=_TIED),
    "ctrl": HeadSpec(bias=("lm_head.bias",), defaults=_TIED),
    "xlnet": HeadSpec(("lm_loss.weight",), ("lm_loss.bias",), defaults=_TIED),
    "xlm": _XLM,
    "flaubert": _XLM,
    "gptj": _UNTIED_WITH_BIAS,
    "codegen": _UNTIED_WITH_BIAS,
    "phi": _UNTIED_WITH_BIAS,
    "gpt_neox": replace(PLAIN, matrix=("embed_out.weight", "lm_head.weight")),
    "biogpt": HeadSpec(("output_projection.weight",), defaults=_TIED),
    "whisper": HeadSpec(("proj_out.weight",), tied_to=("decoder.embed_tokens.weight",), defaults=_TIED),
    **dict.fromkeys(("bart", "mbart", "mvp", "led", "blenderbot", "blenderbot-small", "pegasus"), _BART),
    "marian": replace(_BART, tied_to=("decoder.embed_tokens.weight", "shared.weight", "encoder.embed_tokens.weight")),
    **dict.fromkeys(("m2m_100", "nllb-moe"), _SHARED),
    "speech_to_text": HeadSpec(tied_to=("decoder.embed_tokens.weight",), defaults=_TIED),
    "fsmt": HeadSpec(("decoder.output_projection.weight",), tied_to=("decoder.embed_tokens.weight",), defaults=_UNTIED),
    "t5": _T5,
    "longt5": _T5,
    "mt5": replace(_SHARED, tie="forced"),
    "umt5": replace(_SHARED, tie="forced", before=_root),
    "switch_transformers": replace(_SHARED, before=_root_if_tied),
    **dict.fromkeys(_GRANITE_TYPES, _GRANITE),
    "hyperclovax": replace(PLAIN, after=_times("logits_scaling")),
    "falcon_h1": replace(PLAIN, after=_times("lm_head_multiplier")),
    **dict.fromkeys(("cohere", "cohere2"), _COHERE),
    "minicpm": HeadSpec(("lm_head.weight", *_LAYERWISE), before=_minicpm, defaults=_TIED | {"dim_model_base": 1}),
    "minicpm3": HeadSpec(before=_minicpm, defaults=_TIED | {"dim_model_base": 256}),
    **dict.fromkeys(("gemma2", "gemma3n", "gemma3n_text", "vaultgemma"), _GEMMA2),
    **dict.fromkeys(("gemma3_text", "gemma4", "gemma4_text"), _CAPPED),
    "t5gemma": replace(_GEMMA2, matrix=("lm_head.out_proj.weight",), tied_to=("decoder.embed_tokens.weight",)),
    "nanochat": replace(PLAIN, cap="final_logit_softcapping", defaults={"final_logit_softcapping": 15.0}),
    "recurrent_gemma": HeadSpec(cap="logits_soft_cap", defaults=_TIED | {"logits_soft_cap": 30.0}),
}

"""CLASSIFIERS: how each model_type makes logits of labels from its hidden states, as data.

classifier_fitting.py fits a row to a checkpoint. Tensor names are those of transformers' classes for sequence and token
classification; a file may put a prefix before them.

Source: transformers 5.23 (the modeling and configuration modules of each family).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LATE = "late"  # EuroBERT's word for a mean of the logits of all tokens


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One linear layer of a head.

    Attributes:
        stem: stem of the layer's tensor names.
        activation: activation after the layer: a config key, or the activation itself after "=".
        norm: stem of a norm behind the activation; None: there is none.
        in_base: the base class holds it, and files put its prefix before the names.
        biased: whether new ones have a bias; of others the file says.
    """

    stem: str
    activation: str = "=linear"
    norm: str | None = None
    in_base: bool = False
    biased: bool = True


@dataclass(frozen=True, slots=True)
class ClassifierSpec:
    """The heads for sequence and for token classification of one model_type.

    Attributes:
        layers: for sequence classification, in their order; the last gives the logits. Empty: there is no such class,
            or it is not computed.
        pooling: a config key, or the pooling itself after "=".
        tokens: layers for token classification; empty: there is no such class.
        defaults: defaults of transformers' config class for keys that config.json omits.
        required_values: config key -> the one value that is computed.
        eps: config key of that of the norms.
    """

    layers: tuple[LayerSpec, ...]
    pooling: str = "=cls"
    tokens: tuple[LayerSpec, ...] = (LayerSpec("classifier"),)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required_values: Mapping[str, Any] = field(default_factory=dict)
    eps: str = "norm_eps"


def _two_layers(activation: str) -> ClassifierSpec:
    return ClassifierSpec((LayerSpec("classifier.dense", activation), LayerSpec("classifier.out_proj")))


_BERT = ClassifierSpec((LayerSpec("pooler.dense", "=tanh", in_base=True), LayerSpec("classifier")))
_ROBERTA = _two_layers("=tanh")
_DEBERTA = ClassifierSpec(
    (LayerSpec("pooler.dense", "pooler_hidden_act"), LayerSpec("classifier")), defaults={"pooler_hidden_act": "gelu"}
)
_MODERNBERT_HEAD = (
    LayerSpec("head.dense", "classifier_activation", "head.norm", biased=False),
    LayerSpec("classifier"),
)
_MODERNBERT = ClassifierSpec(
    _MODERNBERT_HEAD,
    "classifier_pooling",
    _MODERNBERT_HEAD,
    {"classifier_pooling": "cls", "classifier_activation": "gelu", "norm_eps": 1e-5},
)
_XLM = ClassifierSpec(
    (LayerSpec("sequence_summary.summary", "summary_activation"),),
    "summary_type",
    defaults={"summary_type": "first", "summary_use_proj": True, "summary_proj_to_labels": True},
    required_values={"summary_use_proj": True, "summary_proj_to_labels": True},
)
_SCORE = ClassifierSpec((LayerSpec("score", biased=False),), "=lasttoken", (LayerSpec("score"),))
_GPT = replace(_SCORE, tokens=(LayerSpec("classifier"),))
_SEQUENCE_ALONE = replace(_SCORE, tokens=())
_TOKENS_ALONE = ClassifierSpec(())
_BART = ClassifierSpec(
    (LayerSpec("classification_head.dense", "=tanh"), LayerSpec("classification_head.out_proj")), "=lasttoken", ()
)

CLASSIFIERS: dict[str, ClassifierSpec] = {
    **dict.fromkeys(("bert", "jina_bert", "ernie", "rembert", "megatron-bert", "layoutlm"), _BERT),
    **dict.fromkeys(("nomic_bert", "gte", "luke"), _BERT),
    "albert": ClassifierSpec((LayerSpec("pooler", "=tanh", in_base=True), LayerSpec("classifier"))),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm"), _ROBERTA),
    **dict.fromkeys(("xlm_roberta_flash", "jina_embeddings_v3", "data2vec-text", "mpnet", "esm"), _ROBERTA),
    "electra": _two_layers("=gelu"),
    "roformer": replace(_two_layers("hidden_act"), defaults={"hidden_act": "gelu"}),
    "big_bird": replace(_two_layers("hidden_act"), defaults={"hidden_act": "gelu_new"}),
    "distilbert": ClassifierSpec((LayerSpec("pre_classifier", "=relu"), LayerSpec("classifier"))),
    **dict.fromkeys(("deberta", "deberta-v2"), _DEBERTA),
    "modernbert": _MODERNBERT,
    "modernbert-decoder": replace(
        _MODERNBERT,
        layers=(_MODERNBERT_HEAD[0], LayerSpec("classifier", biased=False)),
        pooling="=lasttoken",
        tokens=(),
    ),
    "ultrabert": ClassifierSpec(
        (LayerSpec("classifier"),), "classifier_pooling", defaults={"classifier_pooling": "cls"}
    ),
    "eurobert": ClassifierSpec(
        (LayerSpec("dense", "=gelu"), LayerSpec("classifier")),
        "classifier_pooling",
        defaults={"classifier_pooling": LATE},
    ),
    **dict.fromkeys(("xlm", "flaubert"), _XLM),
    **dict.fromkeys(("arcee", "exaone4", "gemma", "gemma2", "glm", "glm4", "helium", "llama", "mistral"), _SCORE),
    **dict.fromkeys(("mixtral", "nemotron", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"), _SCORE),
    **dict.fromkeys(("qwen3_moe", "smollm3", "stablelm", "starcoder2"), _SCORE),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "bloom", "mpt", "falcon", "biogpt"), _GPT),
    **dict.fromkeys(("gemma3_text", "hunyuan_v1_dense", "olmo", "olmo2", "olmo3"), _SEQUENCE_ALONE),
    **dict.fromkeys(("phimoe", "gptj", "openai-gpt", "opt"), _SEQUENCE_ALONE),
    "ctrl": replace(_SEQUENCE_ALONE, layers=(LayerSpec("classifier", biased=False),)),
    **dict.fromkeys(("t5", "mt5", "umt5", "longformer"), _TOKENS_ALONE),
    **dict.fromkeys(("bart", "mvp"), _BART),
}

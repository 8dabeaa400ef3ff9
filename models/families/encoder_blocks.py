"""The blocks of BERT and its descendants: what comes again and again behind the input layer.

Source: transformers 5.23 (the modeling module of each family).
"""

from dataclasses import replace

from models.families.family import linear, norm
from models.families.recipe import Attention, FeedForward, Recipe, ScoreBias

_LAYER = "encoder.layer.{block}"


def _attention(stem: str, query: str, key: str, value: str, output: str) -> Attention:
    """Return attention by the names of its modules; fitting fills in the heads."""
    return Attention(
        heads=0,
        query=linear(f"{stem}.{query}"),
        key=linear(f"{stem}.{key}"),
        value=linear(f"{stem}.{value}"),
        output=linear(f"{stem}.{output}"),
    )


def _feed_forward(stem: str, up: str, down: str) -> FeedForward:
    """Return a feed-forward step by the names of its modules; fitting fills in the activation."""
    return FeedForward(linear(f"{stem}.{up}"), linear(f"{stem}.{down}"), "gelu")


def _post_norm(attention: Attention, behind_it: str, feed_forward: FeedForward, behind_that: str) -> Recipe:
    """Return a block with each norm, by its module's name, behind the sum that it belongs to."""
    return attention, norm(behind_it), feed_forward, norm(behind_that)


_BERT_ATTENTION = _attention(f"{_LAYER}.attention", "self.query", "self.key", "self.value", "output.dense")
_BERT_FEED_FORWARD = _feed_forward(_LAYER, "intermediate.dense", "output.dense")
_SHARED = "encoder.albert_layer_groups.0.albert_layers.0"
_DISTILBERT_LAYER = "transformer.layer.{block}"

BERT = _post_norm(
    _BERT_ATTENTION, f"{_LAYER}.attention.output.LayerNorm", _BERT_FEED_FORWARD, f"{_LAYER}.output.LayerNorm"
)
DISTILBERT = _post_norm(
    _attention(f"{_DISTILBERT_LAYER}.attention", "q_lin", "k_lin", "v_lin", "out_lin"),
    f"{_DISTILBERT_LAYER}.sa_layer_norm",
    _feed_forward(f"{_DISTILBERT_LAYER}.ffn", "lin1", "lin2"),
    f"{_DISTILBERT_LAYER}.output_layer_norm",
)
ALBERT = _post_norm(  # one for all layers
    _attention(f"{_SHARED}.attention", "query", "key", "value", "dense"),
    f"{_SHARED}.attention.LayerNorm",
    _feed_forward(_SHARED, "ffn", "ffn_output"),
    f"{_SHARED}.full_layer_layer_norm",
)
MPNET_BIAS = ScoreBias("encoder.relative_attention_bias.weight", buckets=0, reach=128)  # as written into the class
MPNET = _post_norm(
    replace(_attention(f"{_LAYER}.attention.attn", "q", "k", "v", "o"), bias=MPNET_BIAS),
    f"{_LAYER}.attention.LayerNorm",
    _BERT_FEED_FORWARD,
    f"{_LAYER}.output.LayerNorm",
)

_CLIP_LAYER = "encoder.layers.{block}"
CLIP: Recipe = (  # of both towers, and of SigLIP's
    replace(
        _attention(f"{_CLIP_LAYER}.self_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
        norm=norm(f"{_CLIP_LAYER}.layer_norm1"),
    ),
    replace(_feed_forward(f"{_CLIP_LAYER}.mlp", "fc1", "fc2"), norm=norm(f"{_CLIP_LAYER}.layer_norm2")),
)


def pre_norm(attention_norm: str, feed_forward_norm: str) -> Recipe:
    """Return BERT's block with the norms, by the names of their modules in a layer, before what they belong to."""
    return (
        replace(_BERT_ATTENTION, norm=norm(f"{_LAYER}.{attention_norm}")),
        replace(_BERT_FEED_FORWARD, norm=norm(f"{_LAYER}.{feed_forward_norm}")),
    )

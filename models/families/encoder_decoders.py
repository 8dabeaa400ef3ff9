"""ENCODER_DECODERS: the families with an encoder and a decoder: BART, T5 and their descendants, one Family a side.

Source: transformers 5.23 (the modeling module of each family: orders of sums).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.families import encoder_blocks, gpt_blocks
from models.families.family import BucketSpec, Family, ScaleSpec, Side, norm, rms_norm
from models.recipes.steps import AddPosition, AddSinusoid, Embed, Recipe, Scale, renamed

_IF_CONFIGURED = ScaleSpec(switch="scale_embedding")
_WORD_TABLE = "shared.weight"
_OTHER: dict[Side, Side] = {"encoder": "decoder", "decoder": "encoder"}


def _pair(
    layer: Recipe,
    names_of_sides: Mapping[Side, Mapping[str, str]] | None = None,
    **fields: Any,
) -> Family:
    """Return the encoder's family with the decoder's in it; `{side}` in a tensor name stands for the side.

    Args:
        layer: the input layer of either side.
        names_of_sides: config names that only one side has.
        fields: further fields of Family.
    """
    names: Mapping[Side, Mapping[str, str]] = names_of_sides or {"encoder": {}, "decoder": {}}
    decoder = _side("decoder", layer, names["decoder"], fields | {"causal": True})
    return replace(_side("encoder", layer, names["encoder"], fields), decoder=decoder)


def _side(side: Side, layer: Recipe, names: Mapping[str, str], fields: Mapping[str, Any]) -> Family:
    usual = {
        "hidden_size": "d_model",
        "num_hidden_layers": f"{side}_layers",
        "num_attention_heads": f"{side}_attention_heads",
    }
    side_table = f"{side}.embed_tokens.weight"
    common: dict[str, Any] = {
        "prefix": "model.",
        "names": {**usual, **names},
        "side": side,
        "scale": _IF_CONFIGURED,
        "preferred_names": {_WORD_TABLE: (side_table,)},
        "fallback_names": {_WORD_TABLE: (f"{_OTHER[side]}.embed_tokens.weight", "lm_head.weight")},
    }
    filled = {key: value.replace("{side}", side) if isinstance(value, str) else value for key, value in fields.items()}
    return Family(input_layer=_of_side(side, layer), **common | filled)


def _of_side(side: Side, layer: Recipe) -> Recipe:
    return renamed(layer, lambda name: name.replace("{side}", side))


_POSITION_TABLE = AddPosition("{side}.embed_positions.weight")
_NORM = norm("{side}.layernorm_embedding")
_SINUSOID_TABLE = "{side}.embed_positions.weight"
_POSITIONS_AND_NORM = (Embed(_WORD_TABLE), Scale(0.0), _POSITION_TABLE, _NORM)
_BART = _pair(_POSITIONS_AND_NORM, offset=2, eps=1e-5)
_M2M = _pair(
    (Embed(_WORD_TABLE), Scale(0.0), AddSinusoid("tensor2tensor", 0)),
    numbering="cumsum_non_pad",
    sinusoid_table=_SINUSOID_TABLE,
)
_MARIAN_LAYER = (Embed(_WORD_TABLE), Scale(0.0), AddSinusoid("marian", 0))


def _with_decoder(family: Family, **changes: Any) -> Family:
    """Return the family with changes of its decoder's fields."""
    assert family.decoder is not None
    return replace(family, decoder=replace(family.decoder, **changes))


# pegasus, marian: the decoder's forward scales inputs_embeds, the encoder's does not
_TAKES_UNSCALED: dict[str, Any] = {"prompt_embeds_output": "unscaled_embeddings"}


def _whole(family: Family, *, pre_norm: bool, **rest: Any) -> Family:
    """Return the family with its encoder's blocks.

    Args:
        family: both sides.
        pre_norm: whether norms are before what they belong to, and one behind the last block (mBART), or behind sums.
        rest: more of Family.
    """
    return replace(
        family,
        names={**family.names, "intermediate_size": "encoder_ffn_dim", "hidden_act": "activation_function"},
        block=gpt_blocks.fairseq("encoder.layers.{block}", pre_norm),
        after_blocks=(norm("encoder.layer_norm"),) if pre_norm else (),
        eps=1e-5,  # of the classes
        **rest,
    )


_T5_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "head_dim": "d_kv",
    "intermediate_size": "d_ff",
}


def _t5(block: Recipe = (), attention: str | None = "SelfAttention") -> Family:
    """Return T5's family, whose bucket table is that of the first layer; umT5 has one in every layer."""
    return replace(_t5_side("encoder", attention, block), decoder=_t5_side("decoder", attention))


def _t5_side(side: Side, attention: str | None, block: Recipe = ()) -> Family:
    return Family(
        prefix="",
        names=_T5_NAMES | {"num_hidden_layers": "num_layers" if side == "encoder" else "num_decoder_layers"},
        block=block,
        after_blocks=(rms_norm("encoder.final_layer_norm"),),
        feed_forward=encoder_blocks.t5_feed_forward,
        score_scale=lambda config: 1.0,
        eps="layer_norm_epsilon",
        input_layer=(Embed(_WORD_TABLE),),
        preferred_names={_WORD_TABLE: (f"{side}.embed_tokens.weight",)},
        fallback_names={_WORD_TABLE: (f"{_OTHER[side]}.embed_tokens.weight",)},
        side=side,
        causal=side == "decoder",
        buckets=_t5_buckets(side, attention),
    )


def _t5_buckets(side: Side, attention: str | None) -> BucketSpec:
    module = "SelfAttention" if side == "decoder" and attention else attention
    table = module and f"{side}.block.0.layer.0.{module}.relative_attention_bias.weight"
    count, reach = "relative_attention_num_buckets", "relative_attention_max_distance"
    return BucketSpec("t5", table, count, reach, bidirectional=side == "encoder")


def _classified(family: Family) -> Family:
    """Return the family with its decoder's blocks, which classify texts behind the encoder's."""
    assert family.decoder is not None
    names = {**family.decoder.names, "intermediate_size": "decoder_ffn_dim", "hidden_act": "activation_function"}
    block = gpt_blocks.fairseq("decoder.layers.{block}", pre_norm=False, across=True)
    return _with_decoder(family, names=names, block=block)


ENCODER_DECODERS: dict[str, Family] = {
    "bart": _classified(_whole(_BART, pre_norm=False)),
    "mbart": _whole(_BART, pre_norm=True),
    "mvp": _classified(_whole(_BART, pre_norm=False, block_if={"use_prompt": False})),
    "led": replace(
        _pair(
            (Embed(_WORD_TABLE), _POSITION_TABLE, _NORM),
            {side: {"max_position_embeddings": f"max_{side}_position_embeddings"} for side in _OTHER},
            prefix="led.",
            eps=1e-5,
        ),
        omits_masks=True,
    ),
    "blenderbot": _whole(_pair((Embed(_WORD_TABLE), Scale(0.0), _POSITION_TABLE)), pre_norm=True),
    # its decoder does not scale
    "blenderbot-small": _whole(
        _with_decoder(
            _pair(_POSITIONS_AND_NORM, eps=1e-5),
            input_layer=_of_side("decoder", (Embed(_WORD_TABLE), _NORM, _POSITION_TABLE)),
        ),
        pre_norm=False,
    ),
    "pegasus": _whole(
        _with_decoder(_pair(_MARIAN_LAYER, sinusoid_table=_SINUSOID_TABLE), **_TAKES_UNSCALED), pre_norm=True
    ),
    "marian": _whole(
        _with_decoder(
            _pair(_MARIAN_LAYER, {"encoder": {}, "decoder": {"vocab_size": "decoder_vocab_size"}}), **_TAKES_UNSCALED
        ),
        pre_norm=False,
    ),
    "m2m_100": _whole(_M2M, pre_norm=True),
    "nllb-moe": _M2M,
    "fsmt": _whole(
        _pair(
            (Embed("{side}.embed_tokens.weight"), Scale(0.0), AddSinusoid("tensor2tensor", 0)),
            {"encoder": {"vocab_size": "src_vocab_size"}, "decoder": {"vocab_size": "tgt_vocab_size"}},
            numbering="cumsum_non_pad",
            prompt_embeds_output="unscaled_embeddings",
            preferred_names={},
            fallback_names={
                "decoder.embed_tokens.weight": ("decoder.output_projection.weight", "encoder.embed_tokens.weight")
            },
            sinusoid_table=_SINUSOID_TABLE,
            builds_own_mask=True,
        ),
        pre_norm=False,
    ),
    "t5": _t5(encoder_blocks.t5("0")),
    "mt5": _t5(encoder_blocks.t5("0")),
    "umt5": _t5(encoder_blocks.t5("{block}"), attention=None),
    "longt5": replace(_t5(attention="LocalSelfAttention"), omits_masks=True),
    "switch_transformers": _t5(),
    # the encoder of these two reads sound: models/vision/ has Whisper's
    "whisper": _side(
        "decoder",
        (Embed("decoder.embed_tokens.weight"), _POSITION_TABLE),  # it has a scale_embedding, but multiplies by nothing
        {"max_position_embeddings": "max_target_positions"},
        {
            "causal": True,
            "preferred_names": {},
            "scale": None,
            "fallback_names": {"decoder.embed_tokens.weight": ("proj_out.weight",)},
        },
    ),
    "speech_to_text": _side(
        "decoder",
        (Embed("decoder.embed_tokens.weight"), Scale(0.0), AddSinusoid("tensor2tensor", 0)),
        {"max_position_embeddings": "max_target_positions"},
        {"causal": True, "preferred_names": {}, "numbering": "cumsum_non_pad", "sinusoid_table": _SINUSOID_TABLE},
    ),
}

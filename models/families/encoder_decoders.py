"""ENCODER_DECODERS: the families with an encoder and a decoder: BART, T5 and their descendants, one Family a side.

Source: transformers 5.23 (the modeling and configuration modules of each family: orders of sums, defaults).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.families import encoder_blocks, gpt_blocks
from models.families.family import BucketSpec, Family, ScaleSpec, Side, norm, rms_norm
from models.recipes.steps import AddPosition, AddSinusoid, Embed, Recipe, Scale

_IF_CONFIGURED = ScaleSpec(switch="scale_embedding")
_WORD_TABLE = "shared.weight"
_OTHER: dict[Side, Side] = {"encoder": "decoder", "decoder": "encoder"}


def _pair(
    defaults: Mapping[str, Any],
    layer: Recipe,
    names_of_sides: Mapping[Side, Mapping[str, str]] | None = None,
    **fields: Any,
) -> Family:
    """Return the encoder's family with the decoder's in it; `{side}` in a tensor name stands for the side.

    Args:
        defaults: of the config class, under its own names.
        layer: the input layer of either side.
        names_of_sides: config names that only one side has.
        fields: further fields of Family.
    """
    names: Mapping[Side, Mapping[str, str]] = names_of_sides or {"encoder": {}, "decoder": {}}
    decoder = _side("decoder", defaults, layer, names["decoder"], fields | {"causal": True})
    return replace(_side("encoder", defaults, layer, names["encoder"], fields), decoder=decoder)


def _side(
    side: Side, defaults: Mapping[str, Any], layer: Recipe, names: Mapping[str, str], fields: Mapping[str, Any]
) -> Family:
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
    filled = common | {key: _named(value, side) if isinstance(value, str) else value for key, value in fields.items()}
    return Family(defaults=defaults, input_layer=tuple(_sided(step, side) for step in layer), **filled)


def _named(text: str, side: Side) -> str:
    return text.replace("{side}", side)


def _sided(step: Any, side: Side) -> Any:
    changes = {
        field: _named(value, side)
        for field in ("table", "weight", "bias")
        if isinstance(value := getattr(step, field, None), str)
    }
    return replace(step, **changes)


def _sizes(vocab_size: int, hidden: int, layers: int, heads: int, longest: int | None, pad: int) -> dict[str, Any]:
    sizes = {
        "vocab_size": vocab_size,
        "d_model": hidden,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "max_position_embeddings": longest,
        "scale_embedding": False,
        "pad_token_id": pad,
    }
    return {key: value for key, value in sizes.items() if value is not None}


_POSITION_TABLE = AddPosition("{side}.embed_positions.weight")
_NORM = norm("{side}.layernorm_embedding")
_SINUSOID_TABLE = "{side}.embed_positions.weight"
_BART = _pair(
    _sizes(50265, 1024, 12, 16, 1024, 1), (Embed(_WORD_TABLE), Scale(0.0), _POSITION_TABLE, _NORM), offset=2, eps=1e-5
)
_BLENDERBOT_SMALL = _pair(
    _sizes(50265, 512, 8, 16, 512, 0), (Embed(_WORD_TABLE), Scale(0.0), _POSITION_TABLE, _NORM), eps=1e-5
)
_M2M = _pair(
    _sizes(128112, 1024, 12, 16, 1024, 1) | {"scale_embedding": True},
    (Embed(_WORD_TABLE), Scale(0.0), AddSinusoid("tensor2tensor", 0)),
    numbering="cumsum_non_pad",
    sinusoid_table=_SINUSOID_TABLE,
)


def _with_decoder_layer(family: Family, layer: Recipe) -> Family:
    """Return the family with a decoder whose steps have another order."""
    assert family.decoder is not None
    return replace(
        family, decoder=replace(family.decoder, input_layer=tuple(_sided(step, "decoder") for step in layer))
    )


def _with_unscaled_decoder_inputs(family: Family) -> Family:
    """Return the family with a decoder whose forward scales inputs_embeds; the encoder does not."""
    assert family.decoder is not None
    return replace(family, decoder=replace(family.decoder, prompt_embeds_output="unscaled_embeddings"))


def _whole(family: Family, *, inner: int, pre_norm: bool, act: str = "gelu", **rest: Any) -> Family:
    """Return the family with its encoder's blocks.

    Args:
        family: both sides.
        inner, act: the config class's defaults.
        pre_norm: whether norms are before what they belong to, and one behind the last block (mBART), or behind sums.
        rest: more of Family.
    """
    return replace(
        family,
        defaults={**family.defaults, "encoder_ffn_dim": inner, "activation_function": act},
        names={**family.names, "intermediate_size": "encoder_ffn_dim", "hidden_act": "activation_function"},
        block=gpt_blocks.fairseq("encoder.layers.{block}", pre_norm),
        after_blocks=(norm("encoder.layer_norm"),) if pre_norm else (),
        eps=1e-5,  # of the classes
        **rest,
    )


_T5_DEFAULTS = {
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "pad_token_id": 0,
    "d_kv": 64,
    "layer_norm_epsilon": 1e-6,
}
_T5_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "head_dim": "d_kv",
    "intermediate_size": "d_ff",
}


def _t5(vocab_size: int, hidden: int, layers: int, heads: int, **fields: Any) -> Family:
    """Return T5's family, whose bucket table is that of the first layer; umT5 has one in every layer."""
    side_rows = {side: _t5_side(side, vocab_size, hidden, layers, heads, **fields) for side in _OTHER}
    return replace(side_rows["encoder"], decoder=side_rows["decoder"])


def _t5_side(
    side: Side,
    vocab_size: int,
    hidden: int,
    layers: int,
    heads: int,
    attention: str | None = "SelfAttention",
    block: Recipe = (),
    inner: int = 2048,
    projection: str = "relu",
) -> Family:
    sizes = {"vocab_size": vocab_size, "d_model": hidden, "num_heads": heads}
    sizes |= {"num_layers": layers, "num_decoder_layers": layers}
    of_blocks = {"d_ff": inner, "feed_forward_proj": projection} if block else {}
    return Family(
        prefix="",
        defaults={**sizes, **_T5_DEFAULTS, **of_blocks},
        names=_T5_NAMES | {"num_hidden_layers": "num_layers" if side == "encoder" else "num_decoder_layers"},
        block=block if side == "encoder" else (),
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


ENCODER_DECODERS: dict[str, Family] = {
    "bart": _whole(_BART, inner=4096, pre_norm=False),
    "mbart": _whole(_BART, inner=4096, pre_norm=True),
    "mvp": _whole(
        _pair(
            _sizes(50267, 1024, 12, 16, 1024, 1),
            (Embed(_WORD_TABLE), Scale(0.0), _POSITION_TABLE, _NORM),
            offset=2,
            eps=1e-5,
        ),
        inner=4096,
        pre_norm=False,
        block_if={"use_prompt": False},
    ),
    "led": replace(
        _pair(
            {key: value for key, value in _sizes(50265, 1024, 12, 16, None, 1).items() if key != "scale_embedding"}
            | {"max_encoder_position_embeddings": 16384, "max_decoder_position_embeddings": 1024},
            (Embed(_WORD_TABLE), _POSITION_TABLE, _NORM),
            {side: {"max_position_embeddings": f"max_{side}_position_embeddings"} for side in _OTHER},
            prefix="led.",
            eps=1e-5,
        ),
        omits_masks=True,
    ),
    "blenderbot": _whole(
        _pair(
            _sizes(8008, 2560, 2, 32, 128, 0) | {"decoder_layers": 24},
            (Embed(_WORD_TABLE), Scale(0.0), _POSITION_TABLE),
        ),
        inner=10240,
        pre_norm=True,
    ),
    # its decoder does not scale
    "blenderbot-small": _whole(
        _with_decoder_layer(_BLENDERBOT_SMALL, (Embed(_WORD_TABLE), _NORM, _POSITION_TABLE)),
        inner=2048,
        pre_norm=False,
    ),
    "pegasus": _whole(
        _with_unscaled_decoder_inputs(
            _pair(
                _sizes(50265, 1024, 12, 16, 1024, 0),
                (Embed(_WORD_TABLE), Scale(0.0), AddSinusoid("marian", 0)),
                sinusoid_table=_SINUSOID_TABLE,
            )
        ),
        inner=4096,
        pre_norm=True,
    ),
    "marian": _whole(
        _with_unscaled_decoder_inputs(
            _pair(
                _sizes(58101, 1024, 12, 16, 1024, 58100),
                (Embed(_WORD_TABLE), Scale(0.0), AddSinusoid("marian", 0)),
                {"encoder": {}, "decoder": {"vocab_size": "decoder_vocab_size"}},
            )
        ),
        inner=4096,
        pre_norm=False,
    ),
    "m2m_100": _whole(_M2M, inner=4096, pre_norm=True, act="relu"),
    "nllb-moe": _M2M,
    "fsmt": _whole(
        _pair(
            {key: value for key, value in _sizes(0, 1024, 12, 16, 1024, 1).items() if key != "vocab_size"}
            | {"scale_embedding": True, "src_vocab_size": 42024, "tgt_vocab_size": 42024},
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
        inner=4096,
        pre_norm=False,
        act="relu",
    ),
    "t5": _t5(32128, 512, 6, 8, block=encoder_blocks.t5("0")),
    "mt5": _t5(250112, 512, 8, 6, block=encoder_blocks.t5("0"), inner=1024, projection="gated-gelu"),
    "umt5": _t5(
        250112,
        512,
        8,
        6,
        attention=None,
        block=encoder_blocks.t5("{block}"),
        inner=1024,
        projection="gated-gelu",
    ),
    "longt5": replace(_t5(32128, 512, 6, 8, attention="LocalSelfAttention"), omits_masks=True),
    "switch_transformers": _t5(32128, 768, 12, 12),
    # the encoder of these two reads sound: models/vision/ has Whisper's
    "whisper": _side(
        "decoder",
        _sizes(51865, 384, 4, 6, None, 50256) | {"max_target_positions": 448},
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
        _sizes(10000, 256, 6, 4, None, 1)
        | {"encoder_layers": 12, "max_target_positions": 1024, "scale_embedding": True},
        (Embed("decoder.embed_tokens.weight"), Scale(0.0), AddSinusoid("tensor2tensor", 0)),
        {"max_position_embeddings": "max_target_positions"},
        {"causal": True, "preferred_names": {}, "numbering": "cumsum_non_pad", "sinusoid_table": _SINUSOID_TABLE},
    ),
}

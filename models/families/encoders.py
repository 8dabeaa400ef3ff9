"""ENCODERS: the families whose tokens attend to both sides: BERT and its descendants.

Their blocks are in encoder_blocks.py, the defaults of their config classes in class_defaults.json.

Source: transformers 5.23 (the modeling module of each family: orders of sums).
"""

from dataclasses import replace
from typing import Any

from models.families import decoder_blocks, encoder_blocks
from models.families.family import (
    AlibiSpec,
    BucketSpec,
    ExpertSpec,
    Family,
    ScaleSpec,
    TextVector,
    linear,
    norm,
    rms_norm,
)
from models.recipes.steps import (
    AddIndexed,
    AddPosition,
    AddType,
    Embed,
    LayerNorm,
    Linear,
    MaskRows,
    Recipe,
    Scale,
    TokenDropout,
)

_WORD_TABLE = Embed("embeddings.word_embeddings.weight")
_TYPE_TABLE = AddType("embeddings.token_type_embeddings.weight")
_POSITION_TABLE = AddPosition("embeddings.position_embeddings.weight")
_NORM = norm("embeddings.LayerNorm")
_BERT_INPUT: Recipe = (_WORD_TABLE, _TYPE_TABLE, _POSITION_TABLE, _NORM)

_BERT = Family("bert.", _BERT_INPUT, encoder_blocks.BERT, types="zeros", causal="is_decoder")
_ROBERTA = replace(_BERT, prefix="roberta.", numbering="cumsum_non_pad")


def _like_bert(prefix: str, block: Recipe = (), **rest: Any) -> Family:
    """Return BERT's family with changes; without a block, only its input layer is exported."""
    return replace(_BERT, prefix=prefix, block=block, **rest)


def _like_roberta(prefix: str, block: Recipe = (), **rest: Any) -> Family:
    return _like_bert(prefix, block, numbering="cumsum_non_pad", **rest)


_XLM = Family(
    prefix="transformer.",
    names={"hidden_size": "emb_dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    input_layer=(
        Embed("embeddings.weight"),
        AddPosition("position_embeddings.weight"),
        AddIndexed("lang_embeddings.weight", "langs"),
        AddType("embeddings.weight"),
        norm("layer_norm_emb"),
        MaskRows(),
    ),
    types="optional",
    present_if={AddIndexed: ("use_lang_emb", "n_langs>1")},
    extras={"langs": "-n_langs"},
    block=encoder_blocks.XLM,
    feed_forward=encoder_blocks.xlm_activation,
    block_if={"is_encoder": True},
    mask_from="pad_count",
    causal="causal",
    builds_own_mask=True,
)

_DEBERTA_BUCKETS = BucketSpec(
    "deberta",
    "encoder.rel_embeddings.weight",
    count="position_buckets",
    reach="max_relative_positions",
    bidirectional=True,
    switch="relative_attention",
    norm="encoder.LayerNorm",
    norm_switch="norm_rel_ebd",
    norm_word="layer_norm",
)
_DEBERTA = Family(
    prefix="deberta.",
    names={"table_width": "embedding_size"},
    input_layer=(
        _WORD_TABLE,
        _POSITION_TABLE,
        _TYPE_TABLE,
        Linear("embeddings.embed_proj.weight", None),
        _NORM,
        MaskRows(),
    ),
    types="zeros",
    present_if={AddPosition: ("position_biased_input",), AddType: ("type_vocab_size",)},
    buckets=_DEBERTA_BUCKETS,
    block=encoder_blocks.DEBERTA_V2,
    block_if={"conv_kernel_size": 0},
)

_MODERNBERT = Family(
    prefix="model.",
    names={"hidden_act": "hidden_activation"},
    input_layer=(Embed("embeddings.tok_embeddings.weight"), norm("embeddings.norm")),
    block=encoder_blocks.MODERNBERT,
    after_blocks=(norm("final_norm"),),
    absent=("layers.0.attn_norm",),
    stored=encoder_blocks.MODERNBERT_STORED,
    bias_if={"attention_bias": ".attn.", "mlp_bias": ".mlp."},
    eps="norm_eps",
    biased_if="norm_bias",
    rotates=True,
    window="local_attention",
)
_EMB_LN = {f"emb_ln.{part}": (f"embeddings.LayerNorm.{part}",) for part in ("weight", "bias")}
_NOMIC = _like_bert(
    "",
    input_layer=(_WORD_TABLE, _TYPE_TABLE, norm("emb_ln")),
    preferred_names=_EMB_LN,
    block=encoder_blocks.NOMIC,
    stored=encoder_blocks.NOMIC_STORED,
    rotates=True,
    causal=False,
)
_PUBLISHED_NOMIC = replace(
    _NOMIC,
    defaults={"hidden_act": None},
    names={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    feed_forward=encoder_blocks.published_gate("activation_function"),
    block_if={
        "prenorm": False,
        "use_rms_norm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "moe_every_n_layers": 0,
    },
)
_NOMIC_MOE = replace(
    _PUBLISHED_NOMIC,
    defaults={"hidden_act": None, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "qkv_proj_bias": True},
    names={**_PUBLISHED_NOMIC.names, "hidden_act": "activation_function"},
    block=encoder_blocks.NOMIC_MOE,
    stored=encoder_blocks.NOMIC_MOE_STORED,
    feed_forward=None,
    bias_if={"qkv_proj_bias": ".self_attn.", "mlp_fc1_bias": ".fc1.", "mlp_fc2_bias": ".fc2."},
    block_if={
        **{key: value for key, value in _PUBLISHED_NOMIC.block_if.items() if not key.endswith(("_bias", "_layers"))},
        "activation_function": "gelu",
        "num_shared_experts": 0,
        "expert_choice_router": False,
        "moe_normalize_expert_weights": False,
        "ffn_div": 1,
        "parallel_block": False,
    },
    experts=ExpertSpec("moe_top_k", dense=encoder_blocks.has_no_experts, instead=encoder_blocks.NOMIC_DENSE),
)
_JINA_V3 = _like_bert(
    "",
    input_layer=(_WORD_TABLE, _TYPE_TABLE, norm("emb_ln")),
    preferred_names=_EMB_LN,
    required_values={"position_embedding_type": "rotary"},
    block=encoder_blocks.JINA_V3,
    stored=encoder_blocks.JINA_V3_STORED,
    rotates=True,
    causal=False,
)
_XLM_ROBERTA_FLASH = replace(  # jina-reranker-v2
    _ROBERTA,
    input_layer=(_WORD_TABLE, _TYPE_TABLE, _POSITION_TABLE, norm("emb_ln")),
    preferred_names=_EMB_LN,
    block=encoder_blocks.JINA_V3,
    stored=encoder_blocks.JINA_V3_STORED,
    causal=False,
)
_JINA_V2 = _like_bert(
    "bert.",
    input_layer=(_WORD_TABLE, _TYPE_TABLE, _NORM),
    required_values={"position_embedding_type": "alibi"},
    block=encoder_blocks.JINA_V2,
    stored=encoder_blocks.JINA_V2_STORED,
    feed_forward=encoder_blocks.published_gate("feed_forward_type"),
    alibi=AlibiSpec("symmetric"),
    causal=False,
)
_JINA_CODE = replace(_JINA_V2, block=encoder_blocks.JINA_CODE, stored=encoder_blocks.JINA_CODE_STORED)
_JINA_V2 = replace(_JINA_V2, variants={".mlp.up_gated_layer.": ("jina_bert_code", _JINA_CODE)})
_EUROBERT = Family(
    prefix="model.",
    input_layer=(Embed("embed_tokens.weight"),),
    block=decoder_blocks.LLAMA,
    after_blocks=(rms_norm("norm"),),
    bias_if=decoder_blocks.BIASES,
    eps="rms_norm_eps",
    rotates=True,
)


_CLIP_TEXT = Family(
    prefix="text_model.",
    input_layer=(Embed("embeddings.token_embedding.weight"), AddPosition("embeddings.position_embedding.weight")),
    block=encoder_blocks.CLIP,
    after_blocks=(norm("final_layer_norm"),),
    causal=True,
    text_vector=TextVector("eos", linear("text_projection", biased=False)),
)
_SIGLIP_VECTOR = TextVector("lasttoken", linear("head"), filled=True)
_SIGLIP_TEXT = replace(_CLIP_TEXT, causal=False, text_vector=_SIGLIP_VECTOR)

ENCODERS: dict[str, Family] = {
    "bert": replace(_BERT, variants={"position_embedding_type=alibi": ("jina_bert", _JINA_V2)}),
    "roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "xlm-roberta": replace(
        _ROBERTA,
        variants={
            "position_embedding_type=rotary": ("jina_embeddings_v3", _JINA_V3),
            ".mixer.Wqkv.": ("xlm_roberta_flash", _XLM_ROBERTA_FLASH),
        },
    ),
    "distilbert": Family(
        prefix="distilbert.",
        names={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        input_layer=(_WORD_TABLE, _POSITION_TABLE, _NORM),
        block=encoder_blocks.DISTILBERT,
        eps=1e-12,  # written into the class, not the config
    ),
    "ernie": _like_bert(
        "ernie.",
        block=encoder_blocks.BERT,
        input_layer=(
            _WORD_TABLE,
            _TYPE_TABLE,
            _POSITION_TABLE,
            AddIndexed("embeddings.task_type_embeddings.weight", "task_type_ids"),
            _NORM,
        ),
        present_if={AddIndexed: ("use_task_id",)},
        extras={"task_type_ids": "task_type_vocab_size"},
    ),
    "longformer": _like_roberta("longformer.", causal=False, omits_masks=True),
    "xmod": _like_roberta("roberta."),
    "data2vec-text": _like_roberta("data2vec_text.", block=encoder_blocks.BERT),
    "roberta-prelayernorm": _like_roberta(
        "roberta_prelayernorm.",
        block=encoder_blocks.pre_norm("attention.LayerNorm", "intermediate.LayerNorm"),
        after_blocks=(norm("LayerNorm"),),
    ),
    "xlm-roberta-xl": _like_roberta(
        "roberta.",
        block=encoder_blocks.pre_norm("attention.self_attn_layer_norm", "LayerNorm"),
        after_blocks=(norm("encoder.LayerNorm"),),
        input_layer=(_WORD_TABLE, _POSITION_TABLE, _TYPE_TABLE),
    ),
    "albert": _like_bert(
        "albert.",
        block=encoder_blocks.ALBERT,
        block_if={"num_hidden_groups": 1, "inner_group_num": 1},
        names={"table_width": "embedding_size"},
        input_layer=(*_BERT_INPUT, linear("encoder.embedding_hidden_mapping_in")),
        projected="always",
        causal=False,
    ),
    "electra": _like_bert(
        "electra.",
        block=encoder_blocks.BERT,
        names={"table_width": "embedding_size"},
        input_layer=(*_BERT_INPUT, linear("embeddings_project")),
    ),
    "rembert": _like_bert(
        "rembert.",
        block=encoder_blocks.BERT,
        names={"table_width": "input_embedding_size"},
        input_layer=(*_BERT_INPUT, linear("encoder.embedding_hidden_mapping_in")),
        projected="always",
    ),
    "roformer": _like_bert(
        "roformer.",
        names={"table_width": "embedding_size"},
        input_layer=(_WORD_TABLE, _TYPE_TABLE, _NORM, linear("embeddings_project")),
        block=encoder_blocks.BERT,
        block_if={"rotary_value": False},
        rotates=True,
    ),
    "nomic_bert": replace(
        _NOMIC,
        variants={"moe_every_n_layers": ("nomic_bert", _NOMIC_MOE), "n_embd": ("nomic_bert", _PUBLISHED_NOMIC)},
    ),
    "embedding_gemma2_text": Family(
        prefix="",
        names={"hidden_act": "hidden_activation"},
        input_layer=(Embed("embed_tokens.weight"), Scale(0.0)),
        block=decoder_blocks.EMBEDDING_GEMMA2,
        after_blocks=(rms_norm("norm"), linear("embedding_projection", biased=False)),
        stored=decoder_blocks.EMBEDDING_GEMMA2_STORED,
        layer_keys=decoder_blocks.wider_if_full,
        output_width="embedding_dim",
        bias_if=decoder_blocks.ATTENTION_BIAS,
        score_scale=lambda config: 1.0,
        eps="rms_norm_eps",
        scale=ScaleSpec(rounded="weights"),
        rotates=True,
        window="sliding_window",
        window_of="each",
    ),
    "gte": _like_bert(
        "",
        input_layer=(_WORD_TABLE, _TYPE_TABLE, _NORM),
        present_if={AddType: ("type_vocab_size",)},
        required_values={"position_embedding_type": "rope", "logn_attention_scale": False},
        block=encoder_blocks.GTE,
        stored=encoder_blocks.GTE_STORED,
        rotates=True,
        causal=False,
    ),
    "jina_embeddings_v3": _JINA_V3,
    "eurobert": _EUROBERT,
    "ultrabert": replace(_EUROBERT, prefix="", window="sliding_window", window_of="each"),
    "big_bird": _like_bert(
        "bert.",
        input_layer=(_WORD_TABLE, Scale(0.0), _TYPE_TABLE, _POSITION_TABLE, _NORM),
        scale=ScaleSpec(switch="rescale_embeddings"),
        prompt_embeds_output="unscaled_embeddings",
        omits_masks=True,
    ),
    "megatron-bert": _like_bert(
        "bert.",
        block=encoder_blocks.pre_norm("attention.ln", "ln"),
        after_blocks=(norm("encoder.ln"),),
        input_layer=(_WORD_TABLE, _TYPE_TABLE, _POSITION_TABLE),  # the norm opens its blocks
    ),
    "layoutlm": _like_bert(
        "layoutlm.",
        block=encoder_blocks.BERT,
        input_layer=(
            _WORD_TABLE,
            _POSITION_TABLE,
            AddIndexed("embeddings.x_position_embeddings.weight", "bbox", (0,)),
            AddIndexed("embeddings.y_position_embeddings.weight", "bbox", (1,)),
            AddIndexed("embeddings.x_position_embeddings.weight", "bbox", (2,)),
            AddIndexed("embeddings.y_position_embeddings.weight", "bbox", (3,)),
            AddIndexed("embeddings.h_position_embeddings.weight", "bbox", (3, 1)),
            AddIndexed("embeddings.w_position_embeddings.weight", "bbox", (2, 0)),
            _TYPE_TABLE,
            _NORM,
        ),
        extras={"bbox": "max_2d_position_embeddings"},
        causal=False,
    ),
    "mpnet": _like_roberta(
        "mpnet.",
        input_layer=(_WORD_TABLE, _POSITION_TABLE, _NORM),
        block=encoder_blocks.MPNET,
        block_if={"relative_attention_num_buckets": 32},  # the class computes no others
        types="none",
        causal=False,
        buckets=BucketSpec(
            "t5",
            encoder_blocks.MPNET_BIAS.table,
            count="relative_attention_num_buckets",
            reach=encoder_blocks.MPNET_BIAS.reach,
            bidirectional=True,
        ),
    ),
    "funnel": Family(
        prefix="funnel.",
        names={"hidden_size": "d_model", "num_attention_heads": "n_head"},
        input_layer=(_WORD_TABLE, norm("embeddings.layer_norm")),
    ),
    "esm": Family(
        prefix="esm.",
        input_layer=(_WORD_TABLE, TokenDropout(0), _POSITION_TABLE, norm("embeddings.layer_norm"), MaskRows()),
        block=encoder_blocks.pre_norm("attention.LayerNorm", "LayerNorm"),
        after_blocks=(norm("encoder.emb_layer_norm_after"),),
        feed_forward=lambda step, config: step,
        numbering="cumsum_non_pad",
        present_if={
            TokenDropout: ("token_dropout",),
            AddPosition: ("position_embedding_type=absolute",),
            LayerNorm: ("emb_layer_norm_before",),
        },
        rotates="position_embedding_type=rotary",
        stored_frequencies="rotary_embeddings.inv_freq",  # one for all layers, or the same in each
        prompt_embeds_output="input_embeddings",
        causal="is_decoder",
    ),
    "xlm": _XLM,
    "flaubert": replace(_XLM, variants={"pre_norm": ("flaubert", replace(_XLM, block=encoder_blocks.FLAUBERT))}),
    "xlnet": Family(
        prefix="transformer.",
        names={"hidden_size": "d_model", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        input_layer=(Embed("word_embedding.weight"),),
        causal="attn_type=uni",
        builds_own_mask=True,
    ),
    "deberta": replace(
        _DEBERTA,
        buckets=replace(_DEBERTA_BUCKETS, count=-1, norm=None),
        block=encoder_blocks.DEBERTA,
        block_if={"talking_head": None},
        stored=encoder_blocks.DEBERTA_STORED,
    ),
    "deberta-v2": _DEBERTA,
    "modernbert": _MODERNBERT,
    "modernbert-decoder": replace(
        _MODERNBERT,
        names={**_MODERNBERT.names, "sliding_window": "local_attention"},
        block=encoder_blocks.MODERNBERT_DECODER,
        window_of="half",
        omits_masks=True,
        causal=True,
    ),
    "clip_text_model": _CLIP_TEXT,
    "siglip_text_model": _SIGLIP_TEXT,
    "siglip2_text_model": replace(_SIGLIP_TEXT, text_vector=replace(_SIGLIP_VECTOR, lowercase=True)),
}

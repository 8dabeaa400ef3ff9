"""ENCODERS: the families whose tokens attend to both sides: BERT and its descendants.

Their blocks are in encoder_blocks.py, the defaults of their config classes in class_defaults.json.

Source: transformers 5.23 (the modeling module of each family: orders of sums).
"""

from dataclasses import replace

from models.families import decoder_blocks, encoder_blocks
from models.families.bert import (
    BERT_INPUT,
    EMBEDDING_NORM,
    POSITION_TABLE,
    TYPE_TABLE,
    WORD_TABLE,
    like_bert,
    like_roberta,
)
from models.families.family import (
    BucketSpec,
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
    Scale,
    TokenDropout,
)

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
        WORD_TABLE,
        POSITION_TABLE,
        TYPE_TABLE,
        Linear("embeddings.embed_proj.weight", None),
        EMBEDDING_NORM,
        MaskRows(),
    ),
    types="zeros",
    present_if={AddPosition: ("position_biased_input",), AddType: ("type_vocab_size",)},
    buckets=_DEBERTA_BUCKETS,
    block=encoder_blocks.DEBERTA_V2,
    block_of=encoder_blocks.deberta_block,
    block_if={"conv_groups": 1},
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
    **dict.fromkeys(("roberta", "camembert"), like_roberta("roberta.", encoder_blocks.BERT)),
    "distilbert": Family(
        prefix="distilbert.",
        names={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        input_layer=(WORD_TABLE, POSITION_TABLE, EMBEDDING_NORM),
        block=encoder_blocks.DISTILBERT,
        eps=1e-12,  # written into the class, not the config
    ),
    "ernie": like_bert(
        "ernie.",
        block=encoder_blocks.BERT,
        input_layer=(
            WORD_TABLE,
            TYPE_TABLE,
            POSITION_TABLE,
            AddIndexed("embeddings.task_type_embeddings.weight", "task_type_ids"),
            EMBEDDING_NORM,
        ),
        present_if={AddIndexed: ("use_task_id",)},
        extras={"task_type_ids": "task_type_vocab_size"},
    ),
    "luke": like_roberta("luke.", encoder_blocks.BERT, causal=False),  # the text alone; entities are not read
    "longformer": like_roberta(
        "longformer.", encoder_blocks.BERT, causal=False, window="attention_window", omits_masks=True
    ),
    "dpr": like_bert("bert_model.", encoder_blocks.BERT, text_vector=TextVector("cls", linear("encode_proj"))),
    "xmod": like_roberta("roberta."),
    "data2vec-text": like_roberta("data2vec_text.", block=encoder_blocks.BERT),
    "roberta-prelayernorm": like_roberta(
        "roberta_prelayernorm.",
        block=encoder_blocks.pre_norm("attention.LayerNorm", "intermediate.LayerNorm"),
        after_blocks=(norm("LayerNorm"),),
    ),
    "xlm-roberta-xl": like_roberta(
        "roberta.",
        block=encoder_blocks.pre_norm("attention.self_attn_layer_norm", "LayerNorm"),
        after_blocks=(norm("encoder.LayerNorm"),),
        input_layer=(WORD_TABLE, POSITION_TABLE, TYPE_TABLE),
    ),
    "albert": like_bert(
        "albert.",
        block=encoder_blocks.ALBERT,
        block_of=encoder_blocks.albert_block,
        shared_block=encoder_blocks.albert_group,
        names={"table_width": "embedding_size"},
        input_layer=(*BERT_INPUT, linear("encoder.embedding_hidden_mapping_in")),
        projected="always",
        causal=False,
    ),
    "electra": like_bert(
        "electra.",
        block=encoder_blocks.BERT,
        names={"table_width": "embedding_size"},
        input_layer=(*BERT_INPUT, linear("embeddings_project")),
    ),
    "rembert": like_bert(
        "rembert.",
        block=encoder_blocks.BERT,
        names={"table_width": "input_embedding_size"},
        input_layer=(*BERT_INPUT, linear("encoder.embedding_hidden_mapping_in")),
        projected="always",
    ),
    "roformer": like_bert(
        "roformer.",
        names={"table_width": "embedding_size"},
        input_layer=(WORD_TABLE, TYPE_TABLE, EMBEDDING_NORM, linear("embeddings_project")),
        block=encoder_blocks.BERT,
        block_if={"rotary_value": False},
        rotates=True,
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
    "gte": like_bert(
        "",
        input_layer=(WORD_TABLE, TYPE_TABLE, EMBEDDING_NORM),
        present_if={AddType: ("type_vocab_size",)},
        required_values={"position_embedding_type": "rope", "logn_attention_scale": False},
        block=encoder_blocks.GTE,
        stored=encoder_blocks.GTE_STORED,
        rotates=True,
        causal=False,
    ),
    "eurobert": _EUROBERT,
    "ultrabert": replace(_EUROBERT, prefix="", window="sliding_window", window_of="each"),
    "big_bird": like_bert(
        "bert.",
        input_layer=(WORD_TABLE, Scale(0.0), TYPE_TABLE, POSITION_TABLE, EMBEDDING_NORM),
        scale=ScaleSpec(switch="rescale_embeddings"),
        prompt_embeds_output="unscaled_embeddings",
        omits_masks=True,
        block=encoder_blocks.BERT,
        bias_if={"use_bias": ".attention.self."},
        longest=encoder_blocks.longest_of_big_bird,
    ),
    "megatron-bert": like_bert(
        "bert.",
        block=encoder_blocks.pre_norm("attention.ln", "ln"),
        after_blocks=(norm("encoder.ln"),),
        input_layer=(WORD_TABLE, TYPE_TABLE, POSITION_TABLE),  # the norm opens its blocks
    ),
    "layoutlm": like_bert(
        "layoutlm.",
        block=encoder_blocks.BERT,
        input_layer=(
            WORD_TABLE,
            POSITION_TABLE,
            AddIndexed("embeddings.x_position_embeddings.weight", "bbox", (0,)),
            AddIndexed("embeddings.y_position_embeddings.weight", "bbox", (1,)),
            AddIndexed("embeddings.x_position_embeddings.weight", "bbox", (2,)),
            AddIndexed("embeddings.y_position_embeddings.weight", "bbox", (3,)),
            AddIndexed("embeddings.h_position_embeddings.weight", "bbox", (3, 1)),
            AddIndexed("embeddings.w_position_embeddings.weight", "bbox", (2, 0)),
            TYPE_TABLE,
            EMBEDDING_NORM,
        ),
        extras={"bbox": "max_2d_position_embeddings"},
        causal=False,
    ),
    "mpnet": like_roberta(
        "mpnet.",
        input_layer=(WORD_TABLE, POSITION_TABLE, EMBEDDING_NORM),
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
        input_layer=(WORD_TABLE, norm("embeddings.layer_norm")),
    ),
    "esm": Family(
        prefix="esm.",
        input_layer=(WORD_TABLE, TokenDropout(0), POSITION_TABLE, norm("embeddings.layer_norm"), MaskRows()),
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
        block_of=None,
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

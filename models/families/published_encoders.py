"""PUBLISHED: families with variants in published code, told by their config or tensors: Nomic, Jina v2 and v3, NeoBERT.

Source: the code beside the published checkpoints, and transformers 5.23 where it has the family since.
"""

from dataclasses import replace
from typing import Literal

from models.families import decoder_blocks, encoder_blocks
from models.families.bert import EMBEDDING_NORM, POSITION_TABLE, TYPE_TABLE, WORD_TABLE, like_bert, like_roberta
from models.families.family import AlibiSpec, ExpertSpec, Family, norm, rms_norm
from models.families.filling import renamed
from models.recipes.steps import Embed

_ROBERTA = like_roberta("roberta.", encoder_blocks.BERT)
_EMB_LN = {f"emb_ln.{part}": (f"embeddings.LayerNorm.{part}",) for part in ("weight", "bias")}
_NOMIC = like_bert(
    "",
    input_layer=(WORD_TABLE, TYPE_TABLE, norm("emb_ln")),
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
_JINA_V3 = like_bert(
    "",
    input_layer=(WORD_TABLE, TYPE_TABLE, norm("emb_ln")),
    preferred_names=_EMB_LN,
    required_values={"position_embedding_type": "rotary"},
    block=encoder_blocks.JINA_V3,
    stored=encoder_blocks.JINA_V3_STORED,
    rotates=True,
    causal=False,
)
_XLM_ROBERTA_FLASH = replace(  # jina-reranker-v2
    _ROBERTA,
    input_layer=(WORD_TABLE, TYPE_TABLE, POSITION_TABLE, norm("emb_ln")),
    preferred_names=_EMB_LN,
    block=encoder_blocks.JINA_V3,
    stored=encoder_blocks.JINA_V3_STORED,
    causal=False,
)
_JINA_V2 = like_bert(
    "bert.",
    input_layer=(WORD_TABLE, TYPE_TABLE, EMBEDDING_NORM),
    required_values={"position_embedding_type": "alibi"},
    block=encoder_blocks.JINA_V2,
    stored=encoder_blocks.JINA_V2_STORED,
    feed_forward=encoder_blocks.published_gate("feed_forward_type"),
    preferred_names={f"embeddings.LayerNorm.{part}": (f"emb_ln.{part}",) for part in ("weight", "bias")},
    alibi=AlibiSpec("symmetric"),
    causal=False,
)
_JINA_CODE = replace(_JINA_V2, block=encoder_blocks.JINA_CODE, stored=encoder_blocks.JINA_CODE_STORED)
_JINA_V2 = replace(_JINA_V2, variants={".mlp.up_gated_layer.": ("jina_bert_code", _JINA_CODE)})

_EMBEDDER = "embedding_model."


def _with_distances(kind: str, factors: Literal["q", "qk"]) -> dict[str, tuple[str, Family]]:
    """Return the variant of BERT whose attention embeds distances in place of positions, under its condition."""
    family = like_bert(
        "bert.",
        encoder_blocks.with_distances(factors),
        input_layer=(WORD_TABLE, TYPE_TABLE, EMBEDDING_NORM),
        required_values={"position_embedding_type": kind},
        longest=lambda config: config.count("max_position_embeddings"),
    )
    return {f"position_embedding_type={kind}": ("bert", family)}


PUBLISHED: dict[str, Family] = {
    "bert": like_bert(
        "bert.",
        encoder_blocks.BERT,
        variants={
            "position_embedding_type=alibi": ("jina_bert", _JINA_V2),
            **_with_distances("relative_key", "q"),
            **_with_distances("relative_key_query", "qk"),
        },
    ),
    "xlm-roberta": replace(
        _ROBERTA,
        variants={
            "position_embedding_type=rotary": ("jina_embeddings_v3", _JINA_V3),
            ".mixer.Wqkv.": ("xlm_roberta_flash", _XLM_ROBERTA_FLASH),
        },
    ),
    "nomic_bert": replace(
        _NOMIC,
        variants={"moe_every_n_layers": ("nomic_bert", _NOMIC_MOE), "n_embd": ("nomic_bert", _PUBLISHED_NOMIC)},
    ),
    "jina_embeddings_v3": _JINA_V3,
    "neobert": Family(
        prefix="model.",
        names={"max_position_embeddings": "max_length"},
        input_layer=(Embed("encoder.weight"),),
        block=encoder_blocks.NEOBERT,
        after_blocks=(rms_norm("layer_norm"),),
        stored=encoder_blocks.NEOBERT_STORED,
        derived=encoder_blocks.neobert_sizes,
        feed_forward=lambda step, config: step,
        eps="norm_eps",
        rotates=True,
    ),
    "nvembed": Family(
        prefix="",
        input_layer=(Embed(f"{_EMBEDDER}embed_tokens.weight"),),
        block=tuple(renamed(step, lambda name: f"{_EMBEDDER}{name}") for step in decoder_blocks.MISTRAL),
        after_blocks=(rms_norm(f"{_EMBEDDER}norm"), *encoder_blocks.NV_EMBED_LATENTS),
        stored=encoder_blocks.NV_EMBED_STORED,
        derived=encoder_blocks.nv_embed_sizes,
        eps="rms_norm_eps",
        rotates=True,
    ),
}

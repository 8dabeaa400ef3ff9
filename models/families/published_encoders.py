"""Encoders of published code: Nomic, Jina v2 and v3, NeoBERT. Most are told from another family by their config.

Source: the code beside the published checkpoints, and transformers 5.23 where it has the family since.
"""

from dataclasses import replace

from models.families import encoder_blocks
from models.families.bert import EMBEDDING_NORM, POSITION_TABLE, ROBERTA, TYPE_TABLE, WORD_TABLE, like_bert
from models.families.family import AlibiSpec, ExpertSpec, Family, norm, rms_norm
from models.recipes.steps import Embed

_EMB_LN = {f"emb_ln.{part}": (f"embeddings.LayerNorm.{part}",) for part in ("weight", "bias")}
NOMIC = like_bert(
    "",
    input_layer=(WORD_TABLE, TYPE_TABLE, norm("emb_ln")),
    preferred_names=_EMB_LN,
    block=encoder_blocks.NOMIC,
    stored=encoder_blocks.NOMIC_STORED,
    rotates=True,
    causal=False,
)
PUBLISHED_NOMIC = replace(
    NOMIC,
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
NOMIC_MOE = replace(
    PUBLISHED_NOMIC,
    defaults={"hidden_act": None, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "qkv_proj_bias": True},
    names={**PUBLISHED_NOMIC.names, "hidden_act": "activation_function"},
    block=encoder_blocks.NOMIC_MOE,
    stored=encoder_blocks.NOMIC_MOE_STORED,
    feed_forward=None,
    bias_if={"qkv_proj_bias": ".self_attn.", "mlp_fc1_bias": ".fc1.", "mlp_fc2_bias": ".fc2."},
    block_if={
        **{key: value for key, value in PUBLISHED_NOMIC.block_if.items() if not key.endswith(("_bias", "_layers"))},
        "activation_function": "gelu",
        "num_shared_experts": 0,
        "expert_choice_router": False,
        "moe_normalize_expert_weights": False,
        "ffn_div": 1,
        "parallel_block": False,
    },
    experts=ExpertSpec("moe_top_k", dense=encoder_blocks.has_no_experts, instead=encoder_blocks.NOMIC_DENSE),
)
JINA_V3 = like_bert(
    "",
    input_layer=(WORD_TABLE, TYPE_TABLE, norm("emb_ln")),
    preferred_names=_EMB_LN,
    required_values={"position_embedding_type": "rotary"},
    block=encoder_blocks.JINA_V3,
    stored=encoder_blocks.JINA_V3_STORED,
    rotates=True,
    causal=False,
)
XLM_ROBERTA_FLASH = replace(  # jina-reranker-v2
    ROBERTA,
    input_layer=(WORD_TABLE, TYPE_TABLE, POSITION_TABLE, norm("emb_ln")),
    preferred_names=_EMB_LN,
    block=encoder_blocks.JINA_V3,
    stored=encoder_blocks.JINA_V3_STORED,
    causal=False,
)
JINA_V2 = like_bert(
    "bert.",
    input_layer=(WORD_TABLE, TYPE_TABLE, EMBEDDING_NORM),
    required_values={"position_embedding_type": "alibi"},
    block=encoder_blocks.JINA_V2,
    stored=encoder_blocks.JINA_V2_STORED,
    feed_forward=encoder_blocks.published_gate("feed_forward_type"),
    alibi=AlibiSpec("symmetric"),
    causal=False,
)
_JINA_CODE = replace(JINA_V2, block=encoder_blocks.JINA_CODE, stored=encoder_blocks.JINA_CODE_STORED)
JINA_V2 = replace(JINA_V2, variants={".mlp.up_gated_layer.": ("jina_bert_code", _JINA_CODE)})
NEOBERT = Family(
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
)

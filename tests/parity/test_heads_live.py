"""Random tiny language models of every family: logits transformers computes right now, beside ours of the same rows.

What transformers gives the head is caught on its way (what the base model returns); the checkpoint it saved is exported
and head.onnx is run on those rows.
"""

import inspect
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from models.artifacts import weights
from models.artifacts.comparison import Session
from models.artifacts.export import export
from models.families import FAMILIES
from models.families.heads import HEADS
from models.reference import head as head_reference
from tests.parity.conftest import Ledger

pytestmark = pytest.mark.parity

V = 61
MASKED = (
    "bert ernie roberta xlm-roberta camembert longformer xlm-roberta-xl albert electra distilbert deberta deberta-v2 "
)
MASKED += "mpnet modernbert nomic_bert roformer esm rembert big_bird megatron-bert layoutlm funnel data2vec-text "
MASKED += "roberta-prelayernorm"
PAIRS: dict[str, str] = dict(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
PAIRS |= {"whisper": "WhisperForConditionalGeneration", "speech_to_text": "Speech2TextForConditionalGeneration"}
NOT_SHOWN = {
    "qwen2_vl_text": "a part of qwen2_vl without a class of its own",
    "qwen2_5_vl_text": "as qwen2_vl_text",
    "qwen3_vl_text": "as qwen2_vl_text",
    "qwen3_vl_moe_text": "as qwen2_vl_text",
    "xmod": "needs a language to be chosen; its head is roberta's",
    "speech_to_text": "reads spectrograms; its head is whisper's without its own name",
    "clip_text_model": "no head",
    "siglip_text_model": "no head",
    "embedding_gemma2_text": "no head",
    "ultrabert": "its head has two hidden layers, which no other has",
    "siglip2_text_model": "no head",
    "minicpm": "no class of transformers; its layerwise head is judged in test_popular_checkpoints.py",
    "dpr": "no head",
    "nvembed": "no head",
    **dict.fromkeys(("neobert", "llama_bidirec"), "no class of transformers; blocks in test_published_blocks_live.py"),
}
TYPES = [name for name in FAMILIES if name not in NOT_SHOWN]

_SIZES = {
    32: "hidden_size d_model n_embd dim emb_dim n_embed model_dim word_embed_proj_dim mamba_d_ssm lru_width",
    40: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff hidden_dim d_inner n_inner ffn_hidden_size",
    V: "vocab_size n_vocab n_words src_vocab_size tgt_vocab_size vocab_size_per_layer_input",
    64: "max_position_embeddings n_positions max_seq_len max_target_positions",
    2: "num_hidden_layers n_layers n_layer num_layers num_key_value_heads num_local_experts num_experts_per_tok "
    "type_vocab_size expand eos_token_id sep_token_id forced_eos_token_id",
    1: "encoder_layers decoder_layers num_decoder_layers n_group topk_group first_k_dense_replace sparse_step "
    "bos_token_id cls_token_id n_groups global_attn_every_n_layers",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads "
    "rotary_dim n_routed_experts num_experts conv_kernel attention_window mamba_n_heads time_step_rank mamba_dt_rank",
    8: "head_dim d_head d_kv qk_rope_head_dim qk_nope_head_dim v_head_dim state_size num_mel_bins mamba_d_head "
    "mamba_d_state hidden_size_per_layer_input",
    12: "q_lora_rank kv_lora_rank",
    16: "moe_intermediate_size",
    20: "embedding_size input_embedding_size",
    24: "output_embedding_size",
    30: "max_source_positions",
    0: "pad_token_id decoder_start_token_id",
}
SMALL = {name: size for size, names in _SIZES.items() for name in names.split()}
# what the sizes above leave impossible, and multipliers that would not show at 1
OWN: dict[str, dict[str, Any]] = {
    "bert": {"hidden_act": "relu"},
    "roformer": {"embedding_size": 20},
    "longformer": {"attention_window": [4, 4]},
    "big_bird": {"attention_type": "original_full"},
    "esm": {"vocab_size": V, "mask_token_id": 5, "position_embedding_type": "absolute", "pad_token_id": 0},
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1, "block_repeats": [1, 1]},
    "fsmt": {"langs": ["a", "b"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 2, "moe_topk": 1},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {"num_key_value_heads": 4},
    "ministral": {"head_dim": 8},
    "minicpm3": {"num_key_value_heads": 4, "dim_model_base": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "granite": {"logits_scaling": 6.0},
    "granitemoe": {"logits_scaling": 6.0},
    "hyperclovax": {"logits_scaling": 0.3},
    "falcon_h1": {"lm_head_multiplier": 0.2, "mamba_n_groups": 1},
    "cohere": {"logit_scale": 0.3},
    "gemma3_text": {"final_logit_softcapping": 7.0},
    "gemma3n_text": {
        "layer_types": ["full_attention"] * 2,
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0, 0.0],
        "intermediate_size": [40, 40],
    },
    "gemma4_text": {
        "head_dim": 8,
        "global_head_dim": 8,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": V,
        "final_logit_softcapping": 7.0,
    },
}


def language_model(model_type: str, tie: bool | None) -> Any:
    """A random model of small sizes; tie None: as the class has it."""
    kind = CONFIG_MAPPING[model_type]
    usual = kind()
    names = set(usual.to_dict()) | set(kind.attribute_map) | set(inspect.signature(kind.__init__).parameters)
    said = usual.to_dict()
    sizes = {
        name: size
        for name, size in SMALL.items()
        if name in names and said.get(kind.attribute_map.get(name, name)) is not None
    }
    if "attention_heads" in names:
        sizes["attention_heads"] = 4
    flag = {} if tie is None else {"tie_word_embeddings": tie}
    config = kind(**sizes | OWN.get(model_type, {}) | flag)
    masked: dict[str, str] = dict(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    causal: dict[str, Any] = dict(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    model_class = (
        masked[model_type] if model_type in MASKED.split() else PAIRS.get(model_type) or causal.get(model_type)
    )
    model_class = model_class or masked[model_type]
    model = getattr(transformers, model_class if isinstance(model_class, str) else model_class[0])(config)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("final_logits_bias") or value.requires_grad:
                centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
                value.copy_(centre + 0.3 * torch.randn_like(value))
    return model


def logits_and_rows(model: Any, model_type: str) -> tuple[Any, Any]:
    """What transformers computes, and the rows it computed it of."""
    seen: list[Any] = []
    config = model.config
    if model_type == "fsmt":
        model.model.decoder.output_projection.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    else:
        own = config.is_encoder_decoder or model.base_model is model or model_type == "opt"
        last = model.get_decoder() if own and hasattr(model, "get_decoder") else model.base_model
        last = model.model if last is model else last
        last = last.decoder if model_type == "opt" and hasattr(last, "decoder") else last
        last.register_forward_hook(lambda _, __, out: seen.append(out[0]))
    ids = torch.randint(6, V - 1, (2, 8))
    fed: dict[str, Any] = {"input_ids": ids}
    if config.is_encoder_decoder:
        fed["decoder_input_ids"] = torch.randint(6, V - 1, (2, 5))
    if model_type == "whisper":
        fed = {"input_features": torch.randn(2, 8, 60), "decoder_input_ids": fed["decoder_input_ids"]}
    if model_type in ("jamba", "recurrent_gemma"):
        fed["use_cache"] = False
    with torch.no_grad():
        logits = model(**fed).logits
    rows = seen[-1]
    return logits.reshape(-1, logits.shape[-1]).numpy(), rows.reshape(-1, rows.shape[-1]).numpy()


@pytest.mark.parametrize("tie", [None, True, False])
@pytest.mark.parametrize("model_type", TYPES)
def test_logits_match_transformers(model_type: str, tie: bool | None, tmp_path: Path, ledger: Ledger) -> None:
    draw = random.Random(f"{model_type} {tie}")
    torch.manual_seed(draw.randrange(1 << 30))
    made = language_model(model_type, tie)
    made.to(draw.choice((torch.float32, torch.bfloat16))).save_pretrained(tmp_path / "x")
    model = type(made).from_pretrained(tmp_path / "x", dtype=torch.float32).eval()
    expected, rows = logits_and_rows(model, model_type)
    card = export(tmp_path / "x", tmp_path / "out", side="decoder" if FAMILIES[model_type].decoder else None)
    assert card.head, card.no_head_reason
    logits = Session(tmp_path / "out/head.onnx").run({"hidden": rows}, ("logits",))["logits"]
    judge = head_reference.logits(card.head, weights.tensors(tmp_path / "out", card), rows)
    largest = max(1.0, float(np.abs(expected).max()))
    ledger.check(model_type, "logits", float(np.abs(logits - expected).max()) / largest, 2e-6)
    ledger.check(model_type, "logits, float64", float(np.abs(judge - expected).max()) / largest, 2e-6)


def test_every_family_with_a_head_is_compared_or_exempt() -> None:
    assert set(NOT_SHOWN) <= set(FAMILIES)
    assert set(TYPES) <= set(HEADS)

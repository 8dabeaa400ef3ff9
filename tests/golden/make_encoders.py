"""Writes the golden whole-encoder cases: tiny random transformers models, their tensors and their last_hidden_state.

Run with an environment that has torch and transformers: python tests/golden/make_encoders.py [NAME ...]; without
names it writes all. Rows of every kind: plain, right-padded, and masked in the middle; eager attention in float32 on
the CPU. Masked rows of decoders are not judged: transformers lets one that sees no unmasked row attend to all.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
SIZES = {"vocab_size": 29, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
OLD_SIZES = {"vocab_size": 29, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
CASES = {
    "encoder_bert": ("bert", SIZES | {"max_position_embeddings": 16, "hidden_act": "gelu"}),
    "encoder_roberta": (
        "roberta",
        SIZES | {"max_position_embeddings": 16, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new"},
    ),
    "encoder_xlm_roberta": (
        "xlm-roberta",
        SIZES | {"max_position_embeddings": 16, "hidden_act": "silu", "type_vocab_size": 1},
    ),
    "encoder_electra": ("electra", SIZES | {"max_position_embeddings": 16, "embedding_size": 8}),
    "encoder_ernie": ("ernie", SIZES | {"max_position_embeddings": 16}),
    "encoder_data2vec_text": ("data2vec-text", SIZES | {"max_position_embeddings": 16}),
    "encoder_rembert": ("rembert", SIZES | {"max_position_embeddings": 16, "input_embedding_size": 8}),
    "encoder_layoutlm": ("layoutlm", SIZES | {"max_position_embeddings": 16, "max_2d_position_embeddings": 20}),
    "encoder_albert": ("albert", SIZES | {"max_position_embeddings": 16, "embedding_size": 8}),
    "encoder_roberta_prelayernorm": ("roberta-prelayernorm", SIZES | {"max_position_embeddings": 16}),
    "encoder_xlm_roberta_xl": ("xlm-roberta-xl", SIZES | {"max_position_embeddings": 16}),
    "encoder_megatron_bert": ("megatron-bert", SIZES | {"max_position_embeddings": 16}),
    "encoder_mpnet": ("mpnet", SIZES | {"max_position_embeddings": 16}),
    "encoder_distilbert": ("distilbert", OLD_SIZES | {"max_position_embeddings": 12, "activation": "relu"}),
}
LLAMA_SIZES = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32, "pad_token_id": 0}
SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}


def rope(theta: float, **more: object) -> dict[str, object]:
    """Return the parameters of one table of rotations."""
    return {"rope_type": "default", "rope_theta": theta, **more}


CASES |= {
    "encoder_qwen3": ("qwen3", LLAMA_SIZES | {"rope_parameters": rope(1000000.0)}),
    "encoder_gemma3_text": (  # two tables, sandwiched norms, and both ways: half a window to either side
        "gemma3_text",
        LLAMA_SIZES
        | SLIDING
        | {
            "rope_parameters": {"full_attention": rope(1000000.0), "sliding_attention": rope(10000.0)},
            "query_pre_attn_scalar": 16,
            "use_bidirectional_attention": True,
        },
    ),
    "encoder_phi3": ("phi3", {key: value for key, value in LLAMA_SIZES.items() if key != "head_dim"}),
    "encoder_gpt_neox": (
        "gpt_neox",
        SIZES
        | {
            "max_position_embeddings": 32,
            "pad_token_id": 0,
            "rope_parameters": rope(10000.0, partial_rotary_factor=0.5),
        },
    ),
    "encoder_gemma2": (  # a cap of scores that shows
        "gemma2",
        LLAMA_SIZES
        | SLIDING
        | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8, "rope_parameters": rope(10000.0)},
    ),
    "encoder_cohere2": (  # pairs are rotated; its full layer rotates nothing
        "cohere2",
        {key: value for key, value in LLAMA_SIZES.items() if key != "head_dim"}
        | SLIDING
        | {"rope_parameters": rope(10000.0)},
    ),
}
ROTATED = SIZES | {"max_position_embeddings": 32, "rope_parameters": rope(1000.0)}
CASES |= {
    "encoder_modernbert": (  # a fused Wqkv and Wi, no first norm, and windows of one to either side
        "modernbert",
        SIZES
        | {
            "num_hidden_layers": 3,
            "max_position_embeddings": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "local_attention": 2,
            "rope_parameters": {"full_attention": rope(160000.0), "sliding_attention": rope(10000.0)},
        },
    ),
    "encoder_nomic_bert": ("nomic_bert", ROTATED),
    "encoder_gte": ("gte", ROTATED),
    "encoder_roformer": ("roformer", SIZES | {"max_position_embeddings": 32}),
    "encoder_deberta_v2": (
        "deberta-v2",
        SIZES
        | {
            "max_position_embeddings": 16,
            "relative_attention": True,
            "position_buckets": 4,
            "max_relative_positions": 8,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
    ),
    "encoder_gpt2": (  # matrices that lie transposed
        "gpt2",
        {
            "vocab_size": 29,
            "n_embd": 16,
            "n_head": 4,
            "n_layer": 2,
            "n_positions": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}
TYPED = ("bert", "electra", "ernie", "rembert", "layoutlm", "albert", "megatron-bert")


def case(name: str, model_type: str, sizes: dict[str, object]) -> dict[str, object]:
    """Compute one case and write its arrays; returns its entry in the manifest."""
    torch.manual_seed(len(name))
    config = transformers.CONFIG_MAPPING[model_type](**sizes)
    config._attn_implementation = "eager"
    config.use_cache = False
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    for parameter_name, parameter in model.named_parameters():  # larger than the initialiser's: every term shows
        if "embed_positions" not in parameter_name:  # RoFormer's sinusoids are computed
            parameter.data = torch.randn_like(parameter) * 0.4
    random = np.random.default_rng(len(name))
    ids = torch.from_numpy(random.integers(3, 29, (3, 11)))
    mask = torch.ones_like(ids)
    mask[1, 6:], ids[1, 6:] = 0, config.pad_token_id
    mask[2, 3:5] = 0
    typed = {}
    if model_type in TYPED:
        typed["token_type_ids"] = torch.from_numpy(random.integers(0, config.type_vocab_size, (3, 11)))
    if model_type == "layoutlm":
        corners = random.integers(0, config.max_2d_position_embeddings // 2, (3, 11, 2))
        typed["bbox"] = torch.from_numpy(np.concatenate([corners, 2 * corners + 1], axis=2))
    with torch.no_grad():
        hidden = model(ids, attention_mask=mask, **typed).last_hidden_state
    arrays = {"input_ids": ids, "attention_mask": mask, **typed, "last_hidden_state": hidden}
    arrays |= {f"w:{key}": tensor for key, tensor in model.state_dict().items() if tensor.is_floating_point()}
    np.savez_compressed(HERE / f"{name}.npz", **{key: tensor.detach().numpy() for key, tensor in arrays.items()})
    return {
        "name": name,
        "file": f"{name}.npz",
        "kind": "encoder",
        "params": {"config": sizes, "dtype": "float32", "model_type": model_type},
        "source": f"transformers {transformers.__version__}: {type(model).__name__}, eager; torch {torch.__version__}",
        "tolerance": {"last_hidden_state": {"atol": 1e-5, "rtol": 1e-5}},
        "sha256": hashlib.sha256((HERE / f"{name}.npz").read_bytes()).hexdigest(),
    }


def main() -> None:
    """Write the named cases and their entries in manifest.json."""
    names = sys.argv[1:] or list(CASES)
    path = HERE / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["cases"] = [entry for entry in manifest["cases"] if entry["name"] not in names]
    manifest["cases"] += [case(name, *CASES[name]) for name in names]
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

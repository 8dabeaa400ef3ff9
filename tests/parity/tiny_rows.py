"""Random configs of the families whose input layer alone is exported: sizes that make a tiny model of each class.

A row is what a family's config needs beside `plain`'s keys, and where its first block is.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.parity.tiny_configs import LONGEST, decoder, encoder

Draw = random.Random
More = Callable[[Draw], dict[str, Any]]


@dataclass(frozen=True)
class TinyRow:
    """One family, or one side of it.

    config    the whole config
    blocks    where the first block is among several, from the base model
    rounds    its arithmetic depends on the checkpoint's dtype, so the reference reads that
    """

    config: More
    blocks: str = "layers"
    types: str | None = None
    placed: bool = True
    runs: str = ""
    rounds: bool = False
    extras: Mapping[str, str] | None = None
    model: str | None = None


def plain(**more: Any) -> More:
    """Llama's keys and more; a callable value is drawn."""

    def config(draw: Draw) -> dict[str, Any]:
        usual = decoder(draw) | {"intermediate_size": 12, "num_key_value_heads": 1}
        return usual | {key: value(draw) if callable(value) else value for key, value in more.items()}

    return config


def bert(pads: tuple[int, ...] = (0, 3), **more: Any) -> More:
    def config(draw: Draw) -> dict[str, Any]:
        return encoder(draw, pads) | {key: value(draw) if callable(value) else value for key, value in more.items()}

    return config


def flag(draw: Draw) -> bool:
    return draw.random() < 0.6


def factor(draw: Draw) -> float:
    return draw.choice((1.0, 12.0, 0.3, 5.65625))


def width(draw: Draw) -> int:
    return draw.choice((5, 8, 20))


def pair(**more: Any) -> More:
    """BART's keys."""

    def config(draw: Draw) -> dict[str, Any]:
        heads, pad = draw.choice((1, 2, 4)), draw.choice((0, 1, 5))
        sizes = {"vocab_size": draw.randint(40, 90), "d_model": heads * draw.choice((4, 8, 16)), "pad_token_id": pad}
        for side in ("encoder", "decoder"):
            sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 12}
        sizes |= {"max_position_embeddings": draw.randint(LONGEST + pad + 1, 70), "scale_embedding": flag(draw)}
        sizes |= {"bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}
        return sizes | {key: value(draw) if callable(value) else value for key, value in more.items()}

    return config


def t5(**more: Any) -> More:
    def config(draw: Draw) -> dict[str, Any]:
        heads = draw.choice((1, 2, 4))
        sizes = {"vocab_size": draw.randint(40, 90), "d_model": draw.choice((8, 16, 20)), "d_kv": 4, "d_ff": 12}
        sizes |= {"num_layers": 1, "num_decoder_layers": 1, "num_heads": heads, "pad_token_id": 0}
        return sizes | {"decoder_start_token_id": 0} | more

    return config


def gpt2(**more: Any) -> More:
    def config(draw: Draw) -> dict[str, Any]:
        heads = draw.choice((1, 2, 4))
        sizes = {"vocab_size": draw.randint(40, 90), "n_embd": heads * 8, "n_head": heads, "n_layer": 1}
        sizes |= {"n_positions": draw.randint(LONGEST, 70), "pad_token_id": draw.choice((None, 0, 5))}
        return sizes | {"bos_token_id": 0, "eos_token_id": 0} | more

    return config


def xlm(draw: Draw) -> dict[str, Any]:
    sizes, heads = encoder(draw, (2, 5)), draw.choice((1, 2, 4))
    return {
        "vocab_size": sizes["vocab_size"],
        "emb_dim": 8 * heads,
        "n_heads": heads,
        "n_layers": 1,
        "max_position_embeddings": sizes["max_position_embeddings"],
        "layer_norm_eps": sizes["layer_norm_eps"],
        "pad_index": sizes["pad_token_id"],
        "pad_token_id": sizes["pad_token_id"],
        "n_langs": draw.choice((1, 3)),
        "use_lang_emb": flag(draw),
        "sinusoidal_embeddings": flag(draw),
    }


def esm(draw: Draw) -> dict[str, Any]:
    return bert((1, 0))(draw) | {
        "position_embedding_type": draw.choice(("absolute", "rotary")),
        "token_dropout": flag(draw),
        "emb_layer_norm_before": flag(draw),
        "mask_token_id": 4,
        "hidden_size": 16,
        "num_attention_heads": 2,
    }


_EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
_ROUTED = {**_EXPERTS, "n_routed_experts": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_VL = plain(rope_parameters=_MROPE, hidden_size=16, num_attention_heads=2, head_dim=8, **_EXPERTS)
_PER_LAYER = {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": lambda draw: draw.randint(20, 40)}
_PAD = {"pad_token_id": lambda draw: draw.choice((0, 5))}
_MAMBA = {"mamba_d_state": 4, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_chunk_size": 8}

ENCODERS: dict[str, TinyRow] = {
    "ernie": TinyRow(
        bert(use_task_id=flag, task_type_vocab_size=3),
        "encoder.layer",
        "type_vocab_size",
        extras={"task_type_ids": "task_type_vocab_size"},
    ),
    "longformer": TinyRow(bert((1, 0), attention_window=4), "encoder.layer", "type_vocab_size"),
    "xmod": TinyRow(bert((1, 0), languages=["en_XX"], default_language="en_XX"), "encoder.layer", "type_vocab_size"),
    "data2vec-text": TinyRow(bert((1, 0)), "encoder.layer", "type_vocab_size"),
    "roberta-prelayernorm": TinyRow(bert((1, 0)), "encoder.layer", "type_vocab_size"),
    "xlm-roberta-xl": TinyRow(bert((1, 0)), "encoder.layer", "type_vocab_size"),
    "albert": TinyRow(bert(embedding_size=width), "encoder.albert_layer_groups", "type_vocab_size"),
    "electra": TinyRow(
        bert(embedding_size=width, hidden_size=20, num_attention_heads=2), "encoder.layer", "type_vocab_size"
    ),
    "rembert": TinyRow(bert(input_embedding_size=width), "encoder.layer", "type_vocab_size"),
    "roformer": TinyRow(
        bert(embedding_size=width, hidden_size=20, num_attention_heads=2), "encoder.layer", "type_vocab_size", False
    ),
    "nomic_bert": TinyRow(bert(hidden_size=16, num_attention_heads=2, head_dim=8), "layers", "type_vocab_size"),
    "gte": TinyRow(bert(), "layers", "type_vocab_size"),
    "jina_embeddings_v3": TinyRow(bert((1,)), "layers", "type_vocab_size"),
    "eurobert": TinyRow(plain(**_PAD)),
    "ultrabert": TinyRow(plain(**_PAD)),
    "big_bird": TinyRow(
        bert(rescale_embeddings=flag, attention_type="original_full"), "encoder.layer", "type_vocab_size"
    ),
    "megatron-bert": TinyRow(bert(), "encoder.layer", "type_vocab_size"),
    "layoutlm": TinyRow(
        bert(max_2d_position_embeddings=30),
        "encoder.layer",
        "type_vocab_size",
        extras={"bbox": "max_2d_position_embeddings"},
    ),
    "mpnet": TinyRow(bert((1,)), "encoder.layer"),
    "funnel": TinyRow(
        lambda draw: {
            "vocab_size": draw.randint(40, 90),
            "d_model": 16,
            "n_head": 2,
            "d_head": 8,
            "d_inner": 12,
            "block_sizes": [1],
            "pad_token_id": None,  # transformers zeroes that row as it loads
            "bos_token_id": 0,
            "eos_token_id": 0,
            "layer_norm_eps": draw.choice((1e-9, 1e-3)),
        },
        "encoder.blocks.0",
        placed=False,
        model="FunnelModel",
    ),
    "esm": TinyRow(esm, "encoder.layer"),
    "xlm": TinyRow(xlm, "attentions", "vocab_size", extras={"langs": "n_langs"}),
    "flaubert": TinyRow(xlm, "attentions", "vocab_size", extras={"langs": "n_langs"}),
    "xlnet": TinyRow(
        lambda draw: {
            "vocab_size": draw.randint(40, 90),
            "d_model": 16,
            "n_head": 2,
            "d_inner": 12,
            "n_layer": 1,
            "pad_token_id": 5,
        },
        "layer",
        placed=False,
    ),
    "deberta": TinyRow(
        bert(type_vocab_size=lambda draw: draw.choice((0, 2)), position_biased_input=flag, relative_attention=flag),
        "encoder.layer",
        "type_vocab_size",
    ),
    "modernbert-decoder": TinyRow(
        plain(num_key_value_heads=None, norm_bias=flag, norm_eps=1e-3, **_PAD | {"cls_token_id": 0, "sep_token_id": 0}),
        placed=True,
    ),
    "clip_text_model": TinyRow(bert((1,), hidden_act="gelu", eos_token_id=3), "encoder.layers"),
    "siglip_text_model": TinyRow(bert((1,), hidden_act="gelu"), "encoder.layers", model="SiglipTextModel"),
    "siglip2_text_model": TinyRow(bert((1,), hidden_act="gelu"), "encoder.layers", model="Siglip2TextModel"),
}

DECODERS: dict[str, TinyRow] = {
    "gpt_bigcode": TinyRow(gpt2(), "h", "vocab_size"),
    "openai-gpt": TinyRow(gpt2(), "h", "vocab_size"),
    "gpt_neo": TinyRow(
        lambda draw: {
            "vocab_size": draw.randint(40, 90),
            "hidden_size": 16,
            "num_layers": 1,
            "num_heads": 2,
            "attention_types": [[["global"], 1]],
            "max_position_embeddings": draw.randint(LONGEST, 70),
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        "h",
        "vocab_size",
    ),
    "gptj": TinyRow(gpt2(rotary_dim=4), "h", "vocab_size"),
    "codegen": TinyRow(gpt2(rotary_dim=4, n_head=4, n_embd=32), "h", "vocab_size"),
    "ctrl": TinyRow(gpt2(dff=12), "h", "vocab_size"),
    "opt": TinyRow(
        plain(word_embed_proj_dim=width, ffn_dim=12, do_layer_norm_before=True, max_position_embeddings=40, **_PAD),
        "decoder.layers",
    ),
    "biogpt": TinyRow(plain(scale_embedding=flag, max_position_embeddings=40, **_PAD)),
    "xglm": TinyRow(
        lambda draw: {
            "vocab_size": draw.randint(40, 90),
            "d_model": draw.choice((8, 12, 24)),
            "num_layers": 1,
            "attention_heads": 2,
            "ffn_dim": 12,
            "scale_embedding": flag(draw),
            "pad_token_id": 1,
            "max_position_embeddings": 30,
        }
    ),
    **{
        name: TinyRow(plain())
        for name in ("arcee", "mistral", "qwen2", "olmo", "olmo2", "olmo3", "smollm3", "starcoder2")
    },
    **{name: TinyRow(plain()) for name in ("apertus", "cohere", "phi", "phi3", "persimmon", "nemotron")},
    "stablelm": TinyRow(plain(hidden_size=32, num_attention_heads=2)),
    **{name: TinyRow(plain(head_dim=8)) for name in ("qwen3", "exaone4", "cohere2", "glm", "glm4", "ernie4_5")},
    "helium": TinyRow(plain(hidden_size=16, num_attention_heads=2, head_dim=8)),  # its class has no other width
    **{
        name: TinyRow(plain(head_dim=8, **_EXPERTS))
        for name in ("mixtral", "qwen3_moe", "minimax", "gpt_oss", "phimoe")
    },
    **{
        name: TinyRow(plain(embedding_multiplier=factor, **_EXPERTS))
        for name in ("granite", "granitemoe", "hyperclovax")
    },
    "qwen2_moe": TinyRow(plain(shared_expert_intermediate_size=8, **_EXPERTS)),
    "olmoe": TinyRow(plain(**_EXPERTS)),
    "jamba": TinyRow(plain(use_mamba_kernels=False, mamba_dt_rank=4, **_MAMBA, **_EXPERTS)),
    "qwen2_vl_text": TinyRow(_VL, model="Qwen2VLTextModel"),
    "qwen2_5_vl_text": TinyRow(_VL, model="Qwen2_5_VLTextModel"),
    "qwen3_vl_text": TinyRow(_VL, model="Qwen3VLTextModel"),
    "qwen3_vl_moe_text": TinyRow(_VL, model="Qwen3VLMoeTextModel"),
    **{
        name: TinyRow(plain(head_dim=8, **_PAD), rounds=True)
        for name in ("gemma", "gemma2", "gemma3_text", "vaultgemma")
    },
    "gemma3n_text": TinyRow(
        plain(
            head_dim=8,
            laurel_rank=4,
            num_kv_shared_layers=0,
            num_hidden_layers=2,
            intermediate_size=[12, 12],
            activation_sparsity_pattern=[0.0, 0.0],
            layer_types=["sliding_attention", "full_attention"],
            **_PER_LAYER,
            **_PAD,
        ),
        rounds=True,
        model="Gemma3nTextModel",
    ),
    "gemma4_text": TinyRow(
        plain(
            head_dim=8,
            global_head_dim=8,
            num_kv_shared_layers=0,
            num_hidden_layers=2,
            hidden_size_per_layer_input=4,
            vocab_size_per_layer_input=100,  # it looks every id up
            **_PAD,
        ),
        rounds=True,
        model="Gemma4TextModel",
    ),
    "embedding_gemma2_text": TinyRow(
        plain(
            hidden_size=32,
            num_attention_heads=2,
            head_dim=16,
            global_head_dim=16,
            intermediate_size=32,
            hidden_size_per_layer_input=32,
            **_PAD,
        ),
        rounds=True,
    ),
    "recurrent_gemma": TinyRow(
        plain(lru_width=16, hidden_size=16, num_attention_heads=2, head_dim=8, **_PAD), rounds=True
    ),
    "minicpm3": TinyRow(plain(scale_emb=factor, **_LATENT), rounds=True),
    "deepseek_v2": TinyRow(plain(first_k_dense_replace=9, **_LATENT, **_ROUTED)),
    "deepseek_v3": TinyRow(plain(first_k_dense_replace=9, **_LATENT, **_ROUTED)),
    "glm4_moe": TinyRow(plain(head_dim=8, first_k_dense_replace=9, **_ROUTED)),
    "llama4_text": TinyRow(plain(head_dim=8, intermediate_size_mlp=8, **_EXPERTS), model="Llama4TextModel"),
    "nanochat": TinyRow(plain(rms_norm_eps=lambda draw: draw.choice((1e-6, 1e-2)))),
    "afmoe": TinyRow(plain(mup_enabled=flag, head_dim=8, num_dense_layers=9, **_EXPERTS)),
    "falcon_h1": TinyRow(plain(embedding_multiplier=factor, mamba_n_heads=2, mamba_d_head=8, mamba_d_ssm=16, **_MAMBA)),
    "hunyuan_v1_dense": TinyRow(plain(head_dim=8)),
    "hunyuan_v1_moe": TinyRow(plain(head_dim=8, moe_topk=1, **_EXPERTS)),
    "mamba": TinyRow(plain(state_size=4, expand=2, time_step_rank=4), placed=False),
    "mamba2": TinyRow(
        plain(hidden_size=16, num_heads=4, head_dim=8, expand=2, state_size=4, n_groups=1, chunk_size=8), placed=False
    ),
}


def both(config: More, layers: str = "layers", **rest: Any) -> dict[str, TinyRow]:
    """A row a side, by the side's name."""
    return {
        side: TinyRow(config, f"{side}.{layers}", placed=False, runs=side, **rest) for side in ("encoder", "decoder")
    }


_FSMT = pair(
    langs=["en", "de"],
    src_vocab_size=lambda draw: draw.randint(40, 90),
    tgt_vocab_size=lambda draw: draw.randint(40, 90),
    d_model=16,  # of 4 channels, norms make rounding errors large
    tie_word_embeddings=False,
    pad_token_id=1,
)
_EVEN_LED = {"max_encoder_position_embeddings": 40, "max_decoder_position_embeddings": 30, "attention_window": 4}
SIDES: dict[str, dict[str, TinyRow]] = {
    "bart": both(pair()),
    "mbart": both(pair()),
    "mvp": both(pair()),
    "led": both(pair(**_EVEN_LED)),
    "blenderbot": both(pair()),
    "blenderbot-small": both(pair()),
    "pegasus": both(pair()),
    "m2m_100": both(pair(pad_token_id=1)),
    "nllb-moe": both(pair(pad_token_id=1, num_experts=2, encoder_sparse_step=9, decoder_sparse_step=9)),
    "fsmt": both(_FSMT),
    "mt5": both(t5(), "block"),
    "umt5": both(t5(), "block"),
    "longt5": both(t5(local_radius=4), "block"),
    "switch_transformers": both(t5(num_experts=2, num_sparse_encoder_layers=0, num_sparse_decoder_layers=0), "block"),
    "whisper": {"decoder": both(pair(max_target_positions=40))["decoder"]},
    "speech_to_text": {"decoder": both(pair(max_target_positions=40, pad_token_id=1))["decoder"]},
}

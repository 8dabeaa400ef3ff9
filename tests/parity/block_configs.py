"""Random configs of the families that run whole: small, with every kind of block that their configs can ask for.

LONGEST tokens fit into each; windows are short enough that sequences exceed them.
"""

import random
from collections.abc import Callable
from typing import Any

LONGEST = 520
Draw = random.Random
Config = dict[str, Any]
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu", "mish", "gelu_10", "hardswish", "tanh", "leaky_relu", "laplace")


def _sizes(draw: Draw) -> Config:
    heads = draw.choice((1, 2, 4))
    return {
        "vocab_size": draw.randint(40, 90),
        "hidden_size": 4 * draw.choice((4, 8, 16)),  # of fewer channels, norms make rounding errors large
        "num_hidden_layers": draw.randint(1, 4),
        "num_attention_heads": heads,
        "intermediate_size": 16 * draw.randint(1, 4),  # ONNX Runtime computes the last of other counts otherwise
        "max_position_embeddings": LONGEST + 10,
        "pad_token_id": 1,
    }


def encoder(**more: Any) -> Callable[[Draw], Config]:
    """BERT's keys and more; a callable value is drawn."""

    def config(draw: Draw) -> Config:
        usual = _sizes(draw) | {"type_vocab_size": draw.choice((1, 2)), "hidden_act": draw.choice(ACTIVATIONS)}
        usual |= drawn(draw, more)
        return {key: value for key, value in usual.items() if value is not None}

    return config


def drawn(draw: Draw, more: Config) -> Config:
    return {key: value(draw) if callable(value) else value for key, value in more.items()}


def decoder(**more: Any) -> Callable[[Draw], Config]:
    """Llama's keys and more; None removes a key."""

    def config(draw: Draw) -> Config:
        sizes = _sizes(draw)
        heads = sizes["num_attention_heads"]
        sizes |= {
            "num_key_value_heads": draw.choice([count for count in (1, 2, 4) if heads % count == 0]),
            "head_dim": draw.choice((4, 8, 16)),
            "rms_norm_eps": draw.choice((1e-6, 1e-5, 1e-3)),
            "tie_word_embeddings": draw.random() < 0.5,
            "bos_token_id": 0,
            "eos_token_id": 2,
        }
        config = sizes | drawn(draw, more)
        config = {key: value for key, value in config.items() if value is not None}
        if config.get("head_dim") in (None, "derived"):
            width = draw.choice((4, 8, 16)) * (4 // heads)
            config |= {"hidden_size": heads * width} | ({"head_dim": width} if "head_dim" in config else {})
        config |= {key: config["hidden_size"] for key, value in config.items() if value == "hidden_size"}
        return config

    return config


def flag(draw: Draw) -> bool:
    return draw.random() < 0.5


def window(draw: Draw) -> int:
    return draw.choice((1, 3, 16, 64, 130))


def even_window(draw: Draw) -> int:
    return 2 * draw.choice((1, 8, 32, 65))


def theta(draw: Draw) -> Config:
    return {"rope_type": "default", "rope_theta": draw.choice((1000.0, 10000.0, 160000.0))}


def scaled(draw: Draw) -> Config:
    """YaRN of Ministral 3, which scales queries beyond the positions it was trained with."""
    return {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": draw.choice((4.0, 16.0)),
        "original_max_position_embeddings": LONGEST + draw.choice((1, 100)),
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }


def two_thetas(draw: Draw) -> Config:
    return {"full_attention": theta(draw), "sliding_attention": theta(draw)}


def partial(share: float) -> Callable[[Draw], Config]:
    return lambda draw: theta(draw) | {"partial_rotary_factor": share}


def scalar(draw: Draw) -> float:
    return draw.choice((4, 16, 50))


def factor(draw: Draw) -> float:
    return draw.choice((0.22, 1.0, 1.5))


def tower(**more: Any) -> Callable[[Draw], Config]:
    """The text towers' keys, those of CLIP and SigLIP."""
    own = {"hidden_act": lambda draw: draw.choice((*ACTIVATIONS, "quick_gelu"))}
    return encoder(**own, layer_norm_eps=lambda draw: draw.choice((1e-6, 1e-5, 1e-3)), **more)


_ENDS: Config = {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}


def distilbert(draw: Draw) -> Config:
    sizes = _sizes(draw)
    return {
        "vocab_size": sizes["vocab_size"],
        "dim": sizes["hidden_size"],
        "n_heads": sizes["num_attention_heads"],
        "n_layers": sizes["num_hidden_layers"],
        "hidden_dim": sizes["intermediate_size"],
        "max_position_embeddings": sizes["max_position_embeddings"],
    }


def gpt2(**more: Any) -> Callable[[Draw], Config]:
    """GPT-2's keys and more; None removes a key."""

    def config(draw: Draw) -> Config:
        sizes = _sizes(draw)
        usual = {
            "vocab_size": sizes["vocab_size"],
            "n_embd": 4 * draw.choice((4, 8)),
            "n_head": sizes["num_attention_heads"],
            "n_layer": sizes["num_hidden_layers"],
            "n_inner": draw.choice((None, 48)),
            "activation_function": draw.choice(ACTIVATIONS),
            "bos_token_id": 0,
            "eos_token_id": 2,
        }
        return {key: value for key, value in (usual | drawn(draw, more)).items() if value is not None}

    return config


def gpt_neo(draw: Draw) -> Config:
    sizes, repeats = _sizes(draw), draw.randint(1, 2)
    return {
        "vocab_size": sizes["vocab_size"],
        "hidden_size": sizes["hidden_size"],
        "num_layers": 2 * repeats,
        "num_heads": sizes["num_attention_heads"],
        "attention_types": [[["global", "local"], repeats]],
        "window_size": window(draw),
        "intermediate_size": draw.choice((None, 48)),
        "activation_function": draw.choice(ACTIVATIONS),
        "max_position_embeddings": sizes["max_position_embeddings"],
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def mpt(draw: Draw) -> Config:
    sizes = _sizes(draw)
    return {
        "vocab_size": sizes["vocab_size"],
        "d_model": sizes["hidden_size"] * 3,
        "n_heads": draw.choice((1, 2, 3, 4, 6)),
        "n_layers": sizes["num_hidden_layers"],
        "max_seq_len": sizes["max_position_embeddings"],
        "attn_config": draw.choice(({}, {"softmax_scale": 0.1})),
    }


def falcon(draw: Draw) -> Config:
    sizes, new = _sizes(draw), flag(draw)
    heads = sizes["num_attention_heads"]
    kinds = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    return {key: sizes[key] for key in kinds} | {
        "new_decoder_architecture": new,
        "num_kv_heads": draw.choice([count for count in (1, 2, 4) if heads % count == 0]) if new else None,
        "num_ln_in_parallel_attn": draw.choice((None, 1, 2)) if new else None,
        "multi_query": flag(draw),
        "parallel_attn": new or flag(draw),
        "bias": flag(draw),
        "ffn_hidden_size": draw.choice((None, 48)),
        "activation": draw.choice(ACTIVATIONS),
        "layer_norm_epsilon": draw.choice((1e-5, 1e-3)),
        "rope_parameters": theta(draw),
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def xglm(draw: Draw) -> Config:
    sizes = _sizes(draw)
    return {
        "vocab_size": sizes["vocab_size"],
        "d_model": sizes["hidden_size"],
        "num_layers": sizes["num_hidden_layers"],
        "attention_heads": sizes["num_attention_heads"],
        "ffn_dim": sizes["intermediate_size"],
        "scale_embedding": flag(draw),
        "activation_function": draw.choice(ACTIVATIONS),
        "max_position_embeddings": sizes["max_position_embeddings"],
        "pad_token_id": 1,
    }


def bart(**more: Any) -> Callable[[Draw], Config]:
    """The keys of BART's encoder and more."""

    def config(draw: Draw) -> Config:
        sizes = _sizes(draw)
        usual = {
            "vocab_size": sizes["vocab_size"],
            "d_model": sizes["hidden_size"],
            "encoder_layers": sizes["num_hidden_layers"],
            "encoder_attention_heads": sizes["num_attention_heads"],
            "encoder_ffn_dim": sizes["intermediate_size"],
            "decoder_layers": 1,
            "decoder_attention_heads": 1,
            "decoder_ffn_dim": 16,
            "max_position_embeddings": sizes["max_position_embeddings"],
            "activation_function": draw.choice(ACTIVATIONS),
            "scale_embedding": flag(draw),
            "pad_token_id": 1,
            "decoder_start_token_id": 2,
        }
        return {key: value for key, value in (usual | drawn(draw, more)).items() if value is not None}

    return config


def xlm(draw: Draw) -> Config:
    sizes = _sizes(draw)
    return {
        "vocab_size": sizes["vocab_size"],
        "emb_dim": sizes["hidden_size"],
        "n_layers": sizes["num_hidden_layers"],
        "n_heads": sizes["num_attention_heads"],
        "max_position_embeddings": sizes["max_position_embeddings"],
        "gelu_activation": flag(draw),
        "causal": flag(draw),
        "n_langs": draw.choice((1, 3)),
        "pad_token_id": 1,
    }


def t5(draw: Draw) -> Config:
    sizes = _sizes(draw)
    return {
        "vocab_size": sizes["vocab_size"],
        "d_model": sizes["hidden_size"],
        "d_kv": draw.choice((4, 8)),
        "d_ff": sizes["intermediate_size"],
        "num_layers": sizes["num_hidden_layers"],
        "num_heads": sizes["num_attention_heads"],
        "relative_attention_num_buckets": draw.choice((8, 32)),
        "relative_attention_max_distance": draw.choice((20, 128)),
        "feed_forward_proj": draw.choice(("relu", "gated-gelu", "gated-silu")),
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def _mixture(count: str) -> Config:
    """The keys of a mixture of experts, by the name of their number."""
    return {
        count: lambda draw: draw.choice((3, 4, 8)),
        "num_experts_per_tok": lambda draw: draw.randint(1, 3),
        "rope_parameters": theta,
    }


_QWEN_MIXTURE = _mixture("num_experts") | {
    "moe_intermediate_size": lambda draw: 16 * draw.randint(1, 3),
    "norm_topk_prob": flag,
    "decoder_sparse_step": lambda draw: draw.choice((1, 1, 2)),
    "mlp_only_layers": lambda draw: draw.choice(([], [0], [1])),
}
_LN: Config = {"rms_norm_eps": None, "layer_norm_eps": lambda draw: draw.choice((1e-5, 1e-3))}
PUBLISHED = {"neobert", "llama_bidirec", "nvembed", "dpr", "minicpm"}  # judged in two other modules here
PUBLISHED |= {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}  # in test_image_tokens_live.py
CONFIGS: dict[str, Callable[[Draw], Config]] = {
    "bert": encoder(),
    "mpnet": encoder(type_vocab_size=None),
    "clip_text_model": tower(),
    "siglip_text_model": tower(),
    "siglip2_text_model": tower(),
    "roberta": encoder(),
    "camembert": encoder(),
    "xlm-roberta": encoder(),
    "electra": encoder(embedding_size=lambda draw: draw.choice((8, 16))),
    "albert": encoder(
        embedding_size=8,
        num_hidden_groups=lambda draw: draw.choice((1, 1, 2, 3)),
        inner_group_num=lambda draw: draw.choice((1, 1, 2)),
    ),
    "luke": encoder(entity_vocab_size=5, entity_emb_size=4),
    "longformer": encoder(attention_window=lambda draw: [draw.choice((4, 16, 130))] * 4, num_hidden_layers=4),  # not 2
    "big_bird": encoder(
        attention_type=lambda draw: draw.choice(("block_sparse", "original_full")),
        rescale_embeddings=flag,
        use_bias=flag,
    ),
    "ministral": decoder(sliding_window=window, rope_parameters=theta),
    "ministral3": decoder(sliding_window=lambda draw: draw.choice((None, 16, 64)), rope_parameters=scaled),
    "ernie": encoder(),
    "data2vec-text": encoder(),
    "rembert": encoder(input_embedding_size=8),
    "layoutlm": encoder(max_2d_position_embeddings=20),
    "megatron-bert": encoder(),
    "roberta-prelayernorm": encoder(),
    "xlm-roberta-xl": encoder(),
    "distilbert": distilbert,
    "roformer": encoder(),
    "nomic_bert": encoder(hidden_act="silu", rope_parameters=theta),
    "gte": encoder(rope_parameters=theta, type_vocab_size=lambda draw: draw.choice((0, 1, 2))),
    "jina_embeddings_v3": encoder(rope_parameters=theta),
    "modernbert": encoder(
        type_vocab_size=None,
        hidden_act=None,
        hidden_activation=lambda draw: draw.choice(ACTIVATIONS),
        local_attention=even_window,
        global_attn_every_n_layers=lambda draw: draw.choice((1, 2, 3)),
        num_hidden_layers=lambda draw: draw.randint(1, 5),
        attention_bias=flag,
        mlp_bias=flag,
        norm_bias=flag,
        rope_parameters=two_thetas,
        **_ENDS,
    ),
    "modernbert-decoder": encoder(
        type_vocab_size=None,
        hidden_act=None,
        hidden_activation=lambda draw: draw.choice(ACTIVATIONS),
        local_attention=even_window,
        global_attn_every_n_layers=lambda draw: draw.choice((1, 2, 3)),
        num_hidden_layers=lambda draw: draw.randint(1, 5),
        attention_bias=flag,
        mlp_bias=flag,
        norm_bias=flag,
        rope_parameters=two_thetas,
        **_ENDS,
    ),
    "eurobert": decoder(head_dim="derived", attention_bias=flag, mlp_bias=flag, rope_parameters=theta),
    "ultrabert": decoder(
        head_dim="derived",
        num_hidden_layers=lambda draw: draw.randint(1, 5),
        sliding_window=window,
        rope_parameters=two_thetas,
    ),
    "deberta-v2": encoder(
        type_vocab_size=lambda draw: draw.choice((0, 2)),
        position_biased_input=flag,
        relative_attention=lambda draw: draw.random() < 0.8,
        position_buckets=lambda draw: draw.choice((-1, 16, 64)),
        max_relative_positions=lambda draw: draw.choice((-1, 128)),
        pos_att_type=lambda draw: draw.choice((["c2p"], ["p2c"], ["p2c", "c2p"], "p2c|c2p")),
        share_att_key=flag,
        norm_rel_ebd=lambda draw: draw.choice(("none", "layer_norm")),
        conv_kernel_size=lambda draw: draw.choice((0, 3, 5)),
        conv_act=lambda draw: draw.choice(("tanh", "gelu")),
    ),
    "deberta": encoder(
        type_vocab_size=lambda draw: draw.choice((0, 2)),
        position_biased_input=flag,
        relative_attention=lambda draw: draw.random() < 0.8,
        max_relative_positions=lambda draw: draw.choice((-1, 128)),
        pos_att_type=lambda draw: draw.choice((["c2p"], ["p2c"], ["p2c", "c2p"])),
    ),
    "gpt2": gpt2(n_positions=LONGEST + 10),
    "gptj": gpt2(n_positions=LONGEST + 10, rotary_dim=4),
    "bloom": gpt2(n_positions=None, n_inner=None, activation_function=None),
    "gpt_bigcode": gpt2(n_positions=LONGEST + 10, multi_query=flag),
    "openai-gpt": gpt2(
        n_positions=LONGEST + 10,
        n_inner=None,
        activation_function=None,
        afn=lambda draw: draw.choice(("gelu", "relu", "silu")),
    ),
    "gpt_neo": gpt_neo,
    "codegen": gpt2(n_positions=LONGEST + 10, n_head=lambda draw: 4 * draw.choice((1, 2)), n_embd=32, rotary_dim=4),
    "ctrl": gpt2(n_positions=LONGEST + 10, dff=48, n_inner=None, activation_function=None),
    "mpt": mpt,
    "falcon": falcon,
    "biogpt": decoder(
        head_dim=None,
        rms_norm_eps=None,
        num_key_value_heads=None,
        scale_embedding=flag,
        hidden_act=lambda draw: draw.choice(ACTIVATIONS),
    ),
    "xglm": xglm,
    "hyperclovax": decoder(
        head_dim=lambda draw: draw.choice((None, 8)),
        attention_multiplier=lambda draw: draw.choice((None, 0.1, 0.25)),
        residual_multiplier=factor,
        embedding_multiplier=factor,
        use_post_norm=flag,
        attention_bias=flag,
        mlp_bias=flag,
        rope_parameters=theta,
    ),
    "vaultgemma": decoder(
        sliding_window=window,
        query_pre_attn_scalar=scalar,
        attn_logit_softcapping=lambda draw: draw.choice((5.0, 50.0)),
        attention_bias=flag,
        rope_parameters=theta,
    ),
    "persimmon": decoder(
        **_LN,
        head_dim=None,
        num_key_value_heads=None,
        qk_layernorm=flag,
        hidden_act=lambda draw: draw.choice((*ACTIVATIONS, "relu2")),
        rope_parameters=partial(0.5),
    ),
    "opt": decoder(
        head_dim=None,
        rms_norm_eps=None,
        num_key_value_heads=None,
        intermediate_size=None,
        ffn_dim=48,
        enable_bias=flag,
        activation_function=lambda draw: draw.choice(ACTIVATIONS),
        word_embed_proj_dim="hidden_size",
    ),
    **{
        name: bart()
        for name in ("bart", "mbart", "mvp", "blenderbot", "blenderbot-small", "pegasus", "marian", "m2m_100")
    },
    "fsmt": bart(
        langs=["en", "de"],
        src_vocab_size=lambda draw: draw.randint(40, 90),
        tgt_vocab_size=lambda draw: draw.randint(40, 90),
        vocab_size=None,
    ),
    "xlm": xlm,
    "flaubert": lambda draw: xlm(draw) | {"pre_norm": flag(draw)},
    "esm": encoder(
        type_vocab_size=None,
        hidden_act=None,
        position_embedding_type=lambda draw: draw.choice(("absolute", "rotary")),
        emb_layer_norm_before=flag,
        token_dropout=flag,
        mask_token_id=5,
    ),
    "t5": t5,
    "mt5": t5,
    "umt5": t5,
    "llama": decoder(attention_bias=flag, mlp_bias=flag, rope_parameters=theta),
    "arcee": decoder(head_dim="derived", attention_bias=flag, mlp_bias=flag, rope_parameters=theta),
    "mistral": decoder(sliding_window=lambda draw: draw.choice((None, 3, 64)), rope_parameters=theta),
    "qwen2": decoder(
        head_dim=None,
        use_sliding_window=flag,
        sliding_window=window,
        max_window_layers=lambda draw: draw.randint(0, 3),
        rope_parameters=theta,
    ),
    "qwen3": decoder(attention_bias=flag, rope_parameters=theta),
    "gemma": decoder(hidden_act="gelu_pytorch_tanh", rope_parameters=theta),
    "gemma2": decoder(
        sliding_window=window,
        query_pre_attn_scalar=scalar,
        attn_logit_softcapping=lambda draw: draw.choice((5.0, 50.0)),
        rope_parameters=theta,
    ),
    "gemma3_text": decoder(
        sliding_window=even_window,
        query_pre_attn_scalar=scalar,
        use_bidirectional_attention=flag,
        num_hidden_layers=lambda draw: draw.randint(1, 7),
        rope_parameters=two_thetas,
    ),
    "mixtral": decoder(sliding_window=lambda draw: draw.choice((None, 3, 64)), **_mixture("num_local_experts")),
    "qwen2_moe": decoder(
        head_dim=None,
        use_sliding_window=flag,
        sliding_window=window,
        max_window_layers=lambda draw: draw.randint(0, 3),
        shared_expert_intermediate_size=lambda draw: 16 * draw.randint(1, 3),
        qkv_bias=flag,
        **_QWEN_MIXTURE,
    ),
    "qwen3_moe": decoder(use_sliding_window=flag, sliding_window=window, attention_bias=flag, **_QWEN_MIXTURE),
    "olmoe": decoder(head_dim=None, attention_bias=flag, norm_topk_prob=flag, **_mixture("num_experts")),
    "granitemoe": decoder(
        head_dim=None,
        attention_bias=flag,
        attention_multiplier=lambda draw: draw.choice((0.1, 0.25)),
        residual_multiplier=factor,
        embedding_multiplier=factor,
        **_mixture("num_local_experts"),
    ),
    "phimoe": decoder(
        head_dim=None,
        attention_bias=flag,
        sliding_window=lambda draw: draw.choice((None, 64)),
        router_jitter_noise=lambda draw: draw.choice((0.01, 0.2)),
        **_mixture("num_local_experts") | {"num_experts_per_tok": 2},
    ),
    "embedding_gemma2_text": decoder(
        sliding_window=window,
        global_head_dim=lambda draw: draw.choice((8, 16)),
        num_global_key_value_heads=1,
        sliding_window_pattern=lambda draw: draw.choice((2, 3)),
        num_hidden_layers=lambda draw: draw.randint(1, 5),
        hidden_size_per_layer_input=lambda draw: 16 * draw.randint(1, 3),
        embedding_dim=lambda draw: 16 * draw.randint(1, 3),
        hidden_activation="gelu_pytorch_tanh",
        attention_bias=flag,
        rope_parameters=two_thetas,
    ),
    "phi3": decoder(head_dim=None, sliding_window=lambda draw: draw.choice((None, 64)), rope_parameters=partial(1.0)),
    "phi": decoder(**_LN, head_dim=None, hidden_act="gelu_new", rope_parameters=partial(0.5)),
    "gpt_neox": decoder(
        **_LN, head_dim=None, num_key_value_heads=None, attention_bias=flag, rope_parameters=partial(0.5)
    ),
    "olmo": decoder(head_dim=None, rms_norm_eps=None, attention_bias=flag, rope_parameters=theta),
    "nemotron": decoder(
        rms_norm_eps=None,
        norm_eps=lambda draw: draw.choice((1e-5, 1e-3)),
        attention_bias=flag,
        mlp_bias=flag,
        hidden_act=lambda draw: draw.choice((*ACTIVATIONS, "relu2")),
        rope_parameters=partial(0.5),
    ),
    "hunyuan_v1_dense": decoder(attention_bias=flag, rope_parameters=theta),
    "nanochat": decoder(
        head_dim=None,
        attention_bias=flag,
        hidden_act=lambda draw: draw.choice((*ACTIVATIONS, "relu2")),
        rope_parameters=theta,
    ),
    "olmo2": decoder(head_dim=None, rope_parameters=theta),
    "olmo3": decoder(head_dim=None, sliding_window=window, rope_parameters=two_thetas),
    "granite": decoder(
        head_dim=None,
        attention_multiplier=lambda draw: draw.choice((0.1, 0.25)),
        residual_multiplier=factor,
        embedding_multiplier=factor,
        rope_parameters=theta,
    ),
    "smollm3": decoder(head_dim=None, no_rope_layer_interval=2, rope_parameters=theta),
    "starcoder2": decoder(
        head_dim=None,
        rms_norm_eps=None,
        norm_epsilon=1e-5,
        use_bias=flag,
        sliding_window=lambda draw: draw.choice((None, 64)),
        rope_parameters=theta,
    ),
    "stablelm": decoder(**_LN, head_dim=None, use_qkv_bias=flag, qk_layernorm=flag, rope_parameters=partial(0.5)),
    "lfm2": decoder(
        rms_norm_eps=None,
        head_dim=None,
        norm_eps=lambda draw: draw.choice((1e-5, 1e-3)),
        full_attn_idxs=lambda draw: draw.choice(([], [1], [0, 2])),
        conv_bias=flag,
        conv_L_cache=lambda draw: draw.choice((2, 3, 4)),
        block_auto_adjust_ff_dim=flag,
        block_multiple_of=16,
        num_hidden_layers=lambda draw: draw.randint(2, 4),
        rope_parameters=theta,
    ),
    "cohere": decoder(**_LN, head_dim=None, rope_parameters=theta),
    "cohere2": decoder(
        **_LN,
        head_dim=None,
        sliding_window=window,
        num_hidden_layers=lambda draw: draw.randint(1, 5),
        rope_parameters=theta,
    ),
    "glm": decoder(rope_parameters=partial(0.5), attention_bias=flag),
    "glm4": decoder(rope_parameters=partial(0.5), attention_bias=flag),
    "ernie4_5": decoder(use_bias=flag, rope_parameters=theta),
    "helium": decoder(head_dim="derived", attention_bias=flag, mlp_bias=flag, rope_parameters=theta),
    "exaone4": decoder(
        head_dim=None, sliding_window=window, num_hidden_layers=lambda draw: draw.randint(1, 5), rope_parameters=theta
    ),
}

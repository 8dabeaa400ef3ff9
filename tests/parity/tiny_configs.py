"""Random configs of every family, small enough for a laptop and odd enough to show a mistake."""

import random
from collections.abc import Callable
from typing import Any

ACTIVATIONS = ("gelu", "gelu_new", "gelu_python", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish")
LONGEST = 24


def encoder(draw: random.Random, pads: tuple[int, ...]) -> dict[str, Any]:
    heads = draw.choice((1, 2, 3, 4))
    pad = draw.choice(pads)
    return {
        "vocab_size": draw.randint(40, 90),
        "hidden_size": heads * draw.choice((4, 6, 8, 16)),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(1, 3),
        "intermediate_size": draw.randint(5, 60),
        "hidden_act": draw.choice(ACTIVATIONS),
        "max_position_embeddings": draw.randint(LONGEST + pad + 1, 70),
        "type_vocab_size": draw.choice((1, 2, 4)),
        "layer_norm_eps": draw.choice((1e-12, 1e-7, 1e-5, 1e-3)),
        "pad_token_id": pad,
    }


def distilbert(draw: random.Random) -> dict[str, Any]:
    sizes = encoder(draw, (0, 3))
    return {
        "vocab_size": sizes["vocab_size"],
        "dim": sizes["hidden_size"],
        "n_heads": sizes["num_attention_heads"],
        "n_layers": sizes["num_hidden_layers"],
        "hidden_dim": sizes["intermediate_size"],
        "activation": sizes["hidden_act"],
        "max_position_embeddings": sizes["max_position_embeddings"],
        "sinusoidal_pos_embds": draw.random() < 0.3,
        "pad_token_id": sizes["pad_token_id"],
    }


def gpt2(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice((1, 2, 4))
    return {
        "vocab_size": draw.randint(40, 90),
        "n_embd": heads * draw.choice((4, 8)),
        "n_head": heads,
        "n_layer": 1,
        "n_positions": draw.randint(LONGEST, 70),
        "pad_token_id": draw.choice((None, 0, 5)),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def llama(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice((1, 2, 4))
    head_dim = draw.choice((4, 6, 8, 16))
    return {
        "vocab_size": draw.randint(40, 90),
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 12,
        "max_position_embeddings": draw.choice((64, 256, 4096)),
        "head_dim": draw.choice((None, head_dim, 10)),
        "tie_word_embeddings": draw.random() < 0.5,
        "pad_token_id": draw.choice((None, 0)),
        "rope_parameters": draw.choice(ROPES)(draw),
    }


def theta(draw: random.Random) -> float:
    return draw.choice((10000.0, 500000.0, 1e6, 123.5))


def llama3(draw: random.Random) -> dict[str, Any]:
    low = draw.choice((1.0, 2.0))
    return {
        "rope_type": "llama3",
        "rope_theta": theta(draw),
        "factor": draw.choice((8.0, 32.0)),
        "low_freq_factor": low,
        "high_freq_factor": low * draw.choice((2.0, 4.0)),
        "original_max_position_embeddings": draw.choice((16, 64)),
    }


def yarn(draw: random.Random) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": theta(draw),
        "factor": draw.choice((4.0, 16.0)),
        "original_max_position_embeddings": draw.choice((32, 1024)),
    }


ROPES: tuple[Callable[[random.Random], dict[str, Any]], ...] = (
    lambda draw: {"rope_type": "default", "rope_theta": theta(draw)},
    lambda draw: {"rope_type": "linear", "rope_theta": theta(draw), "factor": draw.choice((2.0, 8.0, 2.5))},
    llama3,
    yarn,
)


def decoder(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice((1, 2, 3, 4))
    return {
        "vocab_size": draw.randint(40, 90),
        "hidden_size": heads * draw.choice((4, 8, 16)),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(1, 3),
        "max_position_embeddings": draw.choice((64, 256, 4096)),
        "pad_token_id": draw.choice((None, 0, 5)),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def gpt_neox(draw: random.Random) -> dict[str, Any]:
    share = draw.choice((0.5, 1.0))
    return decoder(draw) | {
        "intermediate_size": 12,
        "rope_parameters": draw.choice(ROPES)(draw) | {"partial_rotary_factor": share},
    }


def falcon(draw: random.Random) -> dict[str, Any]:
    return decoder(draw) | {
        "alibi": draw.random() < 0.3,
        "new_decoder_architecture": draw.random() < 0.5,
        "rope_parameters": draw.choice(ROPES)(draw),
    }


def bloom(draw: random.Random) -> dict[str, Any]:
    sizes = decoder(draw)
    named = {"n_head": sizes.pop("num_attention_heads"), "n_layer": sizes.pop("num_hidden_layers")}
    return sizes | named | {"layer_norm_epsilon": draw.choice((1e-12, 1e-5, 1e-3))}


def mpt(draw: random.Random) -> dict[str, Any]:
    sizes = decoder(draw)
    return {
        "vocab_size": sizes["vocab_size"],
        "d_model": sizes["hidden_size"],
        "n_heads": sizes["num_attention_heads"],
        "n_layers": sizes["num_hidden_layers"],
        "max_seq_len": draw.randint(LONGEST, 70),
        "pad_token_id": sizes["pad_token_id"],
        "attn_config": draw.choice(({}, {"alibi": True}, {"clip_qkv": 6.0, "softmax_scale": 0.5})),
    }


def modernbert(draw: random.Random) -> dict[str, Any]:
    sizes = encoder(draw, (0, 3))
    special = dict.fromkeys(("eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), 1)
    kept = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "pad_token_id")
    return (
        {key: sizes[key] for key in kept}
        | special
        | {
            "num_hidden_layers": draw.randint(1, 5),
            "max_position_embeddings": draw.choice((64, 4096)),
            "norm_eps": sizes["layer_norm_eps"],
            "norm_bias": draw.random() < 0.5,
            "local_attention": draw.choice((2, 4, 7, 16)),
            "global_attn_every_n_layers": draw.choice((1, 2, 3)),
            "rope_parameters": {
                "full_attention": draw.choice(ROPES)(draw),
                "sliding_attention": draw.choice(ROPES)(draw),
            },
        }
    )


def t5(draw: random.Random) -> dict[str, Any]:
    return {
        "vocab_size": draw.randint(40, 90),
        "d_model": draw.choice((8, 16, 20)),
        "d_kv": draw.choice((4, 5)),
        "d_ff": 12,
        "num_layers": draw.randint(1, 2),
        "num_heads": draw.choice((1, 2, 3, 6)),
        "relative_attention_num_buckets": draw.choice((8, 16, 32)),
        "relative_attention_max_distance": draw.choice((20, 64, 128)),
        "feed_forward_proj": draw.choice(("relu", "gated-gelu")),
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }


def deberta_v2(draw: random.Random) -> dict[str, Any]:
    sizes = encoder(draw, (0, 3))
    return sizes | {
        "type_vocab_size": draw.choice((0, 1, 2)),
        "position_biased_input": draw.random() < 0.5,
        "relative_attention": draw.random() < 0.7,
        "position_buckets": draw.choice((-1, 6, 16)),
        "max_relative_positions": draw.choice((-1, LONGEST, 40)),
        "norm_rel_ebd": draw.choice(("none", "layer_norm", "Layer_Norm | none")),
        "pos_att_type": draw.choice(("c2p|p2c", "p2c", "c2p")),
        "conv_kernel_size": draw.choice((0, 3)),
    }


def marian(draw: random.Random) -> dict[str, Any]:
    sizes = encoder(draw, (0, 5))
    shared = draw.random() < 0.6
    return {
        "vocab_size": sizes["vocab_size"],
        "decoder_vocab_size": None if shared else draw.randint(40, 90),
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": shared,
        "d_model": sizes["hidden_size"],
        "encoder_layers": sizes["num_hidden_layers"],
        "encoder_attention_heads": sizes["num_attention_heads"],
        "encoder_ffn_dim": 12,
        "decoder_layers": 1,
        "decoder_attention_heads": 1,
        "decoder_ffn_dim": 12,
        "max_position_embeddings": sizes["max_position_embeddings"],
        "scale_embedding": draw.random() < 0.5,
        "pad_token_id": sizes["pad_token_id"],
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "decoder_start_token_id": sizes["pad_token_id"],
    }

"""Random configs of the families that run whole: small, with every kind of block that their configs can ask for.

LONGEST tokens fit into each; windows are short enough that sequences exceed them.
"""

import random
from collections.abc import Callable
from typing import Any

LONGEST = 520
Draw = random.Random
Config = dict[str, Any]
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")


def _sizes(draw: Draw) -> Config:
    heads = draw.choice((1, 2, 4))
    return {
        "vocab_size": draw.randint(40, 90),
        "hidden_size": heads * draw.choice((4, 8, 16)),
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
        return usual | drawn(draw, more)

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
            width = draw.choice((4, 8, 16))
            config |= {"hidden_size": heads * width} | ({"head_dim": width} if "head_dim" in config else {})
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


_LN: Config = {"rms_norm_eps": None, "layer_norm_eps": lambda draw: draw.choice((1e-5, 1e-3))}
CONFIGS: dict[str, Callable[[Draw], Config]] = {
    "bert": encoder(),
    "mpnet": encoder(type_vocab_size=None),
    "clip_text_model": tower(),
    "siglip_text_model": tower(),
    "siglip2_text_model": tower(),
    "llama": decoder(attention_bias=flag, mlp_bias=flag, rope_parameters=theta),
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
    "phi3": decoder(head_dim=None, sliding_window=lambda draw: draw.choice((None, 64)), rope_parameters=partial(1.0)),
    "phi": decoder(**_LN, head_dim=None, hidden_act="gelu_new", rope_parameters=partial(0.5)),
    "gpt_neox": decoder(
        **_LN, head_dim=None, num_key_value_heads=None, attention_bias=flag, rope_parameters=partial(0.5)
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
    "stablelm": decoder(**_LN, head_dim=None, use_qkv_bias=flag, rope_parameters=partial(0.5)),
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

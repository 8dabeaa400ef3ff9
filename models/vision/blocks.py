"""The blocks of vision towers; those of CLIP and SigLIP are also their text towers', in models/families.

Source: transformers 5.23 (the modeling module of each family).
"""

from dataclasses import replace

from models.families.config import ACTIVATIONS, Config
from models.families.family import attention_of, feed_forward_of, fused, linear, norm
from models.recipes.steps import Attention, FeedForward, Linear, Multiply, Recipe, renamed

_LAYER = "encoder.layer.{block}"
_VIT_ATTENTION = attention_of(
    f"{_LAYER}.attention", "attention.query", "attention.key", "attention.value", "output.dense"
)
VIT: Recipe = (
    replace(_VIT_ATTENTION, norm=norm(f"{_LAYER}.layernorm_before")),
    feed_forward_of(_LAYER, "intermediate.dense", "output.dense", norm=norm(f"{_LAYER}.layernorm_after")),
)
_DINOV2_MLP = f"{_LAYER}.mlp"
DINOV2: Recipe = (
    replace(_VIT_ATTENTION, norm=norm(f"{_LAYER}.norm1"), closing=Multiply(f"{_LAYER}.layer_scale1.lambda1")),
    feed_forward_of(  # as the giant's
        _DINOV2_MLP,
        "up",
        "weights_out",
        "gate",
        norm=norm(f"{_LAYER}.norm2"),
        closing=Multiply(f"{_LAYER}.layer_scale2.lambda1"),
    ),
)
DINOV2_STORED = fused(_DINOV2_MLP, ("gate", "up"), f"{_DINOV2_MLP}.weights_in")


def dinov2_sizes(config: Config) -> dict[str, int]:
    """Return the inner width, which no key of DINOv2's config gives."""
    inner = int(config.count("hidden_size") * config.number("mlp_ratio"))
    return {"intermediate_size": (inner * 2 // 3 + 7) // 8 * 8 if config.get("use_swiglu_ffn") else inner}


def dinov2_feed_forward(step: FeedForward, config: Config) -> FeedForward:
    """Return DINOv2's feed-forward step, that of its giant with a gate."""
    if config.get("use_swiglu_ffn"):
        return replace(step, activation="silu")
    step = replace(step, gate=None, activation=config.choice("hidden_act", ACTIVATIONS))
    return renamed(step, lambda name: name.replace("mlp.up", "mlp.fc1").replace("mlp.weights_out", "mlp.fc2"))


_DINOV3_LAYER = "layer.{block}"
DINOV3: Recipe = (
    attention_of(
        f"{_DINOV3_LAYER}.attention",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        norm=norm(f"{_DINOV3_LAYER}.norm1"),
        closing=Multiply(f"{_DINOV3_LAYER}.layer_scale1.lambda1"),
    ),
    feed_forward_of(
        f"{_DINOV3_LAYER}.mlp",
        "up_proj",
        "down_proj",
        "gate_proj",
        norm=norm(f"{_DINOV3_LAYER}.norm2"),
        closing=Multiply(f"{_DINOV3_LAYER}.layer_scale2.lambda1"),
    ),
)


def dinov3_feed_forward(step: FeedForward, config: Config) -> FeedForward:
    """Return DINOv3's feed-forward step, with a gate or without."""
    gate = step.gate if config.get("use_gated_mlp") else None
    return replace(step, gate=gate, activation=config.choice("hidden_act", ACTIVATIONS))


_NOMIC_LAYER = "layers.{block}"
NOMIC: Recipe = (
    attention_of(f"{_NOMIC_LAYER}.attn", *"qkv", "out_proj", norm=norm(f"{_NOMIC_LAYER}.norm1")),
    feed_forward_of(
        f"{_NOMIC_LAYER}.mlp",
        "fc11",
        "fc2",
        "fc12",
        norm=norm(f"{_NOMIC_LAYER}.norm2"),
        inner_norm=replace(norm(f"{_NOMIC_LAYER}.mlp.norm"), eps=1e-5),
    ),
)
NOMIC_STORED = fused(f"{_NOMIC_LAYER}.attn", ("q", "k", "v"), f"{_NOMIC_LAYER}.attn.Wqkv")
NOMIC_SELECTOR = feed_forward_of("selector.mlp", "fc11", "fc2", "fc12", norm=norm("selector.norm1"))


def nomic_sizes(config: Config) -> dict[str, int]:
    """Return the inner width of Nomic's tower, a multiple of 256, and one number for the grid it was trained with."""
    trained = config.get("ref_feat_shape") or 0
    sides = set(trained if isinstance(trained, list) else [trained])
    inner = -(-config.count("n_inner") // 256) * 256
    return {"intermediate_size": inner, "ref_feat_shape": sides.pop() if len(sides) == 1 else 0}


_EVA_LAYER = "blocks.{block}"
EVA02: Recipe = (
    Attention(
        0,
        Linear(f"{_EVA_LAYER}.attn.q_proj.weight", f"{_EVA_LAYER}.attn.q_bias"),
        linear(f"{_EVA_LAYER}.attn.k_proj", biased=False),
        Linear(f"{_EVA_LAYER}.attn.v_proj.weight", f"{_EVA_LAYER}.attn.v_bias"),
        linear(f"{_EVA_LAYER}.attn.proj"),
        norm(f"{_EVA_LAYER}.norm1"),
        mixed_norm=norm(f"{_EVA_LAYER}.attn.inner_attn_ln"),
    ),
    feed_forward_of(
        f"{_EVA_LAYER}.mlp",
        "w2",
        "w3",
        "w1",
        norm=norm(f"{_EVA_LAYER}.norm2"),
        inner_norm=norm(f"{_EVA_LAYER}.mlp.ffn_ln"),
    ),
)


def eva02_sizes(config: Config) -> dict[str, int]:
    """Return the heads and the inner width, which EVA-02's config gives as a head's width and a ratio."""
    width = config.count("hidden_size")
    return {
        "num_attention_heads": width // config.count("head_width"),
        "intermediate_size": int(width * config.number("mlp_ratio")),
    }

"""The blocks of vision towers; those of CLIP and SigLIP are also their text towers', in models/families.

Source: transformers 5.23 (the modeling module of each family).
"""

from dataclasses import replace

from models.families.config import ACTIVATIONS, Config
from models.families.encoder_blocks import attention_of, feed_forward_of
from models.families.family import fused, linear, norm
from models.families.filling import renamed
from models.recipes.steps import FeedForward, Multiply, Recipe

_LAYER = "encoder.layer.{block}"
_VIT_ATTENTION = attention_of(
    f"{_LAYER}.attention", "attention.query", "attention.key", "attention.value", "output.dense"
)
VIT: Recipe = (
    replace(_VIT_ATTENTION, norm=norm(f"{_LAYER}.layernorm_before")),
    replace(feed_forward_of(_LAYER, "intermediate.dense", "output.dense"), norm=norm(f"{_LAYER}.layernorm_after")),
)
_DINOV2_MLP = f"{_LAYER}.mlp"
DINOV2: Recipe = (
    replace(_VIT_ATTENTION, norm=norm(f"{_LAYER}.norm1"), closing=Multiply(f"{_LAYER}.layer_scale1.lambda1")),
    replace(
        feed_forward_of(_DINOV2_MLP, "up", "weights_out"),  # as the giant's
        gate=linear(f"{_DINOV2_MLP}.gate"),
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
    up, down = (
        renamed(part, lambda name: name.replace("mlp.up", "mlp.fc1").replace("mlp.weights_out", "mlp.fc2"))
        for part in (step.up, step.down)
    )
    return replace(step, up=up, down=down, gate=None, activation=config.choice("hidden_act", ACTIVATIONS))


_DINOV3_LAYER = "layer.{block}"
DINOV3: Recipe = (
    replace(
        attention_of(f"{_DINOV3_LAYER}.attention", "q_proj", "k_proj", "v_proj", "o_proj"),
        norm=norm(f"{_DINOV3_LAYER}.norm1"),
        closing=Multiply(f"{_DINOV3_LAYER}.layer_scale1.lambda1"),
    ),
    replace(
        feed_forward_of(f"{_DINOV3_LAYER}.mlp", "up_proj", "down_proj"),
        norm=norm(f"{_DINOV3_LAYER}.norm2"),
        gate=linear(f"{_DINOV3_LAYER}.mlp.gate_proj"),
        closing=Multiply(f"{_DINOV3_LAYER}.layer_scale2.lambda1"),
    ),
)


def dinov3_feed_forward(step: FeedForward, config: Config) -> FeedForward:
    """Return DINOv3's feed-forward step, with a gate or without."""
    gate = step.gate if config.get("use_gated_mlp") else None
    return replace(step, gate=gate, activation=config.choice("hidden_act", ACTIVATIONS))

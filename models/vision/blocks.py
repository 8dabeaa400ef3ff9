"""The blocks of vision towers; those of CLIP and SigLIP are also their text towers', in models/families.

Source: transformers 5.23 (the modeling module of each family).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from models.families.config import ACTIVATIONS, Config
from models.families.encoder_blocks import attention_of, feed_forward_of
from models.families.family import Family, fused, linear, norm, rms_norm
from models.families.filling import renamed
from models.recipes.steps import FeedForward, LayerNorm, Multiply, Norm, Recipe
from models.vision.steps import Activate, Join, RowStep

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


_QWEN_LAYER = "blocks.{block}"
_QWEN_STORED = fused(f"{_QWEN_LAYER}.attn", "qkv", f"{_QWEN_LAYER}.attn.qkv")
_QWEN_ATTENTION = attention_of(f"{_QWEN_LAYER}.attn", "q", "k", "v", "proj")
_NORM, _RMS = ([of(f"{_QWEN_LAYER}.norm{number}") for number in (1, 2)] for of in (norm, rms_norm))
QWEN2_VL: Recipe = (
    replace(_QWEN_ATTENTION, norm=_NORM[0]),
    replace(feed_forward_of(f"{_QWEN_LAYER}.mlp", "fc1", "fc2"), norm=_NORM[1]),
)
QWEN2_5_VL: Recipe = (
    replace(_QWEN_ATTENTION, norm=_RMS[0]),
    replace(
        feed_forward_of(f"{_QWEN_LAYER}.mlp", "up_proj", "down_proj"),
        norm=_RMS[1],
        gate=linear(f"{_QWEN_LAYER}.mlp.gate_proj"),
    ),
)
QWEN3_VL: Recipe = (
    replace(_QWEN_ATTENTION, norm=_NORM[0]),
    replace(feed_forward_of(f"{_QWEN_LAYER}.mlp", "linear_fc1", "linear_fc2"), norm=_NORM[1]),
)


def qwen(block: Recipe, derived: Callable[[Config], Mapping[str, Any]] | None = None) -> Family:
    """Return the blocks of one of Qwen's towers, whose files hold query, key and value as one."""
    return Family("", (), block, stored=_QWEN_STORED, eps=1e-6, derived=derived)


def by_ratio(config: Config) -> dict[str, int]:
    """Return the inner width of Qwen2-VL's tower, a multiple of its width."""
    return {"intermediate_size": config.count("hidden_size") * config.count("mlp_ratio")}


def merger(first: Norm) -> tuple[RowStep, ...]:
    """Return the patch merger of Qwen2-VL and Qwen2.5-VL; fitting fills in how many rows are joined."""
    return (first, Join(0), linear("merger.mlp.0"), Activate("gelu"), linear("merger.mlp.2"))


def qwen3_merger(stem: str, joined: bool) -> tuple[RowStep, ...]:
    """Return a patch merger of Qwen3-VL, whose norm is of single patches or of those joined."""
    normed = LayerNorm(f"{stem}.norm.weight", f"{stem}.norm.bias", 1e-6)
    first: tuple[RowStep, ...] = (Join(0), normed) if joined else (normed, Join(0))
    return (*first, linear(f"{stem}.linear_fc1"), Activate("gelu"), linear(f"{stem}.linear_fc2"))

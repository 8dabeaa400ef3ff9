"""The blocks and patch mergers of Qwen's vision towers, which stand in front of a decoder.

Source: transformers 5.23, Qwen2VisionTransformerPretrainedModel, Qwen2_5_VisionTransformerPretrainedModel and
Qwen3VLVisionModel.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from models.families.config import Config
from models.families.family import Family, attention_of, feed_forward_of, fused, linear, norm, rms_norm
from models.recipes.steps import LayerNorm, Norm, Recipe
from models.vision.steps import Activate, Join, RowStep

_LAYER = "blocks.{block}"
_STORED = fused(f"{_LAYER}.attn", "qkv", f"{_LAYER}.attn.qkv")
_ATTENTION = attention_of(f"{_LAYER}.attn", "q", "k", "v", "proj")
_NORM, _RMS = ([of(f"{_LAYER}.norm{number}") for number in (1, 2)] for of in (norm, rms_norm))
QWEN2_VL: Recipe = (
    replace(_ATTENTION, norm=_NORM[0]),
    feed_forward_of(f"{_LAYER}.mlp", "fc1", "fc2", norm=_NORM[1]),
)
QWEN2_5_VL: Recipe = (
    replace(_ATTENTION, norm=_RMS[0]),
    feed_forward_of(f"{_LAYER}.mlp", "up_proj", "down_proj", "gate_proj", norm=_RMS[1]),
)
QWEN3_VL: Recipe = (
    replace(_ATTENTION, norm=_NORM[0]),
    feed_forward_of(f"{_LAYER}.mlp", "linear_fc1", "linear_fc2", norm=_NORM[1]),
)


def qwen(block: Recipe, derived: Callable[[Config], Mapping[str, Any]] | None = None) -> Family:
    """Return the blocks of one of Qwen's towers, whose files hold query, key and value as one."""
    return Family("", (), block, stored=_STORED, eps=1e-6, derived=derived)


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

"""Fills in the values that a config sets: which steps a model has, their factors, widths, heads and eps.

Tensor names stay those of the base class; fitting.py replaces them by the file's.
"""

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import Family
from models.positions.learned import PositionRule
from models.recipes.extra_inputs import ATTENDED, MASKED, TASKS, Extra
from models.recipes.steps import (
    AddIndexed,
    AddPosition,
    AddSinusoid,
    FeedForward,
    LatentAttention,
    LayerNorm,
    Linear,
    Norm,
    Recipe,
    RMSNorm,
    Round,
    Scale,
    Step,
    TokenDropout,
)

_ROUNDED: dict[str, Any] = {"BF16": ("bfloat16", ml_dtypes.bfloat16), "F16": ("float16", np.float16)}


def position_rule(family: Family, config: Config) -> PositionRule:
    """Return how the family numbers tokens, with the number of rows of this config's position table.

    Raises:
        BadCheckpoint: the family counts positions from the pad id and the config has none.
    """
    present = [step for step in family.input_layer if _is_present(step, family, config)]
    position_step = next((step for step in present if isinstance(step, AddPosition | AddSinusoid)), None)
    if position_step is None:
        return PositionRule("arange", 0, None)
    rows = None
    if isinstance(position_step, AddPosition) or position_step.kind != "tensor2tensor":  # which grows on demand
        rows = config.count("max_position_embeddings") + family.offset
    if family.numbering != "cumsum_non_pad":
        return PositionRule(family.numbering, family.offset, rows)
    if (pad := config.pad_id()) is None:
        raise BadCheckpoint("config.json says pad_token_id null, but this family counts positions from the pad id")
    return PositionRule(family.numbering, pad, rows, pad)


def input_layer(family: Family, config: Config, dtype: str = "F32") -> Recipe:
    """Return the steps before the first block that a checkpoint with this config has, with its values filled in.

    Args:
        family: the family.
        config: the checkpoint's.
        dtype: safetensors name of the word table's dtype, which decides where rows are rounded.

    Returns:
        Steps with tensor names of the base class.
    """
    present = (step for step in family.input_layer if _is_present(step, family, config))
    return tuple(
        filled for step in present for filled in _with_factor(fill_step(step, family, config), family, config, dtype)
    )


def _with_factor(step: Step, family: Family, config: Config, dtype: str) -> Recipe:
    """Return the step; a Scale gets its factor, and a Round follows if the family rounds the product."""
    if not isinstance(step, Scale) or family.scale is None:
        return (step,)
    spec = family.scale
    factor = config.number(spec.key) if spec.key else math.sqrt(config.count("hidden_size"))
    return _scaled(factor, spec.rounded, dtype, family.prompt_embeds_output == "unscaled_embeddings")


def _scaled(factor: float, rounded: str | None, dtype: str, outside: bool = False) -> Recipe:
    _, kind = _ROUNDED.get("BF16" if rounded == "bfloat16" else dtype, (None, np.float32))
    if rounded is not None:
        factor = float(kind(factor))
    if rounded is None or dtype not in _ROUNDED:
        return (Scale(factor, outside),)
    return (Scale(factor, outside), Round(_ROUNDED[dtype][0]))


def per_layer_steps(family: Family, config: Config, dtype: str) -> Recipe:
    """Return the steps of the per-layer embeddings; empty if the model has none."""
    if not family.per_layer or not config.get("hidden_size_per_layer_input"):
        return ()
    factor = math.sqrt(config.count("hidden_size_per_layer_input"))
    steps = (_scaled(factor, "weights", dtype) if isinstance(step, Scale) else (step,) for step in family.per_layer)
    return tuple(step for part in steps for step in part)


def _is_present(step: Step, family: Family, config: Config) -> bool:
    """Return whether a checkpoint with this config has the step at all."""
    if isinstance(step, Scale) and family.scale and family.scale.switch and not config.get(family.scale.switch):
        return False
    if isinstance(step, Linear) and family.projected == "if_narrower":
        return config.table_width() != config.count("hidden_size")
    return all(config.holds(condition) for condition in family.present_if.get(type(step), ()))


def extra_inputs(family: Family, config: Config, recipe: Recipe, tasks: int) -> tuple[Extra, ...]:
    """Return the extra inputs that the steps read, and the one that selects adapters by `tasks`."""
    extras: dict[str, Extra] = {TASKS: Extra(TASKS, tasks, missing=-1)} if tasks else {}
    for step in recipe:
        if isinstance(step, AddIndexed):
            key = family.extras[step.index]
            rows = config.count(key.removeprefix("-"))
            extras[step.index] = Extra(step.index, rows, missing=-1 if key.startswith("-") else 0)
        elif isinstance(step, TokenDropout):
            extras[MASKED] = Extra(MASKED, 1 << 31, token=step.mask_id)
            extras[ATTENDED] = Extra(ATTENDED, 1 << 31)
    return tuple(extras.values())


def fill_step(step: Step, family: Family, config: Config) -> Step:
    """Return a step with the values its config sets; tensor names are still those of the base class."""
    if isinstance(step, LayerNorm | RMSNorm):
        step = filled_norm(step, family, config)
    elif isinstance(step, AddSinusoid):
        zero_row = config.pad_id() if family.numbering == "cumsum_non_pad" else None
        step = replace(step, dim=config.count("hidden_size"), zero_row=zero_row)
    elif isinstance(step, TokenDropout):
        step = replace(step, mask_id=config.count("mask_token_id", least=0))
    elif isinstance(step, LatentAttention):
        counts = [config.count(key) for key in ("num_cross_heads", "cross_dim_head", "num_latents_value")]
        step = replace(step, heads=counts[0], head_width=counts[1], count=counts[2])
    elif isinstance(step, FeedForward):  # NV-Embed's last
        step = replace(step, inner=4 * config.count("hidden_size"))
    return step


def filled_norm(step: Norm, family: Family, config: Config) -> Norm:
    """Return a norm with its eps if it states none, and without a bias where the config says so."""
    eps = step.eps or _eps(family, config)
    if isinstance(step, RMSNorm):
        return replace(step, eps=eps)
    biased = not family.biased_if or config.get(family.biased_if)
    return replace(step, eps=eps, bias=step.bias if biased else None)


def _eps(family: Family, config: Config) -> float:
    return config.number(family.eps) if isinstance(family.eps, str) else family.eps

"""Which tokens a model's attention reads: earlier ones or both sides, and within which window."""

from dataclasses import replace
from typing import Any, Literal

from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import Family

Attention = Literal["causal", "bidirectional"]


def stated_attention(config: Config) -> list[str]:
    """Return the config's setting of a decoder's attention, such as "is_causal False"; null counts as none."""
    keys = ("is_causal", "use_bidirectional_attention")
    return [f"{key} {config.data[key]!r}" for key in keys if config.data.get(key) is not None]


def with_attention(family: Family, config: Config, attention: Attention) -> tuple[Config, str | None]:
    """Return a decoder's config changed to attend as requested, and in a sentence what it said; None: unchanged.

    Raises:
        BadCheckpoint: the family is no decoder, or its class builds its mask itself.
    """
    if family.causal is not True or family.builds_own_mask:
        raise BadCheckpoint(f"--attention is of decoders, and {config.get('model_type')!r} is none: leave it out")
    causal = attention == "causal"
    stated = stated_attention(config)
    agrees = causality_and_window(family, config)[0] == causal
    if stated and agrees:
        return config, None
    note = f"attention is {attention}, by --attention; config.json says {' and '.join(stated) or 'nothing of it'}"
    return (config if agrees else replace(config, data={**config.data, **_attending(family, causal)})), note


def _attending(family: Family, causal: bool) -> dict[str, Any]:
    """Return the config keys that make a family's class causal or not."""
    if family.bidirectional_if is None:
        return {"is_causal": causal}
    key, _, word = family.bidirectional_if[0].partition("=")
    return {"is_causal": True, key: not causal and (word or True)}


def causality_and_window(family: Family, config: Config) -> tuple[bool, int | None]:
    """Return whether the attention is causal, and the window of sliding layers.

    Source: transformers 5.23: masking_utils (a causal family whose is_causal is false keeps the width of its window, to
        either side) and the configs of Gemma 3 and 4, which halve it.
    """
    causal = config.holds(family.causal) if isinstance(family.causal, str) else family.causal
    is_causal = family.builds_own_mask or bool(config.data.get("is_causal", True))
    halved = family.bidirectional_if is not None and config.holds(family.bidirectional_if[0])
    window = None
    in_use = config.get("use_sliding_window") is not False  # Qwen 2's mixtures then write a window of 0
    if family.window is not None and config.get(family.window) is not None and in_use:
        least = 1 if (causal and not halved and family.window_of != "half") or family.window_of == "each" else 2
        window = _of_every_layer(config, family.window).count(family.window, least)
        if halved and family.bidirectional_if:
            window = window // 2 + max(family.bidirectional_if[1], not is_causal)
        elif family.window_of == "half" or (not causal and family.window_of == "both"):
            window //= 2
    return causal and is_causal and not halved, window


def _of_every_layer(config: Config, key: str) -> Config:
    """Return the config with one width in place of a list of one width for each layer (Longformer)."""
    widths = config.get(key)
    if not isinstance(widths, list):
        return config
    if len(set(map(str, widths))) != 1:
        raise BadCheckpoint(f"config.json says {key} {widths!r}; layers of different widths are not computed")
    return replace(config, data={**config.data, key: widths[0]})

"""FAMILIES: one row a model_type, its recipe as data. Fits no checkpoint (plan.py does) and computes nothing."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from models.checkpoints.config import Config
from models.errors import UnknownFamily
from models.families.decoders import DECODERS
from models.families.encoder_decoders import PAIRS
from models.families.encoders import ENCODERS
from models.families.family import (
    AlibiRow,
    BucketRow,
    Family,
    Key,
    ScaleRow,
    Side,
    Types,
)
from models.families.recipe import Activation
from models.positions.rope.config_keys import NESTS
from models.positions.rope.conventions import TEXT_TYPES

__all__ = [
    "ACTIVATIONS",
    "FAMILIES",
    "LISTED",
    "AlibiRow",
    "BucketRow",
    "Family",
    "Key",
    "ScaleRow",
    "Side",
    "Types",
    "config_of",
    "family_of",
    "sided",
    "text_tower",
]

FAMILIES: dict[str, Family] = ENCODERS | DECODERS | PAIRS
LISTED = "`python -m models list` names all that are known"
_TEXT_TYPES = {
    "clip": "clip_text_model",
    "siglip": "siglip_text_model",
    "siglip2": "siglip2_text_model",
    **TEXT_TYPES,
}

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def family_of(model_type: str) -> Family:
    """The row of a model_type.

    raises   UnknownFamily naming the nearest
    """
    if model_type not in FAMILIES:
        near = get_close_matches(model_type, FAMILIES, 1, cutoff=0.0)[0]
        raise UnknownFamily(f"model_type {model_type!r} is not known; the nearest is {near!r}; {LISTED}")
    return FAMILIES[model_type]


def sided(model_type: str, family: Family, side: str | None) -> Family:
    """The row of the side asked for; None: the encoder where there are two.

    raises   UnknownFamily where the family has no such side
    """
    sides = {row.side or "": row for row in (family, family.decoder) if row is not None}
    if side in (None, "text"):  # of CLIP and its like, whose other side is vision/'s
        return family
    if side not in sides:
        has = " and ".join(name for name in sides if name) or "one side only"
        raise UnknownFamily(f"--side {side}: of {model_type!r} there is {has}; leave --side out, or choose one of it")
    return sides[side]


def text_tower(model_type: str, data: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The model_type and the config of what reads text: those given, or text_config's where several towers are in one.

    source   transformers 5.23: what text_config's model_type is where it says none
    """
    while model_type not in FAMILIES:
        nest = next((name for name in NESTS if isinstance(data.get(name), Mapping)), None)
        inner = _TEXT_TYPES.get(model_type)
        if nest is None:  # Qwen2-VL's first files hold the text's config flat
            return (inner, data) if inner in FAMILIES else (model_type, data)
        data = data[nest]
        found = data.get("model_type") or inner
        if not isinstance(found, str):
            return model_type, data
        model_type = found
    return model_type, data


def config_of(model_type: str, data: Mapping[str, Any]) -> Config:
    """config.json seen through its family's names and defaults; raises UnknownFamily."""
    family = family_of(model_type)
    return Config(data, family.defaults, family.names)

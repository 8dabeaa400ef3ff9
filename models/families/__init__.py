"""FAMILIES: every supported model_type with its recipe, as data.

class_defaults.json holds what transformers' config class of each assumes for keys that config.json omits.

`models/families/fitting.py` fits a family to a checkpoint.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from models.errors import UnknownFamily
from models.families import jina_clip
from models.families.config import Config
from models.families.decoders import DECODERS
from models.families.encoder_decoders import ENCODER_DECODERS
from models.families.encoders import ENCODERS
from models.families.family import Family, read_config
from models.families.published_encoders import PUBLISHED
from models.positions.rope.config_keys import TEXT_CONFIG_KEYS
from models.positions.rope.conventions import TEXT_TYPES


def _with_defaults(model_type: str, family: Family, outer: Mapping[str, Any]) -> Family:
    """Return the family, its decoder and its variants with the defaults of their config classes.

    Args:
        model_type: a key of class_defaults.json; with none, the defaults are `outer`.
        family: a row of one of the tables.
        outer: the defaults of the family whose variant this is.
    """
    defaults = _CLASS_DEFAULTS.get(model_type, outer)
    return replace(
        family,
        defaults={**defaults, **family.defaults},
        decoder=family.decoder and _with_defaults(model_type, family.decoder, defaults),
        variants={
            condition: (name, _with_defaults(name, variant, defaults))
            for condition, (name, variant) in family.variants.items()
        },
    )


_CLASS_DEFAULTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("class_defaults.json").read_text(encoding="utf-8")
)
FAMILIES: dict[str, Family] = {
    name: _with_defaults(name, family, _CLASS_DEFAULTS[name])
    for name, family in (PUBLISHED | ENCODERS | DECODERS | ENCODER_DECODERS).items()
}
_SIMILAR = 0.5  # share of letters in common, from which a name is taken for a misspelt one
LIST_HINT = "`inlay list` names all that are known"
_TEXT_TYPES = {
    "clip": "clip_text_model",
    "siglip": "siglip_text_model",
    "siglip2": "siglip2_text_model",
    **TEXT_TYPES,
}

# model_type of several towers -> what its class puts into the config of its text where that says nothing
_INNER_DEFAULTS: dict[str, dict[str, Any]] = {"paligemma": {"use_bidirectional_attention": True}}
_PUBLISHED_TYPES = {"new": "gte"}  # of the published code -> what transformers calls it since


def family_of(model_type: str) -> Family:
    """Return the family of a model_type.

    Raises:
        UnknownFamily: FAMILIES does not list it.
    """
    if model_type not in FAMILIES:
        raise UnknownFamily(not_known(model_type))
    return FAMILIES[model_type]


def not_known(model_type: str) -> str:
    """Return the message for a model_type that FAMILIES does not list; it names the most similar one if one is."""
    nearest = get_close_matches(model_type, FAMILIES, 1, cutoff=_SIMILAR)
    hint = f"the nearest is {nearest[0]!r}; " if nearest else ""
    return f"model_type {model_type!r} is not known; {hint}{LIST_HINT}, and `inlay adopt` takes ONNX of any"


def family_for_side(model_type: str, family: Family, side: str | None) -> Family:
    """Return the encoder's or the decoder's side of a family that has both.

    Args:
        side: encoder or decoder; None: the encoder where there are two; text: the family itself (CLIP and SigLIP,
            whose other side is a vision family).

    Raises:
        UnknownFamily: the family has no such side.
    """
    if side in (None, "text"):
        return family
    sides = {side_family.side or "": side_family for side_family in (family, family.decoder) if side_family is not None}
    if side not in sides:
        available = " and ".join(name for name in sides if name) or "one side only"
        raise UnknownFamily(
            f"--side {side}: of {model_type!r} there is {available}; leave --side out, or choose one of it"
        )
    return sides[side]


def text_tower(model_type: str, data: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the model_type and the config of a model's text part.

    They are the arguments themselves, or those of a nested config (`text_config`) where one config describes several
    towers.

    Raises:
        BadCheckpoint: a jina-clip's text tower is of an unknown kind.

    Source: transformers 5.23 (which model_type a nested config has where it does not say).
    """
    model_type = _PUBLISHED_TYPES.get(model_type, model_type)
    if model_type == jina_clip.OUTER:
        data = jina_clip.text_config(data)
        return data["model_type"], data
    while model_type not in FAMILIES:
        nest = next((name for name in TEXT_CONFIG_KEYS if isinstance(data.get(name), Mapping)), None)
        inner = _TEXT_TYPES.get(model_type)
        if nest is None:  # Qwen2-VL's first files hold the text's config flat
            return (inner, data) if inner in FAMILIES else (model_type, data)
        defaults = _INNER_DEFAULTS.get(model_type, {})
        data = data[nest]
        data = {**data, **{key: value for key, value in defaults.items() if data.get(key) is None}}
        nested_type = data.get("model_type") or inner
        if not isinstance(nested_type, str):
            return model_type, data
        model_type = nested_type
    return model_type, data


def config_of(model_type: str, data: Mapping[str, Any]) -> Config:
    """Return a config.json seen through its family's names and defaults.

    Raises:
        UnknownFamily: FAMILIES does not list the model_type.
    """
    return read_config(family_of(model_type), data)

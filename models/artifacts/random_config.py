"""The config.json of a created checkpoint: the family's defaults, the keys of a file, the requested sizes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoints.json_files import read_object
from models.errors import ModelError
from models.families import FAMILIES, config_of, family_of
from models.families.family import Family
from models.positions.rope.conventions import CONVENTIONS
from models.vision.families import FAMILIES as VISION

_HEAD_DIMS = (128, 64, 32, 16, 8, 4, 2)
_DTYPE_KEYS = ("dtype", "torch_dtype")


def completed(
    model_type: str | None, file: Path | None, vocab_size: int | None, hidden_size: int | None
) -> dict[str, Any]:
    """Return the family's defaults with the keys of a config file and the requested sizes.

    Args:
        model_type: model_type of the family; None: that of the file.
        file: a config.json, or a part of one; its keys are kept, known or not.
        vocab_size, hidden_size: None: as the file says, else the family's default. Heads are chosen to fit a requested
            hidden_size where the file gives none.

    Raises:
        ModelError: no JSON object in the file, an unknown family, or two that differ.
    """
    given = _read(file)
    model_type = _agreed(model_type, given)
    if model_type in VISION and model_type not in FAMILIES:
        raise ModelError(f"model_type {model_type!r} is an image tower, which are exported and not created")
    family = family_of(model_type)
    config = {"model_type": model_type, **_defaults(family, given), **given}
    for key, value in (("vocab_size", vocab_size), ("hidden_size", hidden_size)):
        if value is not None:
            config = {name: held for name, held in config.items() if name not in _names(family, key)}
            config[_own_name(family, key)] = value
    _fit_to_vocabulary(family, model_type, config, given)
    if hidden_size is not None and not _names(family, "num_attention_heads") & set(given):
        config |= _heads(family, model_type, config, given)
    return config


def dtype_of(config: Mapping[str, Any], requested: str | None, allowed: Mapping[str, str]) -> str:
    """Return the dtype of the weights: the requested one, else the config's, else float32.

    Raises:
        ModelError: the config's is none of `allowed`.
    """
    dtype = requested or next((config[key] for key in _DTYPE_KEYS if config.get(key) is not None), "float32")
    if dtype not in allowed:
        raise ModelError(f"the config says dtype {dtype!r}; give --dtype, one of {', '.join(allowed)}")
    return str(dtype)


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    if not file.is_file():
        raise ModelError(f"--config {file} is no file; name a config.json, or a part of one")
    return read_object(file)


def _agreed(model_type: str | None, given: Mapping[str, Any]) -> str:
    """Return the model_type that the option, the file or both give."""
    stated = given.get("model_type")
    if stated is not None and not isinstance(stated, str):
        raise ModelError(f"--config says model_type {stated!r}; it must be a name that `inlay list` has")
    if model_type is not None and stated is not None and model_type != stated:
        raise ModelError(
            f"--model-type {model_type} is not the model_type of --config, {stated}; leave one of them out"
        )
    chosen = model_type or stated
    if not chosen:
        raise ModelError("give --model-type NAME, or a --config FILE that says model_type")
    return chosen


def _defaults(family: Family, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of keys that the file gives under none of their names."""
    others = {name for key in family.names if (names := _names(family, key)) & set(given) for name in names}
    return {key: value for key, value in family.defaults.items() if key not in others}


def _names(family: Family, key: str) -> set[str]:
    """Return the names that config files of the family use for a usual key."""
    return {key, family.names.get(key, key)}


def _own_name(family: Family, key: str) -> str:
    """Return the name that the family's config class uses for a key; `names` may hold older ones."""
    return key if key in family.defaults else family.names.get(key, key)


def _fit_to_vocabulary(family: Family, model_type: str, config: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Remove defaults that the vocabulary or the width is too small for."""
    sizes = config_of(model_type, config)
    if "pad_token_id" not in given:
        pad = config.get("pad_token_id")
        config["pad_token_id"] = None if pad and pad >= sizes.count("vocab_size") else pad
        if pad is None and family.numbering == "cumsum_non_pad":  # ESM's class has none
            config["pad_token_id"] = 1
    if family.per_layer:
        for key, most in (("vocab_size_per_layer_input", "vocab_size"), ("hidden_size_per_layer_input", "hidden_size")):
            if key not in given:
                config[key] = min(config[key], sizes.count(most))


def _heads(family: Family, model_type: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return heads of a usual width that fit the hidden size, and the values that follow from them."""
    hidden = config_of(model_type, config).count("hidden_size")
    head_dim = next((size for size in _HEAD_DIMS if hidden % size == 0), hidden)
    heads = hidden // head_dim
    chosen: dict[str, Any] = {_own_name(family, "num_attention_heads"): heads}
    keys = config.get("num_key_value_heads")
    if keys and heads % keys and "num_key_value_heads" not in given:
        chosen["num_key_value_heads"] = heads
    return chosen | _rotating(model_type, head_dim)


def _rotating(model_type: str, head_dim: int) -> dict[str, Any]:
    """Return the class's sizes of rotated channels, cut to heads of another size."""
    row = CONVENTIONS.get(model_type)
    if row is None or row.head_dim is not None or (row.head != "given" and not row.sections):
        return {}
    sizes: dict[str, Any] = {"rotary_dim": min(row.rotary_dim, head_dim)} if row.rotary_dim else {}
    if row.sections:
        part = head_dim // 6
        sections = [head_dim // 2 - 2 * part, part, part]
        sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": row.theta, "mrope_section": sections}
    return sizes

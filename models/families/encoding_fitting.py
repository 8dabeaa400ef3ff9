"""Derives the positional encodings of the attention from a family and a config: RoPE, ALiBi, buckets, masks.

The input layer reads none of it, so a config that makes a table impossible costs the table, not the model.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from models.errors import ModelError
from models.families.attention_direction import causality_and_window
from models.families.config import Config
from models.families.family import BucketSpec, Family
from models.positions.alibi import MAX_BIAS
from models.positions.buckets import deberta_bucket, t5_bucket
from models.positions.rope import config as rope_config
from models.positions.rope.config import LayerRope
from models.positions.rope.config_keys import SIZES
from models.positions.rope.frequencies import frequencies
from models.positions.rope.multi_axis import owners
from models.recipes.positional_encodings import EVERY_LAYER, Alibi, Buckets, Encodings, Mask, RopeTable

Fitted = TypeVar("Fitted")
Ropes = tuple[dict[str, RopeTable], tuple[str | None, ...]]
_NO_ROPES: Ropes = ({}, ())


def fit_encodings(family: Family, config: Config, model_type: str) -> Encodings:
    """Return the positional encodings of one model, with tensor names of the base class.

    An encoding that the config makes impossible is left out; `refused` has the reason.
    """
    refused: dict[str, str] = {}
    alibi = unless_refused(refused, "alibi", lambda: _alibi(family, config), None)
    ropes, layers = _NO_ROPES
    if not alibi and "alibi" not in refused and _rotates(family, config):
        ropes, layers = unless_refused(refused, "rope", lambda: _ropes(config, model_type), _NO_ROPES)
    kind = family.buckets.kind if family.buckets else ""
    buckets = unless_refused(refused, kind, lambda: _buckets(family, config), None)
    no_masks: dict[str, Mask] = {}
    masks = unless_refused(refused, "mask", lambda: _masks(family, config, layers), no_masks)
    if "rope" in refused and any(mask.window for mask in masks.values()):
        refused["mask"] = f"which layers have a window is not known: {refused['rope']}"
        masks = no_masks
    return Encodings(ropes, layers, alibi, buckets, masks, refused)


def unless_refused(refused: dict[str, str], scheme: str, fit: Callable[[], Fitted], nothing: Fitted) -> Fitted:
    """Return the result of `fit`; if it raises, record the reason under the scheme's name and return `nothing`."""
    try:
        return fit()
    except ModelError as error:
        refused[scheme] = str(error)
        return nothing


def _rotates(family: Family, config: Config) -> bool:
    return config.holds(family.rotates) if isinstance(family.rotates, str) else family.rotates


def _ropes(config: Config, model_type: str) -> Ropes:
    sizes = {key: config.get(key) for key in SIZES}
    present_sizes = {key: value for key, value in sizes.items() if value is not None}
    ropes = rope_config.read(present_sizes | dict(config.data), model_type)
    used = {name: layer for name, layer in ropes.tables.items() if name in ropes.layers}
    return {name: _rope_table(name, layer, ropes.notes) for name, layer in used.items()}, ropes.layers


def _rope_table(name: str, layer: LayerRope, notes: tuple[str, ...]) -> RopeTable:
    parity = frequencies(layer.rope, "parity")
    return RopeTable(
        rope=layer.rope,
        layout=layer.layout,
        sections=layer.sections,
        axes=layer.axes,
        softmax_scale=layer.softmax_scale,
        attention_factor=parity.attention_factor,
        inverse_frequency=tuple(parity.inverse_frequency.tolist()),
        notes=notes + layer.notes,
        graph="rope" if name == EVERY_LAYER else f"rope_{name}",
        turns_with=tuple(owners(layer.axes, layer.sections).tolist()) if layer.axes else (),
    )


def _alibi(family: Family, config: Config) -> Alibi | None:
    spec = family.alibi
    if spec is None or (spec.switch is not None and not config.inside(spec.switch)):
        return None
    stated = spec.max_bias is not None and config.inside(spec.max_bias) is not None
    max_bias = config.number(str(spec.max_bias), above_zero=True) if stated else MAX_BIAS
    return Alibi(spec.form, config.heads(), max_bias)


def _buckets(family: Family, config: Config) -> Buckets | None:
    spec = family.buckets
    if spec is None or (spec.switch is not None and not config.get(spec.switch)):
        return None
    count, reach = _sizes(spec, config)
    norm = None
    if spec.norm and spec.norm_word in [word.strip() for word in str(config.get(spec.norm_switch)).lower().split("|")]:
        norm = (f"{spec.norm}.weight", f"{spec.norm}.bias", config.number("layer_norm_eps"))
    return Buckets(spec.kind, count, reach, spec.bidirectional, spec.table, norm)


def _sizes(spec: BucketSpec, config: Config) -> tuple[int, int]:
    """Return the number of buckets and the distance they reach; BadEncoding if the sizes make no buckets."""
    no_distances = np.zeros(0, np.int64)
    if spec.kind == "t5":
        count, reach = _number(spec.count, config, 1), _number(spec.reach, config, 1)
        t5_bucket(no_distances, bidirectional=spec.bidirectional, num_buckets=count, max_distance=reach)
        return count, reach
    count, reach = _number(spec.count, config, -1), _number(spec.reach, config, -1)
    reach = reach if reach > 0 else config.count("max_position_embeddings")
    deberta_bucket(no_distances, position_buckets=count, max_relative_positions=reach)
    return count, reach


def _number(key: str | int, config: Config, least: int) -> int:
    return config.count(key, least) if isinstance(key, str) else key


def _masks(family: Family, config: Config, layers: tuple[str | None, ...]) -> dict[str, Mask]:
    """Return the mask of each layer type; empty if the family's masks are not exported."""
    if family.omits_masks:
        return {}
    causal, window = causality_and_window(family, config)
    types = dict.fromkeys(name for name in layers if name) or {EVERY_LAYER: None}
    return {name: Mask(causal, window if name == EVERY_LAYER or "sliding" in name else None) for name in types}

"""A family's row and a config → what the attention does with positions. Reads no tensor and computes no table."""

import numpy as np

from models.checkpoints.config import Config
from models.errors import BadCheckpoint
from models.families import BucketRow, Family
from models.families.encodings import (
    EVERY_LAYER,
    Alibi,
    Buckets,
    Encodings,
    Mask,
    RopeTable,
)
from models.positions.alibi import MAX_BIAS
from models.positions.buckets import deberta_bucket, t5_bucket
from models.positions.rope import config as rope_config
from models.positions.rope.config import LayerRope
from models.positions.rope.config_keys import SIZES
from models.positions.rope.frequencies import frequencies


def encodings(family: Family, config: Config, model_type: str) -> Encodings:
    """The encodings of one model, tensor names still those of the base class.

    raises   BadScaling, BadEncoding or BadCheckpoint where the config says what is not computed
    """
    alibi = _alibi(family, config)
    rotates = config.holds(family.rotates) if isinstance(family.rotates, str) else family.rotates
    ropes, layers = ({}, ()) if alibi or not rotates else _ropes(config, model_type)
    return Encodings(ropes, layers, alibi, _buckets(family, config), _masks(family, config, layers))


def _ropes(config: Config, model_type: str) -> tuple[dict[str, RopeTable], tuple[str | None, ...]]:
    sizes = {key: config.get(key) for key in SIZES}
    usual = {key: value for key, value in sizes.items() if value is not None}
    found = rope_config.read(usual | dict(config.data), model_type)
    used = {name: layer for name, layer in found.tables.items() if name in found.layers}
    return {name: _rope_table(name, layer, found.notes) for name, layer in used.items()}, found.layers


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
    )


def _alibi(family: Family, config: Config) -> Alibi | None:
    row = family.alibi
    if row is None or (row.switch is not None and not config.inside(row.switch)):
        return None
    said = config.inside(row.max_bias) if row.max_bias else None
    max_bias = MAX_BIAS if said is None else said
    if not isinstance(max_bias, int | float) or isinstance(max_bias, bool) or not max_bias > 0:
        raise BadCheckpoint(f"config.json says {row.max_bias} {max_bias!r}; it must be a number above 0")
    return Alibi(row.form, config.heads(), float(max_bias))


def _buckets(family: Family, config: Config) -> Buckets | None:
    row = family.buckets
    if row is None or (row.switch is not None and not config.get(row.switch)):
        return None
    count, reach = _sizes(row, config)
    norm = None
    if row.norm and row.norm_word in [word.strip() for word in str(config.get(row.norm_switch)).lower().split("|")]:
        norm = (f"{row.norm}.weight", f"{row.norm}.bias", config.number("layer_norm_eps"))
    return Buckets(row.kind, count, reach, row.bidirectional, row.table, norm)


def _sizes(row: BucketRow, config: Config) -> tuple[int, int]:
    """How many buckets and how far they reach; raises BadEncoding where no buckets come of it."""
    nowhere = np.zeros(0, np.int64)
    if row.kind == "t5":
        count, reach = _number(row.count, config, 1), _number(row.reach, config, 1)
        t5_bucket(nowhere, bidirectional=row.bidirectional, num_buckets=count, max_distance=reach)
        return count, reach
    count, reach = _number(row.count, config, -1), _number(row.reach, config, -1)
    reach = reach if reach > 0 else config.count("max_position_embeddings")
    deberta_bucket(nowhere, position_buckets=count, max_relative_positions=reach)
    return count, reach


def _number(said: str | int, config: Config, least: int) -> int:
    return config.count(said, least) if isinstance(said, str) else said


def _masks(family: Family, config: Config, layers: tuple[str | None, ...]) -> dict[str, Mask]:
    """By layer type; a family without windows attends to all it may. None where the family tells none."""
    if family.mixed_masks:
        return {}
    causal, window = _reach(family, config)
    types = dict.fromkeys(name for name in layers if name) or {EVERY_LAYER: None}
    return {name: Mask(causal, window if name == EVERY_LAYER or "sliding" in name else None) for name in types}


def _reach(family: Family, config: Config) -> tuple[bool, int | None]:
    """Whether the attention is causal, and the window of layers that slide.

    source   transformers 5.23: masking_utils (a causal family whose is_causal is false keeps the width of its window,
             to either side) and the configs of Gemma 3 and 4, which halve it
    """
    causal = config.holds(family.causal) if isinstance(family.causal, str) else family.causal
    told = family.own_mask or bool(config.data.get("is_causal", True))
    halved = family.both_ways is not None and config.holds(family.both_ways[0])
    window = None
    if family.window is not None and config.get(family.window) is not None:
        window = config.count(family.window, 1 if causal and not halved else 2)
        if halved and family.both_ways:
            window = window // 2 + max(family.both_ways[1], not told)
        elif not causal:
            window //= 2
    return causal and told and not halved, window

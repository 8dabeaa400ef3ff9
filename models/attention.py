"""A family's row and a config → what the attention does with positions. Reads no tensor and computes no table."""

from collections.abc import Mapping
from typing import Any

from models.config import Config
from models.encodings import EVERY_LAYER, Alibi, Buckets, Encodings, Mask, RopeTable
from models.errors import BadCheckpoint
from models.families import Family
from models.positions import rope_config
from models.positions.rope import frequencies
from models.positions.rope_config import LayerRope


def encodings(family: Family, config: Config, model_type: str) -> Encodings:
    """The encodings of one model, tensor names still those of the base class.

    raises   BadScaling, BadEncoding or BadCheckpoint where the config says what is not computed
    """
    alibi = _alibi(family, config)
    ropes, layers = ({}, ()) if alibi or not family.rotates else _ropes(config, model_type)
    return Encodings(ropes, layers, alibi, _buckets(family, config), _masks(family, config, layers))


def _ropes(config: Config, model_type: str) -> tuple[dict[str, RopeTable], tuple[str | None, ...]]:
    found = rope_config.read(config.data, model_type)
    tables = {name: _rope_table(name, layer, found.notes) for name, layer in found.tables.items()}
    return tables, found.layers


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
    if family.alibi is None:
        return None
    row = family.alibi
    own: Mapping[str, Any] = config.get(row.section) or {} if row.section else config.data
    if row.switch is not None and not own.get(row.switch, row.default):
        return None
    max_bias = own.get("alibi_bias_max", 8)
    if not isinstance(max_bias, int | float) or isinstance(max_bias, bool) or not max_bias > 0:
        raise BadCheckpoint(f"config.json says alibi_bias_max {max_bias!r}; it must be a number above 0")
    return Alibi(row.form, config.heads(), float(max_bias), config.count("max_position_embeddings"))


def _buckets(family: Family, config: Config) -> Buckets | None:
    row = family.buckets
    if row is None or (row.switch is not None and not config.get(row.switch)):
        return None
    reach = config.get(row.reach)
    norm = None
    if row.norm and row.norm_word in str(config.get(row.norm_switch)):
        norm = (f"{row.norm}.weight", f"{row.norm}.bias", config.number("layer_norm_eps"))
    return Buckets(
        row.kind,
        config.get(row.count) if isinstance(config.get(row.count), int) else -1,
        reach if isinstance(reach, int) and reach > 0 else config.count("max_position_embeddings"),
        row.bidirectional,
        row.table,
        norm,
    )


def _masks(family: Family, config: Config, layers: tuple[str | None, ...]) -> dict[str, Mask]:
    """The windows a config names; a family without windows attends to all it may."""
    types = dict.fromkeys(name for name in layers if name) or {EVERY_LAYER: None}
    window = config.get("sliding_window") if config.get("use_sliding_window") is not False else None
    if family.window is not None and (local := config.get(family.window)) is not None:
        window = local // 2 if not family.causal else local
    sliding = [name for name in types if "sliding" in name] or (list(types) if len(types) == 1 else [])
    return {name: Mask(family.causal, window if name in sliding else None) for name in types}

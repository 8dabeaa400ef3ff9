"""Which rope is meant: named parameters, a preset, or a config.json. For whoever asks, over whatever road."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar

from models.errors import BadEncoding
from models.positions.rope import config as rope_config
from models.positions.rope.config import LayerRope
from models.positions.rope.frequencies import Rope
from models.positions.rope.presets import PRESETS
from models.positions.rope.scalings import SCALINGS

Choice = TypeVar("Choice")
THETA = 10000.0
SHARE = "partial_rotary_factor"


def by_parameters(
    *,
    theta: float | None = None,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    rope_type: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    max_position_embeddings: int | None = None,
) -> Rope:
    """The rope of named parameters.

    theta       None: 10000
    rotary_dim  None: head_dim times parameters' partial_rotary_factor, which `proportional` alone reads itself
    raises      BadEncoding
    """
    rope_type = rope_type or "default"
    given = {name: value for name, value in (parameters or {}).items() if value is not None}
    share = None if rope_type in SCALINGS and SHARE in SCALINGS[rope_type].optional else given.pop(SHARE, None)
    rotary_dim = _rotary_dim(head_dim, rotary_dim, share)
    sizes = {"head_dim": head_dim, "max_position_embeddings": max_position_embeddings}
    return Rope.of(THETA if theta is None else theta, rotary_dim, rope_type, given, **sizes)


def _rotary_dim(head_dim: int | None, rotary_dim: int | None, share: Any) -> int:
    if rotary_dim is not None:
        if share is not None:
            raise BadEncoding("rotary_dim and partial_rotary_factor say the same: send one of them")
        return rotary_dim
    if head_dim is None:
        raise BadEncoding("send head_dim or rotary_dim, or a preset or a config that has them")
    if share is None:
        return head_dim
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise BadEncoding(f"partial_rotary_factor is {share!r}; it must be above 0, at most 1")
    return int(head_dim * share)


def by_preset(
    name: str, layer_type: str | None = None, layer: int | None = None, *, listed: str
) -> tuple[str, LayerRope]:
    """The layer type and rope of a row of PRESETS.

    listed   where whoever asks finds the names
    raises   BadEncoding
    """
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadEncoding(f"there is no preset {name[:60]!r}; {hint}{listed} names them all")
    return by_config(PRESETS[name].config, None, layer_type, layer)


def by_config(
    config: Mapping[str, Any], model_type: str | None = None, layer_type: str | None = None, layer: int | None = None
) -> tuple[str, LayerRope]:
    """The layer type and rope of a config.json or its rope part; raises BadEncoding."""
    found = rope_config.read(config, model_type)
    name, rope = chosen(found.tables, found.layers, layer_type, layer)
    return name, replace(rope, notes=(*found.notes, *rope.notes))


def chosen(
    tables: Mapping[str, Choice], layers: Sequence[str | None], layer_type: str | None, layer: int | None
) -> tuple[str, Choice]:
    """The layer type and table of one kind of layer, or of one layer; raises BadEncoding where that is not clear."""
    known = ", ".join(tables)
    if layer is not None and layer_type is not None:
        raise BadEncoding("layer and layer_type say the same: send one of them")
    if layer is not None:
        if layer >= len(layers):
            raise BadEncoding(f"layer is {layer}; {len(layers)} layers are known here, counted from 0")
        layer_type = layers[layer]
        if layer_type is None:
            raise BadEncoding(f"layer {layer} does not rotate; the layers that do have {known}")
    if layer_type is None and len(tables) == 1:
        layer_type = next(iter(tables))
    if layer_type is None:
        raise BadEncoding(f"its layers differ: send layer_type, one of {known}, or layer, a number")
    if layer_type not in tables:
        raise BadEncoding(f"layer_type is {layer_type[:60]!r}; here there is {known}")
    return layer_type, tables[layer_type]

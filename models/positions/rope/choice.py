"""Selection of one rope: from named parameters, from a preset, or from a config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar

from models.errors import BadEncoding
from models.positions.rope.config import LayerRope, read
from models.positions.rope.frequencies import Rope
from models.positions.rope.presets import PRESETS
from models.positions.rope.scalings import SCALINGS

LayerTable = TypeVar("LayerTable")
THETA = 10000.0
FRACTION = "partial_rotary_factor"


def by_parameters(
    *,
    theta: float | None = None,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    rope_type: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    max_position_embeddings: int | None = None,
) -> Rope:
    """Return the rope of named parameters.

    Args:
        theta: base of the frequencies; None: 10000.
        head_dim: channels of a head; needed unless rotary_dim is given.
        rotary_dim: channels that rotate; None: head_dim times partial_rotary_factor of `parameters` (only
            `proportional` reads that factor itself).
        rope_type: a row of SCALINGS; None: default.
        parameters: parameters of the scaling, by the names of config.json; None values count as absent.
        max_position_embeddings: max_position_embeddings of the model.

    Raises:
        BadEncoding: sizes are missing, contradict each other or are out of range.
        BadScaling: a parameter is neither a number, a boolean, a text nor a list of these.
    """
    rope_type = rope_type or "default"
    scaling = {name: value for name, value in (parameters or {}).items() if value is not None}
    fraction = (
        None if rope_type in SCALINGS and FRACTION in SCALINGS[rope_type].optional else scaling.pop(FRACTION, None)
    )
    rotary_dim = _rotary_dim(head_dim, rotary_dim, fraction)
    sizes = {"head_dim": head_dim, "max_position_embeddings": max_position_embeddings}
    return Rope.of(THETA if theta is None else theta, rotary_dim, rope_type, scaling, **sizes)


def _rotary_dim(head_dim: int | None, rotary_dim: int | None, fraction: Any) -> int:
    if rotary_dim is not None:
        if fraction is not None:
            raise BadEncoding("rotary_dim and partial_rotary_factor exclude each other: send one of them")
        return rotary_dim
    if head_dim is None:
        raise BadEncoding("send head_dim or rotary_dim, or a preset or a config that has them")
    if fraction is None:
        return head_dim
    if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise BadEncoding(f"partial_rotary_factor is {fraction!r}; it must be above 0, at most 1")
    return int(head_dim * fraction)


def by_preset(
    name: str, layer_type: str | None = None, layer: int | None = None, *, listed: str
) -> tuple[str, LayerRope]:
    """Return the layer type and the rope of a preset.

    Args:
        name: a row of PRESETS.
        layer_type: as in `chosen`, as is `layer`.
        layer: a layer's number.
        listed: where the caller can list the names, as part of the error message.

    Raises:
        BadEncoding: an unknown preset, layer type or layer.
    """
    if name not in PRESETS:
        match = get_close_matches(name, PRESETS, 1)
        hint = f"did you mean {match[0]!r}? " if match else ""
        if name in SCALINGS:
            hint = f"{name} is a rope_type, which comes with its parameters (rope_type={name}&factor=4); "
        raise BadEncoding(f"there is no preset {name[:60]!r}; {hint}{listed} names them all")
    return by_config(PRESETS[name].config, None, layer_type, layer)


def by_config(
    config: Mapping[str, Any], model_type: str | None = None, layer_type: str | None = None, layer: int | None = None
) -> tuple[str, LayerRope]:
    """Return the layer type and the rope of a config.json or of its RoPE part.

    Args:
        config: see `config.read`.
        model_type: model_type of a config that does not give one.
        layer_type: as in `chosen`, as is `layer`.
        layer: a layer's number.

    Raises:
        BadEncoding: the config describes no rope, or the layer type or layer is unknown.
        BadScaling: a RoPE parameter is missing, unknown or impossible.
    """
    model = read(config, model_type)
    name, rope = chosen(model.tables, model.layers, layer_type, layer)
    return name, replace(rope, notes=(*model.notes, *rope.notes))


def chosen(
    tables: Mapping[str, LayerTable], layers: Sequence[str | None], layer_type: str | None, layer: int | None
) -> tuple[str, LayerTable]:
    """Return the layer type and the table of one kind of layer, or of one layer.

    Args:
        tables: tables by layer type.
        layers: the layer type of each layer, None: it does not rotate.
        layer_type: a key of `tables`; may be None where there is only one.
        layer: instead of layer_type, a layer's number, counted from 0.

    Raises:
        BadEncoding: no such layer or layer type, both or none given, or a layer that does not rotate.
    """
    known = ", ".join(tables)
    if layer is not None and layer_type is not None:
        raise BadEncoding("layer and layer_type exclude each other: send one of them")
    if layer is not None:
        if layer >= len(layers):
            raise BadEncoding(f"layer is {layer}; {len(layers)} layers are known here, counted from 0")
        layer_type = layers[layer]
        if layer_type is None:
            raise BadEncoding(f"layer {layer} does not rotate; the layers that do have {known}")
    if layer_type is None and len(tables) == 1:
        layer_type = next(iter(tables))
    if layer_type is None:
        raise BadEncoding(f"the model's layers differ: send layer_type, one of {known}, or layer, a number")
    if layer_type not in tables:
        raise BadEncoding(f"layer_type is {layer_type[:60]!r}; it must be one of {known}")
    return layer_type, tables[layer_type]

"""Treats an unknown model_type as a plain decoder if its tensors and config allow that (`--assume`).

A plain decoder has one table of [vocab_size, hidden_size] under a usual name, no other tensor and no config key that
the input layer of a known family reads besides, and a config that says how the attention rotates.
"""

from collections.abc import Mapping
from typing import Any

from models.checkpoints.checkpoint import Checkpoint
from models.errors import BadCheckpoint, BadEncoding, UnknownFamily
from models.families import FAMILIES, not_known
from models.families.family import Family
from models.positions.rope import config as rope_config
from models.recipes.steps import Embed, tensors


def assume_decoder(
    model_type: str, data: Mapping[str, Any], checkpoint: Checkpoint, assume: bool
) -> tuple[Family, tuple[str, ...]]:
    """Return the family assumed for a checkpoint, and the assumptions made, in sentences.

    Args:
        data: the config of the checkpoint's text part.
        assume: whether the operator allowed the assumption.

    Raises:
        UnknownFamily: the operator did not allow it, or the checkpoint is no plain decoder; the message says which.
    """
    unknown = not_known(model_type)
    try:
        table = _only_table(data, checkpoint)
        ropes = rope_config.read(data, model_type)
    except (BadCheckpoint, BadEncoding) as error:
        raise UnknownFamily(f"{unknown}. It cannot be assumed to be a plain decoder: {error}") from error
    if not assume:
        raise UnknownFamily(
            f"{unknown}. Its tensors fit a plain decoder: with --assume {table!r} is taken for the whole input layer"
        )
    assumptions = (
        f"model_type {model_type!r} is not known: {table!r} is assumed to be its whole input layer, unscaled",
        f"its attention is assumed to be causal and to rotate as config.json says (layout {_layouts(ropes)})",
        *ropes.notes,
    )
    prefix, stem = _split(table)
    family = Family(prefix, (Embed(stem),), rotates=True, causal=True, defaults={"pad_token_id": None})
    return family, assumptions


def _layouts(ropes: rope_config.RopeConfig) -> str:
    return " and ".join(dict.fromkeys(table.layout for table in ropes.tables.values()))


def _word_table_names() -> dict[str, None]:
    """Return the names of word tables in known families, without prefix, in order of length, the longest first."""
    names = {tensors(family.input_layer)[0] for family in FAMILIES.values()}
    return dict.fromkeys(sorted(names, key=len, reverse=True))


def _other_tensor_names() -> set[str]:
    """Return the names of the other tensors that input layers of known families read."""
    sides = [side for family in FAMILIES.values() for side in (family, family.decoder) if side]
    named = {name for side in sides for name in (*tensors(side.input_layer)[1:], *tensors(side.per_layer))}
    return named - {*_word_table_names()}


def _split(name: str) -> tuple[str, str]:
    stem = next(stem for stem in _word_table_names() if name == stem or name.endswith("." + stem))
    return name.removesuffix(stem), stem


def _only_table(data: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    """Return the name of the only word table, or raise BadCheckpoint if the checkpoint is no plain decoder."""
    shape = (data.get("vocab_size"), data.get("hidden_size"))
    names = _word_table_names()
    named = [name for name in checkpoint.tensors if any(name == table or name.endswith("." + table) for table in names)]
    fitting = [name for name in named if checkpoint.tensors[name].shape == shape]
    if len(fitting) != 1:
        held = ", ".join(fitting) or "none"
        raise BadCheckpoint(
            f"it should hold one table of [vocab_size, hidden_size] = {list(shape)} under a usual name, "
            f"but holds {held}"
        )
    prefix, _ = _split(fitting[0])
    other_names = _other_tensor_names()
    if more := [
        name for name in checkpoint.tensors if name.startswith(prefix) and name.removeprefix(prefix) in other_names
    ]:
        raise BadCheckpoint(f"its tensor {more[0]!r} belongs to an input layer of more than a table")
    scales = {family.scale.key or family.scale.switch for family in FAMILIES.values() if family.scale}
    if key := next((key for key in sorted(filter(None, scales)) if not _leaves_unscaled(data.get(key))), None):
        raise BadCheckpoint(f"its config.json says {key} {data[key]!r}, so the table's rows are scaled in some way")
    return fitting[0]


def _leaves_unscaled(factor: Any) -> bool:
    """Return whether a config value leaves rows unscaled: a factor of 1, a switch that is off, or nothing."""
    return factor is None or factor is False or (factor is not True and factor == 1)

"""A model_type no row knows, taken for a plain decoder where its tensors and config allow it. Guesses no number.

What must fit: one table of [vocab_size, hidden_size] under a usual name, no other tensor and no config key that any
known family's input layer has besides, and a config that says how the attention rotates.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from models.checkpoints.checkpoint import Checkpoint
from models.errors import BadCheckpoint, BadEncoding, UnknownFamily
from models.families import FAMILIES, LISTED, Family
from models.families.recipe import Embed, tensors
from models.positions.rope import config as rope_config


def assumed_row(
    model_type: str, data: Mapping[str, Any], checkpoint: Checkpoint, assume: bool
) -> tuple[Family, tuple[str, ...]]:
    """The row assumed of a checkpoint, and what was assumed, in sentences.

    raises   UnknownFamily: not asked for, or something does not fit; it says which
    """
    near = get_close_matches(model_type, FAMILIES, 1, cutoff=0.0)[0]
    unknown = f"model_type {model_type!r} is not known; the nearest is {near!r}; {LISTED}"
    try:
        table = _only_table(data, checkpoint)
        ropes = rope_config.read(data, model_type)
    except (BadCheckpoint, BadEncoding) as error:
        raise UnknownFamily(f"{unknown}. It cannot be assumed to be a plain decoder: {error}") from error
    if not assume:
        raise UnknownFamily(
            f"{unknown}. Its tensors fit a plain decoder: with --assume {table!r} is taken for the whole input layer"
        )
    said = (
        f"model_type {model_type!r} is not known: {table!r} is assumed to be its whole input layer, unscaled",
        f"its attention is assumed to be causal and to rotate as config.json says (layout {_layouts(ropes)})",
        *ropes.notes,
    )
    prefix, stem = _split(table)
    return Family(prefix, {"pad_token_id": None}, (Embed(stem),), rotates=True, causal=True), said


def _layouts(ropes: rope_config.RopeConfig) -> str:
    return " and ".join(dict.fromkeys(table.layout for table in ropes.tables.values()))


def _words() -> dict[str, None]:
    """What the word tables of known families are called, without prefix, the longest first."""
    names = {tensors(row.input_layer)[0] for row in FAMILIES.values()}
    return dict.fromkeys(sorted(names, key=len, reverse=True))


def _further() -> set[str]:
    """What else input layers read."""
    rows = [row for each in FAMILIES.values() for row in (each, each.decoder) if row]
    named = {name for row in rows for name in (*tensors(row.input_layer)[1:], *tensors(row.per_layer))}
    return named - {*_words()}


def _split(name: str) -> tuple[str, str]:
    stem = next(stem for stem in _words() if name == stem or name.endswith("." + stem))
    return name.removesuffix(stem), stem


def _only_table(data: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    """The one word table; raises BadCheckpoint where the checkpoint is no plain decoder."""
    shape = (data.get("vocab_size"), data.get("hidden_size"))
    named = [name for name in checkpoint.tensors if any(name == each or name.endswith("." + each) for each in _words())]
    found = [name for name in named if checkpoint.tensors[name].shape == shape]
    if len(found) != 1:
        held = ", ".join(found) or "none"
        raise BadCheckpoint(
            f"it should hold one table of [vocab_size, hidden_size] = {list(shape)} under a usual name, "
            f"but holds {held}"
        )
    prefix, _ = _split(found[0])
    further = _further()
    if more := [
        name for name in checkpoint.tensors if name.startswith(prefix) and name.removeprefix(prefix) in further
    ]:
        raise BadCheckpoint(f"its tensor {more[0]!r} belongs to an input layer of more than a table")
    scales = {row.scale.key or row.scale.switch for row in FAMILIES.values() if row.scale}
    if key := next((key for key in sorted(filter(None, scales)) if not _is_one(data.get(key))), None):
        raise BadCheckpoint(f"its config.json says {key} {data[key]!r}, so the table's rows are scaled in some way")
    return found[0]


def _is_one(factor: Any) -> bool:
    """Whether a config value says that rows are not scaled: a factor of 1, a switch that is off, or nothing."""
    return factor is None or factor is False or (factor is not True and factor == 1)

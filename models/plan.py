"""A family's row fitted to one checkpoint: on-disk names, values from the config, shapes checked. Reads no tensor."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

from models.attention import encodings
from models.checkpoint import Checkpoint
from models.config import Config
from models.encodings import Encodings
from models.errors import BadCheckpoint
from models.families import ACTIVATIONS, Family, Key, Types, config_of, family_of
from models.positions.learned import PositionRule
from models.recipe import (
    AddPosition,
    AddSinusoid,
    AddType,
    Attention,
    Embed,
    FeedForward,
    LayerNorm,
    Linear,
    Recipe,
    RMSNorm,
    Scale,
    Step,
    tensors,
)

Node = TypeVar("Node")
Shape = tuple[int, ...]
Naming = Callable[[str], str]  # a name of the base class -> that of the file


@dataclass(frozen=True, slots=True)
class Plan:
    """A family fitted to one checkpoint: steps with on-disk tensor names, and the sizes its config promises.

    encoder  empty where the family's blocks are not exported or the checkpoint does not hold them
    encodings  what the attention does with positions, with on-disk tensor names
    shapes   the shape every named tensor must have
    """

    model_type: str
    family: Family
    config: Config
    recipe: Recipe
    encoder: Recipe
    position: PositionRule
    pad_id: int | None
    type_rows: int
    encodings: Encodings
    shapes: dict[str, tuple[int, ...]]

    @property
    def types(self) -> Types:
        """What the model does with segments: the family's way, unless this checkpoint has none."""
        return self.family.types if self.type_rows else "none"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor the model needs, each once."""
        return tuple(dict.fromkeys(tensors(self.recipe + self.encoder) + self.encodings.tables))


def plan(checkpoint: Checkpoint) -> Plan:
    """Fit the family's row to a checkpoint: names as the file holds them, every shape checked.

    raises   UnknownFamily, or BadCheckpoint where config and tensors do not make a model of this family
    """
    family = family_of(checkpoint.model_type)
    config = config_of(checkpoint.model_type, checkpoint.config)
    _refuse_variants(family, config)
    prefix = find_prefix(family, checkpoint)
    on_disk = partial(_held, family, prefix, checkpoint)
    recipe = tuple(renamed(step, on_disk) for step in input_layer(family, config))
    encoder = _encoder(family, config, prefix, checkpoint)
    found = _encodings(encodings(family, config, checkpoint.model_type), prefix, checkpoint, on_disk)
    shapes = expected_shapes(recipe + encoder, config) | encoding_shapes(found, config)
    for name, shape in shapes.items():
        if (held := checkpoint.tensors[name].shape) != shape:
            raise BadCheckpoint(f"{name!r} has shape {list(held)}, but config.json makes it {list(shape)}")
    type_rows = next((shapes[step.table][0] for step in recipe if isinstance(step, AddType)), 0)
    position = position_rule(family, config)
    pad_id = config.pad_id()
    return Plan(checkpoint.model_type, family, config, recipe, encoder, position, pad_id, type_rows, found, shapes)


def position_rule(family: Family, config: Config) -> PositionRule:
    """How the family numbers tokens, with the rows of this config's table; BadCheckpoint for a missing pad id."""
    bounded = (AddPosition, AddSinusoid)
    learned = any(isinstance(step, bounded) and _is_there(step, family, config) for step in family.input_layer)
    rows = config.count("max_position_embeddings") if learned else None
    if family.numbering != "cumsum_non_pad":
        return PositionRule(family.numbering, 0, rows)
    if (pad := config.pad_id()) is None:
        raise BadCheckpoint("config.json says pad_token_id null, but this family counts positions from the pad id")
    return PositionRule(family.numbering, pad, rows, pad)


def input_layer(family: Family, config: Config) -> Recipe:
    """The steps before the first block that a checkpoint with this config has, filled; names of the base class."""
    return tuple(fill(step, family, config) for step in family.input_layer if _is_there(step, family, config))


def _is_there(step: Step, family: Family, config: Config) -> bool:
    """Whether a checkpoint with this config has the step at all."""
    key = family.scaled_if if isinstance(step, Scale) else family.only_if.get(type(step))
    return key is None or bool(config.get(key))


def _encodings(found: Encodings, prefix: str, checkpoint: Checkpoint, on_disk: Naming) -> Encodings:
    """The same with tensor names as the file holds them; a file of the input layer alone holds no bucket table."""
    if (row := found.buckets) is None or row.table is None:
        return found
    if prefix + row.table not in checkpoint.tensors:
        return replace(found, buckets=replace(row, table=None, norm=None))
    names = {name: on_disk(name) for name in found.tables}
    norm = row.norm and (names[row.norm[0]], names[row.norm[1]], row.norm[2])
    return replace(found, buckets=replace(row, table=names[row.table], norm=norm))


def encoding_shapes(found: Encodings, config: Config) -> dict[str, Shape]:
    """The shape of every tensor that only the attention's encodings read."""
    if (row := found.buckets) is None or row.table is None:
        return {}
    if row.kind == "t5":
        return {row.table: (row.buckets, config.count("num_attention_heads"))}
    span = row.buckets if row.buckets > 0 else row.reach
    hidden = config.count("hidden_size")
    return {row.table: (2 * span, hidden)} | {name: (hidden,) for name in (row.norm or ())[:2]}


def _refuse_variants(family: Family, config: Config) -> None:
    """Config switches that change the arithmetic of a family and that no row computes."""
    for key, only in {"position_embedding_type": "absolute", **family.only}.items():
        usual = config.get(only.name) if isinstance(only, Key) else only
        if (value := config.inside(key)) not in (None, usual):
            raise BadCheckpoint(
                f"config.json says {key} {value!r}; of {config.get('model_type')!r} only {usual!r} is computed"
            )


def find_prefix(family: Family, checkpoint: Checkpoint) -> str:
    """What this file puts before the base class's tensor names, found by its word table.

    raises   BadCheckpoint: no word table, or several and none under the family's usual name
    """
    stem = tensors(family.input_layer)[0]
    stems = [stem, family.held_as.get(stem, stem)]
    found = list(
        dict.fromkeys(
            name.removesuffix(each)
            for each in stems
            for name in checkpoint.tensors
            if name == each or name.endswith("." + each)
        )
    )
    for prefix in (family.prefix, ""):
        if prefix in found:
            return prefix
    if len(found) == 1:
        return found[0]
    held = f"several: {', '.join(prefix + stem for prefix in sorted(found))}" if found else "none"
    raise BadCheckpoint(
        f"{checkpoint.folder} should hold the word table {family.prefix + stem!r} (any one prefix will do), "
        f"but holds {held}"
    )


def _encoder(family: Family, config: Config, prefix: str, checkpoint: Checkpoint) -> Recipe:
    """The steps of all blocks; empty where the family has none to export or the checkpoint holds none."""
    if not family.block or config.get("is_decoder"):
        return ()
    count = config.count("num_hidden_layers", least=0)
    first = tensors(family.block)[0].partition("{block}")[0]
    if not any(name.startswith(prefix + first) for name in checkpoint.tensors):
        return ()
    steps = (fill(step, family, config, block) for block in range(count) for step in family.block)
    return tuple(renamed(step, partial(_held, family, prefix, checkpoint)) for step in steps)


def fill(step: Step, family: Family, config: Config, block: int = 0) -> Step:
    """A step of a row with the values its config decides; tensor names still those of the base class."""
    if isinstance(step, LayerNorm | RMSNorm):
        step = replace(step, eps=config.number(family.eps) if isinstance(family.eps, str) else family.eps)
        if isinstance(step, LayerNorm) and family.biased_if and not config.get(family.biased_if):
            step = replace(step, bias=None)
    elif isinstance(step, Attention):
        step = replace(step, heads=config.heads())
    elif isinstance(step, FeedForward):
        step = replace(step, activation=config.choice("hidden_act", ACTIVATIONS))
    elif isinstance(step, Scale):
        step = replace(step, factor=math.sqrt(config.count("hidden_size")))
    elif isinstance(step, AddSinusoid):
        step = replace(step, dim=config.count("hidden_size"))
    return renamed(step, lambda name: name.replace("{block}", str(block)))


def _held(family: Family, prefix: str, checkpoint: Checkpoint, name: str) -> str:
    """What the file calls a tensor of the base class."""
    usual = prefix + name
    own = prefix + family.held_as.get(name, name)
    old = usual.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    for candidate in (own, usual, old):  # the last: files converted from TensorFlow long ago
        if candidate in checkpoint.tensors:
            return candidate
    raise BadCheckpoint(
        f"{checkpoint.folder} holds no tensor {usual!r}, which its model_type {checkpoint.model_type!r} needs"
    )


def renamed(node: Node, name_of: Naming) -> Node:
    """The step, or the Linear of a step, with every tensor name replaced."""
    changes: dict[str, Any] = {}
    for field in fields(node):  # type: ignore[arg-type]
        value = getattr(node, field.name)
        if is_dataclass(value):
            changes[field.name] = renamed(value, name_of)
        elif field.name in ("table", "weight", "bias") and value is not None:
            changes[field.name] = name_of(value)
    return replace(node, **changes)  # type: ignore[type-var]


def expected_shapes(recipe: Recipe, config: Config) -> dict[str, Shape]:
    """The shape of every tensor a filled recipe names, from the config's sizes alone."""
    shapes: dict[str, Shape] = {}
    for step in recipe:
        shapes |= _shapes(step, config, shapes)
    return shapes


def _shapes(step: Step, config: Config, known: dict[str, Shape]) -> dict[str, Shape]:
    hidden = config.count("hidden_size")
    match step:
        case Embed(table):
            return {table: (config.count("vocab_size"), hidden)}
        case AddType(table):
            return {table: known.get(table) or (config.count("type_vocab_size"), hidden)}
        case AddPosition(table):
            return {table: (config.count("max_position_embeddings"), hidden)}
        case LayerNorm(weight, bias):
            return {name: (hidden,) for name in (weight, bias) if name}
        case RMSNorm(weight):
            return {weight: (hidden,)} if weight else {}
        case Attention(_, query, key, value, output):
            return {k: v for linear in (query, key, value, output) for k, v in _linear(linear, hidden, hidden).items()}
        case FeedForward(up, down):
            inner = config.count("intermediate_size")
            return _linear(up, inner, hidden) | _linear(down, hidden, inner)
    return {}


def _linear(linear: Linear, outputs: int, inputs: int) -> dict[str, Shape]:
    return {linear.weight: (outputs, inputs)} | ({linear.bias: (outputs,)} if linear.bias else {})

"""A family's row fitted to one checkpoint: on-disk names, values from the config, shapes checked. Reads no tensor."""

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.config import Config
from models.errors import BadCheckpoint
from models.families import ACTIVATIONS, FAMILIES, Family, Key, Types, sided, text_tower
from models.families.assumptions import assumed_row
from models.families.attention_positions import encodings
from models.families.encodings import Encodings
from models.families.extra_inputs import ATTENDED, MASKED, Extra
from models.families.head_fitting import Head, head_of
from models.families.recipe import (
    TENSORS,
    AddIndexed,
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
    Round,
    Scale,
    Step,
    TokenDropout,
    tensors,
)
from models.families.tensor_names import Naming, find_prefix, on_disk
from models.families.tensor_shapes import encoding_shapes, expected_shapes, per_layer_shapes
from models.positions.learned import PositionRule

__all__ = ["Plan", "encoding_shapes", "expected_shapes", "fill", "input_layer", "plan", "position_rule", "renamed"]

Node = TypeVar("Node")
_ROUNDED: dict[str, Any] = {"BF16": ("bfloat16", ml_dtypes.bfloat16), "F16": ("float16", np.float16)}


@dataclass(frozen=True, slots=True)
class Plan:
    """A family fitted to one checkpoint: steps with on-disk tensor names, and the sizes its config promises.

    model_type  the row's; of a checkpoint of several towers that of its text
    encoder  empty where the family's blocks are not exported or the checkpoint does not hold them
    encodings  what the attention does with positions, with on-disk tensor names
    shapes   the shape every named tensor must have
    prefix   what the file puts before the base class's tensor names
    extras   what graphs read of each token besides id, position and segment
    per_layer  steps to the embeddings each layer has of its own; empty: it has none
    assumed  what was assumed of a model_type no row knows, in sentences
    head     how hidden states become logits; None: the checkpoint cannot say, for what `headless` says
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
    prefix: str = ""
    extras: tuple[Extra, ...] = ()
    per_layer: Recipe = ()
    assumed: tuple[str, ...] = ()
    head: Head | None = None
    headless: str | None = None

    @property
    def types(self) -> Types:
        """What the model does with segments: the family's way, unless this checkpoint has none."""
        return self.family.types if self.type_rows else "none"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor the model needs, each once."""
        own = tensors(self.recipe + self.per_layer + self.encoder) + self.encodings.tables
        return tuple(dict.fromkeys(own + (self.head.tensors if self.head else ())))


def plan(checkpoint: Checkpoint, side: str | None = None, assume: bool = False) -> Plan:
    """Fit the family's row to a checkpoint: names as the file holds them, every shape checked.

    side     encoder or decoder, of a family that has both; None: its encoder
    assume   take a model_type no row knows for a plain decoder, where its tensors and config fit one
    raises   UnknownFamily, or BadCheckpoint where config and tensors do not make a model of this family
    """
    model_type, data = text_tower(checkpoint.model_type, checkpoint.config)
    assumed: tuple[str, ...] = ()
    if model_type in FAMILIES:
        family = sided(model_type, FAMILIES[model_type], side)
    else:
        family, assumed = assumed_row(model_type, data, checkpoint, assume)
    config = Config(data, family.defaults, family.names)
    _refuse_variants(family, config)
    return _fitted(model_type, family, config, checkpoint, assumed)


def _fitted(model_type: str, family: Family, config: Config, checkpoint: Checkpoint, assumed: tuple[str, ...]) -> Plan:
    prefix = find_prefix(family, checkpoint, config)
    naming = on_disk(family, prefix, checkpoint)
    dtype = checkpoint.tensors[naming(tensors(family.input_layer)[0])].dtype
    base = _with_stored(input_layer(family, config, dtype), family, prefix, checkpoint)
    recipe = tuple(renamed(step, naming) for step in base)
    per_layer = tuple(renamed(step, naming) for step in _per_layer(family, config, dtype))
    encoder = _encoder(family, config, prefix, checkpoint)
    found = _encodings(encodings(family, config, model_type), prefix, checkpoint, naming)
    shapes = expected_shapes(recipe + encoder, config, family) | encoding_shapes(found, config)
    shapes |= per_layer_shapes(per_layer, config)
    if family.stored and (held := checkpoint.tensors.get(prefix + family.stored)):
        shapes[prefix + family.stored] = (held.shape[0], config.count("hidden_size"))  # as many as were computed
    for name, shape in shapes.items():
        if (is_ := checkpoint.tensors[name].shape) != shape:
            raise BadCheckpoint(f"{name!r} has shape {list(is_)}, but config.json makes it {list(shape)}")
    type_rows = next((shapes[step.table][0] for step in recipe if isinstance(step, AddType)), 0)
    rule = position_rule(family, config)
    if place := next((step for step in recipe if isinstance(step, AddPosition)), None):
        rule = replace(rule, rows=shapes[place.table][0])
    extras = _extras(family, config, recipe)
    words = next((step.table for step in recipe if isinstance(step, Embed)), None)
    head, headless = head_of(checkpoint, model_type, words, assumed=bool(assumed))
    if assumed and head:
        assumed += (f"logits are hidden states times {head.matrix!r}, with nothing before or behind it",)
    return Plan(
        model_type,
        family,
        config,
        recipe,
        encoder,
        rule,
        config.pad_id(),
        type_rows,
        found,
        shapes,
        prefix,
        extras,
        per_layer,
        assumed,
        head,
        headless,
    )


def position_rule(family: Family, config: Config) -> PositionRule:
    """How the family numbers tokens, with the rows of this config's table; BadCheckpoint for a missing pad id."""
    there = [step for step in family.input_layer if _is_there(step, family, config)]
    places = next((step for step in there if isinstance(step, AddPosition | AddSinusoid)), None)
    if places is None:
        return PositionRule("arange", 0, None)
    rows = None
    if isinstance(places, AddPosition) or places.kind != "tensor2tensor":  # of which transformers makes more on demand
        rows = config.count("max_position_embeddings") + family.offset
    if family.numbering != "cumsum_non_pad":
        return PositionRule(family.numbering, family.offset, rows)
    if (pad := config.pad_id()) is None:
        raise BadCheckpoint("config.json says pad_token_id null, but this family counts positions from the pad id")
    return PositionRule(family.numbering, pad, rows, pad)


def input_layer(family: Family, config: Config, dtype: str = "F32") -> Recipe:
    """The steps before the first block that a checkpoint with this config has, filled; names of the base class.

    dtype   of the word table, which decides where rows are rounded
    """
    there = (step for step in family.input_layer if _is_there(step, family, config))
    return tuple(done for step in there for done in _filled(fill(step, family, config), family, config, dtype))


def _filled(step: Step, family: Family, config: Config, dtype: str) -> Recipe:
    """A Scale with its factor, and a Round behind it where the family rounds the product."""
    if not isinstance(step, Scale) or family.scale is None:
        return (step,)
    row = family.scale
    factor = config.number(row.key) if row.key else math.sqrt(config.count("hidden_size"))
    return _scaled(factor, row.rounded, dtype, family.handed_over == "unscaled_embeddings")


def _scaled(factor: float, rounded: str | None, dtype: str, outside: bool = False) -> Recipe:
    _, kind = _ROUNDED.get("BF16" if rounded == "bfloat16" else dtype, (None, np.float32))
    if rounded is not None:
        factor = float(kind(factor))
    if rounded is None or dtype not in _ROUNDED:
        return (Scale(factor, outside),)
    return (Scale(factor, outside), Round(_ROUNDED[dtype][0]))


def _per_layer(family: Family, config: Config, dtype: str) -> Recipe:
    """The steps of the per-layer embeddings; empty where the model has none."""
    if not family.per_layer or not config.get("hidden_size_per_layer_input"):
        return ()
    factor = math.sqrt(config.count("hidden_size_per_layer_input"))
    steps = (_scaled(factor, "weights", dtype) if isinstance(step, Scale) else (step,) for step in family.per_layer)
    return tuple(step for part in steps for step in part)


def _is_there(step: Step, family: Family, config: Config) -> bool:
    """Whether a checkpoint with this config has the step at all."""
    if isinstance(step, Scale) and family.scale and family.scale.switch and not config.get(family.scale.switch):
        return False
    if isinstance(step, Linear) and family.projected == "if_narrower":
        return config.table_width() != config.count("hidden_size")
    return all(config.holds(condition) for condition in family.only_if.get(type(step), ()))


def _with_stored(recipe: Recipe, family: Family, prefix: str, checkpoint: Checkpoint) -> Recipe:
    """Sinusoids the file holds are looked up: they are what the model was trained with."""
    if family.stored is None or prefix + family.stored not in checkpoint.tensors:
        return recipe
    return tuple(AddPosition(family.stored) if isinstance(step, AddSinusoid) else step for step in recipe)


def _extras(family: Family, config: Config, recipe: Recipe) -> tuple[Extra, ...]:
    found: dict[str, Extra] = {}
    for step in recipe:
        if isinstance(step, AddIndexed):
            key = family.extras[step.index]
            rows = config.count(key.removeprefix("-"))
            found[step.index] = Extra(step.index, rows, missing=-1 if key.startswith("-") else 0)
        elif isinstance(step, TokenDropout):
            found[MASKED] = Extra(MASKED, 1 << 31, token=step.mask_id)
            found[ATTENDED] = Extra(ATTENDED, 1 << 31)
    return tuple(found.values())


def _encodings(found: Encodings, prefix: str, checkpoint: Checkpoint, naming: Naming) -> Encodings:
    """The same with tensor names as the file holds them; a file of the input layer alone holds no bucket table."""
    if (row := found.buckets) is None or row.table is None:
        return found
    if prefix + row.table not in checkpoint.tensors:
        return replace(found, buckets=replace(row, table=None, norm=None))
    names = {name: naming(name) for name in found.tables}
    norm = row.norm and (names[row.norm[0]], names[row.norm[1]], row.norm[2])
    return replace(found, buckets=replace(row, table=names[row.table], norm=norm))


def _refuse_variants(family: Family, config: Config) -> None:
    """Config switches that change the arithmetic of a family and that no row computes."""
    usual_type = {} if "position_embedding_type" in family.defaults else {"position_embedding_type": "absolute"}
    for key, only in {**usual_type, **family.only}.items():
        usual = config.get(only.name) if isinstance(only, Key) else only
        if (value := config.inside(key)) not in (None, usual):
            raise BadCheckpoint(
                f"config.json says {key} {value!r}; of {config.get('model_type')!r} only {usual!r} is computed"
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
    return tuple(renamed(step, on_disk(family, prefix, checkpoint)) for step in steps)


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
    elif isinstance(step, AddSinusoid):
        zero_row = config.pad_id() if family.numbering == "cumsum_non_pad" else None
        step = replace(step, dim=config.count("hidden_size"), zero_row=zero_row)
    elif isinstance(step, TokenDropout):
        step = replace(step, mask_id=config.count("mask_token_id", least=0))
    return renamed(step, lambda name: name.replace("{block}", str(block)))


def renamed(node: Node, name_of: Naming) -> Node:
    """The step, or the Linear of a step, with every tensor name replaced."""
    changes: dict[str, Any] = {}
    for field in fields(node):  # type: ignore[arg-type]
        value = getattr(node, field.name)
        if is_dataclass(value):
            changes[field.name] = renamed(value, name_of)
        elif field.name in TENSORS and value is not None:
            changes[field.name] = name_of(value)
    return replace(node, **changes)  # type: ignore[type-var]

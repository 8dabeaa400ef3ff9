"""Fits a family to one checkpoint: the file's tensor names, the config's values, every shape checked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from models.checkpoints.checkpoint import Checkpoint, read_tensors
from models.errors import BadCheckpoint
from models.families import FAMILIES, family_for_side, text_tower
from models.families.adapters import Adapters, adapters_of
from models.families.assumptions import assume_decoder
from models.families.attention_direction import Attention, with_attention
from models.families.block_filling import block_steps, uncomputed
from models.families.config import Config
from models.families.encoding_fitting import fit_encodings, unless_refused
from models.families.family import ConfigKey, Family, Side, Types, read_config
from models.families.filling import extra_inputs, input_layer, per_layer_steps, position_rule
from models.families.head_fitting import fit_head
from models.families.tensor_names import TensorNaming, checkpoint_naming, find_prefix
from models.families.tensor_parts import StoredPart, read_parts
from models.families.tensor_shapes import Shape, encoding_shapes, expected_shapes, per_layer_shapes
from models.positions.learned import PositionRule
from models.recipes.extra_inputs import Extra
from models.recipes.heads import OutputHead
from models.recipes.positional_encodings import Buckets, Encodings
from models.recipes.steps import AddPosition, AddSinusoid, AddType, Decode, Embed, Recipe, renamed, tables, tensors
from models.tables.quantization import RowSource


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A family fitted to one checkpoint: steps with the file's tensor names, and the sizes its config promises.

    Attributes:
        model_type: the family's; of a checkpoint with several towers that of its text.
        family: the family.
        config: the checkpoint's config.
        recipe: the steps of the input layer.
        encoder: the steps of all blocks; empty where the family's blocks are not exported or the checkpoint has none.
        position: how tokens are numbered.
        encodings: positional encodings of the attention, with the file's tensor names.
        shapes: the shape every named tensor must have.
        prefix: prefix of the base class's tensor names in the file.
        extras: inputs of the graphs for each token besides id, position and segment.
        per_layer: steps to the embeddings each layer has of its own; empty: it has none.
        assumed: assumptions about an unknown model_type, or taken from --attention, in sentences.
        head: how hidden states become logits; None: it is not exported, for the reason in `no_head_reason`.
        parts: tensors that the file holds as parts of others, by name.
        no_blocks_reason: why there is no `encoder`; None: there is one.
        tasks: names of the tasks that the file holds adapters of; empty: it holds none.
    """

    model_type: str
    family: Family
    config: Config
    recipe: Recipe
    encoder: Recipe
    position: PositionRule
    encodings: Encodings
    shapes: dict[str, tuple[int, ...]]
    prefix: str = ""
    extras: tuple[Extra, ...] = ()
    per_layer: Recipe = ()
    assumed: tuple[str, ...] = ()
    head: OutputHead | None = None
    no_head_reason: str | None = None
    parts: Mapping[str, StoredPart] = field(default_factory=dict)
    no_blocks_reason: str | None = None
    tasks: tuple[str, ...] = ()

    @property
    def token_width(self) -> int:
        """The width of the rows behind the blocks, or of the input layer alone."""
        ends = self.family.output_width if self.encoder else None
        return self.config.count(ends or "hidden_size")

    @property
    def pad_id(self) -> int | None:
        """The id of the padding token; None: the model has none."""
        return self.config.pad_id()

    @property
    def type_rows(self) -> int:
        """Rows of the segment table; 0: there is none."""
        return next((self.shapes[step.table][0] for step in self.recipe if isinstance(step, AddType)), 0)

    @property
    def types(self) -> Types:
        """What the model does with segments: the family's rule, unless this checkpoint has no segment table."""
        return self.family.types if self.type_rows else "none"

    @property
    def usual_recipe(self) -> Recipe:
        """The input layer for rows whose caller sent no types."""
        if self.types != "optional":
            return self.recipe
        return tuple(step for step in self.recipe if not isinstance(step, AddType))

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor the model needs, each once."""
        names = tensors(self.recipe + self.per_layer + self.encoder) + self.encodings.tables
        return tuple(dict.fromkeys(names + (self.head.tensors if self.head else ())))

    @property
    def side(self) -> Side | None:
        """The side that is computed, of a model that has two; None: both, or it has one."""
        return None if any(isinstance(step, Decode) for step in self.encoder) else self.family.side

    @property
    def tables(self) -> tuple[str, ...]:
        """The tensors whose rows are looked up, and the matrix of the output head."""
        decoders = (step.steps for step in self.encoder if isinstance(step, Decode))
        names = tables((*self.recipe, *self.per_layer, *chain.from_iterable(decoders)))
        return tuple(dict.fromkeys((*names, *([self.head.matrix] if self.head else []))))

    def read(self, checkpoint: Checkpoint) -> dict[str, RowSource]:
        """Return every tensor the model needs, by name; errors as read_tensors."""
        return read_parts(checkpoint, self.parts, self.tensors)


def fit(
    checkpoint: Checkpoint,
    side: str | None = None,
    assume: bool = False,
    attention: Attention | None = None,
    classifies: bool = True,
) -> FittedModel:
    """Fit the family of a checkpoint to it.

    Args:
        checkpoint: config and tensor headers of the checkpoint; no tensor is read.
        side: encoder or decoder, of a family that has both; None: its encoder.
        assume: treat an unknown model_type as a plain decoder, where its tensors and config fit one.
        attention: how a decoder attends, instead of what its config says.
        classifies: if no side is named, both are computed where the config names a class that classifies by both.

    Raises:
        UnknownFamily: the model_type is unknown and no plain decoder, or has no such side.
        BadCheckpoint: config and tensors do not make a model of this family, or `attention` is of no decoder.
    """
    model_type, data = text_tower(checkpoint.model_type, checkpoint.config)
    assumed: tuple[str, ...] = ()
    if model_type in FAMILIES:
        family = family_for_side(model_type, FAMILIES[model_type], side)
        family = family if side is None and classifies else replace(family, decoder=None)
    else:
        family, assumed = assume_decoder(model_type, data, checkpoint, assume)
    model_type, family, data = variant_of(model_type, family, data, checkpoint.tensors)
    config = read_config(family, data)
    _check_required_values(family, config)
    config.pad_id()  # raises for one outside the vocabulary
    note = None
    if attention:
        config, note = with_attention(family, config, attention)
    fitted = _with_head(_fitted(model_type, family, config, checkpoint, assumed), checkpoint)
    return replace(fitted, assumed=(*fitted.assumed, note)) if note else fitted


def variant_of(
    model_type: str, family: Family, data: Mapping[str, Any], tensor_names: Iterable[str] = ()
) -> tuple[str, Family, Mapping[str, Any]]:
    """Return the arguments, or the family and config of the variant that the config and tensor names show."""
    config = Config(data, family.defaults, family.names)
    for condition, (own_type, variant) in family.variants.items():
        inside = condition.startswith(".") and any(condition in name for name in tensor_names)
        if inside or config.holds(condition):
            return variant_of(own_type, variant, {**data, "model_type": own_type}, tensor_names)
    return model_type, family, data


def _check_required_values(family: Family, config: Config) -> None:
    """Raise BadCheckpoint for config values that change the arithmetic of a family in a way that is not computed."""
    usual_type = {} if "position_embedding_type" in family.defaults else {"position_embedding_type": "absolute"}
    for key, required in {**usual_type, **family.required_values}.items():
        only = config.get(required.name) if isinstance(required, ConfigKey) else required
        if (value := config.inside(key)) not in (None, only):
            raise BadCheckpoint(
                f"config.json says {key} {value!r}; of {config.get('model_type')!r} only {only!r} is computed"
            )


def _fitted(
    model_type: str, family: Family, config: Config, checkpoint: Checkpoint, assumed: tuple[str, ...]
) -> FittedModel:
    """Return the family fitted to the checkpoint, its output head still missing."""
    prefix = find_prefix(family, checkpoint, config)
    parts: dict[str, StoredPart] = {}
    adapters = adapters_of(family, config, prefix, checkpoint, parts)
    fitting = _Fitting(model_type, family, config, checkpoint, prefix, parts, adapters)
    recipe, per_layer = fitting.input_layer()
    fitted = fitting.encodings()
    encodings = fitting.encodings_in_file(fitted)
    encoder, reason = fitting.checked_blocks(fitted)
    shapes = fitting.shapes(recipe + encoder, per_layer, encodings)
    tasks = adapters.tasks if adapters else ()
    return FittedModel(
        model_type=model_type,
        family=family,
        config=config,
        recipe=recipe,
        encoder=encoder,
        position=fitting.position_rule(recipe, shapes, bool(encoder)),
        encodings=encodings,
        shapes=shapes,
        prefix=prefix,
        extras=extra_inputs(family, config, recipe, len(tasks)),
        per_layer=per_layer,
        assumed=assumed,
        parts=parts,
        no_blocks_reason=reason,
        tasks=tasks,
    )


def _with_head(model: FittedModel, checkpoint: Checkpoint) -> FittedModel:
    """Return the model with its output head, or why it has none."""
    word_table = next((step.table for step in model.recipe if isinstance(step, Embed)), None)
    assumed = model.assumed
    head, reason = fit_head(checkpoint, model.model_type, word_table, assumed=bool(assumed))
    if assumed and head:
        assumed += (f"logits are hidden states times {head.matrix!r}, with nothing before or after it",)
    return replace(model, head=head, no_head_reason=reason, assumed=assumed)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A family that is being fitted to a checkpoint.

    Attributes:
        prefix: prefix of the base class's tensor names in the file.
        parts: gets the tensors that are parts of others, by name.
        adapters: None: the file holds none.
    """

    model_type: str
    family: Family
    config: Config
    checkpoint: Checkpoint
    prefix: str
    parts: dict[str, StoredPart]
    adapters: Adapters | None

    def naming(self, fused: bool = False) -> TensorNaming:
        """Return the function from a name of the base class to the file's; parts of tensors are recorded if `fused`."""
        noted = (self.config, self.parts) if fused else None
        return checkpoint_naming(self.family, self.prefix, self.checkpoint, noted)

    def input_layer(self) -> tuple[Recipe, Recipe]:
        """Return the steps before the first block, and those to the embeddings that each layer has of its own."""
        naming = self.naming()
        dtype = self.checkpoint.tensors[naming(tensors(self.family.input_layer)[0])].dtype
        steps = input_layer(self.family, self.config, dtype)
        if self._sinusoids():  # those that the file holds, with which the model was trained
            table = AddPosition(str(self.family.sinusoid_table))
            steps = tuple(table if isinstance(step, AddSinusoid) else step for step in steps)
        per_layer = per_layer_steps(self.family, self.config, dtype)
        return self._renamed(steps, naming), renamed(per_layer, naming)

    def encodings(self) -> Encodings:
        """Return the encodings, with the frequencies of the file if it holds some."""
        fitted, end = fit_encodings(self.family, self.config, self.model_type), self.family.stored_frequencies
        held = (each for each in self.checkpoint.tensors if end and each.startswith(self.prefix) and each.endswith(end))
        name = next(held, None)
        if name is None or not fitted.ropes:
            return fitted
        values = tuple(read_tensors(self.checkpoint, [name])[name].astype(np.float64).tolist())
        ropes = {}
        for key, table in fitted.ropes.items():
            if len(values) != len(table.inverse_frequency):
                raise BadCheckpoint(
                    f"{name!r} has {len(values)} frequencies, but config.json makes it {len(table.inverse_frequency)}"
                )
            ropes[key] = replace(table, rope=replace(table.rope, stored=values), inverse_frequency=values)
        return replace(fitted, ropes=ropes)

    def encodings_in_file(self, encodings: Encodings) -> Encodings:
        """Return the encodings with the file's tensor names.

        A file of an input layer alone holds no bucket table; one of another shape is refused.
        """
        if (buckets := encodings.buckets) is None or buckets.table is None:
            return encodings
        if self.prefix + buckets.table not in self.checkpoint.tensors:
            return replace(encodings, buckets=replace(buckets, table=None, norm=None))

        def in_file() -> Buckets:
            naming = self.naming()
            names = {name: naming(name) for name in encodings.tables}
            norm = buckets.norm and (names[buckets.norm[0]], names[buckets.norm[1]], buckets.norm[2])
            named = replace(buckets, table=names[str(buckets.table)], norm=norm)
            self._check_shapes(encoding_shapes(replace(encodings, buckets=named), self.config))
            return named

        refused = dict(encodings.refused)
        return replace(encodings, buckets=unless_refused(refused, buckets.kind, in_file, None), refused=refused)

    def checked_blocks(self, encodings: Encodings) -> tuple[Recipe, str | None]:
        """Return the steps of all blocks, or why there are none; faulty blocks of a decoder are such a reason."""
        try:
            blocks, reason = self._blocks(encodings)
            self._check_shapes(expected_shapes(blocks, self.config, self.family))
        except BadCheckpoint as error:
            if self.family.causal is not True:
                raise
            self.parts.clear()
            return (), str(error)
        return blocks, reason

    def shapes(self, steps: Recipe, per_layer: Recipe, encodings: Encodings) -> dict[str, Shape]:
        """Return the shape of every tensor, after checking that the file's tensors have it."""
        shapes = expected_shapes(steps, self.config, self.family) | encoding_shapes(encodings, self.config)
        shapes |= per_layer_shapes(per_layer, self.config)
        if name := self._sinusoids():  # of any number of rows
            shapes[name] = (self.checkpoint.tensors[name].shape[0], self.config.count("hidden_size"))
        self._check_shapes(shapes)
        return shapes

    def position_rule(self, recipe: Recipe, shapes: Mapping[str, Shape], whole: bool) -> PositionRule:
        """Return the position rule, with the rows of the file's position table if there is one.

        Where the blocks compute only shorter texts (`whole`: there are blocks), with as many rows as these have.
        """
        rule = position_rule(self.family, self.config)
        table = next((step.table for step in recipe if isinstance(step, AddPosition)), None)
        rule = rule if table is None else replace(rule, rows=shapes[table][0])
        longest = self.family.longest(self.config) if whole and self.family.longest else None
        return rule if longest is None else replace(rule, rows=min(longest, rule.rows or longest))

    def _sinusoids(self) -> str | None:
        """Return the name of the file's own sinusoids; None if it holds none."""
        table = self.family.sinusoid_table
        return self.prefix + table if table is not None and self.prefix + table in self.checkpoint.tensors else None

    def _blocks(self, encodings: Encodings) -> tuple[Recipe, str | None]:
        family, config, prefix, checkpoint = self.family, self.config, self.prefix, self.checkpoint
        if reason := checkpoint.no_blocks_reason or uncomputed(self.model_type, family, config, encodings):
            return (), reason
        if family.causal is not True and config.get("is_decoder"):
            return (), "config.json says is_decoder true"
        stem = tensors(family.block)[0].partition("{block}")[0]
        stems = {stem, *(place.partition("{block}")[0] for place in _places(family))}
        held = set(checkpoint.tensors) - {prefix + table for table in encodings.tables}
        if not any(name.startswith(prefix + first) for name in held for first in stems):
            return (), f"the checkpoint has no blocks: no tensor's name begins with {prefix + stem!r}"
        naming = self.naming(fused=not checkpoint.separate)
        return self._renamed(block_steps(family, config, encodings), naming), None

    def _renamed(self, steps: Recipe, naming: TensorNaming) -> Recipe:
        """Return steps with the file's tensor names and with their adapters."""
        return renamed(tuple(map(self.adapters.added, steps)) if self.adapters else steps, naming)

    def _check_shapes(self, shapes: Mapping[str, Shape]) -> None:
        for name, shape in shapes.items():
            held = self.parts[name] if name in self.parts else self.checkpoint.tensors[name]
            if held.shape != shape:
                raise BadCheckpoint(
                    f"{self.checkpoint.folder}: {name!r} has shape {list(held.shape)}, but config.json makes it "
                    f"{list(shape)}: download both again, from one place"
                )


def _places(family: Family) -> list[str]:
    return [
        place if isinstance(place, str) else place.stem
        for stem, places in family.stored.items()
        if "{block}" in stem
        for place in places
    ]

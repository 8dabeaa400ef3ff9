"""The tensors of a created checkpoint: their names and shapes as in published files, and which are not random."""

from dataclasses import dataclass, replace

from models.errors import ModelError
from models.families.block_filling import block_steps, uncomputed
from models.families.config import Config
from models.families.encoding_fitting import fit_encodings
from models.families.family import Family
from models.families.filling import input_layer
from models.families.tensor_names import parts
from models.families.tensor_shapes import Shape, encoding_shapes, expected_shapes, per_layer_shapes
from models.recipes.positional_encodings import Encodings
from models.recipes.steps import LayerNorm, Multiply, Recipe, RMSNorm, parts_of


@dataclass(frozen=True, slots=True)
class DrawnTensor:
    """A tensor to write.

    Attributes:
        shape: shape in the file.
        outputs, inputs: rows and columns of the matrix that it is applied as.
        constant: the value of all its elements; None: they are drawn.
    """

    shape: Shape
    outputs: int
    inputs: int
    constant: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """The tensors of a created checkpoint.

    Attributes:
        input_layer: the steps before the first block.
        tensors: tensors by name, without the family's prefix.
    """

    input_layer: Recipe
    tensors: dict[str, DrawnTensor]


def layout(family: Family, config: Config, model_type: str, whole: bool) -> CheckpointLayout:
    """Return the tensors of a family's input layer, and of all its blocks where `whole`.

    Raises:
        ModelError: the blocks are not computed, or the sizes do not fit one another.
    """
    recipe, encodings = input_layer(family, config), fit_encodings(family, config, model_type)
    blocks: Recipe = ()
    if whole:
        if reason := uncomputed(model_type, family, config, encodings):
            raise ModelError(f"model_type {model_type!r} cannot be created whole: {reason}; leave out --whole")
        blocks = block_steps(family, config, encodings)
    shapes = expected_shapes(recipe + blocks, config, family) | encoding_shapes(encodings, config)
    shapes |= per_layer_shapes(family.per_layer, config)
    return CheckpointLayout(recipe, _stored(family, config, shapes, _norm_weights(recipe + blocks, encodings)))


def _stored(
    family: Family, config: Config, shapes: dict[str, Shape], norm_weights: dict[str, float]
) -> dict[str, DrawnTensor]:
    """Return the tensors as published files of the family hold them: some fused, some transposed."""
    stored: dict[str, DrawnTensor] = {}
    transposed: set[str] = set()
    stacked: dict[str, int] = {}
    for name, shape in shapes.items():
        place = next(iter(parts(family, name)), name)
        held = place if isinstance(place, str) else place.stem
        if not isinstance(place, str) and place.experts:  # each expert's matrix is transposed by itself
            shape = shape[::-1] if place.transposed else shape
            stacked |= {held: place.experts(config)} if place.stacked else {}
        elif not isinstance(place, str) and place.transposed and len(shape) == 2:
            transposed.add(held)
        rows = shape[0] + (stored[held].outputs if held in stored else 0)
        columns = shape[1] if len(shape) == 2 else 1
        constant = norm_weights.get(name, 0.0) if len(shape) == 1 else None
        stored[held] = DrawnTensor((rows, *shape[1:]), rows, columns, constant)
    shapes = {name: tensor.shape[::-1] if name in transposed else tensor.shape for name, tensor in stored.items()}
    shapes |= {name: (count, shapes[name][0] // count, shapes[name][1]) for name, count in stacked.items()}
    return {name: replace(tensor, shape=shapes[name]) for name, tensor in stored.items()}


def _norm_weights(recipe: Recipe, encodings: Encodings) -> dict[str, float]:
    """Return the value of each weight that multiplies values by 1: 0 if the file holds a norm's offset from 1."""
    steps = [part for step in recipe for part in parts_of(step)]
    weights = {
        part.weight: 1.0 - part.offset for part in steps if isinstance(part, LayerNorm | RMSNorm) and part.weight
    }
    weights |= {part.weight: 1.0 for part in steps if isinstance(part, Multiply)}
    if encodings.buckets and encodings.buckets.norm:
        weights[encodings.buckets.norm[0]] = 1.0
    return weights

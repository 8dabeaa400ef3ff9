"""The blocks of a vision tower, and the steps to an image's vector, fitted to one checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from models.checkpoints.checkpoint import Checkpoint
from models.errors import BadCheckpoint, ModelError
from models.families.block_filling import block_steps, filled_feed_forward, of_another_form
from models.families.config import ACTIVATIONS, Config
from models.families.family import Family as BlockFamily
from models.families.filling import fill_step
from models.families.tensor_names import checkpoint_naming, place_of
from models.families.tensor_parts import StoredPart
from models.families.tensor_shapes import expected_shapes
from models.positions.rope.axial import AXIAL, axial_parts
from models.positions.rope.scaling_parameters import positive
from models.recipes.positional_encodings import EVERY_LAYER, Encodings
from models.recipes.sentence_modules import Dense
from models.recipes.steps import FeedForward, LayerNorm, Linear, Recipe, renamed, tensors
from models.vision.families import Family
from models.vision.image_spec import AxialRope
from models.vision.steps import AddToRow, AttentionPool, VectorStep, VectorSteps

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FittedBlocks:
    """The steps after the input layer of one checkpoint, with the file's tensor names.

    Attributes:
        encoder: the steps of all blocks, and of what is behind the last; empty: they are not exported.
        vector: steps from their rows to an image's vector; empty: the checkpoint makes none.
        width: width of this vector.
        shapes: shapes of the tensors of both.
        parts: tensors among them that the file holds as parts of others.
        no_blocks_reason: why there is no `encoder`; None: there is one.
    """

    encoder: Recipe = ()
    vector: VectorSteps = ()
    width: int = 0
    shapes: dict[str, Shape] = field(default_factory=dict)
    parts: dict[str, StoredPart] = field(default_factory=dict)
    no_blocks_reason: str | None = None


def axial_of(family: Family, config: Config) -> AxialRope | None:
    """Return the axial RoPE of a tower's attention; None where there is none.

    Raises:
        BadCheckpoint, BadEncoding: the config makes no such table.
    """
    if (kind := family.axial) is None:
        return None
    parameters = config.get("rope_parameters")
    theta = parameters.get("rope_theta") if isinstance(parameters, Mapping) else config.get("rope_theta")
    base = AXIAL[kind].theta if theta is None else positive("rope_theta", theta)
    merge = 1 if config.get("spatial_merge_size") is None else config.count("spatial_merge_size")
    rope = AxialRope(kind, config.head_dim(), base, merge, AXIAL[kind].layout)
    axial_parts(AXIAL[kind], rope.head_dim, rope.theta, "exact")
    return rope


def fit_blocks(family: Family, config: Config, prefix: str, checkpoint: Checkpoint) -> FittedBlocks:
    """Return the blocks of a checkpoint's tower.

    Args:
        family: the tower's.
        config: the tower's.
        prefix: prefix of the tower's tensor names in the file.
        checkpoint: the opened checkpoint.

    Raises:
        BadCheckpoint: the config makes no such blocks.
    """
    if (blocks := family.blocks) is None:
        return FittedBlocks(no_blocks_reason=family.uncovered)
    if reason := of_another_form(blocks, config):
        return FittedBlocks(no_blocks_reason=reason)
    encodings = Encodings()
    try:
        axial = axial_of(family, config)
    except ModelError as error:
        return FittedBlocks(no_blocks_reason=str(error))
    if axial:
        layers = (EVERY_LAYER,) * config.count("num_hidden_layers", least=0)
        encodings = Encodings({EVERY_LAYER: axial.table}, layers)
    filled = block_steps(blocks, config, encodings)
    if not any(_is_held(blocks, prefix, checkpoint, name) for name in tensors(filled)):
        return FittedBlocks(no_blocks_reason="the checkpoint holds no tensor of a block")
    config.heads()  # raises where they do not divide the width
    parts: dict[str, StoredPart] = {}
    naming = checkpoint_naming(blocks, prefix, checkpoint, (config, parts))
    encoder = renamed(filled, naming)
    shapes = expected_shapes(encoder, config)
    steps = _vector_steps(family, blocks, config, prefix, checkpoint)
    width = config.count("hidden_size")
    for step in steps:
        shapes |= _vector_shapes(step, config, checkpoint)
        if isinstance(step, Linear | Dense):
            width = shapes[tensors((step,))[0]][0]
    return FittedBlocks(encoder, steps, width if steps else 0, shapes, parts)


def _is_held(blocks: BlockFamily, prefix: str, checkpoint: Checkpoint, name: str) -> bool:
    try:
        place_of(blocks, prefix, checkpoint, name, fused=True)
    except BadCheckpoint:
        return False
    return True


def _vector_steps(
    family: Family, blocks: BlockFamily, config: Config, prefix: str, checkpoint: Checkpoint
) -> VectorSteps:
    """Return the steps with the file's names; a projection may lie beside the tower, and a file may hold none."""
    steps: list[VectorStep] = []
    for step in family.vector:
        names = tensors((step,))
        places = (prefix, prefix.removesuffix(family.prefix)) if isinstance(step, Linear) else (prefix,)
        place = next((place for place in places if not names or place + names[0] in checkpoint.tensors), None)
        if place is not None:
            steps.append(_filled(step, blocks, config, place))
        elif not isinstance(step, Linear | Dense):  # a file without the tower's head
            return ()
    return tuple(steps)


def _filled(step: VectorStep, blocks: BlockFamily, config: Config, prefix: str) -> VectorStep:
    filled: VectorStep = step
    match step:
        case AttentionPool():
            filled = replace(step, heads=config.count("num_attention_heads"))
        case FeedForward():
            filled = filled_feed_forward(step, blocks, config)
        case AddToRow(_, feed_forward):
            filled = replace(step, feed_forward=filled_feed_forward(feed_forward, blocks, config))
        case Dense():
            filled = replace(step, activation=config.choice("pooler_act", ACTIVATIONS))
        case LayerNorm():
            norm = fill_step(step, blocks, config)
            assert isinstance(norm, LayerNorm)
            filled = norm
    return renamed(filled, lambda name: prefix + name)


def _vector_shapes(step: VectorStep, config: Config, checkpoint: Checkpoint) -> dict[str, Shape]:
    hidden = config.count("hidden_size")
    match step:
        case AttentionPool(probe, weight, bias, output, _, query):
            parts = 2 if query else 3
            shapes: dict[str, Shape] = {probe: (hidden,), weight: (parts * hidden, hidden), bias: (parts * hidden,)}
            for linear in (output, query) if query else (output,):
                shapes |= {linear.weight: (hidden, hidden), str(linear.bias): (hidden,)}
            return shapes
        case AddToRow(_, feed_forward):
            return expected_shapes((feed_forward,), config)
        case Linear(weight, bias) | Dense(Linear(weight, bias)):
            outputs = checkpoint.tensors[weight].shape[0]
            return {weight: (outputs, hidden)} | ({bias: (outputs,)} if bias else {})
        case FeedForward() | LayerNorm():
            return expected_shapes((step,), config)
    return {}

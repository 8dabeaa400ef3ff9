"""The blocks of a vision tower, and the steps to an image's vector, fitted to one checkpoint."""

from dataclasses import dataclass, field, replace

from models.checkpoints.checkpoint import Checkpoint
from models.families.block_filling import block_steps, filled_feed_forward
from models.families.config import Config
from models.families.family import Family as BlockFamily
from models.families.filling import fill_step, renamed
from models.families.tensor_shapes import expected_shapes
from models.recipes.positional_encodings import Encodings
from models.recipes.steps import FeedForward, LayerNorm, Linear, Recipe, tensors
from models.vision.families import Family
from models.vision.steps import AttentionPool, VectorStep, VectorSteps

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FittedBlocks:
    """The steps after the input layer of one checkpoint, with the file's tensor names.

    Attributes:
        encoder: the steps of all blocks, and of what is behind the last; empty: they are not exported.
        vector: steps from their rows to an image's vector; empty: the checkpoint makes none.
        width: width of this vector.
        shapes: shapes of the tensors of both.
        no_blocks_reason: why there is no `encoder`; None: there is one.
    """

    encoder: Recipe = ()
    vector: VectorSteps = ()
    width: int = 0
    shapes: dict[str, Shape] = field(default_factory=dict)
    no_blocks_reason: str | None = None


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
    if family.blocks is None:
        return FittedBlocks(no_blocks_reason=family.uncovered)
    filled = block_steps(family.blocks, config, Encodings())
    named = expected_shapes(filled, config)
    if not any(prefix + name in checkpoint.tensors for name in named):
        return FittedBlocks(no_blocks_reason="the checkpoint holds no tensor of a block")
    config.heads()  # raises where they do not divide the width
    encoder = tuple(renamed(step, lambda name: prefix + name) for step in filled)
    shapes = {prefix + name: shape for name, shape in named.items()}
    steps = _vector_steps(family, family.blocks, config, prefix, checkpoint)
    width = config.count("hidden_size")
    for step in steps:
        shapes |= _vector_shapes(step, config, checkpoint)
        if isinstance(step, Linear):
            width = shapes[step.weight][0]
    return FittedBlocks(encoder, steps, width if steps else 0, shapes)


def _vector_steps(
    family: Family, blocks: BlockFamily, config: Config, prefix: str, checkpoint: Checkpoint
) -> VectorSteps:
    """Return the steps with the file's names; a projection lies beside the tower, not in it."""
    outside = prefix.removesuffix(family.prefix)
    steps: list[VectorStep] = []
    for step in family.vector:
        if isinstance(step, Linear):
            if outside + step.weight in checkpoint.tensors:
                steps.append(renamed(step, lambda name: outside + name))
            continue
        names = tensors((step,))
        if names and prefix + names[0] not in checkpoint.tensors:  # a file without the tower's head
            return ()
        steps.append(_filled(step, blocks, config, prefix))
    return tuple(steps)


def _filled(step: VectorStep, blocks: BlockFamily, config: Config, prefix: str) -> VectorStep:
    match step:
        case AttentionPool():
            pool = replace(step, heads=config.count("num_attention_heads"))
            return renamed(pool, lambda name: prefix + name)
        case FeedForward():
            return renamed(filled_feed_forward(step, blocks, config), lambda name: prefix + name)
        case LayerNorm():
            filled = fill_step(step, blocks, config)
            assert isinstance(filled, LayerNorm)
            return renamed(filled, lambda name: prefix + name)
    return step


def _vector_shapes(step: VectorStep, config: Config, checkpoint: Checkpoint) -> dict[str, Shape]:
    hidden = config.count("hidden_size")
    match step:
        case AttentionPool(probe, weight, bias, output):
            return {probe: (hidden,), weight: (3 * hidden, hidden), bias: (3 * hidden,)} | {
                output.weight: (hidden, hidden),
                str(output.bias): (hidden,),
            }
        case Linear(weight):
            return {weight: (checkpoint.tensors[weight].shape[0], hidden)}
        case FeedForward() | LayerNorm():
            return expected_shapes((step,), config)
    return {}

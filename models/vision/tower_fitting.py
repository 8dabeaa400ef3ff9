"""An image tower in front of a decoder, fitted to one checkpoint: tensor names, config values, checked shapes."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.page_texts import NESTED
from models.errors import BadCheckpoint
from models.families.block_filling import block_steps
from models.families.config import Config
from models.families.tensor_names import TensorNaming, checkpoint_naming
from models.families.tensor_parts import StoredPart
from models.families.tensor_shapes import expected_shapes
from models.recipes.positional_encodings import EVERY_LAYER, Encodings
from models.recipes.steps import Attention, LayerNorm, Linear, Recipe, RMSNorm, renamed, tensors
from models.vision.families import TOWERS, TokenRows
from models.vision.fitting import FittedTower, fit, image_of, tower
from models.vision.image_spec import Image, ImagePart
from models.vision.steps import Join, RowStep

Shape = tuple[int, ...]
_BESIDE = "multi_modal_projector."


@dataclass(frozen=True, slots=True)
class TokenTower:
    """A tower whose rows a decoder reads.

    Attributes:
        image: its input layer, with the preprocessor.
        width: width of its rows.
        blocks: steps of its blocks.
        parts: parts of the rows of an image's tokens.
        window: side of a window in blocks of patches; 0: there is none.
        token_id: id of an image's tokens.
        shapes: shape of every tensor.
        stored: tensors that the file holds as parts of others, by name.
    """

    image: Image
    width: int
    blocks: Recipe
    parts: tuple[ImagePart, ...]
    window: int
    token_id: int
    shapes: dict[str, Shape] = field(default_factory=dict)
    stored: dict[str, StoredPart] = field(default_factory=dict)


def fit_token_tower(source: Checkpoint, width: int, vocab_size: int) -> TokenTower | None:
    """Return the tower of a checkpoint whose images its decoder reads; None if it has none that is computed.

    Args:
        source: the opened checkpoint.
        width: width of the decoder's rows.
        vocab_size: of the decoder.

    Raises:
        BadCheckpoint: config and tensors do not make such a tower.
    """
    outer = source.config.get(NESTED, source.config)
    row = TOWERS.get(str(outer.get("model_type"))) if isinstance(outer, Mapping) else None
    chosen = tower(outer, row.side) if row else None
    fitted = fit(source, *chosen) if chosen else None
    if fitted is None or fitted.family.token_rows is None:
        return None
    token_id = Config(outer, {}, {"image_token_id": "image_token_index"}).count("image_token_id")
    if token_id >= vocab_size:
        raise BadCheckpoint(f"config.json says image_token_id {token_id}; the vocabulary ends at {vocab_size - 1}")
    return _with_rows(fitted, fitted.family.token_rows, source, width, token_id)


def _with_rows(fitted: FittedTower, rows: TokenRows, source: Checkpoint, width: int, token_id: int) -> TokenTower:
    """Return the tower with its blocks and the steps to the rows of tokens."""
    config, axial = fitted.config, fitted.axial
    prefix = tensors(fitted.steps)[0].removesuffix(tensors(fitted.family.steps)[0])
    stored: dict[str, StoredPart] = {}
    naming = _naming(checkpoint_naming(rows.blocks, prefix, source, (config, stored)), source)
    layers = (EVERY_LAYER,) * config.count("num_hidden_layers")
    blocks = block_steps(rows.blocks, config, Encodings({EVERY_LAYER: axial.table}, layers) if axial else Encodings())
    parts = _parts(rows, config, len(rows.blocks.block))
    named = expected_shapes(blocks, config)
    for part in parts:
        named |= _part_shapes(part, config.count("hidden_size"), width)
    shapes = {naming(key): shape for key, shape in named.items()}
    _check(source, shapes, stored)
    side = config.count("patch_size") * (axial.merge if axial else 1)
    return TokenTower(
        replace(image_of(fitted, source.folder), axial=axial),
        fitted.hidden_size,
        renamed(_windowed(blocks, config) if rows.windowed else blocks, naming),
        tuple(renamed(part, naming) for part in parts),
        config.count("window_size") // side if rows.windowed else 0,
        token_id,
        fitted.shapes | shapes,
        stored,
    )


def _naming(of_tower: TensorNaming, source: Checkpoint) -> TensorNaming:
    """Return the naming of a tower, and of a projector that lies beside it, under any one prefix."""

    def name_in_file(name: str) -> str:
        held = [each for each in source.tensors if each == name or each.endswith("." + name)]
        return held[0] if name.startswith(_BESIDE) and len(held) == 1 else of_tower(name)

    return name_in_file


def _windowed(blocks: Recipe, config: Config) -> Recipe:
    """Return blocks whose attention stays in windows, but for the layers that config.json lists."""
    full = config.get("fullatt_block_indexes")
    if not isinstance(full, list | tuple) or not all(type(layer) is int for layer in full):
        raise BadCheckpoint(f"config.json says fullatt_block_indexes {full!r}; it must be a list of layers")
    layers = itertools.count()
    return tuple(
        replace(step, windowed=next(layers) not in full) if isinstance(step, Attention) else step for step in blocks
    )


def _parts(rows: TokenRows, config: Config, per_block: int) -> tuple[ImagePart, ...]:
    """Return the parts with the names of the class; each is made behind a block of the tower."""
    depth = config.count("num_hidden_layers")
    deep = (config.get("deepstack_visual_indexes") or []) if rows.deep else []
    if not isinstance(deep, list | tuple) or not all(type(layer) is int and 0 <= layer < depth for layer in deep):
        raise BadCheckpoint(f"config.json says deepstack_visual_indexes {deep!r}; it must be a list of layers")
    parts = [(depth * per_block + len(rows.blocks.after_blocks), rows.steps)]
    parts += [((layer + 1) * per_block, _numbered(rows.deep, number)) for number, layer in enumerate(deep)]
    return tuple(ImagePart(behind, tuple(_joined(step, config) for step in steps)) for behind, steps in parts)


def _joined(step: RowStep, config: Config) -> RowStep:
    return Join(config.count("spatial_merge_size") ** 2) if isinstance(step, Join) else step


def _numbered(steps: tuple[RowStep, ...], number: int) -> tuple[RowStep, ...]:
    return renamed(steps, lambda key: key.format(part=number))


def _part_shapes(part: ImagePart, hidden: int, width: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    last = [step for step in part.steps if isinstance(step, Linear)][-1]
    for step in part.steps:
        match step:
            case Join(count):
                hidden *= count
            case Linear(weight, bias):
                outputs = width if step is last else hidden
                shapes |= {weight: (outputs, hidden)} | ({bias: (outputs,)} if bias else {})
            case LayerNorm(weight, bias):
                shapes |= {name: (hidden,) for name in (weight, bias) if name}
            case RMSNorm(weight):
                shapes |= {weight: (hidden,)} if weight else {}
    return shapes


def _check(source: Checkpoint, shapes: Mapping[str, Shape], stored: Mapping[str, StoredPart]) -> None:
    for name, shape in shapes.items():
        held: Any = stored[name] if name in stored else source.tensors[name]
        if held.shape != shape:
            raise BadCheckpoint(f"{name!r} has shape {list(held.shape)}, but config.json makes it {list(shape)}")

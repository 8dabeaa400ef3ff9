"""A row of vision/families.py fitted to one checkpoint: tensor names in the file, config values, checked shapes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.json_files import read_object
from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.tensor_parts import StoredPart, read_parts
from models.families.tensor_shapes import expected_shapes
from models.recipes.steps import LayerNorm, Recipe, RMSNorm, renamed, tensors
from models.tables.quantization import RowSource
from models.vision import preprocessor_config
from models.vision.block_fitting import axial_of, fit_blocks
from models.vision.families import EPS, FAMILIES, TOWERS, VARIANTS, Family
from models.vision.image_spec import AxialRope, Image
from models.vision.preprocessor_config import Preprocessor
from models.vision.steps import AddGrid, AddRows, Convolve, Insert, Patchify, Project, Step, Steps, VectorSteps

Shape = tuple[int, ...]
PROCESSOR = "processor_config.json"  # newer checkpoints hold the same in it
FIRST_STRIDES = 2  # frames of a spectrogram for each learned position


@dataclass(frozen=True, slots=True)
class FittedTower:
    """A row of FAMILIES fitted to one checkpoint.

    Attributes:
        model_type: the row's name.
        family: the row.
        config: the tower's config.
        steps: steps with the file's tensor names.
        shapes: shape of every exported tensor: without dimensions of one, patches flattened or as convolved.
        width: width of the input: channels of a pixel, values of a flattened patch, bins of a frame.
        encoder: the steps of all blocks, and of what is behind the last; empty: they are not exported.
        vector: steps from the rows behind the blocks to an image's vector; empty: there is none.
        vector_width: width of this vector.
        parts: tensors that the file holds as parts of others, by name.
        no_blocks_reason: why there is no `encoder`; None: there is one.
    """

    model_type: str
    family: Family
    config: Config
    steps: Steps
    shapes: dict[str, Shape]
    width: int
    encoder: Recipe = ()
    vector: VectorSteps = ()
    vector_width: int = 0
    parts: Mapping[str, StoredPart] = field(default_factory=dict)
    no_blocks_reason: str | None = None

    def without_blocks(self) -> "FittedTower":
        """Return the tower's input layer alone."""
        shapes = {name: self.shapes[name] for name in tensors(self.steps)}
        reason = "--encoder none leaves its blocks out"
        return replace(self, shapes=shapes, encoder=(), vector=(), vector_width=0, parts={}, no_blocks_reason=reason)

    def read(self, checkpoint: Checkpoint) -> dict[str, RowSource]:
        """Return every exported tensor in its shape, by name; errors as read_tensors."""
        arrays = read_parts(checkpoint, self.parts, self.shapes)
        return {
            name: arrays[name] if name in self.parts else np.reshape(np.asarray(arrays[name]), shape)
            for name, shape in self.shapes.items()
        }

    @property
    def axial(self) -> AxialRope | None:
        """The axial RoPE of the attention; None where there is none.

        Raises:
            BadCheckpoint, BadEncoding: the config makes no such table; the rows before the first block need none.
        """
        return axial_of(self.family, self.config)

    @property
    def hidden_size(self) -> int:
        """The width of a row."""
        return self.config.count("hidden_size")


def tower(config: Mapping[str, Any], side: str | None) -> tuple[str, Config] | None:
    """Return the row and the config of a checkpoint's vision tower, if that is the side to export.

    Args:
        config: config.json of the checkpoint.
        side: the value of --side; None: not given.

    Returns:
        (name in FAMILIES, config); None where the text side is to be exported.

    Raises:
        BadCheckpoint: the checkpoint has two sides and `side` is missing, or it does not have this side.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return None
    entry = TOWERS.get(model_type)
    if entry is None:
        key, vision_type = VARIANTS.get(model_type, ("", ""))
        if key in config:
            return vision_type, _config(vision_type, config)
        if model_type not in FAMILIES:
            return None
        if side not in (None, "vision"):
            raise BadCheckpoint(f"--side is {side}, but a {model_type} has only the side vision: leave it out")
        return model_type, _config(model_type, config)
    if side is None and entry.required:
        raise BadCheckpoint(f"a {model_type} has two input layers: give --side text or --side {entry.side}")
    if side != entry.side:
        return None
    tower_config = config if entry.config_key is None else config.get(entry.config_key)
    if not isinstance(tower_config, Mapping | None):
        raise BadCheckpoint(f"{entry.config_key} in config.json is {tower_config!r}; it must be an object")
    named = (tower_config or {}).get("model_type")
    name = named if entry.config_key and named in FAMILIES else entry.family
    return name, _config(name, tower_config or {})


def _config(name: str, tower_config: Mapping[str, Any]) -> Config:
    family = FAMILIES[name]
    config = Config(tower_config, family.defaults, family.names)
    described = family.blocks or (family.token_rows.blocks if family.token_rows else None)
    derived = described.derived if described else None
    return replace(config, data={**tower_config, **derived(config)}) if derived else config


def fit(checkpoint: Checkpoint, name: str, config: Config) -> FittedTower:
    """Return a row fitted to a checkpoint.

    Args:
        checkpoint: the opened checkpoint.
        name: the row of FAMILIES.
        config: the tower's config.

    Raises:
        BadCheckpoint: config and tensors do not form a model of this family.
    """
    family = FAMILIES[name]
    present = tuple(step for step in family.steps if _is_present(step, family, config))
    filled = tuple(_with_config_values(step, name, config) for step in present)
    prefix = _prefix(filled[0], family, checkpoint)
    shapes: dict[str, Shape] = {}
    for step in filled:
        for tensor, shape in _shapes(step, config).items():
            shapes[prefix + tensor] = _checked(checkpoint, prefix + tensor, shape)
    behind = fit_blocks(family, config, prefix, checkpoint)
    held = checkpoint.tensors | {name: replace(part.tensor, shape=part.shape) for name, part in behind.parts.items()}
    with_parts = replace(checkpoint, tensors=held)
    shapes |= {tensor: _checked(with_parts, tensor, shape) for tensor, shape in behind.shapes.items()}
    return FittedTower(
        name,
        family,
        config,
        renamed(tuple(filled), lambda name: prefix + name),
        shapes,
        input_width(filled[0], config),
        behind.encoder,
        behind.vector,
        behind.width,
        behind.parts,
        behind.no_blocks_reason,
    )


def _is_present(step: Step, family: Family, config: Config) -> bool:
    if isinstance(step, Insert) and step.table.endswith("register_tokens"):
        return config.count("num_register_tokens", least=0) > 0
    key = family.only_if.get(type(step))
    return key is None or bool(config.get(key))


def side(config: Config, key: str) -> tuple[int, int]:
    """Return (height, width) of a size that is one number or [height, width].

    Raises:
        BadCheckpoint: the config is neither.
    """
    value = config.get(key)
    pair = value if isinstance(value, list | tuple) else [value, value]
    if len(pair) != 2 or not all(type(size) is int and 1 <= size < 1 << 16 for size in pair):
        raise BadCheckpoint(f"config.json says {key} {value!r}; it must be a whole number from 1, or [height, width]")
    return pair[0], pair[1]


def patch(config: Config) -> int:
    """Return the side of a patch.

    Raises:
        BadCheckpoint: patches are not square.
    """
    height, width = side(config, "patch_size")
    if height != width:
        raise BadCheckpoint(f"patch_size in config.json is {[height, width]}; only square patches are supported")
    return height


def input_width(first: Step, config: Config) -> int:
    """Return the number of values of a pixel, of a flattened patch, or of a frame."""
    if isinstance(first, Patchify):
        return config.count("num_channels")
    if isinstance(first, Convolve):
        return config.count("num_mel_bins")
    channels = config.count("in_channels" if config.get("in_channels") is not None else "num_channels")
    return channels * _count_or_one(config, "temporal_patch_size") * patch(config) ** 2


def _count_or_one(config: Config, key: str) -> int:
    return 1 if config.get(key) is None else config.count(key)


def _with_config_values(step: Step, name: str, config: Config) -> Step:
    if isinstance(step, Patchify):
        return replace(step, patch=patch(config))
    if isinstance(step, LayerNorm) and step.eps == EPS:
        return replace(step, eps=config.number("layer_norm_eps"))
    if isinstance(step, AddGrid):
        rows, columns = _source_grid(name, config)
        return replace(step, rows=rows, columns=columns, merge=_count_or_one(config, "spatial_merge_size"))
    return step


def _source_grid(name: str, config: Config) -> tuple[int, int]:
    """Return the rows and columns of the learned positions."""
    if config.get("num_patches") is None:
        height, width = (size // patch(config) for size in side(config, "image_size"))
        if height and width:
            return height, width
        raise BadCheckpoint("image_size in config.json is below patch_size; it must be at least one patch")
    count = config.count("num_patches")
    root = math.isqrt(count)
    if root * root != count:
        raise BadCheckpoint(f"a {name} has {count} learned positions; their number must be a square")
    return root, root


def _shapes(step: Step, config: Config) -> dict[str, Shape]:
    """Return the shape that each tensor of a step must have, apart from dimensions of one."""
    hidden = config.count("hidden_size")
    match step:
        case Patchify(weight, bias, size):
            return {weight: (hidden, config.count("num_channels"), size, size)} | ({bias: (hidden,)} if bias else {})
        case Project(weight, bias):
            return {weight: (hidden, input_width(step, config))} | ({bias: (hidden,)} if bias else {})
        case Insert(table):
            count = config.count("num_register_tokens") if table.endswith("register_tokens") else 1
            return {table: (count, hidden)}
        case AddGrid(table, extra, rows, columns):
            return {table: (extra + rows * columns, hidden)}
        case AddRows(table):
            return {table: (config.count("max_source_positions"), hidden)}
        case Convolve(weight, bias, stride):
            return {weight: (hidden, config.count("num_mel_bins") if stride == 1 else hidden, 3), bias: (hidden,)}
        case LayerNorm() | RMSNorm():
            return expected_shapes((step,), config)
    raise TypeError(f"no shapes for the step {step}")


def _checked(checkpoint: Checkpoint, name: str, shape: Shape) -> Shape:
    if name not in checkpoint.tensors:
        raise BadCheckpoint(f"{checkpoint.folder} holds no tensor {name!r}, which its model_type needs")
    actual = checkpoint.tensors[name].shape
    same = _bare(actual) == _bare(shape) or _flattened(actual) == _flattened(shape)
    if not same:
        raise BadCheckpoint(f"{name!r} has shape {list(actual)}, but config.json makes it {list(shape)}")
    return shape


def _bare(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _flattened(shape: Shape) -> Shape:
    """Return the shape of [d, channels, frames, patch, patch] as a matrix."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 2 else shape


def _prefix(first: Step, family: Family, checkpoint: Checkpoint) -> str:
    """Return the prefix of the base class's tensor names in this file, found by the first step's weight."""
    stem = tensors((first,))[0]
    prefixes = [name.removesuffix(stem) for name in checkpoint.tensors if name == stem or name.endswith("." + stem)]
    for prefix in (family.prefix, ""):
        if prefix in prefixes:
            return prefix
    if len(prefixes) == 1:
        return prefixes[0]
    actual = f"several: {', '.join(sorted(prefix + stem for prefix in prefixes))}" if prefixes else "none"
    raise BadCheckpoint(
        f"{checkpoint.folder} should hold {family.prefix + stem!r} (any one prefix will do), but holds {actual}"
    )


def image_of(fitted: FittedTower, folder: Path) -> Image:
    """Return the card's description of the inputs, without the attention's axial RoPE."""
    config, feed = fitted.config, fitted.family.feed
    first = fitted.steps[0]
    fixed = None
    if isinstance(first, Patchify) and (fitted.family.one_size or any(_is_oblong(step) for step in fitted.steps)):
        fixed = side(config, "image_size")
    frames = FIRST_STRIDES * config.count("max_source_positions") if isinstance(first, Convolve) else None
    preprocessing = None if feed == "features" else _preprocessor(fitted, folder)
    size = 1 if feed == "features" else patch(config)
    return Image(
        fitted.steps,
        feed,
        fitted.width,
        size,
        frames,
        fixed,
        preprocessing,
        vector=fitted.vector,
        vector_width=fitted.vector_width,
    )


def _is_oblong(step: Any) -> bool:
    """Return whether the positions do not form a square; transformers resizes only those of square grids."""
    return isinstance(step, AddGrid) and step.rows != step.columns


def _preprocessor(fitted: FittedTower, folder: Path) -> Preprocessor | None:
    if (folder / preprocessor_config.FILE_NAME).is_file():
        data: Any = read_object(folder / preprocessor_config.FILE_NAME)
    elif (folder / PROCESSOR).is_file():
        data = read_object(folder / PROCESSOR).get("image_processor")
    else:
        return None
    if not isinstance(data, dict):
        return None
    channels = 3 if isinstance(fitted.steps[0], Project) else fitted.width
    preprocessing = preprocessor_config.read(data, fitted.family.processor, channels)
    cuts = preprocessing.patch > 1
    if cuts != (fitted.family.feed == "patches"):
        raise BadCheckpoint(
            f"{preprocessor_config.FILE_NAME} is of a processor that {'cuts' if cuts else 'does not cut'} patches, "
            f"and a {fitted.model_type} takes {fitted.family.feed}"
        )
    values = channels * preprocessing.frames * preprocessing.patch**2
    if cuts and values != fitted.width:
        raise BadCheckpoint(
            f"{preprocessor_config.FILE_NAME} makes patches of {values} values, and the checkpoint takes {fitted.width}"
        )
    return preprocessing

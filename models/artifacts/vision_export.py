"""A checkpoint that sees becomes a folder the service can load: weights, graphs, card. As export.py does for text.

The graphs are compared with the float64 reference on images of several sizes, then the folder is renamed into place.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.artifacts import weights
from models.artifacts.card import Card, Graph
from models.artifacts.comparison import TOLERANCE
from models.artifacts.folder import atomic_folder, finish_folder
from models.artifacts.vision_comparison import largest_differences
from models.checkpoints.checkpoint import Checkpoint, read_object, read_tensors
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.encodings import Encodings
from models.graphs import vision as graph
from models.graphs.builder import GraphBuilder, save
from models.positions.learned import PositionRule
from models.progress import Progress, no_progress
from models.vision import preprocessor, similarity
from models.vision.fitting import (
    VisionPlan,
    patch,
    plan,
    side,
)
from models.vision.image_spec import Image
from models.vision.preprocessor import Preprocessor
from models.vision.steps import AddGrid, Convolve, Patchify, Project

PROCESSOR = "processor_config.json"  # newer checkpoints hold the same in it
FIRST_STRIDES = 2  # frames of a spectrogram for each learned position


def export(
    source: Checkpoint, found: tuple[str, Config], out: Path, name: str, tool: str, progress: Progress = no_progress
) -> Card:
    """Write the half of a checkpoint that sees to `out` and return its card.

    Args:
        found: what plan.tower gave.
        tool: what the card says wrote it.

    Raises:
        BadCheckpoint, ReferenceMismatch
        OSError: the disk refuses.
    """
    planned, alike = plan(source, *found), similarity.of(source)
    image = _image(planned, source.folder)
    with atomic_folder(out) as folder:
        views = read_tensors(source, planned.shapes)
        arrays = {tensor: views[tensor].reshape(shape) for tensor, shape in planned.shapes.items()}
        placed = weights.write(folder, arrays, (), progress=progress).placed
        card = _card(planned, image, placed, write_graphs(folder, planned, placed))
        card = replace(card, name=name, source=source.name, tool=tool, similarity=alike)
        progress("comparing with the reference", 0, 0)
        return finish_folder(folder, replace(card, largest_difference=largest_differences(folder, card)), progress)


def write_graphs(folder: Path, planned: VisionPlan, placed: Mapping[str, Tensor]) -> dict[str, Graph]:
    """Emit the graphs; the card's entries for them."""
    inputs = graph.inputs_of(planned.steps, planned.width)
    written = {}
    for name, emit in (("image", graph.image), ("image_components", graph.components)):
        model = emit(GraphBuilder(placed), planned.steps, inputs, planned.hidden_size)
        if model is not None:
            save(model, folder / f"{name}.onnx")
            fed = tuple(value.name for value in model.graph.input)
            written[name] = Graph(f"{name}.onnx", fed, tuple(each.name for each in model.graph.output), "image")
    return written


def _image(planned: VisionPlan, folder: Path) -> Image:
    """What the card says of what goes in."""
    config, feed = planned.config, planned.family.feed
    first = planned.steps[0]
    fixed = None
    if isinstance(first, Patchify) and any(_is_oblong(step) for step in planned.steps):
        fixed = side(config, "image_size")
    frames = FIRST_STRIDES * config.count("max_source_positions") if isinstance(first, Convolve) else None
    how = None if feed == "features" else _preprocessor(planned, folder)
    size = 1 if feed == "features" else patch(config)
    return Image(planned.steps, feed, planned.width, size, frames, fixed, how, planned.axial)


def _is_oblong(step: Any) -> bool:
    """transformers resizes positions of square grids alone."""
    return isinstance(step, AddGrid) and step.rows != step.columns


def _preprocessor(planned: VisionPlan, folder: Path) -> Preprocessor | None:
    if (folder / preprocessor.FILE_NAME).is_file():
        data: Any = read_object(folder / preprocessor.FILE_NAME)
    elif (folder / PROCESSOR).is_file():
        data = read_object(folder / PROCESSOR).get("image_processor")
    else:
        return None
    if not isinstance(data, dict):
        return None
    channels = 3 if isinstance(planned.steps[0], Project) else planned.width
    how = preprocessor.read(data, planned.family.processor, channels)
    if (how.patch > 1) != (planned.family.feed == "patches"):
        raise BadCheckpoint(
            f"{preprocessor.FILE_NAME} is of a processor that {'cuts' if how.patch > 1 else 'does not cut'} patches, "
            f"and a {planned.model_type} takes {planned.family.feed}"
        )
    if how.patch > 1 and channels * how.frames * how.patch**2 != planned.width:
        raise BadCheckpoint(
            f"{preprocessor.FILE_NAME} makes patches of {channels * how.frames * how.patch**2} values, and the "
            f"checkpoint takes {planned.width}"
        )
    return how


def _card(planned: VisionPlan, image: Image, placed: Mapping[str, Tensor], written: dict[str, Graph]) -> Card:
    """The card but for its name and where it comes from."""
    multiplied = [step for step in planned.steps if isinstance(step, Patchify | Project | Convolve)]
    return Card(
        name="",
        family=planned.model_type,
        hidden_size=planned.hidden_size,
        vocab_size=0,
        max_tokens=None,
        pad_id=None,
        type_rows=0,
        types="none",
        position=PositionRule("arange", 0, None),
        graphs=written,
        default_output="input_embeddings",
        recipe=(),
        encoder=(),
        weights=weights.FILE_NAME,
        tokenizer=None,
        pooling=None,
        prompts={},
        default_prompt=None,
        encodings=Encodings(),
        dtype="float32",
        parameters=sum(math.prod(tensor.shape) for tensor in placed.values()),
        bytes=sum(tensor.bytes for tensor in placed.values()),
        flops_per_token={"image": sum(2 * math.prod(planned.shapes[step.weight]) for step in multiplied)},
        flops_per_token_and_key=0,
        largest_difference={},
        tolerance=TOLERANCE["input"],
        files={},
        source="",
        tool="",
        image=image,
    )

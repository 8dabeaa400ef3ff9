"""Compares the image graphs of an exported folder with the float64 reference, on images of several sizes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import IMAGE_VECTOR, Card
from models.artifacts.comparison import TOLERANCE, Session, check_tolerance, relative_difference
from models.checkpoints import safetensors
from models.recipes.extra_inputs import IMAGE_ROWS
from models.reference import vision as reference
from models.reference.image_rows import image_rows
from models.vision.image_spec import Image, ImageTokens
from models.vision.image_tokens import blank, tower_feeds
from models.vision.steps import AddGrid

SEED = 20240
MOST_VALUES = 1 << 21  # of one check input: the reference is slow
GRIDS = ((1, 1), (2, 3), (5, 4))  # in blocks of patches, beside the model's own

Feeds = dict[str, NDArray[Any]]


def largest_differences(folder: Path, card: Card) -> dict[str, float]:
    """Return, for each output, the largest |ONNX - reference| / max(1, |reference|) over the check inputs.

    Raises:
        ReferenceMismatch: a difference is above the tolerance.
        BadCard: a graph does not load or gives other shapes.
    """
    assert card.image is not None
    weights = safetensors.tensors_of(folder / str(card.weights))
    sessions = {name: Session(folder / graph.file) for name, graph in card.graphs.items()}
    differences: dict[str, float] = {}
    for feeds in check_inputs(card.image):
        expected = reference.encoded(card.image, card.encoder, weights, feeds)
        for name, graph in card.graphs.items():
            inputs = {key: value for key, value in feeds.items() if key in graph.inputs}
            for output, value in sessions[name].run(inputs, graph.outputs).items():
                difference = relative_difference(value, expected[output], f"{graph.file}: {output}")
                differences[output] = max(differences.get(output, 0.0), difference)
    for output, difference in differences.items():
        kind = "encoder" if output in ("last_hidden_state", IMAGE_VECTOR) else "input"
        check_tolerance(difference, TOLERANCE[kind], f"{output} differs")
    return differences


def tower_difference(folder: Path, spec: ImageTokens, weights: Mapping[str, Any]) -> float:
    """Return the largest difference of the tower's graph from the reference, over images of several sizes.

    Raises:
        ReferenceMismatch: it is above the tolerance.
        BadCard: the graph does not load.
    """
    random, session = np.random.default_rng(SEED), Session(folder / f"{IMAGE_ROWS}.onnx")
    worst = 0.0
    for rows, columns in GRIDS:
        empty = blank(spec, rows, columns)
        values = random.normal(0, 1, empty.values.shape).astype(np.float32)
        feeds = tower_feeds(spec, empty._replace(values=values))
        inputs = {name: array for name, array in feeds.items() if name in session.inputs}
        value = session.run(inputs, (IMAGE_ROWS,))[IMAGE_ROWS]
        worst = max(worst, relative_difference(value, image_rows(spec, weights, feeds), f"{IMAGE_ROWS}.onnx"))
    check_tolerance(worst, TOLERANCE["encoder"], f"{IMAGE_ROWS} differs")
    return worst


def check_inputs(image: Image) -> Iterator[Feeds]:
    """Yield random values of several sizes: the model's own, larger, smaller, oblong, and with part of a patch over."""
    random = np.random.default_rng(SEED)
    if image.feed == "features":
        assert image.frames is not None
        yield {"input_features": random.normal(0, 1, (1, image.width, image.frames)).astype(np.float32)}
        return
    for number, (rows, columns) in enumerate(_grids(image)):
        if image.feed == "patches":
            values = random.normal(0, 1, (rows * columns, image.width)).astype(np.float32)
            yield {"pixel_values": values} | ({"grid": np.array([rows, columns])} if image.takes_grid else {})
            continue
        height, width = image.fixed or (rows * image.patch + number, columns * image.patch)
        batch = 2 if height * width * image.width < MOST_VALUES // 2 else 1
        yield {"pixel_values": random.normal(0, 1, (batch, image.width, height, width)).astype(np.float32)}


def _grids(image: Image) -> list[tuple[int, int]]:
    block, values = image.merge, image.width * (image.patch**2 if image.feed == "pixels" else 1)
    grids = [(step.rows, step.columns) for step in image.steps if isinstance(step, AddGrid)]
    if image.fixed:
        return grids
    sizes = [(rows * block, columns * block) for rows, columns in GRIDS]
    sizes += [(rows // block * block, columns // block * block) for rows, columns in grids]
    return [(rows, columns) for rows, columns in sizes if rows * columns * values <= MOST_VALUES]

"""The vectors of images: one for each, cut and scaled as the request says."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import IMAGE_VECTOR, Card
from models.vision.image_spec import Image
from service.embedding.outputs.kind import Job, OutputKind, Planning
from service.embedding.pooling import normalize
from service.embedding.tokenize.packing import Pixels, Rows
from service.errors import BadRequest


class ImageVector(OutputKind):
    """One vector for each image."""

    fields = ("normalize", "dimensions")
    pooled = True

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, name)
        image, options = planning.card.image, planning.options
        assert image is not None
        self._dimensions = options.dimensions
        self._normalize = image.normalize if options.normalize is None else options.normalize
        self.input_bytes = 4 * self.width

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether this is the vector of images."""
        return name == IMAGE_VECTOR and planning.card.image is not None and name in planning.card.outputs

    def reduce(self, job: Job, index: int, rows: Rows) -> Rows:
        """Return the vector of one image, [1, width]."""
        return {self.name: np.atleast_2d(rows[self.name])}

    def shaped(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vectors cut, then scaled."""
        vectors = rows[:, : self._dimensions]
        return normalize(vectors) if self._normalize else vectors


def is_of_images(card: Card) -> bool:
    """Return whether a model's inputs are images instead of texts and token ids."""
    return card.image is not None


def reads_images(card: Card) -> Image:
    """Return the card's description of images; raise BadRequest for a model that reads text."""
    if card.image is None:
        received = f"{card.name} is a {card.family}, which reads no images"
        raise BadRequest(received, remedy="send text or token ids to /embed")
    return card.image


def rows_of(image: Image, feeds: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of patches or frames of an image, which is its cost."""
    shape: tuple[int, ...] = next(iter(feeds.values())).shape
    if image.feed == "pixels":
        rows, columns = image.patches(shape[1], shape[2])
        return rows * columns
    return shape[0] if image.feed == "patches" else shape[1]


def blank(card: Card) -> Pixels:
    """Return the smallest image that a model takes, all zeros."""
    image = reads_images(card)
    if image.feed == "features":
        feeds: dict[str, NDArray[Any]] = {"input_features": np.zeros((image.width, image.frames or 1), np.float32)}
    elif image.feed == "patches":
        feeds = {"pixel_values": np.zeros((image.merge**2, image.width), np.float32)}
        if image.takes_grid:
            feeds["grid"] = np.full(2, image.merge, np.int64)
    else:
        height, width = image.fixed or (image.patch, image.patch)
        feeds = {"pixel_values": np.zeros((image.width, height, width), np.float32)}
    return Pixels(feeds, rows_of(image, feeds))

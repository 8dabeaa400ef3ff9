"""The vectors of images: one for each, cut and scaled as the request says."""

import numpy as np

from models.artifacts.card import IMAGE_VECTOR
from service.embedding.outputs.kind import Job, OutputKind, Planning, cast, joined
from service.embedding.pooling import normalize
from service.embedding.requests import Output
from service.embedding.tokenize.packing import Rows


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

    def finish(self, job: Job) -> Output:
        """Return the vectors of all images."""
        vectors = joined(job.rows, self.name)[:, : self._dimensions]
        vectors = normalize(vectors) if self._normalize else vectors
        rows = np.ascontiguousarray(cast(vectors, self.dtype))
        return Output(self.name, rows, (1,) * len(job.rows), True)

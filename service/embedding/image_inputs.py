"""Images among the inputs of a model that reads text: each becomes the ids, places and rows of its tokens.

An image is priced by its header, and the queues are asked, before it is decoded.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

from models.recipes.extra_inputs import IMAGE_ROWS, PLACES
from models.vision.image_spec import ImageTokens
from models.vision.image_tokens import blank, tower_feeds
from service.embedding import limits
from service.embedding.model import Model
from service.embedding.outputs.kind import Job, not_finite
from service.embedding.picture_decoder import PictureDecoder
from service.embedding.requests import Ids, Picture
from service.embedding.tokenize.packing import Pixels, Rows, Work
from service.errors import BadInput, TooLong, WrongModelKind
from service.request_context import RequestContext
from service.scheduling.callers import ItemTimes
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

Grid = tuple[int, int]


class ImageReader:
    """Reads the images of requests.

    Args:
        decoder: decodes pictures.
        budget: the memory of all requests.
        settings: the limits of one request.
    """

    def __init__(self, decoder: PictureDecoder, budget: MemoryBudget, settings: Settings) -> None:
        self._decoder, self._budget, self._settings = decoder, budget, settings

    async def read(self, model: Model, job: Job, context: RequestContext) -> None:
        """Put the ids of a job's images into it, with the places and rows of their tokens.

        Raises:
            BadInput, TooLong, TooManyTokens: an image is none, or makes more tokens than are read.
            Overloaded, DeadlineExceeded: a queue has no room for them.
        """
        spec = model.card.image_tokens
        assert spec is not None
        pictures = {index: item for index in job.images if isinstance(item := job.request.inputs[index], Picture)}
        grids = {index: await self._grid(spec, picture.data, index) for index, picture in pictures.items()}
        self._check(model, spec, job, grids, context)
        times, futures = ItemTimes(context.caller), dict[int, tuple[Grid, asyncio.Future[Rows]]]()
        try:
            for index, picture in pictures.items():
                assert spec.image.preprocessor is not None
                prepared = await self._decoder.decoded(spec.image.preprocessor, picture.data, index)
                feeds = await self._decoder.turns.run(tower_feeds, spec, prepared)
                height, width = grids[index]
                patches = height * width
                rows = spec.tokens(grids[index]) * spec.width * len(spec.parts)
                self._budget.reserve(feeds["pixel_values"].nbytes + 4 * rows, context)
                work: Work[Any] = Work(Pixels(feeds, patches), (IMAGE_ROWS,))
                (future,) = model.batchers[IMAGE_ROWS].submit(
                    [work], [patches], times, context.deadline, True, context.staggered
                )
                futures[index] = grids[index], future
            for index, (grid, future) in futures.items():
                job.ids[index] = _ids(model, spec, index, grid, (await future)[IMAGE_ROWS])
        except BaseException:
            for _, future in futures.values():
                future.cancel()
            raise

    async def _grid(self, spec: ImageTokens, data: bytes, index: int) -> Grid:
        """Return the rows and columns of patches of an image, by its header."""
        assert spec.image.preprocessor is not None
        height, width = await self._decoder.size(spec.image.preprocessor, data, index)
        return height // spec.image.patch, width // spec.image.patch

    def _check(
        self, model: Model, spec: ImageTokens, job: Job, grids: Mapping[int, Grid], context: RequestContext
    ) -> None:
        """Raise an error if an image is too long, or all are too large for this request or for the queues."""
        most = limits.least(model.card.max_tokens, self._settings.max_input_tokens or None)
        tokens = {index: len(spec.before) + spec.tokens(grid) + len(spec.after) for index, grid in grids.items()}
        for index, count in tokens.items():
            if most is not None and count > most:
                allowed = f"{model.card.name} reads {most}"
                raise TooLong(
                    f"makes {count} tokens", field=("inputs", index), allowed=allowed, remedy="send it smaller"
                )
        total, patches = sum(tokens.values()), sum([rows * columns for rows, columns in grids.values()])
        if total > self._settings.max_request_tokens:
            raise limits.too_many_tokens(total, self._settings.max_request_tokens)
        model.batchers[IMAGE_ROWS].check(patches, context.deadline, context.caller)
        for graph in job.plan.typed:
            model.batchers[graph].check(total, context.deadline, context.caller)


def _ids(model: Model, spec: ImageTokens, index: int, grid: Grid, rows: Any) -> Ids:
    """Return the ids of an image with the places and rows of its tokens; raise EngineFailure if a row is not finite."""
    if not np.isfinite(rows).all():
        raise not_finite(model.card.name, IMAGE_ROWS, index)
    return Ids(spec.ids(grid), extras={PLACES: spec.places(grid), IMAGE_ROWS: rows})


def reads_no_text(name: str) -> WrongModelKind:
    """Return the error for a model that reads images alone."""
    return WrongModelKind(f"{name} reads no text", allowed="images", remedy=f"POST to /models/{name}/images")


def blank_tower(spec: ImageTokens) -> Pixels:
    """Return the smallest image that a tower takes, all zeros."""
    return Pixels(tower_feeds(spec, blank(spec, 1, 1)), spec.merge**2)


def check_reads_images(model: Model, index: int, spans: bool) -> None:
    """Raise BadInput if a model reads no images beside text, or the request has spans, which images have none of."""
    if model.reads_images:
        raise reads_no_text(model.card.name)
    if model.card.image_tokens is None:
        raise BadInput("is an image", field=("inputs", index), allowed=f"{model.card.name} reads text and token ids")
    if spans:
        raise BadInput("is an image", field=("inputs", index), allowed="spans are of texts and token ids")

"""The image pipeline: check, decode beside the server, schedule, select. A picture is bytes that the caller sent."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.vision.image_spec import Image
from models.vision.preprocess import Prepared
from service.embedding import execution, limits
from service.embedding.model import Models
from service.embedding.outputs.image import reads_images, rows_of
from service.embedding.outputs.kind import Job
from service.embedding.picture_decoder import PictureDecoder
from service.embedding.requests import DEFAULTS, EmbedOptions, EmbedRequest, EmbedResult, Picture
from service.embedding.tokenize.packing import Pixels
from service.errors import BadRequest, EmptyRequest, MissingField, TooLarge, WrongShape
from service.observability.metrics import Metrics
from service.request_context import RequestContext
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

COPIES = 2  # of the vectors: of each image, and joined


class Values(NamedTuple):
    """A prepared tensor: pixels, patches or features.

    Args:
        grid: rows and columns of flattened patches.
    """

    array: NDArray[Any]
    grid: tuple[int, int] | None = None


class ImagesRequest(NamedTuple):
    """Images to embed.

    Args:
        options: dtype, normalize and dimensions of these apply to images.
    """

    inputs: Sequence[Picture | Values]
    model: str | None = None
    options: EmbedOptions = DEFAULTS


class Images:
    """Embeds images with loaded models.

    Args:
        models: the loaded models.
        settings: the limits of one request.
        budget: the memory of all requests.
        decoder: decodes pictures.
        metrics: what counts requests and the times of their stages.
    """

    def __init__(
        self, models: Models, settings: Settings, budget: MemoryBudget, decoder: PictureDecoder, metrics: Metrics
    ) -> None:
        self._models, self._settings, self._budget, self._decoder = models, settings, budget, decoder
        self._metrics = metrics

    async def embed(self, request: ImagesRequest, context: RequestContext) -> EmbedResult:
        """Return one request's outputs, in the requested order; raise InlayError if it cannot be served."""
        model, inputs = self._models.get(request.model), await self._decoder.fetched(request.inputs)
        image, plan = reads_images(model.card), model.plan(request.options, "")
        if not inputs:
            raise EmptyRequest("is empty", field=("inputs",), remedy="send one image at least")
        limits.check_inputs(len(inputs), self._settings.max_inputs, "images")
        feeds = await self._prepared(image, inputs, context)
        parts = {index: Pixels(each, rows_of(image, each)) for index, each in enumerate(feeds)}
        job = Job(EmbedRequest((), model.card.name, request.options), plan, self._settings, [], [])
        job.rows, job.lengths = [{} for _ in feeds], tuple([part.tokens for part in parts.values()])
        patches, images = sum(job.lengths), len(feeds)
        size = (patches + images) * plan.token_bytes + images * plan.input_bytes  # a row for each patch and one more
        rows = patches + images if plan.token_bytes else images
        limits.check_bytes(size, f"have {rows} rows of {', '.join(plan.names)}, {size} bytes", self._settings)
        self._budget.reserve(COPIES * size, context)
        times = await execution.run(model, job, parts, context)
        self._metrics.passes((context,), model.card.name, (patches,), *times.means(0.0))
        return EmbedResult(model.card.name, await execution.finish(job), patches, bool(request.options.outputs))

    async def _prepared(
        self, image: Image, inputs: Sequence[Picture | Values], context: RequestContext
    ) -> list[dict[str, NDArray[Any]]]:
        """Return the graph's feeds for every input, decoded one after the other; callers take turns at each."""
        if image.preprocessor is None and any(isinstance(each, Picture) for each in inputs):
            raise _tensors_only(image)
        feeds: list[dict[str, NDArray[Any]]] = []
        rows = 0
        for index, sent in enumerate(inputs):
            if isinstance(sent, Values):
                ready = Prepared(*sent)
            else:
                assert image.preprocessor is not None
                ready = await self._decoder.decoded(image.preprocessor, sent.data, index)
            feeds.append(await self._decoder.turns.run(checked, image, ready, index))
            self._budget.reserve(sum([array.nbytes for array in feeds[-1].values()]), context)
            rows += rows_of(image, feeds[-1])
            if rows > self._settings.max_request_tokens:
                allowed = f"this server takes {self._settings.max_request_tokens} a request"
                raise TooLarge(f"inputs[0] to inputs[{index}] make {rows} patches", allowed=allowed)
        return feeds


def _tensors_only(image: Image) -> BadRequest:
    if image.feed == "features":
        return BadRequest("this model reads spectrograms", remedy="send input_features, a tensor")
    return BadRequest(
        "this model was exported without a preprocessor_config.json, so how a picture becomes pixels is not known",
        remedy="send pixel_values, a tensor",
    )


def checked(image: Image, ready: Prepared, index: int) -> dict[str, NDArray[Any]]:
    """Return the graph's feeds; raise WrongShape if the model does not take a tensor's shape."""
    values = np.ascontiguousarray(ready.values, dtype=np.float32)
    shape = list(values.shape)
    if image.feed == "features":
        if shape != [image.width, image.frames]:
            allowed = f"send [{image.width}, {image.frames}]: mel bins, frames"
            raise WrongShape(f"is {shape}", field=("inputs", index, "input_features"), allowed=allowed)
        return {"input_features": values}
    if image.feed == "patches":
        return {"pixel_values": values} | _grid(image, shape, ready.grid, index)
    field = ("inputs", index, "pixel_values")
    allowed = f"[{image.width}, height, width]" if image.fixed is None else f"[{image.width}, *{list(image.fixed)}]"
    if len(shape) != 3 or shape[0] != image.width or (image.fixed and tuple(shape[1:]) != image.fixed):
        raise WrongShape(f"is {shape}", field=field, allowed=f"send {allowed}")
    if min(image.patches(shape[1], shape[2])) < 1:
        raise WrongShape(f"is {shape}", field=field, allowed=f"each side must hold a patch of {image.patch} pixels")
    return {"pixel_values": values}


def _grid(image: Image, shape: list[int], grid: tuple[int, int] | None, index: int) -> dict[str, NDArray[Any]]:
    if len(shape) != 2 or shape[1] != image.width or not shape[0]:
        allowed = f"send flattened patches [patches, {image.width}]"
        raise WrongShape(f"is {shape}", field=("inputs", index, "pixel_values"), allowed=allowed)
    if not image.takes_grid:
        return {}
    if grid is None:
        raise MissingField("is missing", field=("inputs", index, "grid"), allowed="send [rows, columns] of the patches")
    if grid[0] * grid[1] != shape[0] or grid[0] % image.merge or grid[1] % image.merge:
        blocks = f" in multiples of {image.merge}" if image.merge > 1 else ""
        allowed = f"{shape[0]} patches need rows x columns{blocks}"
        raise WrongShape(f"is {list(grid)}", field=("inputs", index, "grid"), allowed=allowed)
    return {"grid": np.array(grid, np.int64)}

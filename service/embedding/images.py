"""The image pipeline: check, decode in threads, schedule, select. A picture is bytes that the caller sent."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import IMAGE_VECTOR, Card
from models.vision.image_spec import Image
from models.vision.preprocess import Prepared, prepare, target_size
from models.vision.preprocessor_config import Preprocessor
from service.embedding.image_decoding import open_picture
from service.embedding.model import Model, Models
from service.embedding.output_plan import Graphs
from service.embedding.pooling import normalize
from service.embedding.reduction import check_finite
from service.embedding.requests import EmbedResult, Output
from service.errors import (
    BadInput,
    BadRequest,
    ConflictingFields,
    EmptyRequest,
    MissingField,
    OutOfRange,
    Overloaded,
    TooLarge,
    TooManyInputs,
    WrongShape,
)
from service.request_context import RequestContext
from service.runtime.engine import Engine
from service.scheduling.fair_queue import ItemTimes
from service.scheduling.memory_budget import MemoryBudget

PIXEL_BYTES = 16  # of memory while a picture is decoded, or resized
COPIES = 2  # of the vectors: of each image, and joined
MAX_WAITING = 256  # pictures of all callers that wait to be decoded

Rows = dict[str, NDArray[Any]]


class Picture(NamedTuple):
    """The bytes of a JPEG, PNG or WebP file."""

    data: bytes


class Values(NamedTuple):
    """A tensor, already prepared: pixels, patches or features.

    Args:
        grid: rows and columns of flattened patches.
    """

    array: NDArray[Any]
    grid: tuple[int, int] | None = None


class ImagesRequest(NamedTuple):
    """Images to embed; without `outputs` the response holds the model's default output.

    Args:
        normalize: scale images' vectors to unit length; None: as the model does.
        dimensions: leading values of images' vectors to keep before they are scaled; None: all.
    """

    inputs: Sequence[Picture | Values]
    model: str | None = None
    outputs: tuple[str, ...] = ()
    dtype: str = "float32"
    normalize: bool | None = None
    dimensions: int | None = None


class Work(NamedTuple):
    """One image of a request, ready for the graph, and the requested outputs."""

    feeds: Mapping[str, NDArray[Any]]
    outputs: tuple[str, ...]


def runner(engine: Engine, graph: str) -> Callable[[list[Work]], list[Rows]]:
    """Return the function a batcher runs: images of one size and outputs together, flattened patches one by one."""

    def run(works: list[Work]) -> list[Rows]:
        results: list[Rows] = [{} for _ in works]
        for indices in _groups(works):
            for index, rows in zip(indices, _run(engine, graph, [works[index] for index in indices]), strict=True):
                results[index] = rows
        return results

    return run


def _groups(works: Sequence[Work]) -> list[list[int]]:
    """Return the indices of works that one run of the graph can serve."""
    groups: dict[Any, list[int]] = {}
    for index, work in enumerate(works):
        name, array = next(iter(work.feeds.items()))
        own = index if _is_flat(work) else None
        groups.setdefault((own, name, array.shape, work.outputs), []).append(index)
    return list(groups.values())


def _is_flat(work: Work) -> bool:
    """Return whether its patches come flattened: the graph has no batch then."""
    return "pixel_values" in work.feeds and work.feeds["pixel_values"].ndim == 2


def _run(engine: Engine, graph: str, works: list[Work]) -> list[Rows]:
    feeds, outputs = works[0].feeds, works[0].outputs
    if _is_flat(works[0]):
        return [dict(zip(outputs, engine.run(graph, feeds, outputs), strict=True))]
    stacked = {name: np.stack([work.feeds[name] for work in works]) for name in feeds}
    arrays = engine.run(graph, stacked, outputs)
    return [dict(zip(outputs, own, strict=True)) for own in zip(*arrays, strict=True)]


class Images:
    """Embeds images with loaded models.

    Args:
        models: the loaded models.
        max_inputs: images of one request.
        max_pixels: of a picture, as it comes and as it is resized.
        max_rows: patches of one request.
        max_bytes: of the float32 vectors of one request.
        budget: of the memory of all requests.
        threads: that decode pictures.
    """

    def __init__(
        self,
        models: Models,
        *,
        max_inputs: int,
        max_pixels: int,
        max_rows: int,
        max_bytes: int,
        budget: MemoryBudget,
        threads: int,
    ) -> None:
        self._max_bytes, self._budget = max_bytes, budget
        self._models = models
        self._max_inputs = max_inputs
        self._max_pixels = max_pixels
        self._max_rows = max_rows
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="images")
        self._waiting = 0

    async def embed(self, request: ImagesRequest, context: RequestContext) -> EmbedResult:
        """Return one request's outputs, in the requested order; raise InlayError where it cannot be served."""
        model = self._models.get(request.model)
        image = reads_images(model.card)
        plan = model.plan(request.outputs, None, None, None, request.dtype)
        _check_vector_fields(model.card, plan.outputs, request)
        self._check_count(request.inputs)
        feeds = await self._prepared(image, request.inputs, context)
        costs = [_rows_of(image, feed) for feed in feeds]
        size = self._checked_size(sum(costs), len(feeds), model, plan.outputs)
        self._budget.reserve(COPIES * size, context)
        rows = await _run_graphs(model, plan.plain, feeds, costs, context)
        check_finite(model.card.name, rows)
        unit = image.normalize if request.normalize is None else request.normalize
        outputs = tuple(_output(name, rows, request, unit) for name in plan.outputs)
        return EmbedResult(model.card.name, outputs, sum(costs), bool(request.outputs))

    def _checked_size(self, patches: int, images: int, model: Model, outputs: Sequence[str]) -> int:
        """Return the bytes of a request's vectors at most, one row for each patch and one more; raise TooLarge."""
        rows = {name: images if name == IMAGE_VECTOR else patches + images for name in outputs}
        size = 4 * sum(count * model.width(name) for name, count in rows.items())
        if size > self._max_bytes:
            raise TooLarge(
                f"have {max(rows.values())} rows of {', '.join(outputs)}, {size} bytes",
                field=("inputs",),
                allowed=f"this server answers with {self._max_bytes} at most",
                remedy="send fewer images, or have INLAY_MAX_ANSWER_BYTES raised",
            )
        return size

    def _check_count(self, inputs: Sequence[Any]) -> None:
        if not inputs:
            raise EmptyRequest("is empty", field=("inputs",), remedy="send one image at least")
        if len(inputs) > self._max_inputs:
            allowed = f"this server takes {self._max_inputs} a request"
            raise TooManyInputs(f"{len(inputs)} images", allowed=allowed, remedy="send fewer")

    async def _prepared(
        self, image: Image, inputs: Sequence[Picture | Values], context: RequestContext
    ) -> list[dict[str, NDArray[Any]]]:
        """Return the graph's feeds for every input; the pictures of a request are decoded in one thread."""
        pictures = sum(isinstance(each, Picture) for each in inputs)
        if pictures and image.preprocessor is None:
            raise _tensors_only(image)
        if self._waiting and self._waiting + pictures > MAX_WAITING:
            received, allowed = f"{self._waiting} images wait to be decoded", f"{MAX_WAITING} may"
            raise Overloaded(received, allowed=allowed, remedy="try again in a moment")
        self._waiting += pictures
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._all, image, tuple(inputs), context
            )
        finally:
            self._waiting -= pictures

    def _all(
        self, image: Image, inputs: Sequence[Picture | Values], context: RequestContext
    ) -> list[dict[str, NDArray[Any]]]:
        feeds, rows = [], 0
        for index, sent in enumerate(inputs):
            ready = (
                self._decoded(image, sent.data, index) if isinstance(sent, Picture) else Prepared(sent.array, sent.grid)
            )
            feeds.append(checked(image, ready, index))
            self._budget.reserve(sum(array.nbytes for array in feeds[-1].values()), context)
            rows += _rows_of(image, feeds[-1])
            if rows > self._max_rows:
                allowed = f"this server takes {self._max_rows} a request"
                raise TooLarge(f"inputs[0] to inputs[{index}] make {rows} patches", allowed=allowed)
        return feeds

    def _decoded(self, image: Image, data: bytes, index: int) -> Prepared:
        assert image.preprocessor is not None
        with ExitStack() as held:
            picture = open_picture(data, index, self._max_pixels, lambda pixels: self._hold(held, pixels))
            return self._resized(image.preprocessor, picture, index, held)

    def _hold(self, held: ExitStack, pixels: int) -> None:
        held.enter_context(self._budget.held_for(PIXEL_BYTES * pixels))

    def _resized(self, preprocessor: Preprocessor, picture: Any, index: int, held: ExitStack) -> Prepared:
        try:
            height, width = target_size(preprocessor, picture.height, picture.width)
            if not 0 < height * width <= self._max_pixels:
                raise ValueError(
                    f"it would be resized to {height}x{width}; this server takes {self._max_pixels} pixels"
                )
            self._hold(held, height * width)
            return prepare(preprocessor, picture)
        except ValueError as error:
            raise BadInput(f"of {picture.height}x{picture.width} pixels: {error}", field=("inputs", index)) from None


async def _run_graphs(
    model: Model, graphs: Graphs, feeds: list[dict[str, NDArray[Any]]], costs: list[int], context: RequestContext
) -> list[Rows]:
    """Return the rows of each image; if one graph fails or the caller leaves, what is still queued is dropped."""
    queued: list[Sequence[asyncio.Future[Rows]]] = []
    try:
        for graph, outputs in graphs.items():
            works: list[Any] = [Work(feed, outputs) for feed in feeds]
            queued.append(model.batchers[graph].submit(works, costs, ItemTimes(context.caller), context.deadline))
        results = [[await future for future in futures] for futures in queued]
    except BaseException:
        for future in (future for futures in queued for future in futures):
            future.cancel()
        raise
    return [{name: array for arrays in own for name, array in arrays.items()} for own in zip(*results, strict=True)]


def reads_images(card: Card) -> Image:
    """Return the card's description of images; raise BadRequest for a model that reads text."""
    if card.image is None:
        received = f"{card.name} is a {card.family}, which reads no images"
        raise BadRequest(received, remedy="send text or token ids to /embed")
    return card.image


def _tensors_only(image: Image) -> BadRequest:
    if image.feed == "features":
        return BadRequest("this model reads spectrograms", remedy="send input_features, a tensor")
    return BadRequest(
        "this model was exported without a preprocessor_config.json, so how a picture becomes pixels is not known",
        remedy="send pixel_values, a tensor",
    )


def checked(image: Image, ready: Prepared, index: int) -> dict[str, NDArray[Any]]:
    """Return the graph's feeds; raise WrongShape for a tensor of a shape that the model does not take."""
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


def _rows_of(image: Image, feeds: Mapping[str, NDArray[Any]]) -> int:
    """Return the patches or frames of an image: its cost."""
    shape: tuple[int, ...] = next(iter(feeds.values())).shape
    if image.feed == "pixels":
        rows, columns = image.patches(shape[1], shape[2])
        return rows * columns
    return shape[0] if image.feed == "patches" else shape[1]


def _check_vector_fields(card: Card, outputs: Sequence[str], request: ImagesRequest) -> None:
    """Raise an InlayError for a field that applies to images' vectors where none is asked for, or out of its range."""
    for field, value in (("normalize", request.normalize), ("dimensions", request.dimensions)):
        if value and IMAGE_VECTOR not in outputs:
            raise ConflictingFields(
                f"applies to {IMAGE_VECTOR} alone, and {card.name} was asked for {', '.join(outputs)}",
                field=(field,),
                remedy="leave it out",
            )
    if request.dimensions is not None and not 1 <= request.dimensions <= card.sentence_width:
        raise OutOfRange(f"is {request.dimensions}", field=("dimensions",), allowed=f"send 1 to {card.sentence_width}")


def _output(name: str, rows: Sequence[Rows], request: ImagesRequest, unit: bool) -> Output:
    dtype, pooled = request.dtype, name == IMAGE_VECTOR
    arrays = [np.atleast_2d(image_rows[name]) for image_rows in rows]
    joined = np.concatenate(arrays)
    if pooled:
        joined = joined[:, : request.dimensions]
        joined = normalize(joined) if unit else joined
    if dtype != "float32":
        with np.errstate(over="ignore"):
            joined = joined.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
        if dtype == "float16" and not np.isfinite(joined).all():
            raise BadRequest("a value is too large for float16", remedy="ask for bfloat16 or float32")
    return Output(name, np.ascontiguousarray(joined), tuple(len(array) for array in arrays), pooled)

"""Pictures and tensors → rows of a model that sees: check → decode in threads → batch → select. Knows no protocol.

Nothing is fetched: a picture is bytes that the caller sent.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.vision.image_spec import Image
from models.vision.preprocess import Prepared, prepare, target_size
from service.embedding.context import ANONYMOUS, RequestContext
from service.embedding.image_decoding import opened
from service.embedding.pipeline import check_finite
from service.embedding.requests import EmbedResult, Output
from service.errors import BadInput, BadRequest, EmptyRequest, Overloaded, TooLarge
from service.runtime.engine import Engine

MOST_WAITING = 256  # pictures of all callers that wait to be decoded

Rows = dict[str, NDArray[Any]]


class Picture(NamedTuple):
    """The bytes of a JPEG, PNG or WebP file."""

    data: bytes


class Values(NamedTuple):
    """A tensor, already prepared: pixels, patches or features; `grid`: rows and columns of flattened patches."""

    array: NDArray[Any]
    grid: tuple[int, int] | None = None


class ImagesRequest(NamedTuple):
    """What a caller asks for; `outputs` empty: the model's default output."""

    inputs: Sequence[Picture | Values]
    model: str | None = None
    outputs: tuple[str, ...] = ()
    dtype: str = "float32"


class Work(NamedTuple):
    """One image of a caller, ready for the graph, and the outputs it wants."""

    feeds: Mapping[str, NDArray[Any]]
    outputs: tuple[str, ...]


def runner(engine: Engine, graph: str) -> Callable[[list[Work]], list[Rows]]:
    """What a batcher runs: images of one size and one wish together, flattened patches one by one."""

    def run(works: list[Work]) -> list[Rows]:
        found: list[Rows] = [{} for _ in works]
        for alike in _alike(works):
            together = _run(engine, graph, [works[index] for index in alike])
            for index, rows in zip(alike, together, strict=True):
                found[index] = rows
        return found

    return run


def _alike(works: Sequence[Work]) -> list[list[int]]:
    """Indices of works that one run of the graph can answer."""
    groups: dict[Any, list[int]] = {}
    for index, work in enumerate(works):
        name, array = next(iter(work.feeds.items()))
        own = index if _is_flat(work) else None
        groups.setdefault((own, name, array.shape, work.outputs), []).append(index)
    return list(groups.values())


def _is_flat(work: Work) -> bool:
    """Whether its patches come flattened: the graph has no batch then."""
    return "pixel_values" in work.feeds and work.feeds["pixel_values"].ndim == 2


def _run(engine: Engine, graph: str, works: list[Work]) -> list[Rows]:
    feeds, outputs = works[0].feeds, works[0].outputs
    if _is_flat(works[0]):
        return [dict(zip(outputs, engine.run(graph, feeds, outputs), strict=True))]
    stacked = {name: np.stack([work.feeds[name] for work in works]) for name in feeds}
    arrays = engine.run(graph, stacked, outputs)
    return [dict(zip(outputs, own, strict=True)) for own in zip(*arrays, strict=True)]


class Images:
    """Answers requests for images from the models of a catalog.

    most_pixels  of a picture, as it comes and as it is resized
    most_rows    patches of one request
    threads      that decode pictures
    """

    def __init__(self, catalog: Any, *, most_inputs: int, most_pixels: int, most_rows: int, threads: int) -> None:
        self._catalog = catalog
        self._most_inputs = most_inputs
        self._most_pixels = most_pixels
        self._most_rows = most_rows
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="images")
        self._waiting = 0

    async def embed(self, request: ImagesRequest, context: RequestContext = ANONYMOUS) -> EmbedResult:
        """One request's outputs, in the order asked for; raises an InlayError."""
        model = self._catalog.get(request.model)
        image = reads_images(model.card)
        plan = model.plan(request.outputs, None, None, None, request.dtype)
        self._check_count(request.inputs)
        feeds = await self._prepared(image, request.inputs)
        costs = [_rows_of(image, each) for each in feeds]
        queued = []
        try:
            for graph, outputs in plan.plain.items():
                queued.append(
                    model.batchers[graph].submit([Work(each, outputs) for each in feeds], costs, deadline=context.deadline)
                )
            found = [[await future for future in futures] for futures in queued]
        except BaseException:
            for future in (future for futures in queued for future in futures):
                future.cancel()
            raise
        rows = [{name: array for each in own for name, array in each.items()} for own in zip(*found, strict=True)]
        check_finite(model.card.name, rows)
        outputs = tuple(_output(name, rows, request.dtype) for name in plan.outputs)
        return EmbedResult(model.card.name, outputs, sum(costs), bool(request.outputs))

    def _check_count(self, inputs: Sequence[Any]) -> None:
        if not inputs:
            raise EmptyRequest('"inputs" is empty: send one image at least')
        if len(inputs) > self._most_inputs:
            raise TooLarge(f"{len(inputs)} images; this server takes {self._most_inputs} a request: send fewer")

    async def _prepared(self, image: Image, inputs: Sequence[Picture | Values]) -> list[dict[str, NDArray[Any]]]:
        """Feeds of the graph for every input, pictures decoded in threads, one request's after each other."""
        pictures = sum(isinstance(each, Picture) for each in inputs)
        if pictures and image.preprocessor is None:
            raise BadRequest(_tensors_only(image))
        if self._waiting and self._waiting + pictures > MOST_WAITING:
            raise Overloaded(f"{self._waiting} images wait to be decoded; {MOST_WAITING} may: try again in a moment")
        self._waiting += pictures
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._all, image, tuple(inputs))
        finally:
            self._waiting -= pictures

    def _all(self, image: Image, inputs: Sequence[Picture | Values]) -> list[dict[str, NDArray[Any]]]:
        found, rows = [], 0
        for index, each in enumerate(inputs):
            ready = (
                self._decoded(image, each.data, index) if isinstance(each, Picture) else Prepared(each.array, each.grid)
            )
            found.append(checked(image, ready, index))
            rows += _rows_of(image, found[-1])
            if rows > self._most_rows:
                raise TooLarge(
                    f"inputs[0] to inputs[{index}] make {rows} patches; this server takes {self._most_rows} a request"
                )
        return found

    def _decoded(self, image: Image, data: bytes, index: int) -> Prepared:
        assert image.preprocessor is not None
        picture = opened(data, index, self._most_pixels)
        try:
            height, width = target_size(image.preprocessor, picture.height, picture.width)
            if not 0 < height * width <= self._most_pixels:
                raise ValueError(
                    f"it would be resized to {height}x{width}; this server takes {self._most_pixels} pixels"
                )
            return prepare(image.preprocessor, picture)
        except ValueError as error:
            raise BadInput(f"inputs[{index}] of {picture.height}x{picture.width} pixels: {error}", index) from None


def reads_images(card: Card) -> Image:
    """What the card says of images; raises BadRequest for a model that reads text."""
    if card.image is None:
        raise BadRequest(f"{card.name} is a {card.family}, which reads no images: send text or token ids to /embed")
    return card.image


def _tensors_only(image: Image) -> str:
    if image.feed == "features":
        return "this model reads spectrograms: send input_features, a tensor"
    return (
        "this model was exported without a preprocessor_config.json, so how a picture becomes pixels is not known: "
        "send pixel_values, a tensor"
    )


def checked(image: Image, ready: Prepared, index: int) -> dict[str, NDArray[Any]]:
    """The graph's feeds; raises BadInput for a tensor of a shape the model does not take."""
    values = np.ascontiguousarray(ready.values, dtype=np.float32)
    shape = list(values.shape)
    if image.feed == "features":
        if shape != [image.width, image.frames]:
            raise BadInput(
                f"inputs[{index}].input_features is {shape}; send [{image.width}, {image.frames}]: mel bins, frames",
                index,
            )
        return {"input_features": values}
    if image.feed == "patches":
        return {"pixel_values": values} | _grid(image, shape, ready.grid, index)
    allowed = f"[{image.width}, height, width]" if image.fixed is None else f"[{image.width}, *{list(image.fixed)}]"
    if len(shape) != 3 or shape[0] != image.width or (image.fixed and tuple(shape[1:]) != image.fixed):
        raise BadInput(f"inputs[{index}].pixel_values is {shape}; send {allowed}", index)
    if min(image.patches(shape[1], shape[2])) < 1:
        raise BadInput(
            f"inputs[{index}].pixel_values is {shape}; each side must hold a patch of {image.patch} pixels", index
        )
    return {"pixel_values": values}


def _grid(image: Image, shape: list[int], grid: tuple[int, int] | None, index: int) -> dict[str, NDArray[Any]]:
    if len(shape) != 2 or shape[1] != image.width or not shape[0]:
        raise BadInput(
            f"inputs[{index}].pixel_values is {shape}; send flattened patches [patches, {image.width}]", index
        )
    if not image.takes_grid:
        return {}
    if grid is None:
        raise BadInput(f"inputs[{index}].grid is missing; send [rows, columns] of the patches", index)
    if grid[0] * grid[1] != shape[0] or grid[0] % image.merge or grid[1] % image.merge:
        blocks = f" in multiples of {image.merge}" if image.merge > 1 else ""
        raise BadInput(f"inputs[{index}].grid is {list(grid)}; {shape[0]} patches need rows x columns{blocks}", index)
    return {"grid": np.array(grid, np.int64)}


def _rows_of(image: Image, feeds: Mapping[str, NDArray[Any]]) -> int:
    """Patches or frames of an image: its cost."""
    shape: tuple[int, ...] = next(iter(feeds.values())).shape
    if image.feed == "pixels":
        rows, columns = image.patches(shape[1], shape[2])
        return rows * columns
    return shape[0] if image.feed == "patches" else shape[1]


def _output(name: str, rows: Sequence[Rows], dtype: str) -> Output:
    arrays = [each[name] for each in rows]
    joined = np.concatenate(arrays)
    if dtype != "float32":
        with np.errstate(over="ignore"):
            joined = joined.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
        if dtype == "float16" and not np.isfinite(joined).all():
            raise BadRequest("a value is too large for float16: ask for bfloat16 or float32")
    return Output(name, np.ascontiguousarray(joined), tuple(len(each) for each in arrays), False)

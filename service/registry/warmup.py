"""One token through every graph of a model that is about to serve. Judges no number but by being one."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import HEAD, Card
from models.vision.image_spec import Image
from service.embedding import images
from service.embedding import validation as sequences
from service.embedding.model import Model, Work
from service.embedding.output_plan import HIDDEN
from service.embedding.requests import Ids, Text
from service.embedding.tokenization import Cut
from service.errors import EngineFailure, InlayError, Overloaded, StartError

_heads: WeakKeyDictionary[Model, asyncio.Future[list[NDArray[Any]]]] = WeakKeyDictionary()  # runs under way


async def passes_within(model: Model, seconds: float) -> None:
    """`passes`, or StartError where it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            await passes(model)
    except TimeoutError as error:
        raise StartError(f"{model.card.name} gave no answer within {seconds:g} s") from error


async def passes(model: Model) -> None:
    """Run every graph once, as requests will.

    raises   StartError in one line: the tokenizer or a graph fails, or gives a value that is not finite
             Overloaded where others wait for a graph, which only a model that serves already meets
    """
    name = model.card.name
    try:
        ids = await _ids(model)
        for graph, batcher in model.batchers.items():
            works = [_work(model.card, graph, ids)]
            (waiting,) = batcher.submit(works, [len(ids)])
            _check(model.card, graph, await waiting)
        if model.card.head:
            _check(model.card, HEAD, {"logits": await _logits(model, model.card.head.width)})
    except Overloaded:
        raise
    except InlayError as error:
        raise StartError(f"{name} fails on its first token: {error.message}; export it again") from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise StartError(f"{name} fails on its first token: {what}; export it again") from error


async def _logits(model: Model, width: int) -> NDArray[Any]:
    """Of one row: in a thread of its own, which no tokenising keeps waiting; what still runs is not begun again."""
    running = _heads.get(model)
    if running is None:
        feeds = {"hidden": np.zeros((1, width), np.float32)}
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"{model.card.name}-trial")
        running = asyncio.get_running_loop().run_in_executor(thread, model.engine.run, HEAD, feeds, ("logits",))
        thread.shutdown(wait=False)  # it ends with its run
        _heads[model] = running
        running.add_done_callback(lambda _: _heads.pop(model, None))
    (logits,) = await asyncio.shield(running)
    return logits


async def _ids(model: Model) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What a letter is to the model, else id 0."""
    if model.tokenizer:
        found = (await model.tokenizer.encode({0: Text("a")}, Cut()))[0].ids
        if len(found):
            return found
    return np.zeros(1, np.int64)


def _work(card: Card, graph: str, ids: Any) -> Any:
    inputs, outputs = card.graphs[graph].inputs, card.graphs[graph].outputs
    if card.image:
        return images.Work(_blank(card.image), outputs)
    types = np.zeros(len(ids), np.int64) if "types" in inputs else None
    return Work(sequences.pack(card, [sequences.check(card, 0, Ids(ids, types=types), True, "right")]), outputs)


def _blank(image: Image) -> Mapping[str, Any]:
    """The smallest image the model takes, all zeros."""
    if image.feed == "features":
        return {"input_features": np.zeros((image.width, image.frames or 1), np.float32)}
    if image.feed == "patches":
        rows = np.zeros((image.merge**2, image.width), np.float32)
        return {"pixel_values": rows} | ({"grid": np.full(2, image.merge, np.int64)} if image.takes_grid else {})
    height, width = image.fixed or (image.patch, image.patch)
    return {"pixel_values": np.zeros((image.width, height, width), np.float32)}


def _check(card: Card, graph: str, rows: Mapping[str, Any]) -> None:
    for name, values in rows.items():
        if not np.isfinite(values).all():
            raise EngineFailure(f"{card.every_graph[graph].file} gives {name} that is not finite")
        if name in (card.default_output, HIDDEN) and values.shape[-1] != card.hidden_size:
            file, width = card.every_graph[graph].file, values.shape[-1]
            raise EngineFailure(f"{file} gives {name} {width} wide where its card promises {card.hidden_size}")

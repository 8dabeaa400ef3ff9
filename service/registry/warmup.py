"""Warm-up: one token, or the smallest image, through every graph of a model, to show that it answers."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASSIFIER, HEAD, IMAGE_VECTOR, MODULES, MULTI_VECTOR, MULTI_VECTORS, SPARSE, Card
from models.recipes.graph_names import ONE_ROW
from models.vision.image_spec import Image
from service.embedding import images, validation
from service.embedding.model import Model, Work
from service.embedding.multi_vectors import project
from service.embedding.output_plan import HIDDEN, POOLED
from service.embedding.reduction import check_finite_input
from service.embedding.requests import Ids, Int64s, Text
from service.embedding.sentence_modules import run_modules
from service.embedding.task_heads import class_logits
from service.embedding.tokenization import Cut
from service.errors import EngineFailure, InlayError, Overloaded, StartError

_head_runs: WeakKeyDictionary[Model, asyncio.Future[list[NDArray[Any]]]] = WeakKeyDictionary()  # that are under way


async def warm_up_within(model: Model, seconds: float, every_session: bool = False) -> None:
    """Run every graph as `warm_up` does; raise StartError if that takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await warm_up(model, every_session)
    except TimeoutError as error:
        raise StartError(f"{model.card.name} gave no answer within {seconds:g} s") from error


async def warm_up(model: Model, every_session: bool = False) -> None:
    """Run every graph of a model once, through its batchers.

    Args:
        every_session: run graphs that have a session for a run alone twice more, side by side, in their other session.

    Raises:
        StartError: in one line, the tokenizer or a graph fails, or gives a value that is not finite.
        Overloaded: the queue of a graph is full, which only a model that is already served can meet.
    """
    name = model.card.name
    try:
        ids = await _ids(model)
        for graph, batcher in model.batchers.items():
            apart = every_session and model.engine.alone and model.card.graphs[graph].attends
            for runs in (1, 2) if apart else (1,):
                work = _work(model.card, graph, ids)
                for answer in await asyncio.gather(*batcher.submit([work] * runs, [len(ids)] * runs)):
                    _check(model.card, graph, answer)
        if model.card.head:
            _check(model.card, HEAD, {"logits": await _logits(model, model.card.head.width)})
        if model.card.sparse:
            await _sparse(model, ids)
        if model.card.modules:
            pooled = np.zeros((1, model.card.modules.inner), np.float32)
            vectors = await asyncio.to_thread(run_modules, model, pooled)
            _check_width(model.card, MODULES, "vectors", vectors, model.card.modules.width)
        if (own := model.card.classifier) and own.modules:
            pooled, output = np.zeros((1, own.modules.inner), np.float32), model.card.classifier_output
            logits = await asyncio.to_thread(class_logits, model, pooled, output)
            _check_width(model.card, CLASSIFIER, output, logits, len(own.labels))
        if several := model.card.multi_vector:
            rows = np.ones((1, several.modules.inner), np.float32)
            (rows,) = await asyncio.to_thread(project, model, [rows], [None])
            _check_width(model.card, MULTI_VECTORS, MULTI_VECTOR, rows, several.modules.width)
    except Overloaded:
        raise
    except Exception as error:
        why = error.message if isinstance(error, InlayError) else f"{type(error).__name__}: {error}"
        raise StartError(f"{name} fails on its first token: {why}; export it again") from error


async def _logits(model: Model, width: int) -> NDArray[Any]:
    """Return the logits of one row, run in a thread of its own; a run that hangs is not started again."""
    run = _head_runs.get(model)
    if run is None:
        feeds = {"hidden": np.zeros((1, width), np.float32)}
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"{model.card.name}-warmup")
        run = asyncio.get_running_loop().run_in_executor(thread, model.engine.run, HEAD, feeds, ("logits",))
        thread.shutdown(wait=False)  # it ends with its run
        _head_runs[model] = run
        run.add_done_callback(lambda _: _head_runs.pop(model, None))
    (logits,) = await asyncio.shield(run)
    return logits


async def _sparse(model: Model, ids: Int64s) -> None:
    """Make the sparse vector of the ids as requests get it; raise EngineFailure for a value that is not finite."""
    plan = model.plan((SPARSE,), None, None, None, "float32")
    for graph in plan.plain:
        (future,) = model.batchers[graph].submit(
            [_work(model.card, graph, ids)._replace(outputs=(SPARSE,))], [len(ids)]
        )
        check_finite_input(model.card.name, 0, await future)


async def _ids(model: Model) -> Int64s:
    """Return the ids of a letter; id 0 of a model without a tokenizer."""
    if model.tokenizer:
        ids = (await model.tokenizer.encode({0: Text("a")}, Cut()))[0].ids
        if len(ids):
            return ids
    return np.zeros(1, np.int64)


def _work(card: Card, graph: str, ids: Int64s) -> Any:
    inputs, outputs = card.graphs[graph].inputs, card.graphs[graph].outputs
    if card.row_graphs and graph in card.row_graphs.files:
        outputs = (ONE_ROW,)  # the form that requests use
    if card.image:
        return images.Work(_blank(card.image), outputs)
    types = np.zeros(len(ids), np.int64) if "types" in inputs else None
    return Work(validation.pack(card, [validation.check(card, 0, Ids(ids, types=types), True, "right")]), outputs)


def _blank(image: Image) -> Mapping[str, Any]:
    """Return the smallest image that the model takes, all zeros."""
    if image.feed == "features":
        return {"input_features": np.zeros((image.width, image.frames or 1), np.float32)}
    if image.feed == "patches":
        rows = np.zeros((image.merge**2, image.width), np.float32)
        return {"pixel_values": rows} | ({"grid": np.full(2, image.merge, np.int64)} if image.takes_grid else {})
    height, width = image.fixed or (image.patch, image.patch)
    return {"pixel_values": np.zeros((image.width, height, width), np.float32)}


def _check(card: Card, graph: str, rows: Mapping[str, Any]) -> None:
    """Raise EngineFailure for an output that is not finite, or not as wide as the card says."""
    file = card.every_graph[graph].file
    for name, values in rows.items():
        if not np.isfinite(values).all():
            raise EngineFailure(f"{file} gives {name} that is not finite")
        if name == POOLED:
            _check_width(card, graph, name, values, card.graph_width or card.hidden_size)
        elif name == IMAGE_VECTOR:
            _check_width(card, graph, name, values, card.sentence_width)
        elif name in (HIDDEN, ONE_ROW):
            _check_width(card, graph, name, values, card.token_width)
        elif card.classifier and name == card.classifier_output:
            _check_width(card, graph, name, values, len(card.classifier.labels))
        elif name == card.default_output:
            _check_width(card, graph, name, values, card.hidden_size)


def _check_width(card: Card, graph: str, name: str, values: NDArray[Any], width: int) -> None:
    if values.shape[-1] != width:
        file = card.every_graph[graph].file
        raise EngineFailure(f"{file} gives {name} {values.shape[-1]} wide where its card promises {width}")

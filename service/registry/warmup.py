"""Warm-up: runs one token, or the smallest image, through every graph of a model before it is served."""

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import HEAD, Card
from models.recipes.extra_inputs import IMAGE_ROWS
from models.recipes.graph_names import ONE_ROW
from service.embedding.image_inputs import blank_tower
from service.embedding.model import Model
from service.embedding.outputs.image import blank, is_of_images
from service.embedding.outputs.kind import OutputKind, check_width
from service.embedding.outputs.plan import width_in_graph
from service.embedding.requests import Cut, EmbedOptions, Ids, Int64s, Text
from service.embedding.tokenize import validation
from service.embedding.tokenize.packing import Work, pack
from service.errors import BadInput, EngineFailure, InlayError, Overloaded, StartError

Tasks = WeakKeyDictionary[Model, asyncio.Task[None]]
_under_way: dict[bool, Tasks] = {False: WeakKeyDictionary(), True: WeakKeyDictionary()}  # by every_session


async def warm_up_within(model: Model, seconds: float, every_session: bool = False) -> None:
    """Run every graph as `warm_up` does; raise StartError if that takes longer than `seconds`.

    A warm-up that is under way, such as one whose run hangs, is awaited again instead of begun: it holds one thread.
    """
    tasks = _under_way[every_session]
    if model not in tasks:
        tasks[model] = asyncio.create_task(warm_up(model, every_session))
        tasks[model].add_done_callback(lambda task: tasks.pop(model, None))
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(tasks[model])
    except TimeoutError as error:
        raise StartError(f"{model.card.name} gave no answer within {seconds:g} s") from error


async def warm_up(model: Model, every_session: bool = False) -> None:
    """Run every graph of a model once through its batchers, then the head and the outputs that follow the graphs.

    Args:
        every_session: run graphs that have a session for a run alone twice more, side by side, in their other session.

    Raises:
        StartError: the tokenizer or a graph fails, or gives a value that is not finite; one line.
        Overloaded: the queue of a graph is full, which only a model that is already served can meet.
    """
    name = model.card.name
    thread = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-warmup")  # that of the loop may be full of requests
    try:
        await _run_graphs(model, every_session)
        kinds = [kind for output in model.card.outputs for kind in model.plan(EmbedOptions((output,)), "").kinds]
        await asyncio.get_running_loop().run_in_executor(thread, _run_behind_graphs, model, kinds)
    except Overloaded:
        raise
    except Exception as error:
        why = error.message if isinstance(error, InlayError) else f"{type(error).__name__}: {error}"
        raise StartError(f"{name} fails on its first token: {why}; export it again") from error
    finally:
        thread.shutdown(wait=False)  # it ends with its run


async def _run_graphs(model: Model, every_session: bool) -> None:
    ids = await _ids(model)
    for graph, batcher in model.batchers.items():
        apart = every_session and model.engine.alone and model.card.graphs[graph].attends
        for runs in (1, 2) if apart else (1,):
            work = _work(model, graph, ids)
            for answer in await asyncio.gather(*batcher.submit([work] * runs, [len(ids)] * runs)):
                _check(model.card, graph, answer)


def _run_behind_graphs(model: Model, kinds: Iterable[OutputKind]) -> None:
    """Run the output head, and what the kinds of outputs compute after the graphs, on one row."""
    if head := model.card.head:
        (logits,) = model.engine.run(HEAD, {"hidden": np.zeros((1, head.width), np.float32)}, ("logits",))
        _check(model.card, HEAD, {"logits": logits})
    for kind in kinds:
        kind.probe()


async def _ids(model: Model) -> Int64s:
    """Return the ids of a letter; id 0 for a model without a tokenizer."""
    if model.tokenizer:
        with suppress(BadInput):  # a vocabulary without that letter, or a token for unknown ones
            ids = model.tokenizer.encode({0: Text("a")}, Cut(most=model.card.max_tokens))[0].ids
            if len(ids):
                return ids
    return np.zeros(1, np.int64)


def _work(model: Model, graph: str, ids: Int64s) -> Work[Any]:
    """Return one token, or the smallest image, for a graph."""
    card = model.card
    inputs, outputs = card.graphs[graph].inputs, card.graphs[graph].outputs
    if card.row_graphs and graph in card.row_graphs.files:
        outputs = (ONE_ROW,)  # the form that requests use
    if is_of_images(card):
        return Work(blank(card), outputs)
    if card.image_tokens and graph == IMAGE_ROWS:
        return Work(blank_tower(card.image_tokens), outputs)
    types = np.zeros(len(ids), np.int64) if "types" in inputs else None
    return Work(pack(card, [validation.check(card, 0, Ids(ids, types=types), True, "right")]), outputs)


def _check(card: Card, graph: str, rows: Mapping[str, NDArray[Any]]) -> None:
    """Raise EngineFailure for an output that is not finite, or not as wide as the card says."""
    file = card.every_graph[graph].file
    for name, values in rows.items():
        if not np.isfinite(values).all():
            raise EngineFailure(f"{file} gives {name} that is not finite")
        width = width_in_graph(card, name)
        if width is not None:
            check_width(card, graph, name, values, width)

"""THE ROAD: check → tokenise → batch → pool → select. Every protocol's request passes here; knows none of them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from service.embedding import limits
from service.embedding import validation as sequences
from service.embedding.finite import check_finite
from service.embedding.output_plan import (
    HIDDEN,
    POOLED,
    Graphs,
    Plan,
)
from service.embedding.packing import Packed
from service.embedding.pooling import normalise, pool
from service.embedding.requests import (
    EmbedRequest,
    EmbedResult,
    Ids,
    Output,
    Text,
    Times,
)
from service.embedding.tokenization import Cut
from service.errors import (
    BadInput,
    BadRequest,
    WrongModelKind,
)
from service.registry.registry import (
    Catalog,
    Model,
    Rows,
    Work,
)
from service.scheduling import deadlines
from service.scheduling.admission import Door, texts_of
from service.scheduling.fair_queue import Spent
from service.settings import Settings

Uncounted = Mapping[int, int]  # input → leading tokens that pooling leaves out
Queued = list[tuple[int, "asyncio.Future[Rows]"]]  # which part, and its rows of one graph
Told = Callable[[str, int, Times], None]
_NONE: Uncounted = {}


NUMPY_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class Encoder:
    """Answers requests from the models of a catalog.

    told   of every request answered: its model, its tokens and what its stages took
    """

    def __init__(self, catalog: Catalog, settings: Settings, told: Told = lambda model, tokens, times: None) -> None:
        self.catalog = catalog
        self._told = told
        self.door = Door(settings.max_concurrent_requests)
        self._settings = settings

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """One request's outputs, in the order asked for.

        raises   an InlayError; the caller's mistakes before anything is queued
        """
        deadline = deadlines.current()
        self.door.enter()
        try:
            if deadline is None:
                return await self._embedded(request, None)
            async with deadlines.kept():
                return await self._embedded(request, deadline)
        finally:
            self.door.leave()

    async def _embedded(self, request: EmbedRequest, deadline: float | None) -> EmbedResult:
        model = self.catalog.get(request.model)
        if model.card.image:
            raise WrongModelKind(f"{model.card.name} reads no text: POST to /models/{model.card.name}/images")
        plan = model.plan(request.outputs, request.pooling, request.normalize, request.dimensions, request.dtype)
        ids, uncounted = self._checked(model.card, request), _NONE
        characters, started, tokenising, spent, admitted = 0, perf_counter(), 0.0, Spent(), False
        if None in ids:
            texts, admitted = texts_of(request.inputs), True
            characters = limits.check_characters(texts, self._settings)
            longest = _least(model.card.max_tokens, request.max_tokens)
            cost = self.door.guess(model.card.name, texts, longest) + sum([len(each.ids) for each in ids if each])
            queues = [model.batchers[graph] for graph in plan.typed]
            for queue in queues:
                queue.check(cost, deadline)
            with self.door.promised(queues, cost):
                ids, uncounted = await self._tokenised(model, request, ids)
            tokenising = perf_counter() - started
            tokenised = sum(
                [len(ids[index].ids) for index, each in enumerate(request.inputs) if isinstance(each, Text)]
            )
            self.door.learn(model.card.name, characters, tokenised)
        lengths = tuple([len(each.ids) for each in ids])
        tokens = sum(lengths)
        limits.check_tokens(tokens, model.card, plan, self._settings)
        parts = _parts(model.card, plan, ids)
        queued = _queue(model, plan, parts, spent, deadline, admitted)
        rows = await _rows(queued, len(parts))
        if not plan.whole:  # a table's rows were checked when it was exported
            check_finite(model.card.name, rows)
        outputs = tuple([_output(name, plan, rows, ids, uncounted) for name in plan.outputs])
        times = Times(tokenising, spent.queued / spent.items, spent.ran / spent.items)
        self._told(model.card.name, tokens, times)
        return EmbedResult(model.card.name, outputs, tokens, bool(request.outputs), lengths, characters, times)

    def _checked(self, card: Card, request: EmbedRequest) -> list[Any]:
        """The caller's token ids, checked; None in the place of a text."""
        inputs = request.inputs
        limits.check_count(inputs, self._settings)
        truncate, direction, most = self._truncates(request), request.truncation_direction, request.max_tokens
        if self._settings.max_input_tokens:
            most = _least(self._settings.max_input_tokens, most)
            if not truncate:
                limits.check_longest(inputs, self._settings.max_input_tokens)
        return [
            sequences.check(card, index, each, truncate, direction, most) if isinstance(each, Ids) else None
            for index, each in enumerate(inputs)
        ]

    async def _tokenised(self, model: Model, request: EmbedRequest, ids: list[Any]) -> tuple[list[Ids], Uncounted]:
        """Ids in the place of each text, and the leading tokens of each that pooling must not count."""
        card, tokenizer = model.card, model.tokenizer
        if tokenizer is None:
            raise BadRequest(f"{card.name} was exported without a tokenizer: send token ids instead of text")
        prompt = prompt_of(card, request.prompt_name)
        texts = {
            index: Text(prompt + each.text, each.pair) if prompt else each
            for index, each in enumerate(request.inputs)
            if isinstance(each, Text)
        }
        cut = Cut(self._truncates(request), request.truncation_direction, request.max_tokens, request.special_tokens)
        encoded = await tokenizer.encode(texts, cut)
        uncounted = _NONE
        if prompt and card.pooling and not card.pooling.include_prompt:
            uncounted = dict.fromkeys(encoded, tokenizer.prompt_length(prompt))
            _beyond_the_prompt(encoded, uncounted)
        return [encoded.get(index, each) for index, each in enumerate(ids)], uncounted

    def _truncates(self, request: EmbedRequest) -> bool:
        return self._settings.auto_truncate if request.truncate is None else request.truncate


def _least(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def prompt_of(card: Card, name: str | None) -> str:
    """What goes before a text: the prompt of that name, or the model's default one.

    raises   BadRequest naming the prompts there are
    """
    if name is None:
        return card.prompts[card.default_prompt] if card.default_prompt else ""
    if name not in card.prompts:
        known = ", ".join(repr(prompt) for prompt in card.prompts) or "none"
        raise BadRequest(f"{card.name} has no prompt {name!r}; it has {known}")
    return card.prompts[name]


def _beyond_the_prompt(encoded: Mapping[int, Ids], uncounted: Uncounted) -> None:
    for index, each in encoded.items():
        if len(each.ids) <= uncounted[index]:
            raise BadInput(
                f"inputs[{index}] is cut to {len(each.ids)} tokens, all of them its prompt's, which pooling does not "
                "count: use a shorter prompt",
                index,
            )


def _parts(card: Card, plan: Plan, ids: list[Ids]) -> list[Packed]:
    """One part for the whole request where rows stand alone; one a sequence for an encoder or mixed segments."""
    if plan.whole and (card.types != "optional" or len({each.types is None for each in ids}) == 1):
        return [sequences.pack(card, ids)]
    for index, each in enumerate(ids):
        if not plan.whole and each.mask is not None and not each.mask.any():
            raise BadInput(f"inputs[{index}].attention_mask is all 0: an encoder needs one token to attend to", index)
    return [sequences.pack(card, [each]) for each in ids]


def _queue(
    model: Model, plan: Plan, parts: list[Packed], spent: Spent, deadline: float | None, admitted: bool
) -> Queued:
    """Every part's work, a future for each of its graphs; if one graph has no room, nothing stays queued."""
    queued: Queued = []
    try:
        for graphs, indices in _by_graphs(model.card, plan, parts):
            costs = [parts[index].tokens for index in indices]
            for graph, outputs in graphs.items():
                works = [Work(parts[index], outputs) for index in indices]
                futures = model.batchers[graph].submit(works, costs, spent, deadline, admitted)
                queued += zip(indices, futures, strict=True)
    except BaseException:
        _drop(queued)
        raise
    return queued


def _by_graphs(card: Card, plan: Plan, parts: list[Packed]) -> list[tuple[Graphs, Sequence[int]]]:
    if card.types != "optional":
        return [(plan.typed, range(len(parts)))]
    for index, part in enumerate(parts):
        if part.types is None and "token_type_embeddings" in plan.outputs:
            raise BadInput(f"inputs[{index}] has no token_type_ids, so {card.name} adds no segment rows", index)
    return [(plan.plain if part.types is None else plan.typed, (index,)) for index, part in enumerate(parts)]


async def _rows(queued: Queued, parts: int) -> list[Rows]:
    """The rows of every part; if one fails or the caller leaves, what is still queued is dropped."""
    if len(queued) == 1:
        return [await queued[0][1]]
    rows: list[Rows] = [{} for _ in range(parts)]
    try:
        for index, future in queued:
            rows[index] |= await future
    except BaseException:
        _drop(queued)
        raise
    return rows


def _drop(queued: Queued) -> None:
    for _, future in queued:
        future.cancel()


def _output(name: str, plan: Plan, rows: list[Rows], ids: list[Ids], uncounted: Uncounted) -> Output:
    if name == POOLED:
        return Output(name, _cast(_pooled(plan, rows, ids, uncounted), plan.dtype), (1,) * len(ids), True)
    arrays = [each[name] for each in rows]
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return Output(name, _cast(joined, plan.dtype), tuple([len(each.ids) for each in ids]), False)


def _pooled(plan: Plan, rows: list[Rows], ids: list[Ids], uncounted: Uncounted) -> NDArray[np.float32]:
    if plan.mode is None:
        vectors = np.concatenate([each[POOLED] for each in rows])
    else:
        vectors = np.stack(
            [
                pool(plan.mode, rows[index][HIDDEN], sequences.counted(each, uncounted.get(index, 0)))
                for index, each in enumerate(ids)
            ]
        )
    if plan.dimensions is not None:
        vectors = np.ascontiguousarray(vectors[:, : plan.dimensions])
    return normalise(vectors) if plan.normalize else vectors


def _cast(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "float32":
        return rows
    with np.errstate(over="ignore"):
        cast: NDArray[Any] = rows.astype(NUMPY_DTYPES[dtype])
    if dtype == "float16" and not np.isfinite(cast).all():
        raise BadRequest("a value is too large for float16: ask for bfloat16 or float32")
    return cast

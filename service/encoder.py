"""THE ROAD: check → tokenise → batch → pool → select. Every protocol's request passes here; knows none of them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.card import Card
from service import sequences
from service.catalog import Catalog, Model, Rows, Work
from service.errors import BadInput, BadRequest, EmptyRequest, NotFound, TooLarge
from service.flatten import Packed
from service.messages import DTYPES, POOLINGS, EmbedRequest, EmbedResult, Ids, Output, Text
from service.pooling import normalise, pool
from service.settings import Settings

POOLED = "sentence_embedding"
HIDDEN = "last_hidden_state"
NUMPY_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one request comes to on one model: outputs to answer, columns to compute, how to pool."""

    outputs: tuple[str, ...]
    computed: tuple[str, ...]
    mode: str | None
    normalize: bool


class Encoder:
    """Answers requests from the models of a catalog."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self.catalog = catalog
        self._settings = settings

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """One request's outputs, in the order asked for.

        raises   an InlayError; the caller's mistakes before anything is queued
        """
        model = self.catalog.get(request.model)
        plan = _plan(model.card, request)
        ids, prompt_tokens = await self._ids(model, request)
        parts = _parts(model.card, plan, ids)
        rows = await _run(model, plan.computed, parts)
        outputs = tuple(_output(name, plan, request, rows, parts, ids, prompt_tokens) for name in plan.outputs)
        return EmbedResult(model.card.name, outputs, sum(part.tokens for part in parts), bool(request.outputs))

    async def rope(
        self, model: str | None, start: int, count: int, outputs: tuple[str, ...] = ("rope_cos", "rope_sin")
    ) -> list[NDArray[np.float32]]:
        """Rows [start, start + count) of a model's RoPE tables, float32 [count, rotary_dim / 2] each.

        raises   NotFound if the model has none
        """
        served = self.catalog.get(model)
        if served.card.rope is None:
            raise NotFound(f"{served.card.name} does not rotate: {served.card.family} models have no RoPE table")
        positions = np.arange(start, start + count, dtype=np.int64)
        rows = await _run(served, outputs, [Packed(positions, positions, None, None, (count,))])
        return [rows[0][name] for name in outputs]

    async def _ids(self, model: Model, request: EmbedRequest) -> tuple[list[Ids], int]:
        if not request.inputs:
            raise EmptyRequest('"inputs" is empty: send one text or one list of token ids at least')
        if len(request.inputs) > self._settings.max_inputs:
            raise TooLarge(
                f"{len(request.inputs)} inputs; this server takes {self._settings.max_inputs} a request: send fewer"
            )
        truncate = self._settings.auto_truncate if request.truncate is None else request.truncate
        given: dict[int, Ids] = {index: each for index, each in enumerate(request.inputs) if isinstance(each, Ids)}
        texts = {index: each for index, each in enumerate(request.inputs) if isinstance(each, Text)}
        checked = {
            index: sequences.check(model.card, index, each, truncate, request.truncation_direction)
            for index, each in given.items()
        }
        prompt_tokens = 0
        if texts:
            tokenizer = _tokenizer(model)
            prompt = _prompt(model.card, request.prompt_name)
            if prompt:
                texts = {index: Text(prompt + text.text, text.pair) for index, text in texts.items()}
                if model.card.pooling and not model.card.pooling.include_prompt:
                    prompt_tokens = tokenizer.prompt_length(prompt)
            checked |= await tokenizer.encode(texts, truncate, request.truncation_direction)
            if model.card.types != "zeros":
                checked |= {index: Ids(checked[index].ids) for index in texts}
        ids = [checked[index] for index in range(len(request.inputs))]
        self._bound(ids)
        return ids, prompt_tokens

    def _bound(self, ids: Sequence[Ids]) -> None:
        tokens = sum(len(each.ids) for each in ids)
        if tokens > self._settings.max_request_tokens:
            raise TooLarge(
                f"{tokens} tokens; this server takes {self._settings.max_request_tokens} a request: send fewer inputs"
            )


def _plan(card: Card, request: EmbedRequest) -> _Plan:
    _check_fields(card, request)
    mode = request.pooling or (card.pooling.mode if card.pooling else None)
    default = POOLED if request.pooling else card.default_output
    outputs = tuple(dict.fromkeys(request.outputs)) or (default,)
    available = card.outputs
    for name in outputs:
        if name not in available and not (name == POOLED and mode and HIDDEN in available):
            raise BadRequest(f"{card.name} has no output {name!r}; it has {', '.join(available)}")
    if POOLED not in outputs:
        _refuse_pooled_fields(card, request, outputs)
        mode = None
    if mode and HIDDEN not in available:
        if request.pooling:
            raise BadRequest(f"{card.name} gives sentence vectors as they are: leave out pooling")
        mode = None
    computed = tuple(dict.fromkeys(HIDDEN if name == POOLED and mode else name for name in outputs))
    normalize = request.normalize
    if normalize is None:
        normalize = card.pooling.normalize if card.pooling else True  # TEI normalises unless told otherwise
    return _Plan(outputs, computed, mode, normalize)


def _check_fields(card: Card, request: EmbedRequest) -> None:
    if request.dimensions is not None and not 1 <= request.dimensions <= card.hidden_size:
        raise BadRequest(f"dimensions is {request.dimensions}; send 1 to {card.hidden_size}")
    if request.dtype not in DTYPES:
        raise BadRequest(f"dtype is {request.dtype!r}; send one of {', '.join(DTYPES)}")
    if request.pooling is not None and request.pooling not in POOLINGS:
        raise BadRequest(f"pooling is {request.pooling!r}; send one of {', '.join(POOLINGS)}")


def _refuse_pooled_fields(card: Card, request: EmbedRequest, outputs: tuple[str, ...]) -> None:
    for field in ("pooling", "dimensions", "normalize"):
        if getattr(request, field):
            raise BadRequest(
                f"{field} applies to {POOLED} alone, and this request asks {card.name} for {', '.join(outputs)}: "
                f"leave {field} out or ask for {POOLED}"
            )


def _tokenizer(model: Model) -> Any:
    if model.tokenizer is None:
        raise BadRequest(f"{model.card.name} was exported without a tokenizer: send token ids instead of text")
    return model.tokenizer


def _prompt(card: Card, name: str | None) -> str:
    if name is None:
        return card.prompts[card.default_prompt] if card.default_prompt else ""
    if name not in card.prompts:
        known = ", ".join(repr(prompt) for prompt in card.prompts) or "none"
        raise BadRequest(f"{card.name} has no prompt {name!r}; it has {known}")
    return card.prompts[name]


def _parts(card: Card, plan: _Plan, ids: list[Ids]) -> list[Packed]:
    """One part for the whole request where rows stand alone; one a sequence for an encoder or mixed segments."""
    graphs = [card.graphs[graph] for name in plan.computed if (graph := card.graph_for(name, False))]
    if any("lengths" in graph.inputs or graph.layout == "padded" for graph in graphs):
        for index, each in enumerate(ids):
            if each.mask is not None and not each.mask.any():
                raise BadInput(
                    f"inputs[{index}].attention_mask is all 0: an encoder needs one token to attend to", index
                )
    elif card.types != "optional" or len({each.types is None for each in ids}) == 1:
        return [sequences.pack(card, ids)]
    return [sequences.pack(card, [each]) for each in ids]


async def _run(model: Model, names: tuple[str, ...], parts: list[Packed]) -> list[Rows]:
    """The named rows of every part; if one fails or the caller leaves, what is still queued is dropped."""
    work: dict[str, list[tuple[int, Work]]] = {}
    for index, part in enumerate(parts):
        for graph, outputs in _by_graph(model.card, names, part).items():
            work.setdefault(graph, []).append((index, Work(part, outputs)))
    rows: list[Rows] = [{} for _ in parts]
    futures: list[tuple[int, asyncio.Future[Rows]]] = []
    try:
        for graph, entries in work.items():
            items = [item for _, item in entries]
            submitted = model.batchers[graph].submit(items, [item.packed.tokens for item in items])
            futures += [(index, future) for (index, _), future in zip(entries, submitted, strict=True)]
        for index, future in futures:
            rows[index] |= await future
    except BaseException:
        for _, future in futures:
            future.cancel()
        raise
    return rows


def _by_graph(card: Card, names: tuple[str, ...], part: Packed) -> dict[str, tuple[str, ...]]:
    by_graph: dict[str, tuple[str, ...]] = {}
    for name in names:
        graph = card.graph_for(name, part.types is not None)
        if graph is None:
            raise BadRequest(f"{card.name} has no output {name!r}")
        by_graph[graph] = (*by_graph.get(graph, ()), name)
    return by_graph


def _output(
    name: str,
    plan: _Plan,
    request: EmbedRequest,
    rows: list[Rows],
    parts: list[Packed],
    ids: list[Ids],
    prompt_tokens: int,
) -> Output:
    if name == POOLED:
        vectors = _pooled(plan, request, rows, ids, prompt_tokens)
        return Output(name, _cast(vectors, request.dtype), (1,) * len(ids), True)
    arrays = [each[name] for each in rows]
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return Output(name, _cast(joined, request.dtype), tuple(n for part in parts for n in part.lengths), False)


def _pooled(
    plan: _Plan, request: EmbedRequest, rows: list[Rows], ids: list[Ids], prompt_tokens: int
) -> NDArray[np.float32]:
    if plan.mode is None:
        vectors = np.concatenate([each[POOLED] for each in rows])
    else:
        vectors = np.stack(
            [
                pool(plan.mode, each[HIDDEN], sequences.counted(sequence, prompt_tokens))
                for each, sequence in zip(rows, ids, strict=True)
            ]
        )
    if request.dimensions is not None:
        vectors = np.ascontiguousarray(vectors[:, : request.dimensions])
    return normalise(vectors) if plan.normalize else vectors


def _cast(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "float32":
        return rows
    with np.errstate(over="ignore"):
        cast: NDArray[Any] = rows.astype(NUMPY_DTYPES[dtype])
    if dtype == "float16" and not np.isfinite(cast).all():
        raise BadRequest("a value is too large for float16: ask for bfloat16 or float32")
    return cast

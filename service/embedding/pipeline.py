"""The embedding pipeline: validate, admit, tokenize, schedule, pool, select. Serves the requests of every protocol."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from models.artifacts.card import MULTI_VECTOR, SPARSE, Card
from models.recipes.graph_names import ONE_ROW
from service.embedding import late_chunking, limits, multi_vectors, sparse_vectors, validation
from service.embedding.in_flight import works_of
from service.embedding.model import Model, Models, Rows, Work
from service.embedding.multi_vectors import Projection
from service.embedding.output_plan import HIDDEN, POOLED, ROW_OF_EACH, Graphs, Plan
from service.embedding.output_types import Ranges, in_precisions
from service.embedding.packing import Packed
from service.embedding.prompts import prompt_of, task_of
from service.embedding.quantization import PRECISIONS
from service.embedding.reduction import (
    PromptTokens,
    cast,
    check_finite_input,
    check_prompts,
    pooled_row,
    sentence_vectors,
)
from service.embedding.requests import Chunks, EmbedRequest, EmbedResult, Ids, Output, Text
from service.embedding.sentence_modules import apply_modules
from service.embedding.task_heads import apply_heads, reduced
from service.embedding.token_offsets import OwnTokens
from service.embedding.tokenization import Cut
from service.embedding.vector_cache import Kept, VectorCache, keys_of
from service.errors import BadInput, BadRequest, WrongModelKind
from service.request_context import RequestContext, StageTimes
from service.scheduling.admission import TokenEstimator, reserved
from service.scheduling.batcher import Batcher
from service.scheduling.fair_queue import ItemTimes
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

Observer = Callable[[Sequence[RequestContext], str, int, StageTimes], None]
Located = dict[int, OwnTokens]
_NO_PROMPTS: PromptTokens = {}
_NOT_LOCATED: Located = {}
CHARACTER_BYTES = 100  # of memory that a tokenizer needs for each character, cut off or not
COUNTED_CHARACTERS = 16384  # fewer are not counted
HASHED_INLINE = 1 << 17  # characters that are hashed on the event loop: half a millisecond


class EmbeddingPipeline:
    """Answers requests from loaded models.

    Args:
        models: the loaded models.
        observe: called after every request with its model, its tokens and the times of its stages.
        budget: of the memory of all requests; None: its own.
        count_truncated: called with a model and the number of inputs of a request that were cut.
        count_joined: called with a model and the number of inputs of a request that the run of an equal one answered.
        cache: of pooled vectors; None: one of the size that the settings state.
    """

    def __init__(
        self,
        models: Models,
        settings: Settings,
        observe: Observer = lambda *_: None,
        budget: MemoryBudget | None = None,
        count_truncated: Callable[[str, int], None] = lambda *_: None,
        count_joined: Callable[[str, int], None] = lambda *_: None,
        cache: VectorCache | None = None,
    ) -> None:
        self._models = models
        self._observe = observe
        self._budget = budget or MemoryBudget(settings.max_answering_bytes)
        self._count_truncated, self._count_joined = count_truncated, count_joined
        self._cache = cache or VectorCache(settings.vector_cache_bytes)
        self._estimator = TokenEstimator()
        self._settings = settings

    async def embed(self, request: EmbedRequest, context: RequestContext | None = None) -> EmbedResult:
        """Return one request's outputs, in the order of `request.options.outputs`.

        Args:
            context: of the call, for which the memory of the vectors is reserved; None: nothing is reserved.

        Raises:
            InlayError: the request cannot be served; mistakes of the caller are found before anything is queued.
        """
        if context is None:
            context = RequestContext()
            context.copies = 0
        request, model, plan, ids, characters = self._validated(request)
        precisions = _precisions(model, request)
        several = MULTI_VECTOR in plan.heads
        if several:
            request = multi_vectors.as_read(model.card, request)
        hashing = model, plan, request, ids, context.key_name
        keys = self._keys(*hashing) if characters <= HASHED_INLINE else await asyncio.to_thread(self._keys, *hashing)
        if keys:
            ids = [kept or own for kept, own in zip(self._cache.find(model, keys), ids, strict=True)]
        prompts, located, tokenizing, admitted = _NO_PROMPTS, _NOT_LOCATED, 0.0, False
        if None in ids:
            started = perf_counter()
            ids, prompts, located = await self._tokenize(model, plan, request, ids, context)
            tokenizing, admitted = perf_counter() - started, True
        if several:
            ids = await multi_vectors.marked(model.card, request, ids)
        context.truncated = truncated = tuple([index for index, sequence in enumerate(ids) if sequence.cut])
        lengths = tuple([sequence.tokens for sequence in ids])
        tokens = sum(lengths)
        chunks: tuple[Chunks, ...] = ()
        if request.spans is not None:
            chunks = await late_chunking.placed(request, ids, located, prompts, self._settings)
        vectors = sum([len(each.rows) for each in chunks]) if chunks else len(ids)
        size = limits.check_tokens(tokens, vectors, model.width, plan, self._settings)
        if context.copies:
            copies = context.copies + (not plan.whole or plan.dtype != "float32")  # to join sequences, and to cast them
            self._budget.reserve(copies * size, context)
        times = ItemTimes(context.caller)
        if plan.typed:
            task = task_of(model.card, request.options.task, request.options.prompt_name, request.options.input_type)
            parts = _parts(model.card, plan, ids, task)
            rows = await _run(model, plan, ids, parts, prompts, chunks, times, context, admitted)
        else:
            rows = await asyncio.to_thread(sparse_vectors.looked_up, model, ids)
        for key, sequence, own in zip(keys, ids, rows, strict=False):
            if type(sequence) is Ids:
                self._cache.keep(model, key, Kept(own[POOLED], sequence.tokens, sequence.cut))
        outputs = tuple([_select(name, plan, rows, lengths, chunks) for name in plan.outputs if name != SPARSE])
        if SPARSE in plan.outputs:
            sparse = await asyncio.to_thread(sparse_vectors.output, rows, plan.dtype, request.options.max_active_dims)
            place = plan.outputs.index(SPARSE)
            outputs = (*outputs[:place], sparse, *outputs[place:])
        quantized = await in_precisions(outputs[0].rows, precisions) if precisions else {}
        if plan.dtype in quantized:
            outputs = (outputs[0]._replace(rows=quantized[plan.dtype]),)
        spent = StageTimes(tokenizing, times.queued / (times.items or 1), times.ran / (times.items or 1))
        self._count(model.card.name, tokens, spent, len(truncated), times.joined, context)
        picked = bool(request.options.outputs)
        return EmbedResult(
            model.card.name, outputs, tokens, picked, lengths, characters, spent, truncated, chunks, quantized
        )

    def _count(
        self, model: str, tokens: int, spent: StageTimes, truncated: int, joined: int, context: RequestContext
    ) -> None:
        self._observe((context,), model, tokens, spent)
        if truncated:
            self._count_truncated(model, truncated)
        if joined:
            self._count_joined(model, joined)

    def check(self, request: EmbedRequest, context: RequestContext) -> None:
        """Raise what `embed` would raise now before it tokenized the texts of a request."""
        request, model, plan, ids, _ = self._validated(request)
        if keys := self._keys(model, plan, request, ids, context.key_name):
            kept = self._cache.find(model, keys, counted=False)
            ids = [found or own for found, own in zip(kept, ids, strict=True)]
        if None in ids:
            self._check_room(model, plan, request, ids, context)

    def _keys(self, model: Model, plan: Plan, request: EmbedRequest, ids: list[Any], key_name: str) -> Sequence[bytes]:
        """Return the keys of the inputs in the cache; none where it does not keep the vectors of the plan."""
        if not self._cache.max_bytes or plan.whole or plan.outputs != (POOLED,) or request.spans is not None:
            return ()
        named = request.options.prompt_name, request.options.task, request.options.input_type
        prompt = prompt_of(model.card, *named) if None in ids else ""
        task = task_of(model.card, request.options.task, request.options.prompt_name, request.options.input_type)
        return keys_of(request.inputs, ids, plan.mode, prompt, self._cut(request), task, key_name)

    def _validated(self, request: EmbedRequest) -> tuple[EmbedRequest, Model, Plan, list[Any], int]:
        """Return a request with the model's own choices, its model and plan, its inputs as `_validate` does, and the
        characters of its texts.
        """
        model = self._models.get(request.model)
        card = model.card
        if card.image:
            raise WrongModelKind(
                f"{card.name} reads no text", allowed="images", remedy=f"POST to /models/{card.name}/images"
            )
        plan = model.plan(
            request.options.outputs,
            request.options.pooling,
            request.options.normalize,
            request.options.dimensions,
            request.options.dtype,
        )
        request, plan = sparse_vectors.route(card, request, plan)
        task_of(card, request.options.task, request.options.prompt_name, request.options.input_type)
        if request.spans is not None:
            late_chunking.check(card, plan, request, self._settings)
        ids = self._validate(card, request)
        texts = [item for item in request.inputs if isinstance(item, Text)] if None in ids else ()
        return request, model, plan, ids, limits.check_characters(texts, self._settings)

    def _validate(self, card: Card, request: EmbedRequest) -> list[Any]:
        """Return the caller's token ids, checked; None in the place of a text."""
        inputs = request.inputs
        limits.check_count(inputs, self._settings)
        truncate, direction, most = (
            self._truncates(request),
            request.options.truncation_direction,
            request.options.max_tokens,
        )
        if self._settings.max_input_tokens:
            most = limits.least(self._settings.max_input_tokens, most)
            if not truncate:
                limits.check_longest(inputs, self._settings.max_input_tokens)
        return [
            validation.check(card, index, item, truncate, direction, most) if type(item) is Ids else None
            for index, item in enumerate(inputs)
        ]

    async def _tokenize(
        self, model: Model, plan: Plan, request: EmbedRequest, ids: list[Any], context: RequestContext
    ) -> tuple[list[Any], PromptTokens, Located]:
        """Admit the texts of a request to its queues and tokenize them.

        Returns:
            Ids in the place of each None, the number of leading tokens of each input that pooling leaves out, and for
            spans the own tokens of each text.
        """
        queues, cost, characters = self._check_room(model, plan, request, ids, context)
        needed = CHARACTER_BYTES * characters if characters > COUNTED_CHARACTERS else 0
        with reserved(queues, cost, context.caller), self._budget.held_for(needed):
            complete, prompts, located = await self._encode(model, plan, request, ids)
        tokens = sum([complete[index].tokens for index, sequence in enumerate(ids) if sequence is None])
        self._estimator.learn(model.card.name, characters, tokens)
        return complete, prompts, located

    def _check_room(
        self, model: Model, plan: Plan, request: EmbedRequest, ids: list[Any], context: RequestContext
    ) -> tuple[list[Batcher[Work, Rows]], int, int]:
        """Check whether the texts of a request that are to be tokenized, and its ids, may be queued.

        Returns:
            The queues, the tokens that these are estimated to have, and the characters of the texts.
        """
        texts = [item for item, sequence in zip(request.inputs, ids, strict=True) if sequence is None]
        longest = limits.least(model.card.max_tokens, request.options.max_tokens)
        sizes = [len(text.text) + len(text.pair or "") for text in texts if isinstance(text, Text)]
        cost = self._estimator.estimate(model.card.name, sizes, longest)
        cost += sum([sequence.tokens for sequence in ids if type(sequence) is Ids])
        queues = [model.batchers[graph] for graph in plan.typed]
        for queue in queues:
            queue.check(cost, context.deadline, context.caller)
        return queues, cost, sum(sizes)

    async def _encode(
        self, model: Model, plan: Plan, request: EmbedRequest, ids: list[Any]
    ) -> tuple[list[Any], PromptTokens, Located]:
        """Tokenize the texts of a request that have no ids behind its prompt."""
        card, tokenizer = model.card, model.tokenizer
        if tokenizer is None:
            remedy = "send token ids instead of text, or name another model"
            raise BadRequest(f"{card.name} was exported without a tokenizer", remedy=remedy)
        prompt = prompt_of(card, request.options.prompt_name, request.options.task, request.options.input_type)
        texts = {
            index: Text(prompt + item.text, item.pair) if prompt else item
            for index, item in enumerate(request.inputs)
            if isinstance(item, Text) and ids[index] is None
        }
        prompts, located, cut = _NO_PROMPTS, _NOT_LOCATED, self._cut(request, self._longest(model, plan, request))
        if request.spans is None:
            encoded = await tokenizer.encode(texts, cut)
        else:
            encoded, located = await tokenizer.encode_located(texts, cut, prompt)
        if prompt and card.pooling and not card.pooling.include_prompt:
            prompts = dict.fromkeys(encoded, tokenizer.prompt_length(prompt))
            check_prompts(encoded, prompts)
        return [encoded.get(index, sequence) for index, sequence in enumerate(ids)], prompts, located

    def _cut(self, request: EmbedRequest, longest: int | None = None) -> Cut:
        truncates = self._truncates(request)
        return Cut(
            truncates,
            request.options.truncation_direction,
            request.options.max_tokens,
            request.options.special_tokens,
            longest,
        )

    @staticmethod
    def _longest(model: Model, plan: Plan, request: EmbedRequest) -> int | None:
        """Return the longest text of its kind in tokens, of a request for several vectors a text."""
        return multi_vectors.longest(model.card, request) if MULTI_VECTOR in plan.heads else None

    def _truncates(self, request: EmbedRequest) -> bool:
        return self._settings.auto_truncate if request.options.truncate is None else request.options.truncate


def _precisions(model: Model, request: EmbedRequest) -> Ranges:
    """Return the precisions that a request wants its sentence vectors in, and the ranges of each.

    Raises:
        BadRequest: the model cannot give one.
    """
    names = (
        (request.options.dtype, *request.options.precisions)
        if request.options.dtype in PRECISIONS
        else request.options.precisions
    )
    options = request.options.outputs, request.options.pooling, request.options.normalize, request.options.dimensions
    return {name: model.plan(*options, name).ranges for name in names}


async def _run(
    model: Model,
    plan: Plan,
    ids: list[Any],
    parts: dict[int, Packed],
    prompts: PromptTokens,
    chunks: Sequence[Chunks],
    times: ItemTimes,
    context: RequestContext,
    admitted: bool,
) -> list[Rows]:
    """Return the rows of every part of a request; what was kept of an input is not computed."""
    kept = {index: each.vector for index, each in enumerate(ids) if type(each) is Kept}
    rows: list[Rows] = [{POOLED: kept[index]} if index in kept else {} for index in range(len(parts) + len(kept))]
    if parts:
        queued = _schedule(model, plan, parts, times, context, admitted)
        projection = Projection(model, rows, ids) if MULTI_VECTOR in plan.heads else None
        reduce, pool_chunks = _reducer(model, plan, ids, prompts, chunks), _chunk_pooling(plan, ids, chunks)
        await _gather(queued, rows, reduce, pool_chunks, projection)
        if plan.modules:
            await apply_modules(model, rows, list(parts))
        if plan.heads:
            await apply_heads(model, plan, rows, list(parts))
    return rows


def _parts(card: Card, plan: Plan, ids: list[Any], task: int) -> dict[int, Packed]:
    """Return one part for the whole request where rows are independent; else one for each sequence, by its number."""
    if plan.whole and (card.types != "optional" or len({sequence.types is None for sequence in ids}) == 1):
        return {0: validation.pack(card, ids, task)}
    sequences = {index: sequence for index, sequence in enumerate(ids) if type(sequence) is Ids}
    for index, sequence in sequences.items():
        if not plan.whole and sequence.mask is not None and not sequence.mask.any():
            raise BadInput(
                "is all 0", field=("inputs", index, "attention_mask"), allowed="an encoder needs one token to attend to"
            )
    return {index: validation.pack(card, [sequence], task) for index, sequence in sequences.items()}


Queued = list[tuple[int, "asyncio.Future[Rows]"]]  # the number of a part, and its rows of one graph


def _schedule(
    model: Model, plan: Plan, parts: dict[int, Packed], times: ItemTimes, context: RequestContext, admitted: bool
) -> Queued:
    """Queue every part at each of its graphs; if one graph has no room, cancel those queued already."""
    queued: Queued = []
    try:
        for graphs, indices in _by_graphs(model.card, plan, parts):
            for graph, outputs in graphs.items():
                works, answered = works_of(model, plan, graph, outputs, parts, indices, context.key_name)
                costs = [work.packed.tokens for work in works]
                futures = model.batchers[graph].submit(
                    works, costs, times, context.deadline, admitted, context.staggered
                )
                queued += [(index, futures[number]) for index, number in zip(indices, answered, strict=True)]
                times.joined += len(answered) - len(works)
    except BaseException:
        _drop(queued)
        raise
    return queued


def _by_graphs(card: Card, plan: Plan, parts: dict[int, Packed]) -> list[tuple[Graphs, Sequence[int]]]:
    """Return which parts run on which graphs: sequences with and without segment ids may differ."""
    if card.types != "optional":
        return [(plan.typed, list(parts))]
    for index, part in parts.items():
        if part.types is None and "token_type_embeddings" in plan.outputs:
            raise BadInput(
                "has no token_type_ids", field=("inputs", index), allowed=f"{card.name} then adds no segment rows"
            )
    return [(plan.plain if part.types is None else plan.typed, (index,)) for index, part in parts.items()]


Reduce = Callable[[int, Rows], Rows]
PoolChunks = Callable[[int, Rows], Awaitable[Rows]]


def _reducer(
    model: Model, plan: Plan, ids: list[Ids], prompts: PromptTokens, chunks: Sequence[Chunks]
) -> Reduce | None:
    """Return what checks the rows of a part as they come, and reduces them to what is read of them, so that hidden
    states that nothing else needs are not kept until all have come; None: rows of a table, which were checked when it
    was exported.
    """
    if plan.whole:
        return None

    def reduce(index: int, rows: Rows) -> Rows:
        check_finite_input(model.card.name, index, rows)
        if ONE_ROW in rows:  # pooled by the graph
            return dict.fromkeys(plan.outputs, rows[ONE_ROW])
        if (plan.mode is None and not plan.heads) or HIDDEN not in rows:
            return rows
        kept = {name: own for name, own in rows.items() if name in plan.outputs or name == sparse_vectors.INDICES}
        if plan.heads:
            kept |= reduced(model, plan, rows[HIDDEN], ids[index])
        if chunks:
            kept[HIDDEN] = rows[HIDDEN]
        elif plan.mode is not None:
            kept[POOLED] = pooled_row(plan, rows[HIDDEN], ids[index], prompts.get(index, 0))
        return kept

    return reduce


def _chunk_pooling(plan: Plan, ids: list[Ids], chunks: Sequence[Chunks]) -> PoolChunks | None:
    """Return what makes the vectors of an input's chunks of its hidden states as they come; None: there are none."""

    async def pool_chunks(index: int, rows: Rows) -> Rows:
        return await late_chunking.pooled(plan, rows, ids[index], chunks[index]) if HIDDEN in rows else rows

    return pool_chunks if chunks else None


async def _gather(
    queued: Queued,
    rows: list[Rows],
    reduce: Reduce | None,
    pool_chunks: PoolChunks | None = None,
    projection: Projection | None = None,
) -> None:
    """Add the rows of every part to `rows`; if one fails or the caller leaves, the queued ones are cancelled."""
    queued.reverse()
    try:
        while queued:
            index, future = queued.pop()  # the future holds the rows of its whole batch
            own = await future
            if reduce is not None:
                own = reduce(index, own)
            if pool_chunks is not None:
                own = await pool_chunks(index, own)
            rows[index] |= own
            if projection and MULTI_VECTOR in own:
                await projection.add(index)
        if projection:
            await projection.finish()
    except BaseException:
        _drop(queued)
        raise


def _drop(queued: Queued) -> None:
    for _, future in queued:
        future.cancel()


def _select(name: str, plan: Plan, rows: list[Rows], lengths: tuple[int, ...], chunks: Sequence[Chunks] = ()) -> Output:
    """Return one output of the plan, pooled or token by token."""
    if name == POOLED:
        vectors = sentence_vectors(plan, np.concatenate([part[POOLED] for part in rows]))
        rows_of_texts = vectors if plan.dtype in PRECISIONS else cast(vectors, plan.dtype)
        counts = tuple([len(each.rows) for each in chunks]) if chunks else (1,) * len(lengths)
        return Output(name, rows_of_texts, counts, not chunks)
    arrays = [part[name] for part in rows]
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    if name in ROW_OF_EACH:
        return Output(name, cast(joined, plan.dtype), (1,) * len(lengths), True)
    if name == MULTI_VECTOR:
        lengths = tuple([len(array) for array in arrays])
    return Output(name, cast(joined, plan.dtype), lengths, False)

"""The embedding pipeline: resolve, admit, tokenize, run, finish. It serves the requests of every protocol."""

import asyncio
from collections.abc import Iterable
from time import perf_counter
from typing import Any

import numpy as np

from models.artifacts.card import Card
from service.embedding import execution, limits
from service.embedding.image_inputs import ImageReader, check_reads_images, reads_no_text
from service.embedding.model import Model, Models
from service.embedding.outputs import spans
from service.embedding.outputs.kind import Job, Plan
from service.embedding.picture_decoder import PictureDecoder
from service.embedding.requests import Cut, EmbedRequest, EmbedResult, Ids, Output, Picture, Text
from service.embedding.tokenize import validation
from service.embedding.tokenize.packing import Packed, pack, packed
from service.embedding.tokenize.prompts import check_prompts, prompt_of, with_ending
from service.embedding.tokenize.tokenizer import INLINE_CHARACTERS, Tokenizer, beside
from service.embedding.vector_cache import VectorCache, keys_of
from service.errors import BadInput, BadRequest
from service.observability.metrics import Metrics
from service.request_context import RequestContext
from service.scheduling.admission import estimated_tokens, reserved
from service.scheduling.callers import ItemTimes
from service.scheduling.fair_queue import FairQueue
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

HASHED_INLINE = 1 << 17  # characters that are hashed on the event loop: half a millisecond
NO_TOKENIZER = "send token ids instead of text, or name another model"
UNREAD = Ids(np.empty(0, np.int64))  # stands for a text until it is tokenized, for an image until it is read


class EmbeddingPipeline:
    """Answers requests from loaded models.

    Args:
        models: the loaded models.
        metrics: what counts requests, their stages, and inputs that were cut; None: the pipeline's own.
        budget: the memory of all requests; None: the pipeline's own.
        cache: cache of pooled vectors; None: one of the size that the settings state.
        decoder: decodes pictures; None: the pipeline's own.
    """

    def __init__(
        self,
        models: Models,
        settings: Settings,
        metrics: Metrics | None = None,
        budget: MemoryBudget | None = None,
        cache: VectorCache | None = None,
        decoder: PictureDecoder | None = None,
    ) -> None:
        self._models = models
        self._metrics = metrics or Metrics()
        self._budget = budget or MemoryBudget(settings.max_answering_bytes)
        self._cache = cache or VectorCache(settings.vector_cache_bytes)
        self._settings = settings
        self._decoder = decoder or PictureDecoder(settings, self._budget)
        self._images = ImageReader(self._decoder, self._budget, settings)

    async def embed(self, request: EmbedRequest, context: RequestContext | None = None) -> EmbedResult:
        """Return one request's outputs, in the order of its options.

        Args:
            context: context of the call, for which the memory of the vectors is reserved; None: nothing is reserved.

        Raises:
            InlayError: the request cannot be served; mistakes of the caller are found before anything is queued.
        """
        if context is None:
            context = RequestContext()
            context.copies = 0
        images = [index for index, item in enumerate(request.inputs) if type(item) is Picture]
        if images:
            check_reads_images(self._models.get(request.model), images[0], bool(request.late_chunking))
            request = request._replace(inputs=await self._decoder.fetched(request.inputs))
        model, job = self._resolved(request)
        job.images = images
        if job.plan.cached and self._cache.max_bytes:
            await self._find_kept(model, job, context.key_name)
        if job.images:
            await self._images.read(model, job, context)
        admitted = await self._tokenize(model, job, context) if job.texts else 0
        await self._prepare(job, context)
        times = await execution.run(model, job, self._parts(model.card, job), context, sum(job.lengths) <= admitted)
        if job.keys:
            self._keep(model, job)
        outputs = await execution.finish(job)
        return self._result(model.card.name, job, outputs, times, context)

    def _resolved(self, request: EmbedRequest) -> tuple[Model, Job]:
        """Return the model of a request and its job: the plan, checked ids, and the numbers of the texts."""
        model = self._models.get(request.model)
        card = model.card
        if model.reads_images:
            raise reads_no_text(card.name)
        plan = model.plan(request.options, spans.field_of(request) if request.late_chunking else "")
        ids, texts = self._checked(card, plan, request)
        job = Job(request, plan, self._settings, ids, texts)
        for kind in plan.kinds:
            if kind.checks:
                kind.check(job)
        if texts:
            sent = [item for item in request.inputs if isinstance(item, Text)]
            job.characters = limits.check_characters(sent, self._settings)
            if plan.prompt is None:
                prompt_of(card, request.options.prompt_name)  # raises
        return model, job

    def _checked(self, card: Card, plan: Plan, request: EmbedRequest) -> tuple[list[Ids], list[int]]:
        """Return the caller's checked token ids, UNREAD in place of texts and images, and the numbers of the texts."""
        inputs, cut = request.inputs, plan.cuts[self._settings.auto_truncate]
        if not 0 < len(inputs) <= self._settings.max_inputs:
            limits.check_count(inputs, self._settings)
        most = cut.max_tokens
        if self._settings.max_input_tokens:
            most = limits.least(self._settings.max_input_tokens, most)
            if not cut.truncate:
                limits.check_longest(inputs, self._settings.max_input_tokens)
        ids, texts = [], []
        for index, item in enumerate(inputs):
            if isinstance(item, Text):
                texts.append(index)
                ids.append(UNREAD)
            elif isinstance(item, Picture):
                ids.append(UNREAD)
            else:
                ids.append(validation.check(card, index, item, cut.truncate, cut.direction, most))
        return ids, texts

    async def _find_kept(self, model: Model, job: Job, key_name: str) -> None:
        """Look up the inputs of a request in the vector cache; inputs found there are not computed."""
        plan = job.plan
        assert plan.cached is not None
        prompt, cut = (plan.prompt or "") if job.texts else "", plan.cuts[self._settings.auto_truncate]
        sent = job.request.inputs, job.ids, key_name, plan.cached.cache_form, prompt, cut, plan.task
        inline = job.characters <= HASHED_INLINE and not job.images
        job.keys = keys_of(*sent) if inline else await asyncio.to_thread(keys_of, *sent)
        for index, read, vector in self._cache.find(model, job.keys):
            job.ids[index], job.kept[index] = read, vector
        job.texts = [index for index in job.texts if index not in job.kept]
        job.images = [index for index in job.images if index not in job.kept]

    def _keep(self, model: Model, job: Job) -> None:
        """Put the computed vectors into the vector cache."""
        name = job.plan.kinds[0].name
        for index, (key, sequence) in enumerate(zip(job.keys, job.ids, strict=True)):
            if index not in job.kept:
                self._cache.keep(model, key, sequence, job.rows[index][name])

    async def _tokenize(self, model: Model, job: Job, context: RequestContext) -> int:
        """Admit the texts of a request to its queues and tokenize them after its prompt.

        Returns:
            The tokens that were admitted: an estimate. If there are more, the queues are to be asked again.
        """
        started = perf_counter()
        card, tokenizer, prompt = model.card, model.tokenizer, job.plan.prompt or ""
        if tokenizer is None:
            raise BadRequest(f"{card.name} was exported without a tokenizer", remedy=NO_TOKENIZER)
        inputs, cut = job.request.inputs, job.plan.cuts[self._settings.auto_truncate]
        texts = {index: item for index in job.texts if isinstance(item := inputs[index], Text)}
        if prompt:
            prompted = {item.text: prompt + item.text for item in texts.values()}  # many pairs may share a long query
            texts = {index: Text(prompted[item.text], item.pair) for index, item in texts.items()}
        sizes = [len(item.text) + len(item.pair or "") for item in texts.values()]
        queues, cost = self._admit(model, job, context, sizes)
        characters = sum(sizes)
        if characters <= INLINE_CHARACTERS and not job.plan.locates:
            encoded = tokenizer.encode(texts, cut)  # no other request joins the queues meanwhile
        else:
            with reserved(queues, cost, context.caller):
                encoded = await self._tokenize_beside(tokenizer, job, texts, cut, characters)
        if job.plan.ending:
            encoded = with_ending(encoded, job.plan.ending)
        for index, sequence in encoded.items():
            job.ids[index] = sequence
        if prompt and card.pooling and not card.pooling.include_prompt:
            job.prompts = dict.fromkeys(encoded, tokenizer.prompt_length(prompt))
            check_prompts(encoded, job.prompts)
        job.tokenizing = perf_counter() - started
        return cost

    async def _tokenize_beside(
        self, tokenizer: Tokenizer, job: Job, texts: dict[int, Text], cut: Cut, characters: int
    ) -> dict[int, Ids]:
        """Return the ids of texts, and keep in the job where their tokens lie if its plan locates them."""
        if not job.plan.locates:
            return await beside(characters, self._budget, tokenizer.encode, texts, cut)
        prompt = job.plan.prompt or ""
        encoded, job.located = await beside(characters, self._budget, tokenizer.encode_located, texts, cut, prompt)
        return encoded

    def _admit(
        self, model: Model, job: Job, context: RequestContext, sizes: Iterable[int]
    ) -> tuple[list[FairQueue[Any, Any]], int]:
        """Return the queues of a request, which have room for it, and its ids and estimated tokens.

        Args:
            sizes: the characters of its texts.
        """
        cost = estimated_tokens(sizes, job.plan.cuts[True].most)
        cost += sum([len(sequence.ids) for index, sequence in enumerate(job.ids) if index not in job.kept])
        batchers = [model.batchers[graph] for graph in job.plan.typed]
        for batcher in batchers:
            batcher.check(cost, context.deadline, context.caller)
        return [batcher.queue for batcher in batchers], cost

    async def _prepare(self, job: Job, context: RequestContext) -> None:
        """Let the kinds prepare the ids, check the request's size, and reserve memory for it."""
        plan, ids = job.plan, job.ids
        job.vectors = len(ids)
        for kind in plan.preparing:
            await asyncio.to_thread(kind.prepare, job)
        ids = job.ids
        context.truncated = tuple([index for index, each in enumerate(ids) if each.cut])
        job.lengths = tuple([len(each.ids) for each in ids])
        tokens = sum(job.lengths)
        if tokens > self._settings.max_request_tokens:
            raise limits.too_many_tokens(tokens, self._settings.max_request_tokens)
        size = tokens * plan.token_bytes + job.vectors * plan.input_bytes
        if size > self._settings.max_answer_bytes:
            received = f"has {tokens} tokens, whose {', '.join(plan.names)} are {size} bytes"
            limits.check_bytes(size, received, self._settings)
        if context.copies:
            copies = context.copies + (not plan.whole or plan.options.dtype != "float32")  # to join sequences, to cast
            self._budget.reserve(copies * size, context)

    def _parts(self, card: Card, job: Job) -> dict[int, Packed]:
        """Return one part for the whole request if rows are independent; else one for each sequence, by its number.

        The rows of what was kept are put into the job.
        """
        plan, ids = job.plan, job.ids
        if plan.whole and (card.types != "optional" or len({sequence.types is None for sequence in ids}) == 1):
            job.rows = [{}] if plan.typed else [{} for _ in ids]
            return {0: pack(card, ids, plan.task)} if plan.typed else {}
        job.rows = [{} for _ in ids]
        for index, vector in job.kept.items():
            job.rows[index] = {plan.kinds[0].name: vector}
        parts = {}
        for index, sequence in enumerate(ids):
            if index in job.kept:
                continue
            if not plan.whole and sequence.mask is not None and not sequence.mask.any():
                raise BadInput(
                    "is all 0",
                    field=("inputs", index, "attention_mask"),
                    allowed="an encoder needs one token to attend to",
                )
            parts[index] = packed(card, sequence, plan.task)
        return parts

    def _result(
        self, model: str, job: Job, outputs: tuple[Output, ...], times: ItemTimes, context: RequestContext
    ) -> EmbedResult:
        """Count a finished request, and return its result."""
        tokens, (spent, batch) = sum(job.lengths), times.means(job.tokenizing)
        self._metrics.passes((context,), model, (tokens,), spent, batch)
        if context.truncated:
            self._metrics.truncated(model, len(context.truncated))
        return EmbedResult(
            model,
            outputs,
            tokens,
            picked=bool(job.request.options.outputs),
            lengths=job.lengths,
            characters=job.characters,
            times=spent,
            truncated=context.truncated,
            chunks=job.chunks,
            quantized=job.quantized,
        )

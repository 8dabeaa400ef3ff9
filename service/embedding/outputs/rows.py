"""The rows of a graph, unchanged: one for each token, or one for each input.

Rows of the input layer are independent, so requests for plain token ids that are readable at the same time are checked,
joined, run and split at once by RowLookup, without a queue item or task for each. The embedding pipeline serves all
other requests, and those with a mistake. A lookup takes half its processor time: 16 ids at 32 connections
(`make bench`).
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from models.positions import learned
from service.embedding.outputs.kind import ROW_OF_EACH, OutputKind, Plan, Planning
from service.embedding.requests import EmbedOptions, EmbedRequest, EmbedResult, Ids, Input, Int64s, Output
from service.errors import InlayError
from service.request_context import RequestContext, StageTimes
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

if TYPE_CHECKING:
    from service.embedding.model import Model, Models
    from service.observability.metrics import Metrics

RUN_TOKENS = 128  # of one run: its values stay in the processor's cache, which halves the time of 512 at once
UNCOUNTED_BYTES = 1 << 16  # of the rows of one request, for which no memory is reserved


class GraphRows(OutputKind):
    """An output that a graph of the model returns under the same name."""

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, name)
        self.pooled = name in ROW_OF_EACH
        self.token_bytes = 0 if self.pooled else 4 * self.width


class _Batch:
    """Requests for the same outputs of one model, gathered until they fill a run.

    Attributes:
        longest: the most tokens of an input.
        most: the most tokens of a request.
        members: the number, the context, the inputs' lengths and the tokens of each request.
        ids: the inputs of all requests.
        tokens: of all requests.
    """

    __slots__ = ("ids", "longest", "members", "model", "most", "plan", "tokens")

    def __init__(self, model: "Model", plan: Plan, longest: int, most: int) -> None:
        self.model, self.plan, self.longest, self.most = model, plan, longest, most
        self.members: list[tuple[int, RequestContext, tuple[int, ...], int]] = []
        self.ids: list[Int64s] = []
        self.tokens = 0

    def feeds(self, graph: str, ids: Int64s) -> dict[str, Int64s]:
        """Return the inputs of a graph for all sequences, whose joined ids are given, int64 [N] each."""
        feeds, names, rule = {"ids": ids}, self.model.card.graphs[graph].inputs, self.model.card.position
        if "types" in names:
            feeds["types"] = np.zeros(len(ids), np.int64)
        if "positions" in names:
            each = [learned.positions(rule, sequence) for sequence in self.ids]
            feeds["positions"] = each[0] if len(each) == 1 else np.concatenate(each)
        return feeds


class RowLookup:
    """Answers requests for plain token ids at once while the engine is idle.

    Args:
        models: the loaded models.
        metrics: what counts requests and the times of their stages.
        budget: of the memory of all requests; None: its own.
    """

    def __init__(
        self, models: "Models", settings: Settings, metrics: "Metrics", budget: MemoryBudget | None = None
    ) -> None:
        self._budget = budget or MemoryBudget(settings.max_answering_bytes)
        self._models = models
        self._metrics = metrics
        self._settings, self._max_inputs = settings, settings.max_inputs
        self._max_tokens = min(settings.max_request_tokens, settings.max_input_tokens or settings.max_request_tokens)

    def answer(self, requests: Sequence[tuple[EmbedRequest, RequestContext]]) -> list[EmbedResult | None]:
        """Return the result of each request; None for those that the embedding pipeline has to serve."""
        results: list[EmbedResult | None] = [None] * len(requests)
        batches: dict[tuple[str | None, int], _Batch | None] = {}  # decoders keep the options that callers repeat
        for number, (request, context) in enumerate(requests):
            inputs, model, options, late_chunking = request
            if late_chunking or len(inputs) > self._max_inputs or not (lengths := _plain_lengths(inputs)):
                continue
            key, tokens = (model, id(options)), sum(lengths)
            batch = batches[key] if key in batches else batches.setdefault(key, self._batch(model, options))
            if batch is None or tokens > batch.most or max(lengths) > batch.longest:
                continue
            if batch.tokens + tokens > RUN_TOKENS and batch.members:
                self._run(batch, results)
                batch = batches[key] = _Batch(batch.model, batch.plan, batch.longest, batch.most)
            batch.members.append((number, context, lengths, tokens))
            batch.ids += [sequence.ids for sequence in inputs]  # type: ignore[union-attr]
            batch.tokens += tokens
        for batch in batches.values():
            if batch is not None and batch.members:
                self._run(batch, results)
        return results

    def _batch(self, name: str | None, options: EmbedOptions) -> _Batch | None:
        """Return an empty batch for the options of a request; None if they need more than a lookup."""
        try:
            model = self._models.get(name)
            plan = model.plan(options, "")
        except InlayError:
            return None
        if plan.lookup is None or (plan.options.max_tokens, plan.options.task) != (None, None):
            return None
        longest = min(model.card.position.longest() or self._max_tokens, self._max_tokens)
        most = self._settings.max_request_tokens
        if plan.token_bytes:
            most = min(most, self._settings.max_answer_bytes // plan.token_bytes)
        return _Batch(model, plan, longest, most)

    def _run(self, batch: _Batch, results: list[EmbedResult | None]) -> None:
        """Run a batch unless an id is outside the vocabulary or the engine is busy."""
        model, plan, members, tokens = batch.model, batch.plan, batch.members, batch.tokens
        name, graph = model.card.name, plan.lookup
        assert graph is not None
        ids = batch.ids[0] if len(batch.ids) == 1 else np.concatenate(batch.ids)
        unsigned = ids.view(np.uint64)  # negative ids wrap to huge ones
        if unsigned.item(unsigned.argmax()) >= model.card.vocab_size:
            return
        run = partial(model.engine.run, graph, batch.feeds(graph, ids), plan.names)
        ran = model.batchers[graph].run_now(run, tokens, len(members))
        if ran is None:
            return
        arrays, seconds = ran
        times, start, picked = StageTimes(0.0, 0.0, seconds), 0, bool(plan.options.outputs)
        self._metrics.passes([context for _, context, _, _ in members], name, tokens, times)
        for number, context, lengths, tokens in members:
            stop, size = start + tokens, tokens * plan.token_bytes
            if size <= UNCOUNTED_BYTES or self._reserved(context.copies * size, context):
                named = zip(plan.names, arrays, strict=True)
                outputs = tuple([Output(output, rows[start:stop], lengths, False) for output, rows in named])
                results[number] = EmbedResult(name, outputs, tokens, picked, lengths, 0, times)
            start = stop

    def _reserved(self, size: int, context: RequestContext) -> bool:
        """Reserve memory for the rows of one request; return False where there is no room."""
        try:
            self._budget.reserve(size, context)
        except InlayError:
            return False
        return True


def _plain_lengths(inputs: Sequence[Input]) -> tuple[int, ...]:
    """Return the lengths of the inputs; empty unless each is token ids alone, one at least."""
    lengths = []
    for each in inputs:
        if type(each) is not Ids:
            return ()
        ids, mask, types, positions, extras, _, _ = each
        if not len(ids) or mask is not None or types is not None or positions is not None or extras:
            return ()
        lengths.append(len(ids))
    return tuple(lengths)

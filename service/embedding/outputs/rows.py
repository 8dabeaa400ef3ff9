"""The rows of a graph, unchanged: one for each token, or one for each input.

Rows of the input layer are independent, so requests for plain token ids that are readable at the same time are checked,
joined, run and split at once by RowLookup, without a queue item or task for each. The embedding pipeline serves all
other requests, and those with a mistake. A lookup takes half its processor time: 16 ids at 32 connections
(`make bench`).
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from models.positions import learned
from service.embedding.outputs.kind import ROW_OF_EACH, OutputKind, Plan, Planning
from service.embedding.requests import EmbedRequest, EmbedResult, Ids, Int64s, Output
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

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether a graph gives an output of that name."""
        return name in planning.card.outputs


class _Member(NamedTuple):
    """One request of a batch."""

    number: int
    context: RequestContext
    lengths: tuple[int, ...]
    tokens: int


class _Batch:
    """Requests for the same outputs of one model, gathered until they fill a run."""

    __slots__ = ("ids", "longest", "members", "model", "most", "named", "plan", "tokens", "uncounted")

    def __init__(self, model: "Model", plan: Plan, named: bool, longest: int, most: int) -> None:
        self.model, self.plan, self.named, self.longest, self.most = model, plan, named, longest, most
        self.uncounted = UNCOUNTED_BYTES // max(1, plan.token_bytes)
        self.members: list[_Member] = []
        self.ids: list[Int64s] = []
        self.tokens = 0

    def clear(self) -> None:
        """Begin the next run."""
        self.members, self.ids, self.tokens = [], [], 0


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
        self._settings = settings
        self._max_inputs = settings.max_inputs
        self._max_tokens = min(settings.max_request_tokens, settings.max_input_tokens or settings.max_request_tokens)

    def answer(self, requests: Sequence[tuple[EmbedRequest, RequestContext] | None]) -> list[EmbedResult | None]:
        """Return the result of each request; None for those that the embedding pipeline has to serve."""
        results: list[EmbedResult | None] = [None] * len(requests)
        batches: dict[tuple[object, ...], _Batch | None] = {}  # by a request's fields after its inputs
        options: tuple[object, ...] = ()
        batch: _Batch | None = None
        for number, entry in enumerate(requests):
            if entry is None or not entry[0].inputs or type(entry[0].inputs[0]) is not Ids:
                continue
            request, context = entry
            if request[1:] != options:  # most equal those before: comparing is faster than looking up
                options = request[1:]
                if options not in batches:
                    batches[options] = self._batch(request)
                batch = batches[options]
            if batch is None or not (lengths := self._plain_lengths(request.inputs, batch.longest)):
                continue
            tokens = sum(lengths)
            if tokens > batch.most:
                continue
            if batch.tokens + tokens > RUN_TOKENS and batch.members:
                self._run(batch, results)
                batch.clear()
            batch.members.append(_Member(number, context, lengths, tokens))
            batch.ids += [sequence.ids for sequence in request.inputs]  # type: ignore[union-attr]
            batch.tokens += tokens
        for batch in batches.values():
            if batch is not None and batch.members:
                self._run(batch, results)
        return results

    def _batch(self, request: EmbedRequest) -> _Batch | None:
        """Return an empty batch for the options of a request; None if they need more than a lookup."""
        try:
            model = self._models.get(request.model)
            plan = model.plan(request.options, "")
        except InlayError:
            return None
        options = plan.options
        if plan.lookup is None or request.late_chunking or (options.max_tokens, options.task) != (None, None):
            return None
        longest = min(model.card.position.longest() or self._max_tokens, self._max_tokens)
        answered = self._settings.max_answer_bytes // plan.token_bytes if plan.token_bytes else self._max_tokens
        most = min(self._settings.max_request_tokens, answered)
        return _Batch(model, plan, bool(request.options.outputs), longest, most)

    def _plain_lengths(self, inputs: Sequence[object], longest: int) -> tuple[int, ...]:
        """Return the lengths of the inputs; empty unless all are plain token ids of allowed lengths."""
        if len(inputs) > self._max_inputs:
            return ()
        lengths = []
        for sequence in inputs:
            if type(sequence) is not Ids:
                return ()
            ids, mask, types, positions, extras = sequence[:5]
            length = len(ids)
            if mask is not None or types is not None or positions is not None or extras:
                return ()
            if not 0 < length <= longest:
                return ()
            lengths.append(length)
        return tuple(lengths)

    def _run(self, batch: _Batch, results: list[EmbedResult | None]) -> None:
        """Run a batch unless an id is outside the vocabulary or the engine is busy."""
        model, plan, members = batch.model, batch.plan, batch.members
        card, graph = model.card, plan.lookup
        assert graph is not None
        ids = batch.ids[0] if len(batch.ids) == 1 else np.concatenate(batch.ids)
        unsigned = ids.view(np.uint64)  # negative ids wrap to huge ones
        if unsigned[unsigned.argmax()] >= card.vocab_size:
            return
        feeds = {name: self._column(name, batch, ids) for name in card.graphs[graph].inputs}
        ran = model.batchers[graph].run_now(
            partial(model.engine.run, graph, feeds, plan.names), batch.tokens, len(members)
        )
        if ran is None:
            return
        arrays, seconds = ran
        name, times, start = card.name, StageTimes(0.0, 0.0, seconds), 0
        self._metrics.passes([member.context for member in members], name, batch.tokens, times)
        columns = list(zip(plan.names, arrays, strict=True))
        for number, context, lengths, tokens in members:
            if tokens > batch.uncounted and not self._reserved(batch, tokens, context):
                start += tokens
                continue
            stop = start + tokens
            outputs = tuple([Output(output, array[start:stop], lengths, False) for output, array in columns])
            results[number] = EmbedResult(name, outputs, tokens, batch.named, lengths, 0, times)
            start = stop

    def _reserved(self, batch: _Batch, tokens: int, context: RequestContext) -> bool:
        """Reserve memory for the rows of one request; return False where there is no room."""
        size = tokens * batch.plan.token_bytes
        try:
            self._budget.reserve(context.copies * size, context)
        except InlayError:
            return False
        return True

    def _column(self, name: str, batch: _Batch, ids: Int64s) -> Int64s:
        """Return one input of the graph for all sequences of a batch, int64 [N]."""
        if name == "ids":
            return ids
        if name == "types":
            return np.zeros(len(ids), np.int64)
        rule = batch.model.card.position
        if len(batch.ids) == 1:
            return learned.positions(rule, ids)
        return np.concatenate([learned.positions(rule, sequence) for sequence in batch.ids])

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
from service.embedding.outputs.kind import ROW_OF_EACH, Lookup, OutputKind, Plan, Planning
from service.embedding.requests import EmbedRequest, EmbedResult, Ids, Input, Int64s, Output
from service.errors import InlayError
from service.request_context import RequestContext, StageTimes
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

if TYPE_CHECKING:
    from service.embedding.model import Model, Models
    from service.observability.metrics import Metrics

RUN_TOKENS = 256  # of one run, whose values stay in the processor's cache; runs of 128 take 5 % longer
UNCOUNTED_BYTES = 1 << 16  # of the rows of one request, for which no memory is reserved


class GraphRows(OutputKind):
    """An output that a graph of the model returns under the same name."""

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, name)
        self.pooled = name in ROW_OF_EACH
        self.token_bytes = 0 if self.pooled else 4 * self.width


_Member = tuple[int, RequestContext, list[Int64s], tuple[int, ...], int]
"""The number, the context, the ids and the length of each input, and the tokens of one request."""


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
        self._max_inputs = settings.max_inputs
        self._max_request_tokens, self._max_answer_bytes = settings.max_request_tokens, settings.max_answer_bytes
        self._max_tokens = min(settings.max_request_tokens, settings.max_input_tokens or settings.max_request_tokens)

    def answer(self, requests: Sequence[tuple[EmbedRequest, RequestContext]]) -> list[EmbedResult | None]:
        """Return the result of each request; None for those that the embedding pipeline has to serve."""
        results: list[EmbedResult | None] = [None] * len(requests)
        alike: dict[tuple[str | None, int], list[_Member]] = {}  # decoders keep the options that callers repeat
        for number, ((inputs, model, options, late_chunking), context) in enumerate(requests):
            if late_chunking or len(inputs) > self._max_inputs or not (ids := _plain_ids(inputs)):
                continue
            lengths = tuple(map(len, ids))
            member = number, context, ids, lengths, sum(lengths)
            alike.setdefault((model, id(options)), []).append(member)
        for members in alike.values():
            self._answer_alike(requests[members[0][0]][0], members, results)
        return results

    def _answer_alike(
        self, request: EmbedRequest, members: Sequence[_Member], results: list[EmbedResult | None]
    ) -> None:
        """Answer requests for the model and with the options of `request`, unless they need more than a lookup."""
        try:
            model = self._models.get(request.model)
            plan = model.plan(request.options, "")
        except InlayError:
            return
        lookup = plan.lookup
        if lookup is None:
            return
        longest = min(lookup.longest or self._max_tokens, self._max_tokens)
        run: list[_Member] = []
        tokens = 0
        for member in members:
            _, _, _, lengths, size = member
            if size > self._max_request_tokens or size * plan.token_bytes > self._max_answer_bytes:
                continue
            if max(lengths) > longest:
                continue
            if run and tokens + size > RUN_TOKENS:
                self._run(model, plan, lookup, run, tokens, results)
                run, tokens = [], 0
            run.append(member)
            tokens += size
        if run:
            self._run(model, plan, lookup, run, tokens, results)

    def _run(
        self,
        model: "Model",
        plan: Plan,
        lookup: Lookup,
        members: Sequence[_Member],
        tokens: int,
        results: list[EmbedResult | None],
    ) -> None:
        """Run requests together unless an id is outside the vocabulary or the engine is busy."""
        name, sequences = model.card.name, [each for member in members for each in member[2]]
        joined = sequences[0] if len(sequences) == 1 else np.concatenate(sequences)
        unsigned = joined.view(np.uint64)  # negative ids wrap to huge ones
        if unsigned.item(unsigned.argmax()) >= model.card.vocab_size:
            return
        run = partial(model.engine.run, lookup.graph, _feeds(lookup, joined, sequences), plan.names)
        ran = model.batchers[lookup.graph].run_now(run, tokens, len(members))
        if ran is None:
            return
        arrays, seconds = ran
        times, start, picked = StageTimes(0.0, 0.0, seconds), 0, bool(plan.options.outputs)
        named, token_bytes = list(zip(plan.names, arrays, strict=True)), plan.token_bytes
        contexts, sizes = [member[1] for member in members], [member[4] for member in members]
        self._metrics.passes(contexts, name, sizes, times, len(members))
        for number, context, _, lengths, size in members:
            stop, held = start + size, size * token_bytes
            if held <= UNCOUNTED_BYTES or self._budget.reserved(context.copies * held, context):
                outputs = tuple([Output(output, rows[start:stop], lengths, False) for output, rows in named])
                results[number] = EmbedResult(name, outputs, size, picked, lengths, 0, times)
            start = stop


def _plain_ids(inputs: Sequence[Input]) -> list[Int64s]:
    """Return the ids of the inputs; none unless each is token ids alone, one at least."""
    plain = []
    for each in inputs:
        if type(each) is not Ids:
            return []
        ids, mask, types, positions, extras, _, _ = each
        if not len(ids) or mask is not None or types is not None or positions is not None or extras:
            return []
        plain.append(ids)
    return plain


def _feeds(lookup: Lookup, joined: Int64s, sequences: Sequence[Int64s]) -> dict[str, Int64s]:
    """Return the inputs of a graph for all sequences, int64 [N] each."""
    feeds, rule = {"ids": joined}, lookup.positions
    if lookup.types:
        feeds["types"] = np.zeros(len(joined), np.int64)
    if rule is not None:
        each = [learned.positions(rule, sequence) for sequence in sequences]
        feeds["positions"] = each[0] if len(each) == 1 else np.concatenate(each)
    return feeds

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

from models.artifacts.card import Card
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


class _Lookup(NamedTuple):
    """What requests with the same options share.

    Args:
        named: the requests name their outputs.
        longest: tokens of one input at most.
        most: tokens of one request at most.
    """

    model: "Model"
    plan: Plan
    named: bool
    longest: int
    most: int


class _Member(NamedTuple):
    """One request of a run."""

    number: int
    context: RequestContext
    ids: list[Int64s]
    lengths: tuple[int, ...]
    tokens: int


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

    def answer(self, requests: Sequence[tuple[EmbedRequest, RequestContext] | None]) -> list[EmbedResult | None]:
        """Return the result of each request; None for those that the embedding pipeline has to serve."""
        results: list[EmbedResult | None] = [None] * len(requests)
        waiting: dict[tuple[object, ...], tuple[_Lookup | None, list[_Member]]] = {}  # by the fields after the inputs
        options: tuple[object, ...] = ()
        lookup, members, gathered = None, list[_Member](), 0
        for number, entry in enumerate(requests):
            if entry is None or not entry[0].inputs or type(entry[0].inputs[0]) is not Ids:
                continue
            request, context = entry
            if request[1:] != options:  # most equal those before: comparing is faster than looking up
                options = request[1:]
                if options not in waiting:
                    waiting[options] = self._lookup(request), []
                lookup, members = waiting[options]
                gathered = sum([member.tokens for member in members])
            if lookup is None or not (ids := self._plain_ids(request.inputs, lookup.longest)):
                continue
            lengths = tuple([len(each) for each in ids])
            tokens = sum(lengths)
            if tokens > lookup.most:
                continue
            if members and gathered + tokens > RUN_TOKENS:
                self._run(lookup, members, results)
                members.clear()
                gathered = 0
            members.append(_Member(number, context, ids, lengths, tokens))
            gathered += tokens
        for lookup, members in waiting.values():
            if lookup is not None and members:
                self._run(lookup, members, results)
        return results

    def _lookup(self, request: EmbedRequest) -> _Lookup | None:
        """Return what requests with these options share; None if they need more than a lookup."""
        try:
            model = self._models.get(request.model)
            plan = model.plan(request.options, "")
        except InlayError:
            return None
        options, settings = plan.options, self._settings
        if plan.lookup is None or request.late_chunking or (options.max_tokens, options.task) != (None, None):
            return None
        most = min(settings.max_request_tokens, settings.max_answer_bytes // max(1, plan.token_bytes))
        longest = min(model.card.position.longest() or most, settings.max_input_tokens or most, most)
        return _Lookup(model, plan, bool(request.options.outputs), longest, most)

    def _plain_ids(self, inputs: Sequence[object], longest: int) -> list[Int64s]:
        """Return the ids of the inputs; empty unless all are plain token ids of allowed lengths."""
        if len(inputs) > self._settings.max_inputs:
            return []
        plain = []
        for sequence in inputs:
            if type(sequence) is not Ids:
                return []
            ids, mask, types, positions, extras = sequence[:5]
            if mask is not None or types is not None or positions is not None or extras:
                return []
            if not 0 < len(ids) <= longest:
                return []
            plain.append(ids)
        return plain

    def _run(self, lookup: _Lookup, members: Sequence[_Member], results: list[EmbedResult | None]) -> None:
        """Run a batch unless an id is outside the vocabulary or the engine is busy."""
        model, plan, named, *_ = lookup
        card, graph, parts = model.card, plan.lookup, [ids for member in members for ids in member.ids]
        assert graph is not None
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        unsigned = ids.view(np.uint64)  # negative ids wrap to huge ones
        if unsigned[unsigned.argmax()] >= card.vocab_size:
            return
        feeds = {name: _column(name, card, ids, parts) for name in card.graphs[graph].inputs}
        ran = model.batchers[graph].run_now(partial(model.engine.run, graph, feeds, plan.names), len(ids), len(members))
        if ran is None:
            return
        arrays, seconds = ran
        name, times, start = card.name, StageTimes(0.0, 0.0, seconds), 0
        self._metrics.passes([member.context for member in members], name, len(ids), times)
        columns = list(zip(plan.names, arrays, strict=True))
        for number, context, _, lengths, tokens in members:
            stop = start + tokens
            size = tokens * plan.token_bytes
            if size <= UNCOUNTED_BYTES or self._has_room(size, context):
                outputs = tuple([Output(output, array[start:stop], lengths, False) for output, array in columns])
                results[number] = EmbedResult(name, outputs, tokens, named, lengths, 0, times)
            start = stop

    def _has_room(self, size: int, context: RequestContext) -> bool:
        """Reserve memory for the rows of one request; return False where there is no room."""
        try:
            self._budget.reserve(context.copies * size, context)
        except InlayError:
            return False
        return True


def _column(name: str, card: Card, ids: Int64s, parts: Sequence[Int64s]) -> Int64s:
    """Return one input of the graph for all sequences of a batch, int64 [N]."""
    if name == "ids":
        return ids
    if name == "types":
        return np.zeros(len(ids), np.int64)
    positions = [learned.positions(card.position, sequence) for sequence in parts]
    return positions[0] if len(positions) == 1 else np.concatenate(positions)

"""Vectors of many texts on all cores: texts of like length together, without queue, deadline or event loop."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from service.bulk.quantization import Vectors
from service.embedding import reduction, validation
from service.embedding.model import Model, Rows, Work
from service.embedding.output_plan import HIDDEN, POOLED, Plan
from service.embedding.packing import Packed
from service.embedding.requests import Ids, Text
from service.embedding.sentence_modules import run_modules
from service.embedding.tokenization import Cut
from service.errors import InlayError, StartError
from service.registry import loading

ROWWISE_CHARACTERS = 1 << 15  # of texts that one run of a row-wise graph takes
TOKEN_CHARACTERS = 4  # that a token has about
RUNS_AHEAD = 4  # of one task, so that few batches are left half full


Tasks = list[tuple[list[int], "Future[Vectors]"]]  # numbers of texts, and their vectors to come


class TextError(Exception):
    """A text has no vector.

    Args:
        number: of the text.
        reason: what is wrong with it.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


class Embedder:
    """Computes one output of one model.

    Args:
        model: loaded.
        plan: of the output.
        prompt: put before every text.
        task: whose adapters are used, as `task_of`.
        truncate: cut texts that are too long, instead of raising.
        threads: that compute at a time.
        batch_tokens: of one run of an encoder.
    """

    def __init__(
        self, model: Model, plan: Plan, prompt: str, task: int, truncate: bool, threads: int, batch_tokens: int
    ) -> None:
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise StartError(f"{model.card.name} was exported without a tokenizer, so it reads no texts")
        self._model, self._plan, self._cut = model, plan, Cut(truncate)
        self._prompt, self._task = prompt, task
        self._tokenizer = tokenizer
        self.output = plan.outputs[0]
        self.pooled = self.output == POOLED
        self.width = model.width(self.output) if not self.pooled else plan.dimensions or plan.kept or plan.vector_width
        graphs = plan.plain if model.card.types == "optional" else plan.typed
        self._graphs = [(model.card.graphs[name], outputs) for name, outputs in graphs.items()]
        self._runs = [loading.run_of(model.engine, model.card, name, batch_tokens) for name in graphs]
        self._batch_tokens = batch_tokens
        ahead = ROWWISE_CHARACTERS if plan.whole else RUNS_AHEAD * batch_tokens * TOKEN_CHARACTERS
        self._task_characters = ahead
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="embed")
        own = bool(prompt) and model.card.pooling is not None and not model.card.pooling.include_prompt
        self._prompt_tokens = tokenizer.prompt_length(prompt) if own else 0
        reads = {name for graph, _ in self._graphs for name in graph.inputs}
        simple = reads <= {"ids", "mask", "segments", "lengths"} and not (plan.modules or self._prompt_tokens)
        self._joined = self.pooled and plan.whole and simple

    def submit(self, texts: Sequence[str]) -> Tasks:
        """Start on some texts, the longest first."""
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        tasks: Tasks = []
        for numbers in _cut_by_size(order, [len(text) for text in texts], self._task_characters):
            chosen = [texts[number] for number in numbers]
            tasks.append((numbers, self._threads.submit(self._vectors, chosen)))
        return tasks

    def collect(self, tasks: Tasks, count: int) -> Vectors:
        """Return what `submit` started, in the order of the texts.

        Raises:
            TextError: with the number of a text that has no vector.
        """
        if self.pooled:
            rows = np.empty((count, self.width), np.float32)
            for numbers, future in tasks:
                rows[numbers] = _result(numbers, future).rows
            return Vectors(rows, None)
        each: list[Any] = [None] * count
        for numbers, future in tasks:
            own = _result(numbers, future)
            assert own.lengths is not None
            for number, piece in zip(numbers, np.split(own.rows, np.cumsum(own.lengths)[:-1]), strict=True):
                each[number] = piece
        lengths = np.array([len(piece) for piece in each], np.int64)
        return Vectors(np.concatenate(each) if each else np.empty((0, self.width), np.float32), lengths)

    def cancel(self, tasks: Tasks) -> None:
        """Leave out what of some tasks has not begun."""
        for _, future in tasks:
            future.cancel()

    def _vectors(self, texts: list[str]) -> Vectors:
        if self._joined:
            ids, lengths = self._tokenizer.joined_now([self._prompt + text for text in texts], self._cut)
            (rows,) = self._run([Packed(ids, ids, None, None, lengths)])  # positions are not read
            return Vectors(reduction.sentence_vectors(self._plan, rows[POOLED]), None)
        return self._vectors_one_by_one(texts)

    def _vectors_one_by_one(self, texts: list[str]) -> Vectors:
        encoded = self._tokenizer.encode_now({i: Text(self._prompt + text) for i, text in enumerate(texts)}, self._cut)
        ids = list(encoded.values())
        if self._prompt_tokens:
            reduction.check_prompts(encoded, dict.fromkeys(encoded, self._prompt_tokens))
        lengths = np.array([sequence.tokens for sequence in ids], np.int64)
        if self._plan.whole:
            rows = self._run([validation.pack(self._model.card, ids, self._task)])
        else:
            packed = [validation.pack(self._model.card, [sequence], self._task) for sequence in ids]
            rows = []
            for batch in _cut_by_size(range(len(ids)), lengths.tolist(), self._batch_tokens):
                own = self._run([packed[number] for number in batch])
                rows += [self._reduced(row, ids[number], number) for row, number in zip(own, batch, strict=True)]
        if not self.pooled:
            return Vectors(np.concatenate([row[self.output] for row in rows]), lengths)
        pooled = np.concatenate([row[POOLED] for row in rows])
        if self._plan.modules:
            pooled = run_modules(self._model, pooled)
        return Vectors(reduction.sentence_vectors(self._plan, pooled), None)

    def _run(self, packed: list[Packed]) -> list[Rows]:
        rows: list[Rows] = [{} for _ in packed]
        for (_, outputs), run in zip(self._graphs, self._runs, strict=True):
            for each, own in zip(rows, run([Work(part, outputs) for part in packed]), strict=True):
                each |= own
        return rows

    def _reduced(self, rows: Rows, sequence: Ids, number: int) -> Rows:
        reduction.check_finite_input(self._model.card.name, number, rows)
        if self._plan.mode is None or HIDDEN not in rows:
            return rows
        return {POOLED: reduction.pooled_row(self._plan, rows[HIDDEN], sequence, self._prompt_tokens)}


def _result(numbers: Sequence[int], future: "Future[Vectors]") -> Vectors:
    """Return what a task made; raise TextError for its first text that it could not read."""
    try:
        return future.result()
    except InlayError as error:
        if error.index is None:
            raise StartError(error.message) from error
        raise TextError(numbers[error.index], error.received) from error


def _cut_by_size(numbers: Iterable[int], sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield consecutive numbers whose sizes together are at most `most`; one that is larger is alone."""
    chosen: list[int] = []
    room = most
    for number in numbers:
        if chosen and sizes[number] > room:
            yield chosen
            chosen, room = [], most
        chosen.append(number)
        room -= sizes[number]
    if chosen:
        yield chosen

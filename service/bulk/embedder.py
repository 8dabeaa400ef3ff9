"""Vectors of many texts on all cores: texts of like length together, without queue, deadline or event loop."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import MULTI_VECTOR, SPARSE
from models.recipes.graph_names import ONE_ROW
from service import machine
from service.embedding import multi_vectors, reduction, sparse_vectors, validation
from service.embedding.model import Model, Rows, Work
from service.embedding.output_plan import HIDDEN, POOLED, ROW_OF_EACH, Plan
from service.embedding.packing import Packed
from service.embedding.pair_templates import texts_of
from service.embedding.prompts import prompt_of, task_of
from service.embedding.ranking import ACTIVATIONS
from service.embedding.requests import EmbedOptions, EmbedRequest, Ids, InputType, Text
from service.embedding.sentence_modules import run_modules
from service.embedding.task_heads import CLASSIFIER_OUTPUTS, logits_of_parts, reduced
from service.embedding.tokenization import Cut
from service.errors import InlayError, StartError
from service.observability.metrics import Metrics
from service.registry import loading
from service.settings import Settings

ROWWISE_CHARACTERS = 1 << 15  # of texts that one run of a row-wise graph takes
TOKEN_CHARACTERS = 4  # that a token has about
SCORES = "scores"  # an output that is the activation of a classifier's logits
RUNS_AHEAD = 4  # of one task, so that few batches are left half full


class Vectors(NamedTuple):
    """The vectors of some texts: rows [n, width], and how many of them each text has; None: one.

    Of sparse vectors the rows are values, 1 wide, and `indices` their columns, int32 [n].
    """

    rows: NDArray[Any]
    lengths: NDArray[np.int64] | None
    indices: NDArray[np.int32] | None = None


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


class Chosen(NamedTuple):
    """What of a model is computed, and how it reads texts; the fields are those of EmbedOptions."""

    output: str | None = None
    pooling: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    task: str | None = None
    input_type: InputType | None = None
    truncate: bool = True


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
        special_tokens: add the model's own.
        input_type: what the texts are for, of a model that gives several vectors a text.
        scored: give the scores that the model's activation makes of its logits.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        prompt: str,
        task: int,
        truncate: bool,
        threads: int,
        batch_tokens: int,
        special_tokens: bool = True,
        input_type: InputType | None = None,
        scored: bool = False,
    ) -> None:
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise StartError(f"{model.card.name} was exported without a tokenizer, so it reads no texts")
        self._several = MULTI_VECTOR in plan.heads
        self._request = EmbedRequest((), options=EmbedOptions(input_type=input_type))
        longest = multi_vectors.longest(model.card, self._request) if self._several else None
        self.model, self.plan = model, plan
        self._cut = Cut(truncate, special_tokens=special_tokens, longest=longest)
        self._prompt, self._task = prompt, task
        self._tokenizer = tokenizer
        self._output = plan.outputs[0]
        self.output = SCORES if scored else self._output
        self.pooled = self._output in ROW_OF_EACH
        self.sparse = self._output == SPARSE
        self.classifies = self._output in CLASSIFIER_OUTPUTS
        self._activation = model.card.classifier.activation if scored and model.card.classifier else None
        self.most_values = plan.sparse_width  # of a sparse vector; 0: as many as its text has tokens
        self.width = model.width(self._output)
        if self._output == POOLED:
            self.width = plan.dimensions or plan.kept or plan.vector_width
        elif self.classifies and model.card.classifier:
            self.width = len(model.card.classifier.labels)
        if self.sparse:
            self.width = 1
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

    def submit(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> Tasks:
        """Start on some texts, or on pairs of them and `seconds`, the longest first."""
        sizes = [len(text) for text in texts]
        if seconds is not None:
            sizes = [size + len(second) for size, second in zip(sizes, seconds, strict=True)]
        order = sorted(range(len(texts)), key=lambda number: -sizes[number])
        tasks: Tasks = []
        for numbers in _cut_by_size(order, sizes, self._task_characters):
            chosen = [texts[number] for number in numbers]
            behind = None if seconds is None else [seconds[number] for number in numbers]
            tasks.append((numbers, self._threads.submit(self._vectors, chosen, behind)))
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
        indices: list[Any] = [None] * count
        for numbers, future in tasks:
            own = _result(numbers, future)
            assert own.lengths is not None
            ends = np.cumsum(own.lengths)[:-1]
            for number, piece in zip(numbers, np.split(own.rows, ends), strict=True):
                each[number] = piece
            if own.indices is not None:
                for number, piece in zip(numbers, np.split(own.indices, ends), strict=True):
                    indices[number] = piece
        lengths = np.array([len(piece) for piece in each], np.int64)
        rows = np.concatenate([np.empty((0, self.width), np.float32), *each])
        return Vectors(rows, lengths, np.concatenate([np.empty(0, np.int32), *indices]) if self.sparse else None)

    def cancel(self, tasks: Tasks) -> None:
        """Leave out what of some tasks has not begun."""
        for _, future in tasks:
            future.cancel()

    def _vectors(self, texts: list[str], seconds: list[str] | None) -> Vectors:
        if self._joined and seconds is None:  # without an object for each text: a quarter more texts a second
            ids, lengths = self._tokenizer.joined_now([self._prompt + text for text in texts], self._cut)
            (rows,) = self._run([Packed(ids, ids, None, None, lengths)])  # positions are not read
            return Vectors(reduction.sentence_vectors(self.plan, rows[POOLED]), None)
        if seconds is None:
            return self._vectors_one_by_one(list(map(Text, texts)))
        return self._vectors_one_by_one(list(map(Text, texts, seconds)))

    def _vectors_one_by_one(self, texts: list[Text]) -> Vectors:
        read = texts
        if self.classifies and (classifier := self.model.card.classifier) and classifier.template:
            read = texts_of(classifier.template, self._tokenizer, texts, None)
        elif self._prompt:
            read = [text._replace(text=self._prompt + text.text) for text in texts]
        encoded = self._tokenizer.encode_now(dict(enumerate(read)), self._cut)
        ids = list(encoded.values())
        if self._prompt_tokens:
            reduction.check_prompts(encoded, dict.fromkeys(encoded, self._prompt_tokens))
        if self._several:
            request = self._request._replace(inputs=texts)
            ids = multi_vectors.marked_now(self.model.card, request, ids)
        lengths = np.array([sequence.tokens for sequence in ids], np.int64)
        if not self._graphs:
            rows = sparse_vectors.looked_up(self.model, ids)
        elif self.plan.whole:
            rows = self._run([validation.pack(self.model.card, ids, self._task)])
        else:
            packed = [validation.pack(self.model.card, [sequence], self._task) for sequence in ids]
            rows = []
            for batch in _cut_by_size(range(len(ids)), lengths.tolist(), self._batch_tokens):
                own = self._run([packed[number] for number in batch])
                own = [self._reduced(row, ids[number], number) for row, number in zip(own, batch, strict=True)]
                rows += self._projected(own, [ids[number] for number in batch]) if self._several else own
        if self._several:
            lengths = np.array([len(row[self._output]) for row in rows], np.int64)
        if self.sparse:
            output = sparse_vectors.output(rows, "float32")
            return Vectors(output.rows, np.array(output.lengths, np.int64), output.indices)
        if self.classifies:
            return Vectors(self._logits(rows), None if self.pooled else lengths)
        if not self.pooled:
            return Vectors(np.concatenate([row[self._output] for row in rows]), lengths)
        pooled = np.concatenate([row[POOLED] for row in rows])
        if self.plan.modules:
            pooled = run_modules(self.model, pooled)
        return Vectors(reduction.sentence_vectors(self.plan, pooled), None)

    def _run(self, packed: list[Packed]) -> list[Rows]:
        rows: list[Rows] = [{} for _ in packed]
        for (_, outputs), run in zip(self._graphs, self._runs, strict=True):
            for each, own in zip(rows, run([Work(part, outputs) for part in packed]), strict=True):
                each |= own
        return rows

    def _reduced(self, rows: Rows, sequence: Ids, number: int) -> Rows:
        reduction.check_finite_input(self.model.card.name, number, rows)
        if ONE_ROW in rows:
            return {self._output: rows[ONE_ROW]}
        if self.plan.heads and self.classifies:
            return reduced(self.model, self.plan, rows[HIDDEN], sequence)
        if self.plan.mode is None or HIDDEN not in rows:
            return rows
        return {POOLED: reduction.pooled_row(self.plan, rows[HIDDEN], sequence, self._prompt_tokens)}

    def _logits(self, rows: list[Rows]) -> NDArray[np.float32]:
        """Return the logits of what heads read of some texts, or their scores; an adopted graph gives logits itself."""
        own = [row[self._output] for row in rows]
        classifier = self.model.card.classifier
        if self.plan.heads and classifier:
            own = logits_of_parts(self.model, classifier, self._output, own)
        logits = np.concatenate(own)
        if self._activation is None:
            return logits
        return ACTIVATIONS[self._activation](logits.astype(np.float64)).astype(np.float32)

    def _projected(self, rows: list[Rows], ids: list[Ids]) -> list[Rows]:
        """Return the vectors of texts in the place of their hidden states."""
        flags = [sequence.vectors for sequence in ids]
        vectors = multi_vectors.project(self.model, [row[HIDDEN] for row in rows], flags)
        return [{MULTI_VECTOR: own} for own in vectors]


def open_embedder(chosen: Chosen, folder: Path, settings: Settings) -> Embedder:
    """Load a model and return what computes an output of it.

    Raises:
        StartError, ModelError: it cannot be loaded, or has no such output.
    """
    threads = settings.threads or machine.available_cpus()
    model = loading.load_model(folder, settings, threads, Metrics())
    scored = chosen.output == SCORES
    if scored and model.card.classifier is None:
        raise StartError(f"{model.card.name} gives no scores; it gives {', '.join(model.card.outputs)}")
    output = model.card.classifier_output if scored and model.card.classifier else chosen.output
    named = (output,) if output else ()
    try:
        plan = model.plan(named, chosen.pooling, chosen.normalize, chosen.dimensions, "float32")
        options = EmbedOptions(prompt_name=chosen.prompt_name, task=chosen.task, input_type=chosen.input_type)
        request = EmbedRequest((), options=options)
        if MULTI_VECTOR in plan.heads:
            request = multi_vectors.as_read(model.card, request)
        request, plan = sparse_vectors.route(model.card, request, plan)
        prompt = prompt_of(model.card, request.options.prompt_name, chosen.task, chosen.input_type)
        task = task_of(model.card, chosen.task, chosen.prompt_name, chosen.input_type)
    except InlayError as error:
        raise StartError(error.message) from error
    runs = threads if plan.whole else model.engine.runs
    batch = settings.max_batch_tokens or loading.encoder_tokens(model.engine, model.choice)
    special = request.options.special_tokens
    if plan.outputs[0] in CLASSIFIER_OUTPUTS and model.card.classifier:
        special = model.card.classifier.template is None
    return Embedder(model, plan, prompt, task, chosen.truncate, runs, batch, special, chosen.input_type, scored)


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

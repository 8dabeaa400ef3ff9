"""Computes the vectors of many texts on all cores, texts of like length together."""

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from service import machine
from service.embedding.compute import Computation, Rewrite
from service.embedding.outputs.classes import CLASS_OUTPUTS
from service.embedding.outputs.plan import width_in_graph
from service.embedding.quantization import NUMPY_DTYPES, columns
from service.embedding.ranking import ACTIVATIONS, classifier_of
from service.embedding.requests import EmbedOptions, Output, Text
from service.embedding.tokenize.packing import cut_by_size
from service.embedding.tokenize.pair_templates import texts_of
from service.errors import InlayError, StartError
from service.observability.metrics import Metrics
from service.registry import loading
from service.settings import Settings

ROWWISE_CHARACTERS = 1 << 15  # characters of the texts in one run of a row-wise graph
TOKEN_CHARACTERS = 4  # approximate characters of a token
SCORES = "scores"  # an output that is the activation of a classifier's logits
RUNS_AHEAD = 4  # of one task, so that few batches are left half full
FLOATS = {"float32": np.float32, "float16": np.float16}


class Computed(NamedTuple):
    """Vectors of texts.

    Args:
        output: of the texts that were not refused.
        numbers: of these texts, in the order of the output.
        cut: numbers of the texts that were cut.
        failed: why texts were refused, by number.
    """

    output: Output
    numbers: list[int]
    cut: list[int]
    failed: dict[int, str]


Tasks = list["Future[Computed]"]


class Embedder:
    """Loads a model and computes one of its outputs.

    Args:
        options: options with at most one output, by default the model's; SCORES are those of its classifier.
        folder: folder of the exported model.
        skip_failed: leave texts out that are refused, instead of stopping.

    Attributes:
        output: name of the output.
        width: values of a row.
        dtype: of the values; binary and ubinary vectors have eight in one.
        columns: values of a row in that dtype.
        classifies: whether the output holds logits or scores of labels.

    Raises:
        StartError, ModelError: the model cannot be loaded, or has no such output.
    """

    def __init__(self, options: EmbedOptions, folder: Path, settings: Settings, skip_failed: bool = False) -> None:
        self._skip_failed = skip_failed
        threads = settings.threads or machine.available_cpus()
        self.model = model = loading.load_model(folder, settings, threads, Metrics())
        classifier, scored, dtype = classifier_of(model.card), options.outputs == (SCORES,), options.dtype
        if scored and classifier is None:
            raise StartError(f"{model.card.name} gives no scores; it gives {', '.join(model.card.outputs)}")
        if scored:
            wide = "float32" if dtype in FLOATS else dtype  # others are refused
            options = options._replace(outputs=(model.card.classifier_output,), dtype=wide)
        batch = settings.max_batch_tokens or loading.encoder_tokens(model.engine, model.choice)
        rewrite: Rewrite | None = None
        names = options.outputs or (model.card.default_output,)
        if classifier and classifier.template and names[0] in CLASS_OUTPUTS:
            options = options._replace(special_tokens=False)
            rewrite = partial(texts_of, classifier.template, model.tokenizer, instruction=None, most=sys.maxsize)
        try:
            self._computation = Computation(model, options, settings, batch, rewrite)
        except InlayError as error:
            raise StartError(error.message) from error
        whole = self._computation.plan.whole
        self.kind = self._computation.kind
        self.classifies = self.kind.name in CLASS_OUTPUTS
        self.output = SCORES if scored else self.kind.name
        self._activation = ACTIVATIONS[classifier.activation] if classifier and scored else None
        self.width = (width_in_graph(model.card, self.kind.name) if self.classifies else None) or self.kind.width
        self.dtype, self.columns = np.dtype((FLOATS | NUMPY_DTYPES)[dtype]), columns(dtype, self.width)
        self._task_characters = ROWWISE_CHARACTERS if whole else RUNS_AHEAD * batch * TOKEN_CHARACTERS
        self._threads = ThreadPoolExecutor(threads if whole else model.engine.runs, thread_name_prefix="embed")

    def submit(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> Tasks:
        """Start computing some texts, or pairs of them and `seconds`, the longest first."""
        read = list(map(Text, texts)) if seconds is None else list(map(Text, texts, seconds))
        sizes = [len(text.text) + len(text.pair or "") for text in read]
        order = sorted(range(len(texts)), key=lambda number: -sizes[number])
        return [
            self._threads.submit(self._output, {number: read[number] for number in numbers})
            for numbers in cut_by_size(order, sizes, self._task_characters)
        ]

    def collect(self, tasks: Tasks) -> Computed:
        """Return the results of `submit`, in the order of the texts.

        Raises:
            InlayError: a text has no vector; `index` is its number.
        """
        results = [task.result() for task in tasks]
        outputs = [result.output for result in results]
        numbers = [number for result in results for number in result.numbers]
        order = np.argsort(numbers)
        lengths = np.array([length for output in outputs for length in output.lengths], np.int64)
        ends, places = np.cumsum(lengths), order
        if not self.kind.pooled:
            places = np.concatenate([order[:0], *(np.arange(ends[n] - lengths[n], ends[n]) for n in order)])
        rows = np.concatenate([np.empty((0, self.columns), self.dtype), *(output.rows for output in outputs)])[places]
        columns = [output.indices for output in outputs if output.indices is not None]
        indices = np.concatenate([np.empty(0, np.int32), *columns])[places] if self.kind.sparse else None
        output = Output(self.output, rows, tuple(lengths[order].tolist()), self.kind.pooled, indices)
        failed = {number: why for result in results for number, why in result.failed.items()}
        return Computed(output, sorted(numbers), sorted(number for result in results for number in result.cut), failed)

    def cancel(self, tasks: Tasks) -> None:
        """Cancel the tasks that have not begun."""
        for task in tasks:
            task.cancel()

    def _output(self, texts: dict[int, Text]) -> Computed:
        """Return the output of texts by their numbers; the index of an error is a number too."""
        left, failed = [*texts], dict[int, str]()
        while True:
            try:
                output, cut = self._computation.output([texts[number] for number in left])
                break
            except InlayError as error:
                if error.index is None:
                    raise StartError(error.message) from error
                error.index = left.pop(error.index)
                if not self._skip_failed:
                    raise
                failed[error.index] = error.received
        if self._activation is not None:
            output = output._replace(rows=self._activation(output.rows.astype(np.float64)).astype(self.dtype))
        return Computed(output, left, [left[place] for place in cut], failed)

"""Computes jobs on the calling thread, without queue, deadline or event loop: for bulk runs, Ray and calibration."""

from collections.abc import Callable, Sequence

from service.embedding.execution import reduce, run_of
from service.embedding.model import Model
from service.embedding.outputs.kind import Job
from service.embedding.requests import EmbedOptions, EmbedRequest, Output, Text
from service.embedding.tokenize.packing import Packed, Rows, Work, cut_by_size, pack, packed
from service.embedding.tokenize.prompts import check_prompts, prompt_of, with_ending
from service.errors import StartError
from service.settings import Settings

Rewrite = Callable[[Sequence[Text]], list[Text]]


class Computation:
    """Computes one output of one model.

    Args:
        model: loaded.
        options: options of the output; `truncate` None cuts.
        settings: the limits of a request.
        batch_tokens: tokens of one run of an encoder.
        rewrite: returns what the model reads of texts; None: they are read behind the prompt of the options.

    Raises:
        InlayError: the model cannot serve an option.
        StartError: the model reads no texts.
    """

    def __init__(
        self,
        model: Model,
        options: EmbedOptions,
        settings: Settings,
        batch_tokens: int,
        rewrite: Rewrite | None = None,
    ) -> None:
        self.plan = plan = model.plan(options, "")
        if model.tokenizer is None:
            raise StartError(f"{model.card.name} was exported without a tokenizer, so it reads no texts")
        self._model, self._tokenizer, self._settings = model, model.tokenizer, settings
        self.kind = plan.kinds[0]
        self._cut, self._batch_tokens = plan.cuts[True], batch_tokens
        prompt = "" if rewrite else plan.prompt
        if prompt is None:
            prompt = prompt_of(model.card, options.prompt_name)  # raises
        self._prompt, self._rewrite = prompt, rewrite or self._prompted
        graphs = plan.plain if model.card.types == "optional" else plan.typed
        self._runs = [(run_of(model.engine, model.card, name, batch_tokens), graphs[name]) for name in graphs]
        left_out = bool(prompt) and model.card.pooling is not None and not model.card.pooling.include_prompt
        self._prompt_tokens = self._tokenizer.prompt_length(prompt) if left_out else 0
        inputs = {name for graph in graphs for name in model.card.graphs[graph].inputs}
        simple = inputs <= {"ids", "mask", "segments", "lengths"} and not (self._prompt_tokens or plan.completing)
        self._joins = plan.whole and bool(graphs) and simple and self.kind.pooled and rewrite is None

    def output(self, texts: Sequence[Text]) -> tuple[Output, list[int]]:
        """Return the output of some texts, and the numbers of those that were cut.

        Raises:
            InlayError: a text cannot be read; its `index` is the number of the text.
        """
        job = Job(EmbedRequest(texts, self._model.card.name, self.plan.options), self.plan, self._settings, [], [])
        job.vectors = len(texts)
        if not self._computed_joined(job, texts):
            self._tokenize(job, texts)
            self._compute(job)
        return self.kind.finish(job), [number for number, sequence in enumerate(job.ids) if sequence.cut]

    def _computed_joined(self, job: Job, texts: Sequence[Text]) -> bool:
        """Compute texts without an object for each: a quarter more texts a second. Return whether it can."""
        if not self._joins or any([text.pair is not None for text in texts]):
            return False
        joined = self._tokenizer.joined([self._prompt + text.text for text in texts], self._cut)
        if joined is None:
            return False
        ids, job.lengths = joined
        job.rows = self._run([Packed(ids, ids, None, None, job.lengths)])  # positions are not read
        return True

    def _tokenize(self, job: Job, texts: Sequence[Text]) -> None:
        encoded = self._tokenizer.encode(dict(enumerate(self._rewrite(texts))), self._cut)
        if self.plan.ending:
            encoded = with_ending(encoded, self.plan.ending)
        job.ids = list(encoded.values())
        if self._prompt_tokens:
            job.prompts = dict.fromkeys(encoded, self._prompt_tokens)
            check_prompts(encoded, job.prompts)
        for kind in self.plan.preparing:
            kind.prepare(job)
        job.lengths = tuple([sequence.tokens for sequence in job.ids])

    def _compute(self, job: Job) -> None:
        """Fill the rows of a job: all texts in one run, or an encoder's in batches."""
        plan, card, ids = self.plan, self._model.card, job.ids
        numbers = list(range(len(ids)))
        if plan.whole and self._runs:
            job.rows, numbers = self._run([pack(card, ids, plan.task)]), [0]
        else:
            job.rows = [{} for _ in ids]
        for batch in cut_by_size(numbers, job.lengths, self._batch_tokens) if not plan.whole else ():
            rows = self._run([packed(card, ids[number], plan.task) for number in batch])
            for number, arrays in zip(batch, rows, strict=True):
                job.rows[number] = reduce(card.name, job, number, arrays)
            if plan.early:
                plan.early.complete(job, batch)
        for kind in plan.completing:
            if kind is not plan.early:
                kind.complete(job, numbers)

    def _run(self, packed: Sequence[Packed]) -> list[Rows]:
        rows: list[Rows] = [{} for _ in packed]
        for run, outputs in self._runs:
            for merged, arrays in zip(rows, run([Work(part, outputs) for part in packed]), strict=True):
                merged |= arrays
        return rows

    def _prompted(self, texts: Sequence[Text]) -> list[Text]:
        return [text._replace(text=self._prompt + text.text) for text in texts] if self._prompt else list(texts)

"""The logits of labels that a classifier computes from hidden states, for texts or for their tokens.

A head has two steps: `reduce` keeps what it reads of a text's hidden states, as they come, and `complete` runs its
graph over what all texts of a request left.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, CLASSIFIER, TOKEN_CLASS_LOGITS
from service.embedding.outputs.kind import (
    HIDDEN,
    ROW_OF_EACH,
    Job,
    OutputKind,
    Planning,
    cast,
    check_width,
    run_heads,
)
from service.embedding.pooling import pool
from service.embedding.requests import Ids, Output
from service.embedding.tokenize.packing import Rows, joined

CLASS_OUTPUTS = (CLASS_LOGITS, TOKEN_CLASS_LOGITS)


class ClassLogits(OutputKind):
    """The logits of a classifier that reads hidden states."""

    completes = True

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, HIDDEN)
        classifier = planning.card.classifier
        assert classifier is not None
        self._classifier, self.pooled = classifier, name in ROW_OF_EACH
        self.row_pooling = (classifier.pooling or "") if self.pooled else None
        reads_all = classifier.late or not self.pooled  # hidden states are kept until all texts have come
        self.token_bytes = 4 * (planning.width(HIDDEN) * reads_all + self.width * (not self.pooled))

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether the model has a classifier that no graph of the encoder holds."""
        card = planning.card
        return name in CLASS_OUTPUTS and card.classifier is not None and card.graph_for(name, False) is None

    def reduce(self, job: Job, index: int, rows: Rows) -> Rows:
        """Return the rows of a text's hidden states [n, d] that the classifier's layers read."""
        return {self.name: self._read(rows[HIDDEN], job.ids[index])}

    def _read(self, hidden: NDArray[np.float32], sequence: Ids) -> NDArray[np.float32]:
        classifier = self._classifier
        if classifier.pooling is None:
            return hidden
        if classifier.pad_id is not None:  # no mask is read then: transformers 5.23, GenericForSequenceClassification
            counted = np.flatnonzero(sequence.ids != classifier.pad_id)
            last = int(counted[-1]) if len(counted) else 0
            return hidden[last : last + 1].copy()
        if classifier.late:
            return hidden[sequence.attended]
        return pool(classifier.pooling, hidden, sequence.mask)[None]

    def complete(self, job: Job, indices: Sequence[int]) -> None:
        """Replace the reduced rows by the logits."""
        kept = [job.rows[index][self.name] for index in indices]
        for index, part in zip(indices, self._logits(kept), strict=True):
            late = self._classifier.late
            job.rows[index][self.name] = part.mean(axis=0, dtype=np.float64).astype(np.float32)[None] if late else part

    def _logits(self, kept: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        return run_heads(self.card, self.engine, CLASSIFIER, self.name, kept, f"{self.name} that are")

    def finish(self, job: Job) -> Output:
        """Return the logits of all inputs, a row for each or for each of its tokens."""
        lengths = (1,) * len(job.lengths) if self.pooled else job.lengths
        return Output(self.name, cast(joined(job.rows, self.name), self.dtype), lengths, self.pooled)

    def probe(self) -> None:
        """Compute the logits of one row of zeros."""
        if modules := self._classifier.modules:
            (logits,) = self._logits([np.zeros((1, modules.inner), np.float32)])
            check_width(self.card, CLASSIFIER, self.name, logits, len(self._classifier.labels))

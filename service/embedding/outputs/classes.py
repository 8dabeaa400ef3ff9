"""The logits of labels that a classifier computes from hidden states, for texts or for their tokens.

A head has two steps: `reduce` keeps what it reads of a text's hidden states, as they come, and `complete` runs its
graph over what all texts of a request left.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, CLASSIFIER, TOKEN_CLASS_LOGITS
from service.embedding.outputs.kind import HIDDEN, ROW_OF_EACH, HeadGraph, Job, OutputKind, Planning
from service.embedding.pooling import pool
from service.embedding.requests import Ids
from service.embedding.tokenize.packing import Rows

CLASS_OUTPUTS = (CLASS_LOGITS, TOKEN_CLASS_LOGITS)


class ClassLogits(OutputKind):
    """The logits of a classifier that reads hidden states."""

    completes = True

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, HIDDEN)
        classifier = planning.card.classifier
        assert classifier is not None
        assert classifier.modules is not None
        self._classifier, self.pooled = classifier, name in ROW_OF_EACH
        inner, labels = classifier.modules.inner, len(classifier.labels)
        self.head = HeadGraph(CLASSIFIER, name, inner, labels, f"{name} that are")
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
        super().complete(job, indices)
        for index in indices if self._classifier.late else ():
            logits = job.rows[index][self.name]
            job.rows[index][self.name] = logits.mean(axis=0, dtype=np.float64).astype(np.float32)[None]

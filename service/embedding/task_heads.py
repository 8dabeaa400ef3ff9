"""Outputs that the task heads of a model make of its hidden states: the logits of labels.

A head has two steps: `reduced` keeps what it reads of a text's hidden states, on the event loop as they come, and
`apply_heads` runs its graph over what all texts of a request left, in a thread.
"""

import asyncio

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, CLASSIFIER, MULTI_VECTOR, TOKEN_CLASS_LOGITS
from models.recipes.heads import Classifier
from service.embedding import validation
from service.embedding.model import Model, Rows
from service.embedding.output_plan import Plan
from service.embedding.pooling import pool
from service.embedding.requests import Ids
from service.errors import EngineFailure

CLASSIFIER_OUTPUTS = (CLASS_LOGITS, TOKEN_CLASS_LOGITS)


def reduced(model: Model, plan: Plan, hidden: NDArray[np.float32], sequence: Ids) -> Rows:
    """Return what the heads of a plan read of the hidden states of one text [n, d]."""
    rows: Rows = {}
    classifier = model.card.classifier
    for name in CLASSIFIER_OUTPUTS:
        if name in plan.heads and classifier:
            rows[name] = _classified(classifier, hidden, sequence)
    if MULTI_VECTOR in plan.heads:
        rows[MULTI_VECTOR] = hidden  # replaced by multi_vectors.Projection
    return rows


async def apply_heads(model: Model, plan: Plan, rows: list[Rows], indices: list[int]) -> None:
    """Put the outputs of heads in the place of what `reduced` left of some parts of a request.

    Raises:
        EngineFailure: a logit is not finite.
    """
    classifier = model.card.classifier
    for name in CLASSIFIER_OUTPUTS:
        if name in plan.heads and classifier:
            left = [rows[index][name] for index in indices]
            logits = await asyncio.to_thread(logits_of_parts, model, classifier, name, left)
            for index, own in zip(indices, logits, strict=True):
                rows[index][name] = own


def class_logits(model: Model, pooled: NDArray[np.float32], output: str = CLASS_LOGITS) -> NDArray[np.float32]:
    """Return logits [n, labels] of pooled hidden states; raise EngineFailure for one that is not finite."""
    (logits,) = model.engine.run(CLASSIFIER, {"pooled": pooled}, (output,))
    if not np.isfinite(logits).all():
        raise EngineFailure(f"{model.card.name} gave {output} that are not finite")
    return logits


def _classified(classifier: Classifier, hidden: NDArray[np.float32], sequence: Ids) -> NDArray[np.float32]:
    """Return the rows that a classifier's layers read of a text's hidden states [n, d]."""
    if classifier.pooling is None:
        return hidden
    if classifier.pad_id is not None:  # no mask is read then: transformers 5.23, GenericForSequenceClassification
        counted = np.flatnonzero(sequence.ids != classifier.pad_id)
        last = int(counted[-1]) if len(counted) else 0
        return hidden[last : last + 1].copy()
    attended = validation.attended(sequence)
    return hidden[attended] if classifier.late else pool(classifier.pooling, hidden, attended)[None]


def logits_of_parts(
    model: Model, classifier: Classifier, output: str, left: list[NDArray[np.float32]]
) -> list[NDArray[np.float32]]:
    """Return the logits of what `reduced` left of some texts; raise EngineFailure for one that is not finite."""
    logits = class_logits(model, np.concatenate(left), output)
    parts = np.split(logits, np.cumsum([len(own) for own in left])[:-1])
    if not classifier.late:
        return parts
    return [part.mean(axis=0, dtype=np.float64).astype(np.float32)[None] for part in parts]

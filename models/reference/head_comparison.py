"""Holds head.onnx against the float64 reference on random hidden states; compare.py does so for every other graph."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import HEAD, Card
from models.artifacts.weights import tensors
from models.errors import BadCard, NotFaithful
from models.reference import head as head_reference
from models.reference.comparison import Session

TOLERANCE = 1e-4
_SCALES = (1.0, 0.1, 4.0)  # of the rows' values, around what a final norm gives
_SEED = 20241


def check_rows(width: int) -> NDArray[np.float32]:
    """Random hidden states, [3, width]."""
    scales = np.array(_SCALES)[:, None]
    rows = np.random.default_rng(_SEED).normal(size=(len(_SCALES), width)) * scales
    return np.asarray(rows, np.float32)


def largest_differences(folder: Path, card: Card) -> dict[str, float]:
    """`logits`: the largest |ONNX - reference|, of a row's largest logit where that is above 1; {} without a head.

    raises   NotFaithful above the tolerance; BadCard where the graph does not load or gives another shape
    """
    if card.head is None:
        return {}
    graph = card.every_graph[HEAD]
    hidden = check_rows(card.head.width)
    found = Session(folder / graph.file).run({graph.inputs[0]: hidden}, graph.outputs)["logits"]
    if found.shape != (len(hidden), card.head.vocab_size) or found.dtype != np.float32:
        raise BadCard(f"{graph.file}: logits are {found.dtype} {list(found.shape)} of {list(hidden.shape)} rows")
    difference = _difference(card, folder, hidden, found)
    if not difference <= TOLERANCE:
        raise NotFaithful(
            f"{graph.file}: logits differ from the float64 reference by {difference:.2e}, more than {TOLERANCE:.0e}"
        )
    return {"logits": difference}


def _difference(card: Card, folder: Path, hidden: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    assert card.head is not None
    start, worst, largest = 0, np.zeros(len(hidden)), np.ones(len(hidden))
    for expected in head_reference.blocks(card.head, tensors(folder, card), hidden):
        part = found[:, start : start + expected.shape[1]]
        worst = np.maximum(worst, np.abs(part - expected).max(axis=1))
        largest = np.maximum(largest, np.abs(expected).max(axis=1))
        start += expected.shape[1]
    return float((worst / largest).max())

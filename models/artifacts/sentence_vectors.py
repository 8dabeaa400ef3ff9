"""Sentence vectors of a text's token rows, by pooling and modules in float64; and the export of these modules."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts import weights
from models.checkpoints.checkpoint import Checkpoint, read_tensors
from models.checkpoints.sentence_modules import StoredModules
from models.checkpoints.sentence_transformers import Pooling
from models.recipes.sentence_modules import SentenceModules
from models.reference import sentence_modules as reference

Vector = NDArray[np.float64]
ToVector = Callable[[Vector], Vector]  # rows [n, hidden] of a text's tokens -> its vector

_POOLINGS: dict[str, ToVector] = {
    "cls": lambda rows: rows[0],
    "mean": lambda rows: rows.mean(axis=0),
    "max": lambda rows: rows.max(axis=0),
    "lasttoken": lambda rows: rows[-1],
    "mean_sqrt_len_tokens": lambda rows: rows.sum(axis=0) / np.sqrt(len(rows)),
    "eos": lambda rows: rows[-1],  # of a text, whose tokenizer puts that token at its end
    "weightedmean": lambda rows: np.arange(1, len(rows) + 1) @ rows / np.arange(1, len(rows) + 1).sum(),
}


def pool(pooling: Pooling, rows: Vector) -> Vector:
    """Return the pooled vector of the rows of a text's tokens, all of which count."""
    return np.concatenate([_POOLINGS[mode](rows) for mode in pooling.modes])


def to_vector(pooling: Pooling | None, found: StoredModules) -> ToVector:
    """Return the function that makes a text's vector, the mean if nothing is pooled; it does not normalize."""
    usual = pooling or Pooling("mean", False)
    modules, held = described(found), arrays(found)
    if modules is None:
        return lambda rows: pool(usual, rows)
    return lambda rows: reference.vectors(modules, held, pool(usual, rows)[None])[0]


def described(found: StoredModules) -> SentenceModules | None:
    """Return the card's entry for the modules of a checkpoint; None: it has none."""
    if not found.steps:
        return None
    return SentenceModules(found.steps, found.inner, found.width, found.flops_per_text, weights.FILE_NAME)


def arrays(found: StoredModules) -> dict[str, NDArray[Any]]:
    """Return the modules' tensors by name; BadCheckpoint for one of a dtype that is not read."""
    return read_tensors(Checkpoint(Path(), {}, found.tensors), found.tensors)

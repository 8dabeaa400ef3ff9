"""Sentence vectors: from a text's token rows by pooling and modules, in float64; and the modules' part of an export."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts import weights
from models.artifacts.card import MODULES
from models.artifacts.weights import WrittenWeights
from models.checkpoints.checkpoint import Checkpoint, read_tensors
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_modules import StoredModules
from models.checkpoints.sentence_transformers import Pooling
from models.graphs.builder import GraphBuilder, save
from models.graphs.sentence_modules import sentence_modules
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
    """Return what makes the vector of a text: its mean where nothing is pooled; it is not scaled at the end."""
    own = pooling or Pooling("mean", False)
    modules, held = described(found), arrays(found)
    if modules is None:
        return lambda rows: pool(own, rows)
    return lambda rows: reference.vectors(modules, held, pool(own, rows)[None])[0]


def described(found: StoredModules) -> SentenceModules | None:
    """Return the card's entry for the modules of a checkpoint; None: it has none."""
    if not found.steps:
        return None
    return SentenceModules(found.steps, found.inner, found.width, found.flops_per_text, weights.FILE_NAME)


def arrays(found: StoredModules) -> dict[str, NDArray[Any]]:
    """Return the modules' tensors by name; BadCheckpoint for one of a dtype that is not read."""
    return read_tensors(Checkpoint(Path(), {}, found.tensors), found.tensors)


def write_graph(folder: Path, modules: SentenceModules | None, placed: dict[str, Tensor]) -> None:
    """Write the graph of the modules, if there are any, beside their tensors."""
    if modules:
        save(sentence_modules(GraphBuilder(placed), modules), folder / f"{MODULES}.onnx")


def write_beside(folder: Path, found: StoredModules) -> WrittenWeights:
    """Write the modules of an adopted model: their tensors, which are its only ones, and their graph."""
    stored = weights.write(folder, arrays(found), ())
    write_graph(folder, described(found), stored.placed)
    return stored

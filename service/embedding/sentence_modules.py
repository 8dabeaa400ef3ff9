"""Runs the modules of a model that make sentence vectors of pooled ones: Dense, LayerNorm, Normalize.

ONNX Runtime runs them, since numpy's products give a row other bits alone than among others. Of 768 -> 3072 -> 768 one
text takes 0.69 ms (numpy 0.65) and 32 texts 2.1 ms (numpy 4.6, or row by row, with equal bits, 21): too long for the
event loop.
"""

import asyncio

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import MODULES
from service.embedding.model import Model, Rows
from service.embedding.outputs.plan import POOLED
from service.errors import EngineFailure


async def apply_modules(model: Model, rows: list[Rows], indices: list[int]) -> None:
    """Put sentence vectors in the place of the pooled vectors of some parts of a request.

    Args:
        rows: of every part; the POOLED of those that are named, float32 [texts, inner], becomes [texts, width].
        indices: of the parts.

    Raises:
        EngineFailure: a vector is not finite.
    """
    pooled = [rows[index][POOLED] for index in indices]
    joined = pooled[0] if len(pooled) == 1 else np.concatenate(pooled)
    vectors = await asyncio.to_thread(run_modules, model, joined)
    start = 0
    for index, own in zip(indices, pooled, strict=True):
        rows[index][POOLED] = vectors[start : start + len(own)]
        start += len(own)


def run_modules(model: Model, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sentence vectors of pooled ones; raise EngineFailure for one that is not finite."""
    (vectors,) = model.engine.run(MODULES, {"pooled": pooled}, ("vectors",))
    if not np.isfinite(vectors).all():
        raise EngineFailure(f"{model.card.name} gave a sentence_embedding that is not finite")
    return vectors

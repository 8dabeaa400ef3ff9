"""int8, uint8, binary and ubinary sentence vectors of a request, with the ranges of the model's card."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from service.embedding.quantization import quantized
from service.errors import ConflictingFields

AS_THE_MODEL_GIVES = "leave out pooling, normalize and dimensions, or ask for binary or ubinary"
INLINE_VALUES = 1 << 17  # quantized on the event loop: 0.12 ms


class Making(NamedTuple):
    """How sentence vectors are made.

    Args:
        mode: how token rows are pooled; None: by the graph.
        modules: whether the card's modules make them of the pooled ones.
        normalize: whether they are scaled.
        scaled: values that are scaled together.
        width: values that are left.
    """

    mode: str | None
    modules: bool
    normalize: bool
    scaled: int
    width: int


def check_outputs(card: Card, outputs: tuple[str, ...], dtype: str, pooled: str) -> None:
    """Raise ConflictingFields unless the sentence vector, `pooled`, is the one output of a request."""
    if outputs != (pooled,):
        raise ConflictingFields(
            f"is {dtype}, which applies to {pooled} alone, and {card.name} was asked for {', '.join(outputs)}",
            field=("dtype",),
            remedy=f"ask for {pooled}, or send float32, float16 or bfloat16",
        )


def ranges_of(card: Card, wanted: Making, as_given: Making, dtype: str) -> NDArray[np.float32]:
    """Return the ranges of sentence vectors, float32 [2, width].

    Args:
        wanted: how they are made.
        as_given: how those of a request without options are made, which the card's ranges are of.
        dtype: int8 or uint8.

    Raises:
        ConflictingFields: there are none.
    """
    if card.calibration is None:
        raise ConflictingFields(
            f"is {dtype}, and {card.name} has no ranges for it",
            field=("dtype",),
            allowed="binary and ubinary need none",
            remedy=f"run `inlay calibrate {card.name} TEXTS`, which finds them in texts like those it will get",
        )
    if not _first_values_of(wanted, as_given):
        raise ConflictingFields(
            f"is {dtype}, and the ranges of {card.name} are of its vectors as it gives them, with its own pooling, "
            "scaling and width",
            field=("dtype",),
            remedy=AS_THE_MODEL_GIVES,
        )
    ranges = np.array([card.calibration.least, card.calibration.largest], np.float32)
    return np.ascontiguousarray(ranges[:, : wanted.width])


def _first_values_of(wanted: Making, as_given: Making) -> bool:
    """Whether vectors are the first values of others."""
    alike = wanted[:3] == as_given[:3] and wanted.width <= as_given.width
    return alike and (not wanted.normalize or wanted.scaled == as_given.scaled)


Ranges = Mapping[str, NDArray[np.float32] | None]  # of each precision


async def in_precisions(vectors: NDArray[np.float32], ranges: Ranges) -> dict[str, NDArray[Any]]:
    """Return sentence vectors in each precision, by its name; of many in a thread."""
    if vectors.size * len(ranges) <= INLINE_VALUES:
        return _in_precisions(vectors, ranges)
    return await asyncio.to_thread(_in_precisions, vectors, ranges)


def _in_precisions(vectors: NDArray[np.float32], ranges: Ranges) -> dict[str, NDArray[Any]]:
    return {precision: quantized(vectors, precision, limits) for precision, limits in ranges.items()}

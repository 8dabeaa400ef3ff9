"""Where sequences lie in a client's tensors: padding is left out on the way in and put back on the way out.

A padded row gives what its unpadded tokens give: tokens masked at either end never reach the model. A mask with holes
goes to the model as it is, from its first to its last token.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.embedding.requests import Int64s
from service.errors import ConflictingFields, EmptyInput, WrongShape
from service.protocols.oip.tensors import Tensor, input_field

LENGTHS = "lengths"


class Spans(NamedTuple):
    """The real tokens of each sequence: from `starts` up to `stops` in the flat tensor.

    Args:
        shape: of the client's tensor, [B, T] or [N].
        padded: whether something is left out.
        holes: bool [B], which sequences have masked tokens between their own; None: none has.
    """

    shape: tuple[int, ...]
    starts: Int64s
    stops: Int64s
    padded: bool = False
    holes: NDArray[np.bool_] | None = None

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """(start, stop) of each sequence."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))


def spans_of(ids: Tensor, lengths: Int64s | None, mask: Int64s | None) -> Spans:
    """Return the spans of padded [B, T] ids, or of flat [N] ids.

    Args:
        lengths: [B], of flat ids; None: one sequence.
        mask: 0 and 1, flat; None: nothing is masked.

    Raises:
        BadRequest: the shapes do not fit each other.
        EmptyInput: a row is all padding.
    """
    edges = _row_edges(ids.shape) if len(ids.shape) == 2 else _sequence_edges(ids, lengths)
    if len(ids.shape) == 2 and lengths is not None:
        raise ConflictingFields(
            "goes with flat input_ids [N]",
            field=input_field(LENGTHS),
            allowed=f"these are {list(ids.shape)}",
            remedy="send attention_mask",
        )
    starts, stops = edges[:-1], edges[1:]
    return Spans(ids.shape, starts, stops) if mask is None else _unmasked(ids.shape, starts, stops, mask)


def placed(rows: NDArray[Any], lengths: Sequence[int], spans: Spans, left: bool) -> NDArray[Any]:
    """Return rows at the places of their tokens, [B, T, d] or [N, d], with zeros elsewhere.

    Args:
        rows: [sum(lengths), d].
        lengths: rows of each sequence: its whole span, or less if it was truncated.
        left: whether truncation cut off the beginning.
    """
    total = math.prod(spans.shape)
    if len(rows) == total:
        return rows.reshape(*spans.shape, -1)
    counts = np.array(lengths, np.int64)
    starts = spans.stops - counts if left else spans.starts
    before = np.cumsum(counts) - counts
    full = np.zeros((total, rows.shape[1]), rows.dtype)
    full[np.repeat(starts - before, counts) + np.arange(len(rows))] = rows
    return full.reshape(*spans.shape, -1)


def right_padded(lengths: Sequence[int]) -> Spans:
    """Return the spans of sequences padded on the right to the longest."""
    widest = max(lengths)
    starts = np.arange(len(lengths), dtype=np.int64) * widest
    return Spans((len(lengths), widest), starts, starts + np.array(lengths, np.int64))


def _row_edges(shape: tuple[int, ...]) -> Int64s:
    return np.arange(shape[0] + 1, dtype=np.int64) * shape[1]


def _sequence_edges(ids: Tensor, lengths: Int64s | None) -> Int64s:
    if len(ids.shape) != 1:
        received, allowed = f"has shape {list(ids.shape)}", f"allowed: [B, T] or [N] with {LENGTHS} [B]"
        raise WrongShape(received, field=input_field(ids.name), allowed=allowed)
    total = ids.shape[0]
    if lengths is None:
        return np.array([0, total], np.int64)
    if (lengths < 1).any() or (lengths > total).any() or int(lengths.sum()) != total:
        shown = f"{lengths[:8].tolist()}{'…' if len(lengths) > 8 else ''}"
        allowed = f"allowed: from 1 each, together the {total} of input_ids"
        raise WrongShape(f"is {shown}", field=input_field(LENGTHS), allowed=allowed)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _unmasked(shape: tuple[int, ...], starts: Int64s, stops: Int64s, mask: Int64s) -> Spans:
    real = np.flatnonzero(mask)
    if len(real) == len(mask):
        return Spans(shape, starts, stops)
    first, last = np.searchsorted(real, starts), np.searchsorted(real, stops)
    if (empty := first == last).any():
        field = (*input_field("attention_mask"), int(np.argmax(empty)))
        raise EmptyInput("is all 0", field=field, remedy="leave the sequence out")
    left, right = real[first], real[last - 1] + 1
    holes = right - left != last - first
    return Spans(shape, left, right, True, holes if holes.any() else None)

"""Removes the padding of a client's tensors on the way in and restores it on the way out.

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

Shape = tuple[int, ...]


class Places(NamedTuple):
    """The places of each sequence's tokens: from `starts` up to `stops` in the flat tensor.

    Args:
        shape: shape of the client's tensor, [B, T] or [N].
        padded: whether something is left out.
        holes: whether a sequence has masked tokens between its own.
    """

    shape: Shape
    starts: Int64s
    stops: Int64s
    padded: bool = False
    holes: bool = False

    @property
    def slices(self) -> list[slice]:
        """The tokens of each sequence."""
        return list(map(slice, self.starts.tolist(), self.stops.tolist()))


def places_of(shape: Shape, lengths: Int64s | None, mask: Int64s | None) -> Places:
    """Return the places of padded [B, T] ids, or of flat [N] ids.

    Args:
        lengths: [B], of flat ids; None: one sequence.
        mask: 0 and 1, flat; None: nothing is masked.

    Raises:
        BadRequest: the shapes do not fit each other.
        EmptyInput: a row is all padding.
    """
    if len(shape) == 2 and lengths is not None:
        allowed = f"these are {list(shape)}"
        field, remedy = ("inputs", "lengths"), "send attention_mask"
        raise ConflictingFields("goes with flat input_ids [N]", field=field, allowed=allowed, remedy=remedy)
    edges = np.arange(shape[0] + 1, dtype=np.int64) * shape[1] if len(shape) == 2 else _edges(shape, lengths)
    places = Places(shape, edges[:-1], edges[1:])
    return places if mask is None else _unmasked(places, mask)


def right_padded(lengths: Sequence[int]) -> Places:
    """Return the places of sequences padded on the right to the longest."""
    widest = max(lengths)
    starts = np.arange(len(lengths), dtype=np.int64) * widest
    return Places((len(lengths), widest), starts, starts + np.array(lengths, np.int64))


def placed(rows: NDArray[Any], lengths: Sequence[int], places: Places, left: bool) -> NDArray[Any]:
    """Return rows at the places of their tokens, [B, T, d] or [N, d], with zeros elsewhere.

    Args:
        rows: [sum(lengths), d].
        lengths: rows of each sequence: one a token, or fewer if it was truncated.
        left: whether truncation cut off the beginning.
    """
    total = math.prod(places.shape)
    if len(rows) == total:
        return rows.reshape(*places.shape, -1)
    counts = np.array(lengths, np.int64)
    starts = places.stops - counts if left else places.starts
    before = np.cumsum(counts) - counts
    full = np.zeros((total, rows.shape[1]), rows.dtype)
    full[np.repeat(starts - before, counts) + np.arange(len(rows))] = rows
    return full.reshape(*places.shape, -1)


def _edges(shape: Shape, lengths: Int64s | None) -> Int64s:
    """Return where each sequence of flat ids starts, and where the last one stops."""
    if len(shape) != 1:
        allowed = "allowed: [B, T] or [N] with lengths [B]"
        raise WrongShape(f"has shape {list(shape)}", field=("inputs", "input_ids"), allowed=allowed)
    total = shape[0]
    if lengths is None:
        return np.array([0, total], np.int64)
    if (lengths < 1).any() or (lengths > total).any() or int(lengths.sum()) != total:
        shown = f"{lengths[:8].tolist()}{'…' if len(lengths) > 8 else ''}"
        allowed = f"allowed: from 1 each, together the {total} of input_ids"
        raise WrongShape(f"is {shown}", field=("inputs", "lengths"), allowed=allowed)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _unmasked(places: Places, mask: Int64s) -> Places:
    """Return the places without the masked tokens at either end of each sequence."""
    real = np.flatnonzero(mask)
    if len(real) == len(mask):
        return places
    first, last = np.searchsorted(real, places.starts), np.searchsorted(real, places.stops)
    if (empty := first == last).any():
        field = ("inputs", "attention_mask", int(np.argmax(empty)))
        raise EmptyInput("is all 0", field=field, remedy="leave the sequence out")
    starts, stops = real[first], real[last - 1] + 1
    return Places(places.shape, starts, stops, True, bool((stops - starts != last - first).any()))

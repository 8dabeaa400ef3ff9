"""Packing: joins the tokens of many sequences to one row without padding, and splits the results again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.positions import learned
from models.recipes.extra_inputs import TASKS, extra_values
from service.embedding.requests import Ids, Int64s

NO_TASK = -1  # no adapter adds anything
_ZEROS = np.zeros(8192, np.int64)  # shared by all sequences without segments
_ZEROS.flags.writeable = False


class Packed(NamedTuple):
    """Joined sequences, int64 [N] each, N = sum(lengths).

    Args:
        types: segment ids; None: the graph reads none.
        mask: None: every token is attended to.
        lengths: tokens of each sequence.
        extras: further inputs of the graph by name, [N] or [N, columns]; None: it has none.
    """

    ids: Int64s
    positions: Int64s
    types: Int64s | None
    mask: Int64s | None
    lengths: tuple[int, ...]
    extras: dict[str, Int64s] | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens, N."""
        return len(self.positions)


Rows = dict[str, NDArray[Any]]
"""The arrays of one input, or of several that are packed together, by name."""


class Pixels(NamedTuple):
    """One image, ready for its graph.

    Args:
        feeds: the arrays that the graph reads, by name.
        tokens: patches or frames: its cost.
    """

    feeds: Mapping[str, NDArray[Any]]
    tokens: int


Content = TypeVar("Content")


class Work(NamedTuple, Generic[Content]):
    """The part of one request for one run of a graph.

    Args:
        packed: packed tokens, or an image.
        outputs: the requested outputs of the graph.
    """

    packed: Content
    outputs: tuple[str, ...]


def pack(card: Card, sequences: Sequence[Ids], task: int = NO_TASK) -> Packed:
    """Return checked sequences joined; the family's rule fills in positions and segments that were not sent."""
    return join([packed(card, sequence, task) for sequence in sequences])


def packed(card: Card, sequence: Ids, task: int = NO_TASK) -> Packed:
    """Return one checked sequence with the positions and segments that were not sent."""
    ids, mask, types, positions, sent_extras = sequence[:5]
    if positions is None:
        positions = learned.positions(card.position, ids, mask)
    elif card.position.shift:
        positions = positions + card.position.shift
    if mask is None and card.mask_from == "pad_count":
        mask = (np.arange(len(ids)) < np.count_nonzero(ids != card.pad_id)).astype(np.int64)
    if types is None and card.types == "zeros":
        types = _ZEROS[: len(ids)] if len(ids) <= len(_ZEROS) else np.zeros(len(ids), np.int64)
    extras = None
    if card.extras:
        if task != NO_TASK:
            sent_extras = {**(sent_extras or {}), TASKS: np.full(len(ids), task)}
        extras = {extra.name: extra_values(extra, ids, mask, sent_extras, positions) for extra in card.extras}
    return Packed(ids, positions, types, mask, (len(ids),), extras)


def rectangles(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Return groups of sequences of similar length, as indices.

    Attention pads a batch of B sequences to the longest, T, and has B * T * T scores: one text of 256 tokens among 256
    texts of one token takes 1.6 GB and 25 times as long as in groups (MiniLM, measured).

    Args:
        lengths: tokens of each sequence.
        most: the largest count of a group times its longest sequence; a longer sequence is alone.
    """
    if not lengths or len(lengths) * max(lengths) <= most:
        return [list(range(len(lengths)))]
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= most:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def cut_by_size(numbers: Iterable[int], sizes: Sequence[int] | Mapping[int, int], most: int) -> Iterator[list[int]]:
    """Yield ranges of consecutive numbers whose sizes add up to at most `most`; a larger one is alone."""
    chosen: list[int] = []
    room = most
    for number in numbers:
        if chosen and sizes[number] > room:
            yield chosen
            chosen, room = [], most
        chosen.append(number)
        room -= sizes[number]
    if chosen:
        yield chosen


def join(parts: Sequence[Packed]) -> Packed:
    """Return the parts joined; a single part is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    ids, positions, types, masks, lengths, extras = zip(*parts, strict=True)
    return Packed(
        np.concatenate(ids),
        np.concatenate(positions),
        None if types[0] is None else np.concatenate(types),
        None if all(mask is None for mask in masks) else np.concatenate([_mask(part) for part in parts]),
        tuple(chain.from_iterable(lengths)),
        extras[0] and {name: np.concatenate([arrays[name] for arrays in extras]) for name in extras[0]},
    )


def split(rows: NDArray[Any], counts: Iterable[int]) -> list[NDArray[Any]]:
    """Return views of consecutive rows, `counts` at a time, without copying."""
    views, start = [], 0
    for count in counts:
        views.append(rows[start : start + count])
        start += count
    return views


def feeds(packed: Packed, inputs: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays that a packed graph reads, by name."""
    arrays: dict[str, Any] = {"ids": packed.ids, "positions": packed.positions, "types": packed.types}
    if packed.extras:
        arrays |= packed.extras
    if "lengths" in inputs:
        arrays["lengths"] = np.array(packed.lengths, np.int64)
    if "segments" in inputs:
        arrays["segments"] = np.repeat(np.arange(len(packed.lengths)), packed.lengths)
    if "mask" in inputs:
        mask = packed.mask
        arrays["mask"] = np.ones(packed.tokens, np.bool_) if mask is None else mask.astype(bool)
    return {name: arrays[name] for name in inputs}


def rectangle(packed: Packed, inputs: Sequence[str], pad_id: int) -> dict[str, NDArray[Any]]:
    """Return the arrays that a padded graph reads, int64 [B, T], padded on the right with masked tokens."""
    real = real_tokens(packed.lengths)
    types = np.zeros(packed.tokens, np.int64) if packed.types is None else packed.types
    columns: Mapping[str, tuple[Int64s, int]] = {
        "input_ids": (packed.ids, pad_id),
        "attention_mask": (_mask(packed), 0),
        "token_type_ids": (types, 0),
        "position_ids": (packed.positions, 0),
    }
    return {name: _pad(*columns[name], real) for name in inputs}


def unpad(rows: NDArray[Any], lengths: tuple[int, ...]) -> NDArray[Any]:
    """Return the rows of [B, T, d] that hold tokens, not padding, packed as [N, d]."""
    packed: NDArray[Any] = rows[real_tokens(lengths)]
    return packed


def _mask(packed: Packed) -> Int64s:
    return np.ones(packed.tokens, np.int64) if packed.mask is None else packed.mask


def real_tokens(lengths: Sequence[int]) -> NDArray[np.bool_]:
    """Return the places of the tokens of sequences that are padded on the right to the longest, [B, T]."""
    real: NDArray[np.bool_] = np.arange(max(lengths)) < np.array(lengths)[:, None]
    return real


def _pad(values: Int64s, fill: int, real: NDArray[np.bool_]) -> Int64s:
    padded = np.full(real.shape, fill, np.int64)
    padded[real] = values
    return padded

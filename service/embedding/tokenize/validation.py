"""Validation of token ids: checks lengths, ids, segments and positions before sequences are packed together."""

from collections.abc import Mapping

import numpy as np

from models.artifacts.card import Card
from service.embedding.requests import Direction, Ids, Int64s
from service.errors import SHORTEN_OR_TRUNCATE, BadInput, EmptyInput, OutOfRange, TooLong, WrongShape


def check(
    card: Card, index: int, sequence: Ids, truncate: bool, direction: Direction, max_tokens: int | None = None
) -> Ids:
    """Return one checked sequence of token ids, cut if it is too long.

    Args:
        card: card of the model.
        index: the number of the input in its request.
        sequence: the sequence that the caller sent.
        truncate: cut to the positions that the model has, instead of raising.
        direction: the side to keep.
        max_tokens: cut to this many tokens even if `truncate` is false.

    Raises:
        TooLong, EmptyInput: the sequence is too long or empty.
        BadRequest: a list is of another length than the ids, or holds a value outside its table.
    """
    if not len(sequence.ids):
        raise EmptyInput("has no token ids", field=("inputs", index), remedy="send one at least")
    bare = sequence.mask is None and sequence.types is None and sequence.positions is None and not sequence.extras
    if not bare:
        _same_lengths(index, sequence)
    if max_tokens is not None and len(sequence.ids) > max_tokens:
        sequence = _truncated(sequence, max_tokens, direction)
    sequence = _within_longest(card, index, sequence, truncate, direction)
    _within(index, "input_ids", sequence.ids, card.vocab_size, "the vocabulary")
    if bare:
        return sequence
    if sequence.mask is not None:
        _within(index, "attention_mask", sequence.mask, 2, "a mask")
    if sequence.positions is not None:
        _within(index, "position_ids", sequence.positions, card.position.sendable() or 1 << 53, "the position table")
    if sequence.extras:
        sequence = _with_extras(card, index, sequence, sequence.extras)
    return _typed(card, index, sequence)


def _same_lengths(index: int, sequence: Ids) -> None:
    for name, values in (
        ("attention_mask", sequence.mask),
        ("token_type_ids", sequence.types),
        ("position_ids", sequence.positions),
        *(sequence.extras or {}).items(),
    ):
        if values is not None and len(values) != len(sequence.ids):
            raise WrongShape(
                f"has {len(values)} values where input_ids has {len(sequence.ids)}",
                field=("inputs", index, name),
                remedy="send as many, or leave it out",
            )


def _within_longest(card: Card, index: int, sequence: Ids, truncate: bool, direction: Direction) -> Ids:
    longest = card.position.longest()
    if longest is None or len(sequence.ids) <= longest:
        return sequence
    if not truncate:
        raise TooLong(
            f"has {len(sequence.ids)} token ids",
            field=("inputs", index),
            allowed=f"{card.name} has positions for {longest}",
            remedy=SHORTEN_OR_TRUNCATE,
        )
    return _truncated(sequence, longest, direction)


def _truncated(sequence: Ids, most: int, direction: Direction) -> Ids:
    kept = slice(0, most) if direction == "right" else slice(len(sequence.ids) - most, None)
    mask, types, positions = (
        None if values is None else values[kept] for values in (sequence.mask, sequence.types, sequence.positions)
    )
    extras = sequence.extras and {name: values[kept] for name, values in sequence.extras.items()}
    return Ids(sequence.ids[kept], mask, types, positions, extras, cut=True)


def _within(index: int, name: str, values: Int64s, end: int, what: str) -> None:
    unsigned = values.view(np.uint64)  # one pass for both ends: negative values wrap to huge ones
    if unsigned[unsigned.argmax()] < end:  # argmax, because max goes through Python (numpy 2.4)
        return
    at = int(np.argmax((values < 0) | (values >= end)))
    raise OutOfRange(f"is {values[at]}", field=("inputs", index, name, at), allowed=f"{what} holds 0 to {end - 1}")


def _typed(card: Card, index: int, sequence: Ids) -> Ids:
    if sequence.types is None:
        return sequence
    if card.types == "none":
        if sequence.types.any():
            raise BadInput(
                "is not all 0",
                field=("inputs", index, "token_type_ids"),
                allowed=f"{card.family} models have no segments",
                remedy="leave it out",
            )
        return sequence._replace(types=None)
    rows = card.type_rows if card.types == "zeros" else card.vocab_size
    _within(index, "token_type_ids", sequence.types, rows, "the segment table")
    return sequence


def _with_extras(card: Card, index: int, sequence: Ids, extras: Mapping[str, Int64s]) -> Ids:
    """Return the ids with the extra inputs that the model reads; others must be all 0 and are dropped."""
    known = {extra.name: extra for extra in card.extras if extra.sent}
    for name, values in extras.items():
        if name not in known:
            if values.any():
                raise BadInput(
                    "is not all 0",
                    field=("inputs", index, name),
                    allowed=f"{card.name} reads no {name}",
                    remedy="leave it out",
                )
            continue
        _within_rows(index, name, values, known[name].rows)
    return sequence._replace(extras={name: values for name, values in extras.items() if name in known} or None)


def _within_rows(index: int, name: str, values: Int64s, rows: int) -> None:
    """Raise OutOfRange for a value without a row, and for a box of negative size, which is looked up too."""
    outside = (values < 0) | (values >= rows)
    if outside.any():
        at = tuple(np.argwhere(outside)[0].tolist())
        field = ("inputs", index, name, *at)
        raise OutOfRange(f"is {values[at]}", field=field, allowed=f"its table holds 0 to {rows - 1}")
    if values.ndim == 2 and (turned := (values[:, :2] > values[:, 2:]).any(axis=1)).any():
        at_row = int(np.argmax(turned))
        raise OutOfRange(
            f"is {values[at_row].tolist()}",
            field=("inputs", index, name, at_row),
            allowed="a box is [x0, y0, x1, y1] with x1 >= x0 and y1 >= y0",
        )

"""Validation of token ids: lengths, ids, segments and positions are checked before sequences are packed together."""

from collections.abc import Mapping, Sequence

import numpy as np

from models.artifacts.card import Card
from models.families.extra_inputs import extra_values
from models.positions import learned
from service.embedding.packing import Packed, join
from service.embedding.requests import Direction, Ids, Int64s
from service.errors import SHORTEN_OR_TRUNCATE, BadInput

_ZEROS = np.zeros(8192, np.int64)  # lent to every sequence that sends no segments
_ZEROS.flags.writeable = False


def check(
    card: Card, index: int, given: Ids, truncate: bool, direction: Direction, max_tokens: int | None = None
) -> Ids:
    """Return one sequence of token ids, checked, and cut where it is too long.

    Args:
        index: the number of the input in its request.
        truncate: cut to the positions that the model has, instead of raising.
        direction: the side to keep.
        max_tokens: cut to so many tokens, whatever `truncate` says.

    Raises:
        BadInput: a list is too long, of another length than the ids, or holds a value outside its table.
    """
    if not len(given.ids):
        raise BadInput("has no token ids", field=("inputs", index), remedy="send one at least")
    bare = given.mask is None and given.types is None and given.positions is None and not given.extras
    if not bare:
        _same_lengths(index, given)
    if max_tokens is not None and len(given.ids) > max_tokens:
        given = _kept(given, max_tokens, direction)
    given = _cut(card, index, given, truncate, direction)
    _within(index, "input_ids", given.ids, card.vocab_size, "the vocabulary")
    if bare:
        return given
    if given.mask is not None:
        _within(index, "attention_mask", given.mask, 2, "a mask")
    if given.positions is not None:
        _within(index, "position_ids", given.positions, card.position.sendable() or 1 << 53, "the position table")
    if given.extras:
        given = _with_extras(card, index, given, given.extras)
    return _typed(card, index, given)


def pack(card: Card, sequences: Sequence[Ids]) -> Packed:
    """Return checked sequences joined; positions and segments left out are filled by the family's rule."""
    return join([_packed(card, each) for each in sequences])


def _packed(card: Card, given: Ids) -> Packed:
    ids, mask, types, positions, sent = given
    if positions is None:
        positions = learned.positions(card.position, ids, mask)
    elif card.position.shift:
        positions = positions + card.position.shift
    if mask is None and card.mask_from == "pad_count":
        mask = (np.arange(len(ids)) < np.count_nonzero(ids != card.pad_id)).astype(np.int64)
    if types is None and card.types == "zeros":
        types = _ZEROS[: len(ids)] if len(ids) <= len(_ZEROS) else np.zeros(len(ids), np.int64)
    extras = {each.name: extra_values(each, ids, mask, sent) for each in card.extras} if card.extras else None
    return Packed(ids, positions, types, mask, (len(ids),), extras)


def counted(sequence: Ids, prompt_tokens: int = 0) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which tokens of a sequence pooling reads, bool [n]: the attended ones after the prompt's."""
    attended = _mask(sequence).astype(bool)
    attended[:prompt_tokens] = False
    return attended


def _same_lengths(index: int, given: Ids) -> None:
    for name, values in (
        ("attention_mask", given.mask),
        ("token_type_ids", given.types),
        ("position_ids", given.positions),
        *(given.extras or {}).items(),
    ):
        if values is not None and len(values) != len(given.ids):
            raise BadInput(
                f"has {len(values)} values where input_ids has {len(given.ids)}",
                field=("inputs", index, name),
                remedy="send as many, or leave it out",
            )


def _cut(card: Card, index: int, given: Ids, truncate: bool, direction: Direction) -> Ids:
    longest = card.position.longest()
    if longest is None or len(given.ids) <= longest:
        return given
    if not truncate:
        raise BadInput(
            f"has {len(given.ids)} token ids",
            field=("inputs", index),
            allowed=f"{card.name} has positions for {longest}",
            remedy=SHORTEN_OR_TRUNCATE,
        )
    return _kept(given, longest, direction)


def _kept(given: Ids, most: int, direction: Direction) -> Ids:
    kept = slice(0, most) if direction == "right" else slice(len(given.ids) - most, None)
    mask, types, positions = (
        None if each is None else each[kept] for each in (given.mask, given.types, given.positions)
    )
    extras = given.extras and {name: values[kept] for name, values in given.extras.items()}
    return Ids(given.ids[kept], mask, types, positions, extras)


def _within(index: int, name: str, values: Int64s, end: int, what: str) -> None:
    unsigned = values.view(np.uint64)  # one pass for both ends: negative values wrap to huge ones
    if unsigned[unsigned.argmax()] < end:  # argmax, because max goes through Python (numpy 2.4)
        return
    at = int(np.argmax((values < 0) | (values >= end)))
    raise BadInput(f"is {values[at]}", field=("inputs", index, name, at), allowed=f"{what} holds 0 to {end - 1}")


def _typed(card: Card, index: int, given: Ids) -> Ids:
    if given.types is None:
        return given
    if card.types == "none":
        if given.types.any():
            raise BadInput(
                "is not all 0",
                field=("inputs", index, "token_type_ids"),
                allowed=f"{card.family} models have no segments",
                remedy="leave it out",
            )
        return Ids(given.ids, given.mask, None, given.positions, given.extras)
    rows = card.type_rows if card.types == "zeros" else card.vocab_size
    _within(index, "token_type_ids", given.types, rows, "the segment table")
    return given


def _with_extras(card: Card, index: int, given: Ids, sent: Mapping[str, Int64s]) -> Ids:
    """Return the ids with the extra inputs that the model reads; others may be sent as long as they are all 0."""
    known = {each.name: each for each in card.extras if each.sent}
    for name, values in sent.items():
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
    return given._replace(extras={name: values for name, values in sent.items() if name in known} or None)


def _within_rows(index: int, name: str, values: Int64s, rows: int) -> None:
    """Raise BadInput for a value without a row, and for a box of negative size, which is looked up too."""
    outside = (values < 0) | (values >= rows)
    if outside.any():
        at = tuple(np.argwhere(outside)[0].tolist())
        field = ("inputs", index, name, *at)
        raise BadInput(f"is {values[at]}", field=field, allowed=f"its table holds 0 to {rows - 1}")
    if values.ndim == 2 and (turned := (values[:, :2] > values[:, 2:]).any(axis=1)).any():
        at_row = int(np.argmax(turned))
        raise BadInput(
            f"is {values[at_row].tolist()}",
            field=("inputs", index, name, at_row),
            allowed="a box is [x0, y0, x1, y1] with x1 >= x0 and y1 >= y0",
        )


def _mask(sequence: Ids) -> Int64s:
    return np.ones(len(sequence.ids), np.int64) if sequence.mask is None else sequence.mask

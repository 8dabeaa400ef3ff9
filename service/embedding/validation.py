"""Inputs → packed sequences: lengths, ids, segments and positions checked before a row has neighbours. Runs nothing."""

from collections.abc import Mapping, Sequence

import numpy as np

from models.artifacts.card import Card
from models.families.extra_inputs import extra_values
from models.positions import learned
from service.embedding.packing import Packed, join
from service.embedding.requests import Direction, Ids, Int64s
from service.errors import BadInput

_ZEROS = np.zeros(8192, np.int64)  # lent to every sequence that sends no segments
_ZEROS.flags.writeable = False


def check(
    card: Card, index: int, given: Ids, truncate: bool, direction: Direction, max_tokens: int | None = None
) -> Ids:
    """One caller's token ids, cut to `max_tokens`, and to the positions the model has if `truncate`.

    raises   BadInput naming `inputs[index]` and the list that is wrong
    """
    if not len(given.ids):
        raise BadInput(f"inputs[{index}] has no token ids: send one at least", index)
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
    """Checked sequences one below the other; positions and segments left out follow the family's rule."""
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
    """Which tokens of a sequence pooling reads: the attended ones behind the prompt's."""
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
                f"inputs[{index}].{name} has {len(values)} values where input_ids has {len(given.ids)}: "
                "send as many, or leave it out",
                index,
            )


def _cut(card: Card, index: int, given: Ids, truncate: bool, direction: Direction) -> Ids:
    longest = card.position.longest()
    if longest is None or len(given.ids) <= longest:
        return given
    if not truncate:
        raise BadInput(
            f"inputs[{index}] has {len(given.ids)} token ids; {card.name} has positions for {longest}: "
            'shorten it or send "truncate": true',
            index,
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
    raise BadInput(f"inputs[{index}].{name}[{at}] is {values[at]}; {what} holds 0 to {end - 1}", index)


def _typed(card: Card, index: int, given: Ids) -> Ids:
    if given.types is None:
        return given
    if card.types == "none":
        if given.types.any():
            raise BadInput(
                f"inputs[{index}].token_type_ids is not all 0, and {card.family} models have no segments: leave it out",
                index,
            )
        return Ids(given.ids, given.mask, None, given.positions, given.extras)
    rows = card.type_rows if card.types == "zeros" else card.vocab_size
    _within(index, "token_type_ids", given.types, rows, "the segment table")
    return given


def _with_extras(card: Card, index: int, given: Ids, sent: Mapping[str, Int64s]) -> Ids:
    """The extras this model reads; others may be there as long as they say nothing."""
    known = {each.name: each for each in card.extras if each.sent}
    for name, values in sent.items():
        if name not in known:
            if values.any():
                raise BadInput(
                    f"inputs[{index}].{name} is not all 0, and {card.name} reads no {name}: leave it out", index
                )
            continue
        _within_rows(index, name, values, known[name].rows)
    return given._replace(extras={name: values for name, values in sent.items() if name in known} or None)


def _within_rows(index: int, name: str, values: Int64s, rows: int) -> None:
    """Raises BadInput for a value without a row, and for a box with turned corners: its size is looked up too."""
    outside = (values < 0) | (values >= rows)
    if outside.any():
        at = tuple(np.argwhere(outside)[0])
        place = "".join(f"[{step}]" for step in at)
        raise BadInput(f"inputs[{index}].{name}{place} is {values[at]}; its table holds 0 to {rows - 1}", index)
    if values.ndim == 2 and (turned := (values[:, :2] > values[:, 2:]).any(axis=1)).any():
        at_row = int(np.argmax(turned))
        raise BadInput(
            f"inputs[{index}].{name}[{at_row}] is {values[at_row].tolist()}; a box is [x0, y0, x1, y1] with "
            "x1 >= x0 and y1 >= y0",
            index,
        )


def _mask(sequence: Ids) -> Int64s:
    return np.ones(len(sequence.ids), np.int64) if sequence.mask is None else sequence.mask

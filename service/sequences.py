"""Inputs → packed sequences: lengths, ids, segments and positions checked before a row has neighbours. Runs nothing."""

from collections.abc import Sequence

import numpy as np

from models.card import Card
from models.positions import learned
from service.errors import BadInput
from service.flatten import Packed, join
from service.messages import Direction, Ids, Int64s

_ZEROS = np.zeros(8192, np.int64)  # lent to every sequence that sends no segments
_ZEROS.flags.writeable = False


def check(card: Card, index: int, given: Ids, truncate: bool, direction: Direction) -> Ids:
    """One caller's token ids, cut to the positions the model has if `truncate`.

    raises   BadInput naming `inputs[index]` and the list that is wrong
    """
    if not len(given.ids):
        raise BadInput(f"inputs[{index}] has no token ids: send one at least", index)
    bare = given.mask is None and given.types is None and given.positions is None
    if not bare:
        _same_lengths(index, given)
    given = _cut(card, index, given, truncate, direction)
    _within(index, "input_ids", given.ids, card.vocab_size, "the vocabulary")
    if bare:
        return given
    if given.mask is not None:
        _within(index, "attention_mask", given.mask, 2, "a mask")
    if given.positions is not None:
        _within(index, "position_ids", given.positions, card.position.rows or 1 << 53, "the position table")
    return _typed(card, index, given)


def pack(card: Card, sequences: Sequence[Ids]) -> Packed:
    """Checked sequences one below the other; positions and segments left out follow the family's rule."""
    return join([_packed(card, each) for each in sequences])


def _packed(card: Card, given: Ids) -> Packed:
    ids, mask, types, positions = given
    if positions is None:
        positions = learned.positions(card.position, ids, mask)
    if types is None and card.types == "zeros":
        types = _ZEROS[: len(ids)] if len(ids) <= len(_ZEROS) else np.zeros(len(ids), np.int64)
    return Packed(ids, positions, types, mask, (len(ids),))


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
    kept = slice(0, longest) if direction == "right" else slice(len(given.ids) - longest, None)
    rest = (None if values is None else values[kept] for values in (given.mask, given.types, given.positions))
    return Ids(given.ids[kept], *rest)


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
        return Ids(given.ids, given.mask, None, given.positions)
    rows = card.type_rows if card.types == "zeros" else card.vocab_size
    _within(index, "token_type_ids", given.types, rows, "the segment table")
    return given


def _mask(sequence: Ids) -> Int64s:
    return np.ones(len(sequence.ids), np.int64) if sequence.mask is None else sequence.mask

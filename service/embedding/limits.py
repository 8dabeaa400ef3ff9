"""Limits of one request: inputs, characters, tokens and bytes of its response, checked before anything is queued."""

from collections.abc import Sequence
from itertools import pairwise

from service.embedding.requests import Ids, Input, Text
from service.errors import (
    SHORTEN_OR_TRUNCATE,
    EmptyRequest,
    FieldPath,
    TooLarge,
    TooLong,
    TooManyCharacters,
    TooManyInputs,
    TooManyTokens,
)
from service.settings import Settings

INPUTS: FieldPath = ("inputs",)


def check_inputs(count: int, most: int | None, what: str = "inputs") -> None:
    """Raise TooManyInputs before inputs are decoded, since a decoded one takes up to a hundred times its bytes.

    Args:
        most: the largest number in a request; None: any number.
        what: the word for them in errors.
    """
    if most is not None and count > most:
        raise TooManyInputs(f"{count} {what}", allowed=f"this server takes {most} a request", remedy="send fewer")


def check_count(inputs: Sequence[object], settings: Settings) -> None:
    """Raise EmptyRequest for a request without inputs, TooLarge for one with more than `max_inputs`."""
    if not inputs:
        raise EmptyRequest("is empty", field=INPUTS, remedy="send one text or one list of token ids at least")
    if len(inputs) > settings.max_inputs:
        raise TooManyInputs(
            f"holds {len(inputs)} inputs",
            field=INPUTS,
            allowed=f"this server takes {settings.max_inputs} a request",
            remedy="send fewer",
        )


def check_characters(texts: Sequence[Text], settings: Settings) -> int:
    """Return the number of characters of all texts.

    Raises:
        TooLarge: there are more than `max_request_characters`; a query that all pairs share counts once.
    """
    characters = sum([len(text.text) + len(text.pair or "") for text in texts])
    if characters > settings.max_request_characters:
        characters -= sum([len(text.text) for last, text in pairwise(texts) if text.text is last.text and text.pair])
    if characters > settings.max_request_characters:
        raise too_many_characters(characters, settings.max_request_characters)
    return characters


def too_many_characters(characters: int, most: int) -> TooManyCharacters:
    """Return the error for a request of more characters than this server takes."""
    return TooManyCharacters(
        f"has {characters} characters",
        field=INPUTS,
        allowed=f"this server takes {most} a request",
        remedy="send fewer or shorter texts",
    )


def check_longest(inputs: Sequence[Input], max_tokens: int) -> None:
    """Raise TooLong for the first list of token ids that is longer than `max_tokens`."""
    for index, sequence in enumerate(inputs):
        if isinstance(sequence, Ids) and len(sequence.ids) > max_tokens:
            raise TooLong(
                f"has {len(sequence.ids)} token ids",
                field=("inputs", index),
                allowed=f"this server takes {max_tokens} an input",
                remedy=SHORTEN_OR_TRUNCATE,
            )


def check_bytes(size: int, received: str, settings: Settings) -> None:
    """Raise TooLarge for vectors of more bytes than `max_answer_bytes`.

    Args:
        received: the part of the request that has so many.
    """
    if size > settings.max_answer_bytes:
        raise TooLarge(
            received,
            field=INPUTS,
            allowed=f"this server answers with {settings.max_answer_bytes} at most",
            remedy="send fewer inputs, or have INLAY_MAX_ANSWER_BYTES raised",
        )


def too_many_tokens(tokens: int, max_tokens: int, field: FieldPath = INPUTS) -> TooLarge:
    """Return the error for a request of more tokens than this server takes, in this field."""
    return TooManyTokens(
        f"has {tokens} tokens",
        field=field,
        allowed=f"this server takes {max_tokens} a request",
        remedy="send fewer inputs",
    )


def least(one: int | None, other: int | None) -> int | None:
    """Return the lower of two limits; either may be None."""
    return one if other is None else other if one is None else min(one, other)

"""Limits of one request: inputs, characters, tokens and bytes of its response, checked before anything is queued."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from models.artifacts.card import SPARSE
from service.embedding.outputs.plan import HIDDEN, POOLED, ROW_OF_EACH, Plan
from service.embedding.requests import Ids, Input, Text
from service.errors import (
    SHORTEN_OR_TRUNCATE,
    EmptyRequest,
    TooLarge,
    TooLong,
    TooManyCharacters,
    TooManyInputs,
    TooManyTokens,
)
from service.settings import Settings

Width = Callable[[str], int]  # the values in a row of an output
INPUTS = ("inputs",)
SPARSE_VALUE_BYTES = 8  # int32 and float32


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
    """Return the number of characters of all texts; a tokenizer needs about 100 bytes for each, cut off or not.

    Raises:
        TooLarge: there are more than `max_request_characters`, a query that all pairs have counted once.
    """
    characters = sum([len(text.text) + len(text.pair or "") for text in texts])
    if characters > settings.max_request_characters:
        characters -= sum([len(text.text) for last, text in pairwise(texts) if text.text is last.text and text.pair])
    check_character_count(characters, settings)
    return characters


def check_character_count(characters: int, settings: Settings) -> None:
    """Raise TooLarge for more characters than `max_request_characters`."""
    if characters > settings.max_request_characters:
        raise TooManyCharacters(
            f"has {characters} characters",
            field=INPUTS,
            allowed=f"this server takes {settings.max_request_characters} a request",
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


def check_tokens(tokens: int, inputs: int, width: Width, plan: Plan, settings: Settings) -> int:
    """Return the bytes of a request's vectors in float32.

    Args:
        tokens: of all inputs together.
        width: the model's.

    Raises:
        TooLarge: the request has more tokens, or larger vectors, than the settings allow.
    """
    if tokens > settings.max_request_tokens:
        raise too_many_tokens(tokens, settings.max_request_tokens)
    size = tokens * bytes_per_token(width, plan) + inputs * _bytes_per_input(plan)
    if size > settings.max_answer_bytes:
        raise TooLarge(
            f"has {tokens} tokens, whose {', '.join(plan.outputs)} are {size} bytes",
            field=INPUTS,
            allowed=f"this server answers with {settings.max_answer_bytes} at most",
            remedy="send fewer inputs, or have INLAY_MAX_ANSWER_BYTES raised",
        )
    return size


def max_tokens(width: Width, plan: Plan, settings: Settings) -> int:
    """Return how many tokens of all inputs together `check_tokens` allows, where nothing is pooled."""
    per_token = bytes_per_token(width, plan)
    return min(settings.max_request_tokens, settings.max_answer_bytes // per_token if per_token else 1 << 62)


def bytes_per_token(width: Width, plan: Plan) -> int:
    """Return the bytes of a token's rows in all outputs of a plan, in float32, of its value in a sparse vector, and of
    what heads read of it.
    """
    kept = width(HIDDEN) if plan.reads_rows else 0
    dense = 4 * (kept + sum([width(name) for name in plan.outputs if name not in (*ROW_OF_EACH, SPARSE)]))
    return dense + SPARSE_VALUE_BYTES * (SPARSE in plan.outputs and not plan.sparse_width)


def _bytes_per_input(plan: Plan) -> int:
    return SPARSE_VALUE_BYTES * plan.sparse_width + (4 * plan.vector_width if POOLED in plan.outputs else 0)


def too_many_tokens(tokens: int, max_tokens: int) -> TooLarge:
    """Return the error for a request of more tokens than this server takes."""
    return TooManyTokens(
        f"has {tokens} tokens",
        field=INPUTS,
        allowed=f"this server takes {max_tokens} a request",
        remedy="send fewer inputs",
    )


def least(one: int | None, other: int | None) -> int | None:
    """Return the lower of two limits, of which either may be none."""
    return one if other is None else other if one is None else min(one, other)

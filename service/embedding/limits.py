"""What one request may hold: inputs, characters, tokens, bytes of its answer. Checked before anything is queued."""

from collections.abc import Sequence
from typing import Any

from models.artifacts.card import Card
from service.embedding.output_plan import POOLED, Plan
from service.embedding.requests import Ids, Text
from service.errors import BadInput, EmptyRequest, TooLarge
from service.settings import Settings


def check_count(inputs: Sequence[Any], settings: Settings) -> None:
    """Raise EmptyRequest or TooLarge for no inputs, or too many."""
    if not inputs:
        raise EmptyRequest('"inputs" is empty: send one text or one list of token ids at least')
    if len(inputs) > settings.max_inputs:
        raise TooLarge(f"{len(inputs)} inputs; this server takes {settings.max_inputs} a request: send fewer")


def check_characters(texts: Sequence[Text], settings: Settings) -> int:
    """How many there are; a tokenizer needs a hundred bytes for each, however few of its tokens are kept.

    raises   TooLarge
    """
    characters = sum([len(each.text) + len(each.pair or "") for each in texts])
    if characters > settings.max_request_characters:
        raise TooLarge(
            f"{characters} characters; this server takes {settings.max_request_characters} a request: send fewer or "
            "shorter texts"
        )
    return characters


def check_longest(inputs: Sequence[Any], most: int) -> None:
    """Raise BadInput for the first list of ids longer than the server takes."""
    for index, each in enumerate(inputs):
        if isinstance(each, Ids) and len(each.ids) > most:
            raise BadInput(
                f"inputs[{index}] has {len(each.ids)} token ids; this server takes {most} an input: "
                'shorten it or send "truncate": true',
                index,
            )


def check_tokens(tokens: int, card: Card, plan: Plan, settings: Settings) -> None:
    """Raise TooLarge for too many tokens, or rows of them."""
    most = settings.max_request_tokens
    if tokens > most:
        raise TooLarge(f"{tokens} tokens; this server takes {most} a request: send fewer inputs")
    size = tokens * card.hidden_size * 4 * (len(plan.outputs) - (POOLED in plan.outputs))
    if size > settings.max_answer_bytes:
        raise TooLarge(
            f"{tokens} tokens of {', '.join(plan.outputs)} are {size} bytes; this server answers with "
            f"{settings.max_answer_bytes} at most: send fewer inputs"
        )

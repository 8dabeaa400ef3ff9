"""Texts to tokens and ids to texts, for both of text-embeddings-inference's protocols. Embeds nothing.

Each call is one request at the door, and ends when its caller's time is over.
"""

from collections.abc import Sequence

from service.context import ServiceContext
from service.embedding.limits import check_characters
from service.embedding.model import Model
from service.embedding.pipeline import prompt_of
from service.embedding.requests import Text
from service.embedding.tokenization import Token, Tokenizer
from service.errors import EmptyRequest, TooLarge, WrongModelKind
from service.settings import Settings


async def tokenised(
    context: ServiceContext, model: Model, texts: Sequence[str], special_tokens: bool, prompt_name: str | None
) -> list[list[Token]]:
    """Every token of each text behind its prompt, the offsets counted from the prompt's beginning.

    raises   EmptyRequest, TooLarge, BadRequest for the prompt, WrongModelKind, Overloaded, DeadlineExceeded
    """
    tokenizer, settings = _tokenizer(model), context.settings
    _counted(settings, texts, "inputs")
    check_characters([Text(text) for text in texts], settings)
    prompt = prompt_of(model.card, prompt_name)
    return await tokenizer.tokens(
                [prompt + text for text in texts], special_tokens, settings.max_request_tokens
            )


async def decoded(
    context: ServiceContext, model: Model, sequences: Sequence[Sequence[int]], skip_special_tokens: bool
) -> list[str]:
    """The text of each sequence of ids.

    raises   EmptyRequest, TooLarge, BadInput for an unknown id, WrongModelKind, Overloaded, DeadlineExceeded
    """
    tokenizer = _tokenizer(model)
    _counted(context.settings, sequences, "ids")
    return await tokenizer.decode(sequences, skip_special_tokens)


def _tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise WrongModelKind(f"{model.card.name} was exported without a tokenizer: it reads ids alone")
    return model.tokenizer


def _counted(settings: Settings, inputs: Sequence[object], name: str) -> None:
    if not inputs:
        raise EmptyRequest(f"`{name}` cannot be empty: send one at least")
    if len(inputs) > settings.max_inputs:
        raise TooLarge(
            f"batch size {len(inputs)} > maximum allowed batch size {settings.max_inputs}: send fewer {name}"
        )

"""What token ids in bodies of OpenAI's routes mean, by INLAY_OPENAI_TOKEN_IDS: the model's own, or an encoding's.

LangChain's OpenAI class sends ids of cl100k_base. Those that a model's vocabulary has too cannot be told from its own.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from service.embedding.limits import too_many_tokens
from service.embedding.requests import Ids, Input, Text
from service.errors import OutOfRange, StartError, WrongType
from service.http.response import Headers

NAME = "inlay-token-ids"
MODEL, REFUSE = "model", "refuse"
SETTING = "INLAY_OPENAI_TOKEN_IDS"


class Encoding(Protocol):
    """One of tiktoken's encodings."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; raises for an id that the encoding has not."""
        ...


class TokenIds:
    """Reads the token ids of a request as a setting says.

    Args:
        meaning: MODEL, REFUSE, or the name of one of tiktoken's encodings.
        max_tokens: token ids of one request that are turned into text.

    Raises:
        StartError: there is no such encoding, or tiktoken or its file cannot be loaded.
    """

    def __init__(self, meaning: str, max_tokens: int) -> None:
        self.meaning, self._max_tokens = meaning, max_tokens
        self._encoding = None if meaning in (MODEL, REFUSE) else _encoding(meaning)

    def read(self, inputs: list[Input]) -> tuple[list[Input], Headers]:
        """Return the inputs, those of an encoding as texts, and the header that says so; none where no ids came.

        Raises:
            WrongType: the server takes no ids.
            TooManyTokens, OutOfRange: ids cannot be turned into text.
        """
        sent = {number: item.ids for number, item in enumerate(inputs) if isinstance(item, Ids) and len(item.ids)}
        if not sent:
            return inputs, ()
        if self.meaning == REFUSE:
            remedy = "send text: langchain-openai does with check_embedding_ctx_length=False"
            raise WrongType(
                "holds token ids", field=("inputs", next(iter(sent))), allowed="this server takes texts", remedy=remedy
            )
        if self._encoding is not None:
            if (count := sum(map(len, sent.values()))) > self._max_tokens:
                raise too_many_tokens(count, self._max_tokens)
            inputs = [self._text(item, number) if number in sent else item for number, item in enumerate(inputs)]
        return inputs, ((NAME.encode(), self.meaning.encode()),)

    def _text(self, item: Input, number: int) -> Text:
        assert isinstance(item, Ids)
        assert self._encoding is not None
        try:
            return Text(self._encoding.decode(item.ids.tolist()))
        except (KeyError, OverflowError):
            allowed = f"the ids are of {self.meaning} ({SETTING})"
            raise OutOfRange("holds an unknown token id", number, field=("inputs", number), allowed=allowed) from None


def _encoding(name: str) -> Encoding:
    try:
        tiktoken = import_module("tiktoken")
    except ImportError:
        raise StartError(f"{SETTING}={name} needs tiktoken: pip install 'inlay[openai-ids]'") from None
    try:
        encoding: Encoding = tiktoken.get_encoding(name)
    except ValueError:
        allowed = ", ".join((MODEL, REFUSE, *tiktoken.list_encoding_names()))
        raise StartError(f"{SETTING}={name} is no encoding; allowed: {allowed}") from None
    except OSError as error:
        received = f"{SETTING}: the file of {name} cannot be fetched ({type(error).__name__})"
        raise StartError(f"{received}: set TIKTOKEN_CACHE_DIR to a folder that has it") from None
    return encoding

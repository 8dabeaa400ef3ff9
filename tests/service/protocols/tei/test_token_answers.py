"""Tokens that are written in pieces are what one writer makes of them all."""

import json

import pytest

from proto import tei_pb2 as pb
from service.embedding.tokenize.tokenizer import Token
from service.protocols.tei import answers
from service.protocols.tei.answers import TOKENS_PIECE as PIECE


def tokens(count: int) -> list[Token]:
    """Return as many tokens; the first is a special one."""
    return [Token(at, f"té{at}", at == 0, *(() if at == 0 else (at, at + 3))) for at in range(count)]


def described(token: Token) -> dict[str, object]:
    """Return a token as text-embeddings-inference's REST describes it."""
    return {"id": token.id, "text": token.text, "special": token.special, "start": token.start, "stop": token.stop}


@pytest.mark.parametrize("count", [0, 1, PIECE, PIECE + 1, 3 * PIECE - 1])
def test_pieces_are_one_message(count: int) -> None:
    each = tokens(count)
    message = pb.EncodeResponse.FromString(answers.tokens_message([each]))
    assert [(one.id, one.text, one.special) for one in message.tokens] == [(t.id, t.text, t.special) for t in each]
    places = [(one.start, one.stop) if one.HasField("start") else (None, None) for one in message.tokens]
    assert places == [(t.start, t.stop) for t in each]


@pytest.mark.parametrize("counts", [(), (0,), (1, 0, 2), (PIECE, PIECE + 1)])
def test_pieces_are_one_document(counts: tuple[int, ...]) -> None:
    texts = [tokens(count) for count in counts]
    assert json.loads(answers.tokens_json(texts)) == [[described(token) for token in text] for text in texts]

"""Tokens as text-embeddings-inference sends them, written in pieces: a writer keeps the GIL for all it is given."""

from collections.abc import Iterator, Sequence

import orjson

from proto import tei_pb2 as pb
from service.embedding.tokenize.tokenizer import Token

PIECE = 2048  # tokens written at a time: one millisecond of JSON, five of messages


def json(texts: Sequence[Sequence[Token]]) -> bytes:
    """Return the JSON of the tokens of each text."""
    each = [b",".join([orjson.dumps(piece)[1:-1] for piece in _pieces(tokens)]) for tokens in texts]
    return b"[" + b",".join([b"[" + own + b"]" for own in each]) + b"]"


def message(texts: Sequence[Sequence[Token]]) -> bytes:
    """Return the wire bytes of the EncodeResponse of one text; those of several pieces make one message."""
    (tokens,) = texts
    return b"".join([_response(piece).SerializeToString() for piece in _pieces(tokens)])


def _response(tokens: Sequence[Token]) -> pb.EncodeResponse:
    return pb.EncodeResponse(
        tokens=[
            pb.SimpleToken(id=token.id, text=token.text, special=token.special, start=token.start, stop=token.stop)
            for token in tokens
        ]
    )


def _pieces(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    return (tokens[start : start + PIECE] for start in range(0, len(tokens), PIECE))

"""Streams answers of text-embeddings-inference with very many entries: tokens, sparse vectors, token vectors.

They are written in pieces, because a writer keeps the GIL for all that it is given at once.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import orjson
from numpy.typing import NDArray

from proto import tei_pb2 as pb
from service.embedding.requests import EmbedResult
from service.embedding.tokenize.packing import split
from service.embedding.tokenize.tokenizer import Token
from service.http.formats import array_response, buffer, count_values
from service.http.json_arrays import Encoded
from service.http.response import Response

VALUES_PIECE = 8192  # values of sparse vectors whose JSON is made at a time: two milliseconds
TOKENS_PIECE = 2048  # tokens written at a time: one millisecond of JSON, five of messages


def sparse_json(result: EmbedResult) -> Response:
    """Return the JSON of a result's sparse vectors, a list of {"index", "value"} for each input."""
    (output,) = result.outputs
    assert output.indices is not None
    vectors = zip(split(output.indices, output.lengths), split(output.rows[:, 0], output.lengths), strict=True)
    return array_response([Encoded(partial(_entries, *vector)) for vector in vectors], count_values(result))


def _entries(indices: NDArray[np.int32], values: NDArray[np.float32]) -> Iterator[bytes]:
    """Yield the JSON of one vector; an object for each value would take ten times the memory."""
    opening = b"["
    for start in range(0, len(indices), VALUES_PIECE):
        piece = slice(start, start + VALUES_PIECE)
        numbers = orjson.dumps(values[piece], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        pairs = zip(indices[piece].tolist(), numbers, strict=True)
        yield opening + b",".join([b'{"index":%d,"value":%b}' % pair for pair in pairs])
        opening = b","
    yield b"]" if len(indices) else b"[]"


def sparse_message(result: EmbedResult) -> pb.EmbedSparseResponse:
    """Return the sparse vector of a result with one text."""
    (output,) = result.outputs
    assert output.indices is not None
    message = pb.EmbedSparseResponse()
    for index, value in zip(output.indices.tolist(), output.rows[:, 0].tolist(), strict=True):
        message.sparse_embeddings.add(index=index, value=value)
    return message


def tokens_json(texts: Sequence[Sequence[Token]]) -> bytes:
    """Return the JSON of the tokens of each text."""
    lists = [b",".join([orjson.dumps(piece)[1:-1] for piece in _pieces(tokens)]) for tokens in texts]
    return b"[" + b",".join([b"[" + tokens + b"]" for tokens in lists]) + b"]"


def tokens_message(texts: Sequence[Sequence[Token]]) -> bytes:
    """Return the wire bytes of the EncodeResponse of one text; the pieces together are one message."""
    (tokens,) = texts
    return b"".join([_encode_response(piece).SerializeToString() for piece in _pieces(tokens)])


def _encode_response(tokens: Sequence[Token]) -> pb.EncodeResponse:
    return pb.EncodeResponse(
        tokens=[
            pb.SimpleToken(id=token.id, text=token.text, special=token.special, start=token.start, stop=token.stop)
            for token in tokens
        ]
    )


def _pieces(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    return (tokens[start : start + TOKENS_PIECE] for start in range(0, len(tokens), TOKENS_PIECE))


def token_embeddings(rows: NDArray[np.float32]) -> bytes:
    """Return the entries of EmbedAllResponse.token_embeddings, byte for byte as protobuf writes them.

    Protobuf takes 30 ms for 512 rows of 384 values, since it makes a Python float of every number; this takes 0.1 ms.
    Entries of one width begin with the same bytes, their tags and lengths, and end in the little-endian values.
    """
    count, width = rows.shape
    entry = pb.EmbedAllResponse(token_embeddings=[pb.TokenEmbedding(embeddings=[0.0] * width)]).SerializeToString()
    entries = np.tile(np.frombuffer(entry, np.uint8), (count, 1))
    entries[:, -4 * width :] = np.frombuffer(buffer(rows), np.uint8).reshape(count, 4 * width)
    return entries.tobytes()

"""tei.v1 answers as wire bytes, the floats copied once. Byte for byte protobuf's own.

Setting a `repeated float` costs a Python float a number; packed, it is the rows' little-endian bytes behind a length.
Fields go out in the order of their numbers and zeros are left out (protobuf encoding, proto3).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.embedding.requests import EmbedResult
from service.http.formats import buffer
from service.protocols.inlay.rpc_messages import varint

Rows = NDArray[np.float32]
METADATA_TAGS = (b"\x08", b"\x10", b"\x18", b"\x20", b"\x28", b"\x30")
FIRST, SECOND = b"\x0a", b"\x12"  # fields 1 and 2, each a length and its bytes


class Answered(NamedTuple):
    """One text's vectors and what they took.

    rows      [1, width] of Embed, [tokens, width] of EmbedAll
    seconds   from the request's arrival on
    """

    rows: Rows
    result: EmbedResult
    seconds: float


def embed_response(answer: Answered) -> bytes:
    """A serialised EmbedResponse."""
    floats = buffer(answer.rows)
    return b"".join([FIRST, varint(len(floats)), floats, _metadata(answer)])


def embed_all_response(answer: Answered) -> bytes:
    """A serialised EmbedAllResponse: a message for each token."""
    count, width = answer.rows.shape
    floats = FIRST + varint(4 * width)
    head = np.frombuffer(FIRST + varint(len(floats) + 4 * width) + floats, np.uint8)
    tokens = np.empty((count, len(head) + 4 * width), np.uint8)
    tokens[:, : len(head)] = head
    tokens[:, len(head) :] = np.frombuffer(buffer(answer.rows), np.uint8).reshape(count, 4 * width)
    return b"".join([tokens.data.cast("B"), _metadata(answer)])


def _metadata(answer: Answered) -> bytes:
    result, times = answer.result, answer.result.times
    seconds = (answer.seconds, times.tokenization, times.queue, times.inference)
    values = (result.characters, result.tokens, *[int(each * 1e9) for each in seconds])
    fields: list[Any] = [tag + varint(value) for tag, value in zip(METADATA_TAGS, values, strict=True) if value]
    packed = b"".join(fields)
    return SECOND + varint(len(packed)) + packed

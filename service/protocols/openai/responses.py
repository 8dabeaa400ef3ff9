"""An EmbedResult as OpenAI's list of embeddings or vLLM's pooling answer: floats, base64 or bare bytes."""

from itertools import accumulate
from secrets import token_hex
from time import time
from typing import Any, NamedTuple

import pybase64
from numpy.typing import NDArray

from service.embedding.packing import split
from service.embedding.pooling import normalize
from service.embedding.requests import EmbedResult, Output
from service.http import json_arrays as numbers
from service.http.formats import (
    JSON,
    Body,
    Headers,
    sized,
)
from service.protocols.inlay import pooled_bytes
from service.protocols.openai.bodies import Wanted


class Shape(NamedTuple):
    """How a path's answers differ: the id's beginning, what an entry calls itself, and its vector."""

    id: str
    object: str
    member: str


EMBEDDING = Shape("embd-", "embedding", "embedding")
POOLING = Shape("pooling-", "pooling", "data")


def answer(result: EmbedResult, wanted: Wanted, shape: Shape, id_: str) -> tuple[Headers, Body]:
    """Headers and body; `id_` is the caller's, or empty."""
    id_ = shape.id + (id_ or token_hex(16))
    if wanted.encoding in (pooled_bytes.BYTES, pooled_bytes.BYTES_ONLY):
        return pooled_bytes.answer(result, wanted.encoding, wanted.embed_dtype, wanted.endianness, id_)
    output = result.outputs[0]
    rows = output.rows
    values: list[Any]
    if wanted.encoding == "base64":
        values = _base64(output, pooled_bytes.narrowed(rows, wanted.embed_dtype), wanted.endianness)
    else:
        values = list(rows) if output.pooled else split(rows, output.lengths)
    object_, member = shape.object, shape.member
    document = {
        "id": id_,
        "object": "list",
        "created": int(time()),
        "model": result.model,
        "data": [{"object": object_, "index": index, member: value} for index, value in enumerate(values)],
        "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
    }
    return sized(JSON, [numbers.dumps(document, rows.size)])


def of_unit_length(result: EmbedResult) -> EmbedResult:
    """The same with the row of each token scaled to unit length, as vLLM's token_embed has them."""
    output = result.outputs[0]
    return result._replace(outputs=(output._replace(rows=normalize(output.rows)),))


def _base64(output: Output, rows: NDArray[Any], endianness: str) -> list[str]:
    size, width = rows.dtype.itemsize, rows.shape[1]
    data, ends = pooled_bytes.raw(rows, endianness), [width * size * end for end in accumulate(output.lengths)]
    return [pybase64.b64encode_as_string(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

"""Sparse vectors as text-embeddings-inference sends them: a list of index and value, over REST and gRPC."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.embedding.requests import EmbedResult
from service.embedding.tokenize.packing import split
from service.http import json_arrays
from service.http.formats import Body, Headers, json_body
from service.http.json_arrays import Encoded
from service.protocols.inlay.rpc_messages import varint

PIECE = 8192  # values of which JSON is made at a time: two milliseconds
SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["index", "value"],
            "properties": {"index": {"type": "integer"}, "value": {"type": "number"}},
        },
    },
}
_INDEX, _VALUE, _ENTRY = b"\x08", b"\x15", b"\x0a"  # tags of SparseValue's fields, and of the list they are in
Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]


def json(result: EmbedResult) -> tuple[Headers, Body]:
    """Return the headers and the JSON of a result's sparse vectors, a list of {"index", "value"} for each input."""
    (output,) = result.outputs
    assert output.indices is not None
    vectors = zip(split(output.indices, output.lengths), split(output.rows[:, 0], output.lengths), strict=True)
    return json_body([Encoded(partial(_entries, *vector)) for vector in vectors], json_arrays.count(result))


def _entries(indices: Int32s, values: Floats) -> Iterator[bytes]:
    """Yield the JSON of one vector; an object for each value would take ten times the memory."""
    opening = b"["
    for start in range(0, len(indices), PIECE):
        own = slice(start, start + PIECE)
        numbers = orjson.dumps(values[own], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        pairs = zip(indices[own].tolist(), numbers, strict=True)
        yield opening + b",".join([b'{"index":%d,"value":%b}' % pair for pair in pairs])
        opening = b","
    yield b"]" if len(indices) else b"[]"


def messages(indices: Int32s, values: Floats) -> bytes:
    """Return the entries of EmbedSparseResponse.sparse_embeddings, byte for byte as protobuf writes them.

    Indices ascend, so that those whose varints are of one length are together: each such run is a table of bytes.
    """
    limits = [0, 1, *(1 << 7 * bits for bits in range(1, 6))]  # 0 is left out, as proto3 leaves out defaults
    places = np.searchsorted(indices, np.array(limits, np.int64))
    runs = pairwise(places)
    return b"".join([_run(indices[start:stop], values[start:stop], size) for size, (start, stop) in enumerate(runs)])


def _run(indices: Int32s, values: Floats, size: int) -> bytes:
    """Return entries whose indices take `size` bytes each as varints."""
    head = (_INDEX if size else b"") + bytes(size) + _VALUE
    entry = np.frombuffer(_ENTRY + varint(len(head) + 4) + head + bytes(4), np.uint8)
    table = np.tile(entry, (len(indices), 1))
    first = entry.size - 5 - size
    for byte in range(size):
        more = 0x80 if byte < size - 1 else 0
        table[:, first + byte] = indices >> 7 * byte & 0x7F | more
    table[:, -4:] = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4)
    return table.tobytes()

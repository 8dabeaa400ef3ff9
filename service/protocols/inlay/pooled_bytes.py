"""Vectors as bytes, one after the other, as vLLM's pooling sends them: `bytes` and `bytes_only`.

`bytes` describes them in the header `metadata`, which vLLM's decode_pooling_output reads; `bytes_only` does not.

Source: vLLM 0.33, entrypoints/pooling/utils.py and utils/serial_utils.py.
"""

import json
from secrets import token_hex
from time import time
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from service.embedding.requests import EmbedResult, Output
from service.errors import BadRequest, ConflictingFields
from service.http.formats import OCTETS, buffer, check_dense, described
from service.http.response import Response

BYTES = "bytes"
BYTES_ONLY = "bytes_only"
ORDERS = {"native": "little", "little": "little", "big": "big"}  # byte orders by `endianness`
DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
# http.client, below requests and urllib3, reads no header line above 65536 bytes; vLLM sends what it reads
MAX_METADATA_BYTES = 65_000


def answer(
    result: EmbedResult, encoding: str, embed_dtype: str, endianness: str = "native", id_: str | None = None
) -> Response:
    """Return the bytes of the one output.

    Raises:
        BadRequest: there are several outputs, a value does not fit the dtype, or the header would be too long.
    """
    if len(result.outputs) > 1:
        names = ", ".join(output.name for output in result.outputs)
        raise BadRequest(
            f"{encoding} carries one output and {names} were asked for",
            field=("encoding_format",),
            remedy="ask for one",
        )
    output = result.outputs[0]
    check_dense(output, encoding)
    rows = narrowed(output.rows, embed_dtype)
    headers = described(OCTETS, rows.shape, embed_dtype, output.lengths)
    if encoding == BYTES:
        metadata = _metadata(result, output, rows, embed_dtype, endianness, id_ or f"embd-{token_hex(16)}")
        headers = (*headers[:1], (b"metadata", metadata))
    return Response((buffer(rows, ORDERS[endianness]),), headers)


def narrowed(rows: NDArray[Any], embed_dtype: str) -> NDArray[Any]:
    """Return the rows in another dtype; raise BadRequest for a value out of its range."""
    if embed_dtype not in DTYPES:
        raise ConflictingFields(
            f"is {embed_dtype}",
            field=("dtype",),
            allowed=f"bytes and bytes_only carry {', '.join(DTYPES)}",
            remedy="ask for base64, or for application/octet-stream in Accept",
        )
    kind = DTYPES[embed_dtype]
    if rows.dtype.type is kind:
        return rows
    with np.errstate(over="ignore"):
        cast: NDArray[Any] = rows.astype(kind)
    if kind is not ml_dtypes.bfloat16 and not np.isfinite(cast).all():
        raise BadRequest(f"a value is too large for {embed_dtype}", remedy="ask for bfloat16 or float32")
    return cast


def _metadata(
    result: EmbedResult, output: Output, rows: NDArray[Any], embed_dtype: str, endianness: str, id_: str
) -> bytes:
    width, start, items = rows.shape[1], 0, []
    for index, length in enumerate(output.lengths):
        end = start + length * width * rows.dtype.itemsize
        shape = [width] if output.pooled else [length, width]
        names = {"embed_dtype": embed_dtype, "endianness": endianness}
        items.append({"index": index, **names, "start": start, "end": end, "shape": shape})
        start = end
    usage = {"prompt_tokens": result.tokens, "total_tokens": result.tokens}
    document = {"id": id_, "created": int(time()), "model": result.model, "data": items, "usage": usage}
    metadata = json.dumps(document).encode()  # not orjson: a header is ASCII
    if len(metadata) > MAX_METADATA_BYTES:
        raise BadRequest(
            f"the header metadata of {len(items)} inputs would have {len(metadata)} bytes",
            allowed=f"clients read {MAX_METADATA_BYTES}",
            remedy="send fewer inputs, or encoding_format bytes_only, which has none",
        )
    return metadata

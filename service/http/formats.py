"""Embedding results as HTTP responses in the format that the client accepts, without copying tensors."""

import io
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import orjson
from numpy.typing import NDArray

from service.embedding.requests import Chunks, EmbedResult, Output
from service.embedding.tokenize.packing import split
from service.errors import BadRequest, NotAcceptable, UnsupportedMedia
from service.http.json_arrays import INLINE_VALUES, Encoded, base64_text, dumps, json_stream
from service.http.negotiation import negotiate
from service.http.response import JSON_HEADERS, Headers, Response
from service.http.tensors import SAFETENSORS, SAFETENSORS_DTYPES

JSON = "application/json"
OCTETS = "application/octet-stream"
NPY = "application/x-npy"

UNSIGNED = {1: np.uint8, 2: np.uint16}  # numpy lends no bfloat16 and no float8, and memoryview casts no float16
KEPT_LENGTHS = 64  # of a tensor, whose headers a cache keeps
TENSOR_HEADERS = ("inlay-shape", "inlay-dtype", "inlay-lengths")


def _json(result: EmbedResult, base64: bool) -> Response:
    if not result.picked:
        output = result.outputs[0]
        document = _bare_base64(output) if base64 else _nested(output)
    else:
        encode = _tensors_base64 if base64 else _nested
        outputs = {output.name: encode(output) for output in result.outputs}
        document = {"model": result.model, "outputs": outputs, "usage": {"tokens": result.tokens}}
        if result.truncated:
            document["truncated"] = result.truncated
        if result.chunks:
            document["chunks"] = list(map(_chunks, result.chunks))
    return array_response(document, count_values(result))


def _chunks(chunks: Chunks) -> list[dict[str, list[int]]]:
    """Return where each chunk of an input lies: its tokens and, if it came as a text, its characters."""
    tokens: list[list[int]] = chunks.tokens.tolist()
    if chunks.characters is None:
        return [{"tokens": place} for place in tokens]
    return [{"characters": place, "tokens": at} for place, at in zip(chunks.characters.tolist(), tokens, strict=True)]


def _octets(result: EmbedResult, base64: bool) -> Response:
    rows, lengths = _tensor(result, OCTETS)
    return Response((buffer(rows),), described(OCTETS, rows.shape, rows.dtype, lengths))


def _npy(result: EmbedResult, base64: bool) -> Response:
    rows, lengths = _tensor(result, NPY)
    header = npy_header(rows.shape, rows.dtype)
    return Response((header, buffer(rows)), described(NPY, rows.shape, rows.dtype, lengths))


def _safetensors(result: EmbedResult, base64: bool) -> Response:
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    buffers: list[memoryview] = []
    for output in result.outputs:
        if output.indices is None:
            width = output.rows.shape[1]
            for index, length in enumerate(output.lengths):
                shapes[f"{index}/{output.name}"] = output.rows.dtype, (width,) if output.pooled else (length, width)
            buffers.append(buffer(output.rows))
            continue
        for part, array in (("indices", output.indices), ("values", output.rows)):
            for index, length in enumerate(output.lengths):
                shapes[f"{index}/{output.name}/{part}"] = array.dtype, (length,)
            buffers.append(buffer(array))
    metadata = {"model": result.model}
    if result.truncated:
        metadata["truncated"] = ",".join(map(str, result.truncated))
    if result.chunks:
        metadata["chunks"] = orjson.dumps(list(map(_chunks, result.chunks))).decode()
    header = safetensors_header(shapes, metadata)
    return Response((header, *buffers), ((b"content-type", SAFETENSORS.encode()),))


Encode = Callable[[EmbedResult, bool], Response]
FORMATS: dict[str, Encode] = {JSON: _json, OCTETS: _octets, NPY: _npy, SAFETENSORS: _safetensors}
"""The function that makes a result a response, by media type; its second argument: with base64 in JSON."""
_OFFERS = tuple(FORMATS)


def encoder(accept: bytes | None) -> Encode:
    """Return the function of FORMATS that an Accept header prefers; raise NotAcceptable where it accepts none."""
    return FORMATS[negotiate(accept, _OFFERS)]


def check_json(content_type: bytes | None) -> None:
    """Raise UnsupportedMedia unless the content type of a body is JSON."""
    if content_type == b"application/json":
        return
    kind = (content_type or b"").decode("latin-1").split(";")[0].strip().lower()
    if kind == JSON or (kind.startswith("application/") and kind.endswith("+json")):
        return
    received = f"content-type is {kind[:80]}" if kind else "there is no content-type"
    raise UnsupportedMedia(received, remedy=f"send the body as JSON with content-type: {JSON}")


def buffer(rows: NDArray[Any], byteorder: str = "little") -> memoryview:
    """Return the little-endian bytes of C-contiguous rows without copying."""
    if not rows.size:
        return memoryview(b"")
    if rows.dtype.itemsize in UNSIGNED:
        rows = rows.view(UNSIGNED[rows.dtype.itemsize])
    return (rows if byteorder == sys.byteorder else rows.byteswap()).data.cast("B")


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the leading bytes of a .npy file; raise NotAcceptable for bfloat16, which the format lacks."""
    if dtype.type is ml_dtypes.bfloat16:
        remedy = f"ask for {SAFETENSORS} or {OCTETS}, or another dtype"
        raise NotAcceptable(f"{NPY} cannot hold bfloat16", remedy=remedy)
    file = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype.newbyteorder("<"))
    np.lib.format.write_array_header_1_0(file, {"descr": description, "fortran_order": False, "shape": shape})
    return file.getvalue()


def safetensors_header(
    shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """Return the leading bytes of a safetensors file whose tensors lie in this order without gaps."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name, (dtype, shape) in shapes.items():
        end = start + int(np.prod(shape)) * dtype.itemsize
        entries[name] = {
            "dtype": SAFETENSORS_DTYPES[dtype.name],
            "shape": shape,
            "data_offsets": (start, end),
        }
        start = end
    header = orjson.dumps(entries)
    header += b" " * (-len(header) % 8)  # tensors start on a multiple of 8
    return len(header).to_bytes(8, "little") + header


def _tensor(result: EmbedResult, media_type: str) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Return the rows and lengths of the one output; raise NotAcceptable for several."""
    if len(result.outputs) > 1:
        names = ", ".join(output.name for output in result.outputs)
        received = f"{media_type} carries one output and {names} were asked for"
        raise NotAcceptable(received, remedy=f"ask for one, or accept {SAFETENSORS}")
    output = result.outputs[0]
    if output.indices is not None:
        remedy = f"accept {JSON} or {SAFETENSORS}, which hold indices and values"
        raise NotAcceptable(f"{media_type} carries dense rows, and {output.name} is sparse", remedy=remedy)
    return output.rows, output.lengths


def described(media_type: str, shape: tuple[int, ...], dtype: np.dtype[Any] | str, lengths: tuple[int, ...]) -> Headers:
    """Return the headers that describe the bytes of one tensor."""
    return (_described if len(lengths) <= KEPT_LENGTHS else _described.__wrapped__)(media_type, shape, dtype, lengths)


@lru_cache(maxsize=1024)
def _described(
    media_type: str, shape: tuple[int, ...], dtype: np.dtype[Any] | str, lengths: tuple[int, ...]
) -> Headers:
    return (
        (b"content-type", media_type.encode()),
        (b"inlay-shape", b"%d,%d" % shape),
        (b"inlay-dtype", str(dtype).encode()),
        (b"inlay-lengths", ",".join(map(str, lengths)).encode()),
    )


def array_response(document: Any, values: int) -> Response:
    """Return a document as JSON, its arrays as lists.

    Args:
        values: the numbers in its arrays.
    """
    if values > INLINE_VALUES:
        return Response((), JSON_HEADERS, stream=json_stream(document))
    return Response((dumps(document),), JSON_HEADERS)


def count_values(result: EmbedResult) -> int:
    """Return the number of values in the rows of a result; indices of sparse vectors count too."""
    values = 0
    for output in result.outputs:
        values += output.rows.size if output.indices is None else 2 * output.rows.size
    return values


def _nested(output: Output) -> Any:
    rows = output.rows
    if output.indices is not None:
        vectors = zip(split(output.indices, output.lengths), split(rows[:, 0], output.lengths), strict=True)
        return [{"indices": indices, "values": values} for indices, values in vectors]
    return rows if output.pooled else split(rows, output.lengths)


def _bare_base64(output: Output) -> Any:
    check_dense(output, "base64")
    if output.pooled:
        return [_base64(row) for row in output.rows]
    return _tensors_base64(output)


def check_dense(output: Output, encoding: str) -> None:
    """Raise BadRequest for a sparse output in an `encoding_format` of dense vectors."""
    if output.indices is not None:
        raise BadRequest(
            f"{encoding} carries dense vectors, and {output.name} is sparse",
            field=("encoding_format",),
            remedy="leave it out, or accept safetensors",
        )


def _tensors_base64(output: Output) -> Any:
    check_dense(output, "base64")
    parts = list(output.rows) if output.pooled else split(output.rows, output.lengths)
    return [{"dtype": part.dtype.name, "shape": part.shape, "data": _base64(part)} for part in parts]


def _base64(rows: NDArray[Any]) -> Encoded:
    return base64_text(buffer(rows))

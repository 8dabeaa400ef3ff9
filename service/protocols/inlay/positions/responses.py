"""Makes HTTP responses of tables: formats, headers and ETags."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from models.positions.table import DTYPES, Table
from service.embedding.position_tables import (
    BLOCK_VALUES,
    INLINE_VALUES,
    TableCall,
    TableFile,
    Tables,
    TypedOutput,
    block_bytes,
    little_endian,
)
from service.errors import NotAcceptable, UnknownValue
from service.http.formats import JSON, NPY, OCTETS, npy_header, safetensors_header
from service.http.json_arrays import Encoded, dumps, json_stream
from service.http.negotiation import negotiate
from service.http.parameter_types import TypedArrayOptions
from service.http.response import Headers, Response
from service.http.response_writer import WHOLE_BYTES
from service.http.routes import Request
from service.http.tensors import SAFETENSORS

MEDIA_TYPES = {"json": JSON, "raw": OCTETS, "npy": NPY, "safetensors": SAFETENSORS}
OFFERS = tuple(MEDIA_TYPES.values())  # not those of /embed: a format of vectors may hold no table
NUMPY_DTYPES: dict[str, Any] = DTYPES | {"int64": np.int64, "bool": np.bool_}
FACTS_HEADER_BYTES = 1024
FOREVER = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"  # a model may be exported again under the same name
BASE64_UNIT = 3  # bytes that become four letters


def media_type_of(request: Request, options: TypedArrayOptions) -> str:
    """Return the media type that the options or the Accept header name; raise NotAcceptable if there is none."""
    return MEDIA_TYPES[options.format] if options.format else negotiate(request.head.headers.get(b"accept"), OFFERS)


async def table_response(
    request: Request,
    tables: Tables,
    call: TableCall,
    media_type: str,
    options: TypedArrayOptions,
    cache_control: str | None = None,
) -> Response:
    """Return a table.

    Args:
        media_type: one of MEDIA_TYPES; `options` say more of the form.
        cache_control: header of a GET, which may be conditional; None: the request is a POST.

    Raises:
        BadParameters, BadRequest, NotAcceptable, TooLarge: the table cannot be made, or not in this form.
    """
    is_base64 = options.encoding_format == "base64"
    etag = await tables.run(call.etag, media_type, options.dtype, options.output or "", str(is_base64))
    headers: Headers = ((b"etag", etag.encode()), (b"vary", b"Accept"))
    if cache_control:
        headers = (*headers, (b"cache-control", cache_control.encode()))
        if request.holds(etag):
            return Response((), headers, 304)
    table = await tables.run(call.table)
    outputs = chosen_outputs(tables, table, options)
    headers = (*headers, (b"content-type", media_type.encode()))
    if call.held_bytes:
        tables.streaming.reserve(call.held_bytes, request.context)
    if media_type == JSON:
        document = json_facts(table, outputs, options.dtype)
        return await _json_response(request, tables, document, outputs, _base64 if is_base64 else _lists, headers)
    headers = (*headers, *_facts_headers(table))
    if media_type == SAFETENSORS:
        shapes = {typed.name: (np.dtype(NUMPY_DTYPES[typed.dtype]), typed.output.shape) for typed in outputs}
        header = safetensors_header(shapes, _metadata(table))
    else:
        shape, dtype = _stacked_shape(outputs, media_type, options), outputs[0].dtype
        header = npy_header(shape, np.dtype(NUMPY_DTYPES[dtype])) if media_type == NPY else b""
        headers = (*headers, (b"inlay-shape", ",".join(map(str, shape)).encode()), (b"inlay-dtype", dtype.encode()))
    return _file_response(request, tables, etag, TableFile(header, outputs), headers)


def chosen_outputs(tables: Tables, table: Table, options: TypedArrayOptions) -> tuple[TypedOutput, ...]:
    """Return the outputs to send; raise an error for an unknown one and for too many bytes."""
    output = options.output
    if output is not None and output not in table.outputs:
        allowed = f"this table has {', '.join(table.outputs)}"
        raise UnknownValue(f"is {output[:40]!r}", field=("output",), allowed=allowed)
    return tables.outputs(table, options.dtype, (output,) if output else ())


# ---- bytes


def _metadata(table: Table) -> dict[str, str]:
    """Return the facts as safetensors' metadata: texts, as JSON if a fact is not a text."""
    facts = {"scheme": table.scheme, "arithmetic": table.arithmetic, **table.facts, "notes": list(table.notes)}
    return {name: fact if isinstance(fact, str) else orjson.dumps(fact).decode() for name, fact in facts.items()}


def _stacked_shape(outputs: tuple[TypedOutput, ...], media_type: str, options: TypedArrayOptions) -> tuple[int, ...]:
    """Return the shape of all outputs in one array; raise NotAcceptable if they cannot be stacked."""
    first = outputs[0].output.shape
    if options.output is not None:
        return first
    if len({(typed.output.shape, typed.dtype) for typed in outputs}) > 1:
        raise NotAcceptable(
            f"{media_type} carries one array and the outputs differ in shape",
            remedy="send " + " or ".join(f"output={typed.name}" for typed in outputs),
        )
    return (len(outputs), *first) if len(outputs) > 1 else first


def _facts_headers(table: Table) -> Headers:
    scalars = {name: fact for name, fact in table.facts.items() if not isinstance(fact, list | dict)}
    facts = json.dumps(scalars, separators=(",", ":")).encode()  # not orjson: a header is ASCII
    arithmetic = (b"inlay-arithmetic", table.arithmetic.encode())
    return (arithmetic, (b"inlay-facts", facts)) if len(facts) <= FACTS_HEADER_BYTES else (arithmetic,)


def _file_response(request: Request, tables: Tables, etag: str, file: TableFile, headers: Headers) -> Response:
    headers = (*headers, (b"content-length", b"%d" % file.size))
    if request.head.verb == "HEAD":
        return Response((), headers)
    if (body := tables.cached(etag)) is not None and file.size <= WHOLE_BYTES:
        return Response((body,), headers)
    return Response((), headers, stream=tables.stream(etag, file, request.context))


# ---- JSON


def json_facts(table: Table, outputs: tuple[TypedOutput, ...], dtype: str) -> dict[str, Any]:
    """Return everything except the arrays, in reading order; `dtype` is that of floats."""
    facts = {name: fact for name, fact in table.facts.items() if name not in table.outputs}
    return {
        "scheme": table.scheme,
        "arithmetic": table.arithmetic,
        "dtype": dtype,
        **facts,
        "notes": table.notes,
        "shapes": {typed.name: typed.output.shape for typed in outputs},
    }


async def _json_response(
    request: Request,
    tables: Tables,
    facts: dict[str, Any],
    outputs: tuple[TypedOutput, ...],
    write: Callable[[TypedOutput], Iterator[bytes]],
    headers: Headers,
) -> Response:
    """Return a table as a JSON document, its facts first; a large one is made while it is sent."""
    if request.head.verb == "HEAD":
        return Response((), headers)
    document = facts | {each.name: Encoded(partial(write, each)) for each in outputs}
    values = sum(prod(each.output.shape) for each in outputs)
    if values > BLOCK_VALUES:
        tables.streaming.reserve(block_bytes(outputs), request.context)
        return Response((), headers, stream=json_stream(document))
    return Response((dumps(document) if values <= INLINE_VALUES else await tables.run(dumps, document),), headers)


def _lists(output: TypedOutput) -> Iterator[bytes]:
    shape = output.output.shape
    for first, rows in output.blocks():
        yield b"".join(_nested_lists(shape, first, rows))
    yield b"]" * (len(shape) - 1)


def _base64(output: TypedOutput) -> Iterator[bytes]:
    yield orjson.dumps({"dtype": output.dtype, "shape": output.output.shape})[:-1] + b',"data":"'
    rest = b""
    for _, rows in output.blocks():
        data = rest + little_endian(rows)
        end = len(data) - len(data) % BASE64_UNIT
        rest = data[end:]
        yield pybase64.b64encode(data[:end])
    yield pybase64.b64encode(rest) + b'"}'


def _nested_lists(shape: tuple[int, ...], first: int, rows: NDArray[Any]) -> Iterator[bytes]:
    """Yield rows [first, ...) of an array as JSON lists, without the brackets that close the array."""
    if rows.dtype.type is ml_dtypes.bfloat16:
        rows = rows.astype(np.float32)
    run = shape[-2] if len(shape) > 1 else 1  # rows that lie in one list
    place, end = first, first + len(rows)
    while place < end:
        stop = min(end, place - place % run + run)
        text = orjson.dumps(rows[place - first : stop - first], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield _brackets(shape, place) + text
        place = stop


def _brackets(shape: tuple[int, ...], row: int) -> bytes:
    """Return the JSON before a row: closing and opening brackets, a comma."""
    depth, size = 0, 1
    for count in reversed(shape[:-1]):
        size *= count
        if row % size:
            break
        depth += 1
    if row == 0:
        return b"[" * (len(shape) - 1)
    return b"]" * depth + b"," + b"[" * depth

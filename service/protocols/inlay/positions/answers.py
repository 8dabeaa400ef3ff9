"""A table as the body of an HTTP answer: its formats, headers, byte ranges and tags. Computes no value itself."""

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from models.positions.table import DTYPES, Table
from service.embedding.position_tables import (
    BLOCK_VALUES,
    Packed,
    Piece,
    Tables,
)
from service.errors import BadRequest, NotAcceptable, RangeNotSatisfiable
from service.http import byte_ranges as ranges
from service.http import problem_details as problems
from service.http.formats import (
    JSON,
    NPY,
    OCTETS,
    OFFERS,
    SAFETENSORS,
    negotiate,
    npy_header,
    safetensors_header,
)
from service.protocols.inlay.positions import documents
from service.protocols.inlay.positions.table_call import Call

MEDIA_TYPES = {"json": JSON, "raw": OCTETS, "npy": NPY, "safetensors": SAFETENSORS}
NUMPY_DTYPES: dict[str, Any] = DTYPES | {"int64": np.int64, "bool": np.bool_}
FACTS_HEADER_BYTES = 1024
FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"  # keep it, but ask: a model may be exported again under the same name


@dataclass(frozen=True, slots=True)
class Wanted:
    """The form a caller wants an answer in.

    output  one of the table's; None: all
    base64  of arrays in JSON
    """

    media_type: str
    dtype: str
    output: str | None
    base64: bool


def wanted(asked: Any, request: Request, dtype: str | None = None) -> Wanted:
    """What the parameters and the Accept header say; raises NotAcceptable.

    dtype   instead of the parameters' own
    """
    accept = ",".join(request.headers.getlist("accept")).encode("latin-1") or None
    media_type = MEDIA_TYPES[asked.format] if asked.format else negotiate(accept, OFFERS)
    return Wanted(media_type, dtype or asked.dtype, asked.output, asked.encoding_format == "base64")


async def answer(request: Request, tables: Tables, call: Call, form: Wanted, cache: str | None) -> Response:
    """The answer to a GET, a HEAD or a POST.

    cache   what Cache-Control says; None: this is no GET, and nothing is conditional
    raises  BadParameters, BadRequest, NotAcceptable, TooLarge
    """
    tag = call.tag(form.media_type, form.dtype, form.output or "", str(form.base64))
    headers = {"etag": tag, "vary": "Accept"} | ({"cache-control": cache} if cache else {})
    if cache and holds(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    table = await tables.run(call.table)
    sent = chosen(tables, table, form)
    if form.media_type == JSON:
        return await _json(request, tables, documents.Document(table, sent, form), headers)
    packed = _packed(table, sent, form)
    headers |= _described(table, sent, form)
    return _binary(request, tables, tag, packed, headers, ranged=cache is not None)


def holds(if_none_match: str | None, tag: str) -> bool:
    """Whether the client says it has the bytes of this tag."""
    tags = [each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")]
    return tag in tags or "*" in tags


def chosen(tables: Tables, table: Table, form: Wanted) -> tuple[Piece, ...]:
    """The outputs to send; raises for one the table has not and for too many bytes."""
    if form.output is not None and form.output not in table.outputs:
        raise BadRequest(f"output is {form.output[:60]!r}; this table has {', '.join(table.outputs)}")
    return tables.pieces(table, form.dtype, (form.output,) if form.output else ())


def _packed(table: Table, sent: tuple[Piece, ...], form: Wanted) -> Packed:
    if form.media_type == SAFETENSORS:
        shapes = {piece.name: (np.dtype(NUMPY_DTYPES[piece.dtype]), piece.output.shape) for piece in sent}
        return Packed(safetensors_header(shapes, documents.texts(table)), sent)
    shape = _stacked(sent, form)
    head = npy_header(shape, np.dtype(NUMPY_DTYPES[sent[0].dtype])) if form.media_type == NPY else b""
    return Packed(head, sent)


def _stacked(sent: tuple[Piece, ...], form: Wanted) -> tuple[int, ...]:
    """The shape of all outputs in one array; raises NotAcceptable where they do not stack."""
    if form.output is not None:
        return sent[0].output.shape
    if len({(piece.output.shape, piece.dtype) for piece in sent}) > 1:
        names = " or ".join(f"output={piece.name}" for piece in sent)
        raise NotAcceptable(f"{form.media_type} carries one array and the outputs differ in shape: send {names}")
    return (len(sent), *sent[0].output.shape) if len(sent) > 1 else sent[0].output.shape


def _described(table: Table, sent: tuple[Piece, ...], form: Wanted) -> dict[str, str]:
    """Headers that say what the bytes are."""
    scalars = {name: fact for name, fact in table.facts.items() if not isinstance(fact, list | dict)}
    told = json.dumps(scalars, separators=(",", ":"))
    headers = {"content-type": form.media_type, "inlay-arithmetic": table.arithmetic}
    if len(told) <= FACTS_HEADER_BYTES:
        headers["inlay-facts"] = told
    if form.media_type != SAFETENSORS:
        headers |= {"inlay-shape": ",".join(map(str, _stacked(sent, form))), "inlay-dtype": sent[0].dtype}
    return headers


def _binary(
    request: Request, tables: Tables, tag: str, packed: Packed, headers: dict[str, str], ranged: bool
) -> Response:
    start, stop, status = 0, packed.size, 200
    if ranged:
        headers["accept-ranges"] = "bytes"
    if request.method == "GET" and ranged and ranges.current(request.headers.get("if-range"), tag):
        try:
            asked = ranges.wanted(request.headers.get("range"), packed.size)
        except RangeNotSatisfiable as error:
            return _unsatisfiable(error)
        if asked:
            (start, stop), status = asked, 206
            headers["content-range"] = f"bytes {start}-{stop - 1}/{packed.size}"
    headers["content-length"] = str(stop - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    if (body := tables.whole(tag)) is not None:
        return Response(body[start:stop], status, headers)
    return StreamingResponse(tables.stream(tag, packed, start, stop), status, headers)


def _unsatisfiable(error: RangeNotSatisfiable) -> Response:
    found = problems.render_problem(error)
    response = Response(b"".join(found.body), found.status)
    response.raw_headers = [*found.headers, (b"content-range", b"bytes */%d" % error.size)]
    return response


async def _json(request: Request, tables: Tables, document: documents.Document, headers: Mapping[str, str]) -> Response:
    """Small documents whole, large ones as they are made."""
    named = {**headers, "content-type": JSON}
    if request.method == "HEAD":
        return Response(headers=named)
    if sum(prod(piece.output.shape) for piece in document.chosen) > BLOCK_VALUES:
        return StreamingResponse(document.parts(tables), headers=named)
    async with aclosing(document.parts(tables)) as parts:
        return Response(b"".join([part async for part in parts]), headers=named)

"""The positional methods of inlay.v1.Embedder: messages in, messages out. Reads what HTTP reads; knows no channel."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import numpy as np
import orjson

from models.positions.rope.presets import PRESETS
from proto import embed_pb2 as pb
from service.context import ServiceContext
from service.embedding.position_tables import Packed, Piece, pieces
from service.errors import BadRequest
from service.http.tensors import shaped
from service.protocols.inlay.positions import (
    answers,
    documents,
    lookup,
    rotation,
)
from service.protocols.inlay.positions import (
    parsing as asked,
)
from service.protocols.inlay.positions.table_call import Call
from service.protocols.inlay.rpc_requests import dtype_name

CHUNK_BYTES = 896 * 1024  # of data in a message; clients take 4 MiB by default, proxies often 1
FLOATS: dict[int, str] = {
    number: pb.DType.Name(number).lower() for number in (pb.FLOAT32, pb.FLOAT16, pb.BFLOAT16, pb.FLOAT64)
}
DTYPES = FLOATS | {pb.DTYPE_UNSPECIFIED: "float32"}


class Positions:
    """Positions, Rotate, ListPresets and Rope."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def positions(self, request: pb.PositionsRequest) -> AsyncGenerator[pb.PositionsChunk, None]:
        """What comes, then its bytes; raises an InlayError."""
        scheme = lookup.scheme(request.scheme, bool(request.model))
        make = lookup.maker(self._context, scheme, request.model)
        wanted = asked.validated(scheme.parameters, _parameters(request), strict=True)
        call = make(wanted)
        table = await self._context.tables.run(call.table)
        form = answers.Wanted("", wanted.dtype, wanted.output, False)
        chosen = answers.chosen(self._context.tables, table, form)
        shapes = [pb.OutputShape(name=each.name, dtype=each.dtype.upper(), shape=each.output.shape) for each in chosen]
        yield pb.PositionsChunk(facts_json=orjson.dumps(documents.facts(table, chosen, form)).decode(), outputs=shapes)
        for piece in chosen:
            async for offset, data in self._chunks(call, piece):
                yield pb.PositionsChunk(output=piece.name, offset=offset, data=data)

    async def _chunks(self, call: Call, piece: Piece) -> AsyncIterator[tuple[int, bytes]]:
        offset = 0
        key = call.tag(piece.name, piece.dtype)
        async for block in self._context.tables.stream(key, Packed(b"", (piece,))):
            for start in range(0, len(block), CHUNK_BYTES):
                yield offset + start, bytes(block[start : start + CHUNK_BYTES])
            offset += len(block)

    async def rotate(self, request: pb.RotateRequest) -> pb.RotateResponse:
        """The tensors, turned; raises an InlayError."""
        model = rotation.ROTATE_OF_A_MODEL if request.model else rotation.ROTATE
        wanted = asked.validated(model, _parameters(request), strict=True)
        if request.model:
            call = rotation.rotate_of_a_model(lookup.owner(self._context, request.model), wanted)
        else:
            call = rotation.rotate(wanted)
        table = await self._context.tables.run(call.table)
        chosen = pieces(table, rotation.dtype_of(call, wanted))
        form = answers.Wanted("", chosen[0].dtype, None, False)
        tensors = {each.name: _tensor(each) for each in chosen}
        return pb.RotateResponse(
            facts_json=orjson.dumps(documents.facts(table, chosen, form)).decode(), tensors=tensors
        )

    async def rope(self, request: pb.RopeRequest) -> AsyncGenerator[pb.RopeChunk, None]:
        """cos and sin of one model side by side; raises an InlayError."""
        values = {"start": request.start, "dtype": _dtype(request.dtype)}
        values |= {name: getattr(request, name) for name in ("length", "layer_type") if getattr(request, name)}
        scheme = lookup.scheme("rope", True)
        make = lookup.maker(self._context, scheme, request.model)
        wanted = asked.validated(scheme.parameters, values, strict=True)
        call = make(wanted)
        table = await self._context.tables.run(call.table)
        cos, sin = self._context.tables.pieces(table, wanted.dtype)
        step = CHUNK_BYTES // (2 * cos.row_bytes)
        async for first, rows in self._context.tables.blocks(cos):
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                sines = await self._context.tables.run(sin.rows, first + start, first + start + len(part))
                tensors = {name: _of_rows(each, cos.dtype) for name, each in (("cos", part), ("sin", sines))}
                yield pb.RopeChunk(start=request.start + first + start, **tensors)

    def presets(self) -> pb.ListPresetsResponse:
        """Every preset."""
        return pb.ListPresetsResponse(presets=[pb.Preset(**lookup.preset(name, as_text=True)) for name in PRESETS])


def _parameters(request: Any) -> dict[str, Any]:
    """The struct, the tensors and the dtype as one set of parameters."""
    values = {name: _value(value) for name, value in request.parameters.fields.items()}
    tensors = {name: _array(name, tensor) for name, tensor in request.tensors.items()}
    own = {"dtype": _dtype(request.dtype)} if request.dtype else {}
    for name in (tensors | own).keys() & values.keys():
        raise BadRequest(f"{name} came in parameters and beside them: send it once")
    return values | tensors | own


def _value(value: Any) -> Any:
    """A google.protobuf.Value as JSON has it; all its numbers are floats, so whole ones count as integers."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {name: _value(each) for name, each in value.struct_value.fields.items()}
    if kind == "list_value":
        return [_value(each) for each in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= 2**53 else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def _array(name: str, tensor: pb.Tensor) -> Any:
    try:
        return shaped(_dtype(tensor.dtype), list(tensor.shape), tensor.data)
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from None


def _dtype(number: int) -> str:
    if number not in DTYPES:
        raise BadRequest(f"dtype is {dtype_name(number)}; allowed: {', '.join(map(pb.DType.Name, DTYPES))}")
    return DTYPES[number]


def _tensor(piece: Piece) -> pb.Tensor:
    rows = piece.rows(0, piece.output.count)
    return pb.Tensor(dtype=piece.dtype.upper(), shape=piece.output.shape, data=rows.tobytes())


def _of_rows(rows: Any, dtype: str) -> pb.Tensor:
    return pb.Tensor(dtype=dtype.upper(), shape=rows.shape, data=np.ascontiguousarray(rows).tobytes())

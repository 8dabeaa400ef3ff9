"""The positional methods of inlay.v1.Embedder, with the parameters of the HTTP routes."""

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel

from models.positions.rope.presets import PRESETS
from proto import embed_pb2 as pb
from service.context import ServiceContext
from service.embedding.position_tables import TableCall, TableFile, block_bytes, typed_outputs
from service.errors import ConflictingFields
from service.heavy.lane import run_beside
from service.http.validation_errors import validated
from service.http.worker_threads import INLINE_BYTES
from service.protocols.inlay.positions.parameters import ModelRotateParameters, RotateParameters
from service.protocols.inlay.positions.responses import TableForm, chosen_outputs, json_facts
from service.protocols.inlay.positions.rotation import rotate, rotate_by_model
from service.protocols.inlay.positions.schemes import call_maker, find_model, find_scheme
from service.protocols.inlay.rpc_fields import array_of, float_dtype, tensor_of
from service.request_context import RequestContext

CHUNK_BYTES = 896 * 1024  # of data in a message; clients take 4 MiB by default, proxies often 1
FACTS_CHARACTERS = CHUNK_BYTES // 4  # UTF-8 takes four bytes for one at most
Model = TypeVar("Model", bound=BaseModel)
ROTATE_COPIES = 4  # of the turned tensors: rows, their bytes, the message and grpc's own


class Positions:
    """Serves the methods Positions, Rotate, ListPresets and Rope."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def table(
        self, request: pb.PositionsRequest, call_context: RequestContext
    ) -> AsyncGenerator[pb.PositionsChunk, None]:
        """Yield the facts and shapes of a table, then its bytes; raise InlayError if it cannot be made."""
        scheme = find_scheme(request.scheme, of_model=bool(request.model))
        make_call = call_maker(self._context, scheme, request.model)
        parameters = await _read(scheme.parameters, request)
        call = make_call(parameters)
        async for chunk in self.chunks(call, parameters.dtype, parameters.output, call_context):
            yield chunk

    async def chunks(
        self, call: TableCall, dtype: str, output: str | None, call_context: RequestContext
    ) -> AsyncGenerator[pb.PositionsChunk, None]:
        """Yield the facts and shapes of a table, then its bytes, in chunks of about CHUNK_BYTES.

        Args:
            dtype: dtype of floats.
            output: one of the table's; None: all.
        """
        tables, form = self._context.tables, TableForm("", dtype, output)
        table = await tables.run(call.table)
        outputs = chosen_outputs(tables, table, form)
        if call.held_bytes:
            tables.streaming.reserve(call.held_bytes, call_context)
        shapes = [
            pb.OutputShape(name=typed.name, dtype=typed.dtype.upper(), shape=typed.output.shape) for typed in outputs
        ]
        facts = orjson.dumps(json_facts(table, outputs, form)).decode()
        for start in range(0, len(facts), FACTS_CHARACTERS):
            part = facts[start : start + FACTS_CHARACTERS]
            yield pb.PositionsChunk(facts_json=part, outputs=() if start else shapes)
        keys = await tables.run(lambda: [call.etag(each.name, each.dtype) for each in outputs])
        for each, key in zip(outputs, keys, strict=True):
            offset = 0
            async for block in tables.stream(key, TableFile(b"", (each,)), call_context):
                for start in range(0, len(block), CHUNK_BYTES):
                    data = bytes(block[start : start + CHUNK_BYTES])
                    yield pb.PositionsChunk(output=each.name, offset=offset + start, data=data)
                offset += len(block)

    async def rotate(self, request: pb.RotateRequest, call_context: RequestContext) -> pb.RotateResponse:
        """Return the rotated tensors; raise InlayError if they cannot be rotated."""
        if request.model:
            by_model = await _read(ModelRotateParameters, request)
            call = rotate_by_model(find_model(self._context, request.model), by_model)
        else:
            call = rotate(await _read(RotateParameters, request))
        table = await self._context.tables.run(call.table)
        outputs = typed_outputs(table, call.dtype)
        self._context.budget.reserve(ROTATE_COPIES * sum(output.size for output in outputs), call_context)
        facts = json_facts(table, outputs, TableForm("", call.dtype))
        arrays = [each.rows(0, each.output.count).reshape(each.output.shape) for each in outputs]
        tensors = {each.name: tensor_of(array, each.dtype) for each, array in zip(outputs, arrays, strict=True)}
        return pb.RotateResponse(facts_json=orjson.dumps(facts).decode(), tensors=tensors)

    async def rope(self, request: pb.RopeRequest, call_context: RequestContext) -> AsyncGenerator[pb.RopeChunk, None]:
        """Yield cos and sin of one model side by side; raise InlayError if it has none."""
        values = {"start": request.start, "dtype": float_dtype(request.dtype)}
        values |= {name: getattr(request, name) for name in ("length", "layer_type") if getattr(request, name)}
        scheme = find_scheme("rope", of_model=True)
        make_call = call_maker(self._context, scheme, request.model)
        parameters = validated(scheme.parameters, values, strict=True)
        table = await self._context.tables.run(make_call(parameters).table)
        cos, sin = self._context.tables.outputs(table, parameters.dtype)
        self._context.tables.streaming.reserve(block_bytes((cos, sin)), call_context)
        step = CHUNK_BYTES // (2 * cos.row_bytes)
        async for first, rows in self._context.tables.blocks(cos):
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                sines = await self._context.tables.run(sin.rows, first + start, first + start + len(part))
                tensors = {name: tensor_of(rows, cos.dtype) for name, rows in (("cos", part), ("sin", sines))}
                yield pb.RopeChunk(start=request.start + first + start, **tensors)

    async def presets(self, request: pb.ListPresetsRequest, call: RequestContext) -> pb.ListPresetsResponse:
        """Return every preset."""
        return pb.ListPresetsResponse(
            presets=[
                pb.Preset(name=name, title=row.title, source=row.source, config_json=orjson.dumps(row.config).decode())
                for name, row in PRESETS.items()
            ]
        )


async def _read(model: type[Model], request: Any) -> Model:
    """Return the parameters of a request; those of a large one are read by the heavy process."""
    if request.ByteSize() > INLINE_BYTES:
        return await run_beside(_parameters, model, request)
    return _parameters(model, request)


def _parameters(model: type[Model], request: Any) -> Model:
    return validated(model, parameters_of(request), strict=True)


def parameters_of(request: Any) -> dict[str, Any]:
    """Return the struct, the tensors and the dtype as one dict of parameters."""
    values = {name: _value(value) for name, value in request.parameters.fields.items()}
    tensors = {name: array_of(tensor, (name,)) for name, tensor in request.tensors.items()}
    beside = tensors | ({"dtype": float_dtype(request.dtype)} if request.dtype else {})
    for name in beside.keys() & values.keys():
        raise ConflictingFields(
            "came in parameters and beside them", field=(name,), remedy="send it once", verbatim=True
        )
    return values | beside


def _value(value: Any) -> Any:
    """Return a google.protobuf.Value as a JSON value; all its numbers are floats, so whole ones become integers."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {name: _value(member) for name, member in value.struct_value.fields.items()}
    if kind == "list_value":
        return [_value(member) for member in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= 2**53 else number
    return None if kind in (None, "null_value") else getattr(value, kind)

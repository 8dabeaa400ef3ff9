"""The methods of inlay.v1.Embedder that answer with tables, with the parameters of the HTTP routes."""

from collections.abc import AsyncGenerator

import numpy as np
import orjson

from models.positions.rope.presets import PRESETS
from proto import embed_pb2 as pb
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.position_tables import TableCall, TableFile
from service.embedding.word_table import word_table
from service.http.parameter_types import TypedArrayOptions
from service.protocols.inlay.analysis import AnalysisQuery, analysed
from service.protocols.inlay.logits import LogitsParameters, logits_call, with_head
from service.protocols.inlay.positions.responses import chosen_outputs, json_facts
from service.protocols.inlay.positions.schemes import call_maker, find_scheme
from service.protocols.inlay.rpc_fields import read_message, tensor_of
from service.protocols.inlay.similar import SimilarParameters, search
from service.request_context import RequestContext

CHUNK_BYTES = 896 * 1024  # of data in a message; clients take 4 MiB by default, proxies often 1
FACTS_CHARACTERS = CHUNK_BYTES // 4  # UTF-8 takes four bytes for one at most


class TableMethods:
    """Serves Positions and ListPresets, and Logits, Similar and Analysis, which read a model's tables."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def table(
        self, request: pb.PositionsRequest, call_context: RequestContext
    ) -> AsyncGenerator[pb.PositionsChunk, None]:
        """Yield the facts and shapes of a table, then its bytes; raise InlayError if it cannot be made."""
        scheme = find_scheme(request.scheme, of_model=bool(request.model))
        make_call = call_maker(self._context, scheme, request.model)
        parameters = await read_message(scheme.parameters, request)
        call = make_call(parameters)
        async for chunk in self._chunks(call, parameters, call_context):
            yield chunk

    async def _chunks(
        self, call: TableCall, options: TypedArrayOptions, call_context: RequestContext
    ) -> AsyncGenerator[pb.PositionsChunk, None]:
        """Yield the facts and shapes of a table, then its bytes, in chunks of about CHUNK_BYTES."""
        tables = self._context.tables
        table = await tables.run(call.table)
        outputs = chosen_outputs(tables, table, options)
        if call.held_bytes:
            tables.streaming.reserve(call.held_bytes, call_context)
        shapes = [
            pb.OutputShape(name=typed.name, dtype=typed.dtype.upper(), shape=typed.output.shape) for typed in outputs
        ]
        facts = orjson.dumps(json_facts(table, outputs, options.dtype)).decode()
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

    async def presets(self, request: pb.ListPresetsRequest, call: RequestContext) -> pb.ListPresetsResponse:
        """Return every preset."""
        return pb.ListPresetsResponse(
            presets=[
                pb.Preset(name=name, title=row.title, source=row.source, config_json=orjson.dumps(row.config).decode())
                for name, row in PRESETS.items()
            ]
        )

    def _model(self, name: str, call_context: RequestContext) -> Model:
        model = self._context.registry.get(name or None)
        call_context.random_weights = model.card.random
        return model

    async def logits(
        self, request: pb.LogitsRequest, call_context: RequestContext
    ) -> AsyncGenerator[pb.PositionsChunk, None]:
        """Yield logits, or the tokens of the largest, in the messages of a table."""
        model = with_head(self._model(request.model, call_context))
        parameters = await read_message(LogitsParameters, request)
        call = await logits_call(self._context, model, parameters, call_context)
        async for chunk in self._chunks(call, parameters, call_context):
            yield chunk

    async def similar(self, request: pb.SimilarRequest, call_context: RequestContext) -> pb.SimilarResponse:
        """Return the most similar tokens, best first."""
        table = word_table(self._model(request.model, call_context))
        answer = await search(self._context, table, await read_message(SimilarParameters, request), call_context)
        about = answer.pop("table")
        return pb.SimilarResponse(table=about["name"], table_shape=about["shape"], table_dtype=about["dtype"], **answer)

    async def analysis(self, request: pb.AnalysisRequest, call_context: RequestContext) -> pb.AnalysisResponse:
        """Return the facts about a word table."""
        table = word_table(self._model(request.model, call_context))
        query = await read_message(AnalysisQuery, request)
        document = await analysed(self._context, table, query, call_context)
        values = document["spectrum"].pop("singular_values") if query.spectrum else None
        return pb.AnalysisResponse(
            analysis_json=orjson.dumps(document).decode(),
            singular_values=None if values is None else tensor_of(np.array(values, np.float64), "float64"),
        )

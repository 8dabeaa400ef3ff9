"""The methods Logits, Similar and Analysis of inlay.v1.Embedder, with the parameters of the HTTP routes."""

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel

from proto import embed_pb2 as pb
from service.context import ServiceContext
from service.embedding import logits
from service.embedding.model import Model
from service.embedding.position_tables import TableCall
from service.embedding.word_table import word_table
from service.http.validation_errors import validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay.analysis import AnalysisQuery, analysed
from service.protocols.inlay.logits import LogitsParameters, logits_call
from service.protocols.inlay.rpc_fields import fields_of, tensor_of
from service.protocols.inlay.similar import SimilarParameters, search
from service.request_context import RequestContext

NAMES = {"token_id": "token"}  # of fields that HTTP calls otherwise
Fields = TypeVar("Fields", bound=BaseModel)
TableChunks = Callable[[TableCall, str, str | None, RequestContext], AsyncGenerator[pb.PositionsChunk, None]]


class Vocabulary:
    """Serves Logits, Similar and Analysis, which read the word table and the output head of a model.

    Args:
        table_chunks: (call, dtype, output, context of the request) -> a table as messages.
    """

    def __init__(self, context: ServiceContext, table_chunks: TableChunks) -> None:
        self._context, self._table_chunks = context, table_chunks

    async def logits(
        self, request: pb.LogitsRequest, call_context: RequestContext
    ) -> AsyncGenerator[pb.PositionsChunk, None]:
        """Yield logits, or the tokens of the largest, in the messages of a table."""
        model = self._model(request.model)
        logits.head_of(model)
        parameters = await _read(LogitsParameters, request)
        call = await logits_call(self._context, model, parameters, call_context)
        async for chunk in self._table_chunks(call, parameters.dtype, parameters.output, call_context):
            yield chunk

    async def similar(self, request: pb.SimilarRequest, call_context: RequestContext) -> pb.SimilarResponse:
        """Return the most similar tokens, best first."""
        table = word_table(self._model(request.model))
        found = await search(self._context, table, await _read(SimilarParameters, request))
        return pb.SimilarResponse(
            model=found["model"],
            table=found["table"]["name"],
            table_shape=found["table"]["shape"],
            table_dtype=found["table"]["dtype"],
            measure=found["measure"],
            inputs=[pb.SimilarToken(**token) for token in found["inputs"]],
            results=[pb.SimilarToken(**token) for token in found["results"]],
        )

    async def analysis(self, request: pb.AnalysisRequest, call_context: RequestContext) -> pb.AnalysisResponse:
        """Return the facts about a word table."""
        table = word_table(self._model(request.model))
        query = await _read(AnalysisQuery, request)
        document: dict[str, Any] = await analysed(self._context, table, query.spectrum)
        values = document["spectrum"].pop("singular_values") if query.spectrum else None
        return pb.AnalysisResponse(
            analysis_json=orjson.dumps(document).decode(),
            singular_values=None if values is None else tensor_of(np.array(values, np.float64), "float64"),
        )

    def _model(self, name: str) -> Model:
        return self._context.registry.get(name or None)


async def _read(model: type[Fields], message: Any) -> Fields:
    """Return a message as the parameters of the HTTP route; a large one is read in a thread."""

    def read() -> Fields:
        return validated(
            model, {NAMES.get(name, name): value for name, value in fields_of(message).items()}, strict=True
        )

    return await inline_or_in_thread(message.ByteSize(), read)

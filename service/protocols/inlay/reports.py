"""POST /models/{name}/similar, gradient, logits and similarity, GET /models/{name}/analysis: computations on a model.

Each is a row of REPORTS; rpc_tables.py serves three of them over gRPC.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.position_tables import TableCall
from service.embedding.word_table import word_table
from service.http.parameter_types import Parameters, TypedArrayOptions
from service.http.response import Response, json_response
from service.http.routes import Request, Route
from service.protocols.inlay import analysis, gradient, logits, similar, similarity
from service.protocols.inlay.parsing import from_body, from_query
from service.protocols.inlay.positions.responses import media_type_of, table_response
from service.request_context import RequestContext

Computed = TableCall | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """A computation on a model, which answers with a table where its parameters have its form, else with JSON.

    Args:
        parameters: the model of its body, or of its query string.
        subject: returns what it reads of a model; raises NotFound if the model has none, before parameters are read.
        compute: (context, subject, parameters, context of the request) -> the answer.
    """

    name: str
    parameters: type[Parameters]
    subject: Callable[[Model], Any]
    compute: Callable[[ServiceContext, Any, Any, RequestContext], Awaitable[Computed]]
    verb: Literal["GET", "POST"] = "POST"

    def route(self, context: ServiceContext) -> Route:
        """Return the row of its HTTP route."""
        path, handler = f"/models/{{name}}/{self.name}", partial(self._answer, context)
        if self.verb == "GET":
            return Route("GET", path, handler, query=self.parameters)
        return Route("POST", path, handler, bodies=(self.parameters,))

    async def _answer(self, context: ServiceContext, request: Request) -> Response:
        model = context.registry.get(request.parameters["name"])
        request.context.random_weights = model.card.random
        subject = self.subject(model)
        read = (
            await from_body(self.parameters, request) if self.verb == "POST" else from_query(self.parameters, request)
        )
        media_type = media_type_of(request, read) if isinstance(read, TypedArrayOptions) else ""
        computed = await self.compute(context, subject, read, request.context)
        if isinstance(computed, dict) or not isinstance(read, TypedArrayOptions):
            return json_response(computed)
        return await table_response(request, context.tables, computed, media_type, read)


REPORTS = (
    Report("similarity", similarity.SimilarityParameters, similarity.comparing, similarity.similarity_call),
    Report("similar", similar.SimilarParameters, word_table, similar.search),
    Report("gradient", gradient.GradientParameters, word_table, gradient.gradient_call),
    Report("analysis", analysis.AnalysisQuery, word_table, analysis.analysed, "GET"),
    Report("logits", logits.LogitsParameters, logits.with_head, logits.logits_call),
)


def routes(context: ServiceContext) -> list[Route]:
    """Return the route of every report."""
    return [row.route(context) for row in REPORTS]

"""POST /models/{name}/similar, gradient, logits and similarity, GET /models/{name}/analysis: computations on a model.

Each is a row of REPORTS; rpc_tables.py serves three of them over gRPC.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.position_tables import TableCall
from service.embedding.word_table import word_table
from service.http.formats import JSON
from service.http.parameter_types import Parameters, TypedArrayOptions
from service.http.response import Response, json_response
from service.http.routes import Answer, Need, Request, Route
from service.protocols.inlay import analysis, gradient, logits, needs, similar, similarity
from service.protocols.inlay.openapi_parts import DATA, EMBED, MODELS
from service.protocols.inlay.parsing import from_body, from_query
from service.protocols.inlay.positions.responses import table_answer, table_form, table_response, tensor_route
from service.request_context import RequestContext

Computed = TableCall | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """A computation on a model, which answers with a table where its parameters have its form, else with JSON.

    Args:
        parameters: the model of its body, or of its query string.
        subject: returns what it reads of a model; raises NotFound if the model has none, before parameters are read.
        compute: (context, subject, parameters, context of the request) -> the answer.
        need: what it needs of a model, for the OpenAPI document, which has its answer's schema by its name.
        examples: JSON bodies by name; empty: its parameters are a query string.
    """

    name: str
    summary: str
    parameters: type[Parameters]
    subject: Callable[[Model], Any]
    compute: Callable[[ServiceContext, Any, Any, RequestContext], Awaitable[Computed]]
    need: Need
    examples: Mapping[str, Any] = field(hash=False, default_factory=dict)
    tag: str = MODELS

    def route(self, context: ServiceContext) -> Route:
        """Return the row of its HTTP route."""
        path, name, document = f"/models/{{name}}/{self.name}", f"model_{self.name}", DATA.parts[self.name]
        handler = partial(self._answer, context)
        if not self.examples:
            answers, query = {200: Answer(content={JSON: document})}, self.parameters
            return Route(
                "GET", path, handler, name, self.summary, self.tag, query=query, need=self.need, answers=answers
            )
        is_table = issubclass(self.parameters, TypedArrayOptions)
        answer = table_answer(document) if is_table else Answer(content={JSON: document})
        how: dict[str, Any] = {"tag": self.tag, "examples": self.examples, "answer": answer, "need": self.need}
        return tensor_route(path, handler, name, self.summary, self.parameters, **how)

    async def _answer(self, context: ServiceContext, request: Request) -> Response:
        subject = self.subject(context.registry.get(request.parameters["name"]))
        read = await from_body(self.parameters, request) if self.examples else from_query(self.parameters, request)
        form = table_form(request, read) if isinstance(read, TypedArrayOptions) else None
        computed = await self.compute(context, subject, read, request.context)
        if isinstance(computed, dict) or form is None:
            return json_response(computed)
        return await table_response(request, context.tables, computed, form)


REPORTS = (
    Report(
        "similarity", "Compare texts with images", similarity.SimilarityParameters, similarity.comparing,
        similarity.similarity_call, needs.TWO_TOWERS, DATA.examples["similarity"], EMBED,
    ),
    Report(
        "similar", "The tokens nearest to a token, a text, a vector or an analogy", similar.SimilarParameters,
        word_table, similar.search, needs.TABLE, DATA.examples["similar"],
    ),
    Report(
        "gradient", "Gradients of the tables, from that of the input layer's output", gradient.GradientParameters,
        word_table, gradient.gradient_call, needs.TABLE, gradient.EXAMPLES,
    ),
    Report(
        "analysis", "What the word table looks like, and what each step costs", analysis.AnalysisQuery,
        word_table, analysis.analysed, needs.TABLE,
    ),
    Report(
        "logits", "Logits of hidden states, or the tokens of the largest ones", logits.LogitsParameters,
        logits.with_head, logits.logits_call, needs.HEAD, logits.EXAMPLES,
    ),
)  # fmt: skip


def routes(context: ServiceContext) -> list[Route]:
    """Return the route of every report."""
    return [row.route(context) for row in REPORTS]

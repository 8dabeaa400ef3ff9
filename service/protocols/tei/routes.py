"""text-embeddings-inference's REST routes; POST /embed, which accepts its fields too, is in protocols/inlay.

Errors are problem documents, which hold TEI's `error` and `error_type` too.
"""

from functools import partial
from typing import Any

from pydantic import BaseModel

from service.context import ServiceContext
from service.embedding import truncation
from service.http import ignored_fields, openapi_data
from service.http.formats import JSON
from service.http.openapi_data import reference
from service.http.problem_details import MEDIA_TYPE, Problem, render_problem
from service.http.routes import Answer, Handler, RequestBody, Route, RouteGroup, Schema
from service.protocols.inlay import needs
from service.protocols.inlay.embed import TIMING_HEADERS
from service.protocols.inlay.embed_answers import UNAUTHORIZED, VECTORS_ANSWER
from service.protocols.inlay.openapi_parts import TEI
from service.protocols.tei import schemas
from service.protocols.tei.handlers import DocumentsHandler, Handlers

DATA = openapi_data.read(__package__)
HEADERS = TIMING_HEADERS | truncation.HEADERS | ignored_fields.HEADERS
RANKING = schemas.RerankBody.model_json_schema()
EITHER = {"anyOf": [*map(reference, ("EmbedBody", "SimilarityBody", "PredictBody")), RANKING]}
EITHER_ANSWER = {"anyOf": [VECTORS_ANSWER.content[JSON], *map(reference, ("Vector", "Ranks", "Predictions"))]}
WRONG_KIND = Answer(description="The model is of another kind.", content={MEDIA_TYPE: Problem})


def routes(context: ServiceContext, rerank_documents: DocumentsHandler) -> RouteGroup:
    """Return text-embeddings-inference's routes.

    Args:
        rerank_documents: answers a body of /rerank that has `documents`, which is another protocol's.
    """
    handlers = Handlers(context, rerank_documents)
    return RouteGroup([*_vector_routes(handlers), *_text_routes(handlers)], render_problem, schemas=DATA.schemas)


def _vector_routes(handlers: Handlers) -> list[Route]:
    about = "/embed, /similarity, /predict or /rerank, as the body and the model say"
    either = RequestBody(schema=EITHER, examples=DATA.examples["by_kind"])
    every_token = "A vector a token, special ones included, not normalised unless `normalize_tokens` says so"
    values, need = "The sparse vector of each text: its values that are not 0", needs.SPARSE_VECTORS
    anything, tokens = _every_format(EITHER_ANSWER), _every_format(reference("VectorLists"))
    compared, post = "The cosine of a text with others, or MaxSim", partial(_post, vectors=True)
    return [
        post("/", handlers.by_kind, about, either, anything),
        post("/invocations", handlers.by_kind, f"{about}; SageMaker calls it", either, anything),
        post("/embed_all", handlers.embed_all, every_token, schemas.AllVectorsBody, tokens),
        post("/embed_sparse", handlers.embed_sparse, values, schemas.SparseBody, _json("SparseVectors"), need=need),
        post("/similarity", handlers.similarity, compared, schemas.SimilarityBody, _json("Vector")),
    ]


def _text_routes(handlers: Handlers) -> list[Route]:
    labels, ranks = "The scores of a text's labels, the best first", "The scores of texts with a query, the best first"
    schema = {"anyOf": [RANKING, reference("CohereRerankBody")]}
    ranked = RequestBody(schema=schema, examples=DATA.examples["rerank"], description="`texts` need a reranker.")
    ranking, failed = _json("RankingOrDocuments"), {JSON: reference("CohereError")}
    tokens, texts, info = [Answer(content={JSON: reference(name)}) for name in ("TokenLists", "Texts", "Info")]
    about, row = "What is served, and its limits", partial(Route, "GET", "/info", handlers.info, "tei_info", tag=TEI)
    return [
        _post("/predict", handlers.predict, labels, schemas.PredictBody, _json("Predictions"), need=needs.CLASSIFIER),
        _post("/rerank", handlers.rerank, ranks, ranked, ranking, other_errors=failed),
        _post("/tokenize", handlers.tokenize, "The tokens of texts", schemas.TokenizeBody, tokens),
        _post("/decode", handlers.decode, "The texts of token ids", schemas.DecodeBody, texts),
        row(summary=about, query=schemas.InfoQuery, answers={200: info, 401: UNAUTHORIZED}, admitted=False),
    ]


def _post(
    path: str, handler: Handler, about: str, body: type[BaseModel] | RequestBody, answer: Answer, **others: Any
) -> Route:
    """Return a Route of POST; `others` are its further fields."""
    if not isinstance(body, RequestBody):
        body = RequestBody(model=body, examples=DATA.examples[path[1:]])
    name, answers = f"tei_{path[1:] or 'root'}", {200: answer, 401: UNAUTHORIZED, 424: WRONG_KIND}
    return Route("POST", path, handler, name, about, TEI, body=body, answers=answers, **others)


def _every_format(schema: Schema) -> Answer:
    """Return the answer of a route with the formats of /embed; its JSON follows `schema`."""
    return Answer(content={**VECTORS_ANSWER.content, JSON: schema}, headers=VECTORS_ANSWER.headers)


def _json(schema: str) -> Answer:
    return Answer(content={JSON: reference(schema)}, headers=HEADERS)

"""text-embeddings-inference's REST routes; POST /embed, which accepts its fields too, is in protocols/inlay.

Errors are problem documents, which hold TEI's `error` and `error_type` too.
"""

from typing import Any

from pydantic import BaseModel

from service.context import ServiceContext
from service.embedding import truncation
from service.http import ignored_fields
from service.http.formats import JSON
from service.http.openapi import REFERENCE
from service.http.problem_details import MEDIA_TYPE, Problem, render_problem
from service.http.routes import Answer, Example, Handler, RequestBody, Route, RouteGroup, Schema
from service.protocols.inlay import needs
from service.protocols.inlay.embed import TIMING_HEADERS
from service.protocols.inlay.embed_answers import UNAUTHORIZED, VECTORS_ANSWER
from service.protocols.inlay.openapi_parts import schema
from service.protocols.inlay.tags import TEI
from service.protocols.tei import answers, operations, schemas
from service.protocols.tei.handlers import DocumentsHandler, Handlers

HELLO = ["hello world"]
HEADERS = TIMING_HEADERS | truncation.HEADERS
COMPARED = {"source_sentence": "a text", "sentences": ["another", "a third"]}
RANKED = {"query": "a text", "texts": ["another", "a third"]}
EITHER = {
    "anyOf": [{"$ref": REFERENCE.format(model=name)} for name in ("EmbedBody", "SimilarityBody", "PredictBody")]
    + [schemas.RerankBody.model_json_schema()]
}
RANKED_BY_RERANKER = Example(value=RANKED, need=needs.RANKER)
DOCUMENTS = {"query": "a text", "documents": ["another", "a third"]}
DOCUMENTS_BODY, DOCUMENTS_RANKED, DOCUMENTS_ERROR = (
    {"$ref": REFERENCE.format(model=name)} for name in ("CohereRerankBody", "CohereRanking", "CohereError")
)
EITHER_RANKING = {"anyOf": [schemas.RerankBody.model_json_schema(), DOCUMENTS_BODY]}
PREDICTION = {"type": "array", "items": schemas.Prediction.model_json_schema()}
PREDICTIONS = {"anyOf": [PREDICTION, {"type": "array", "items": PREDICTION}]}
RANKS = {"type": "array", "items": schemas.Rank.model_json_schema()}
TOKENS = {"type": "array", "items": {"type": "array", "items": schemas.TextToken.model_json_schema()}}
TEXTS = {"type": "array", "items": {"type": "string"}}
VECTOR_LISTS = {"type": "array", "items": schema("vectors")}
EITHER_ANSWER = {"anyOf": [schema("vector"), VECTORS_ANSWER.content[JSON], RANKS, PREDICTIONS]}
WRONG_KIND = Answer(description="The model is of another kind.", content={MEDIA_TYPE: Problem})


def routes(context: ServiceContext, rerank_documents: DocumentsHandler) -> RouteGroup:
    """Return text-embeddings-inference's routes.

    Args:
        rerank_documents: answers a body of /rerank that has `documents`, which is another protocol's.
    """
    handlers = Handlers(context, rerank_documents)
    rows = [*_vector_routes(handlers), *_score_routes(handlers), *_token_routes(handlers), _info_route(handlers)]
    return RouteGroup(rows, render_problem)


def _vector_routes(handlers: Handlers) -> list[Route]:
    about = "/embed, /similarity, /predict or /rerank, as the body and the model say"
    examples = {"texts": {"inputs": ["hello"]}, "similarity": {"inputs": COMPARED}, "ranking": RANKED_BY_RERANKER}
    either, either_body = _in_every_format(EITHER_ANSWER), RequestBody(schema=EITHER, examples=examples)
    all_vectors = _body(schemas.AllVectorsBody, HELLO)
    every_token = "A vector a token, special ones included, not normalised unless `normalize_tokens` says so"
    sparse, values = _body(schemas.SparseBody, HELLO), _json(answers.SPARSE_SCHEMA)
    about_values, need = "The sparse vector of each text: its values that are not 0", needs.SPARSE_VECTORS
    return [
        _post("/", handlers.by_kind, about, either_body, either, vectors=True),
        _post("/invocations", handlers.by_kind, f"{about}; SageMaker calls it", either_body, either, vectors=True),
        _post("/embed_all", handlers.embed_all, every_token, all_vectors, _in_every_format(VECTOR_LISTS), vectors=True),
        _post("/embed_sparse", handlers.embed_sparse, about_values, sparse, values, vectors=True, need=need),
    ]


def _score_routes(handlers: Handlers) -> list[Route]:
    compared, about_scores = _body(schemas.SimilarityBody, COMPARED), "The cosine of a text with others, or MaxSim"
    labelled, about_labels = _body(schemas.PredictBody, "I like it"), "The scores of a text's labels, the best first"
    ranked = RequestBody(schema=EITHER_RANKING, examples={"documents": DOCUMENTS, "texts": RANKED_BY_RERANKER})
    ranks = Answer(content={JSON: {"anyOf": [RANKS, DOCUMENTS_RANKED]}}, headers=HEADERS | ignored_fields.HEADERS)
    about_ranks, errors = "The scores of texts with a query, the best first", {JSON: DOCUMENTS_ERROR}
    return [
        _post("/similarity", handlers.similarity, about_scores, compared, _json(schema("vector")), vectors=True),
        _post("/predict", handlers.predict, about_labels, labelled, _json(PREDICTIONS), need=needs.CLASSIFIER),
        _post("/rerank", handlers.rerank, about_ranks, ranked, ranks, other_errors=errors),
    ]


def _token_routes(handlers: Handlers) -> list[Route]:
    texts, ids = _body(schemas.TokenizeBody, HELLO), _body(schemas.DecodeBody, [[101, 7592, 102]], field="ids")
    return [
        _post("/tokenize", handlers.tokenize, "The tokens of texts", texts, Answer(content={JSON: TOKENS})),
        _post("/decode", handlers.decode, "The texts of token ids", ids, Answer(content={JSON: TEXTS})),
    ]


def _info_route(handlers: Handlers) -> Route:
    about, answers = "What is served, and its limits", {200: Answer(content={JSON: operations.Info}), 401: UNAUTHORIZED}
    query = schemas.InfoQuery
    return Route("GET", "/info", handlers.info, "tei_info", about, TEI, query=query, answers=answers, admitted=False)


def _post(path: str, handler: Handler, summary: str, body: RequestBody, answer: Answer, **others: Any) -> Route:
    """Return a Route of POST; `others` are its further fields."""
    name, answers = f"tei_{path[1:] or 'root'}", {200: answer, 401: UNAUTHORIZED, 424: WRONG_KIND}
    return Route("POST", path, handler, name, summary, TEI, body=body, answers=answers, **others)


def _in_every_format(schema: Schema) -> Answer:
    """Return the answer of a route with the formats of /embed; its JSON follows `schema`."""
    return Answer(content={**VECTORS_ANSWER.content, JSON: schema}, headers=VECTORS_ANSWER.headers)


def _json(schema: Schema) -> Answer:
    return Answer(content={JSON: schema}, headers=HEADERS)


def _body(model: type[BaseModel], example: Any, *, field: str = "inputs") -> RequestBody:
    """Return the body of one kind, with an example of its one field."""
    return RequestBody(model=model, examples={"example": {field: example}})

"""text-embeddings-inference's REST routes; POST /embed, whose fields are a superset of TEI's, is in protocols/inlay.

Errors are problem documents, which hold TEI's `error` and `error_type` too.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from service.context import ServiceContext
from service.embedding import classifying, late_interaction, ranking, truncation
from service.embedding.output_plan import POOLED
from service.embedding.pooling import normalize
from service.embedding.requests import EmbedOptions, EmbedRequest, EmbedResult, Input, Text
from service.errors import MissingField, Spelling
from service.http import formats, ignored_fields, json_arrays
from service.http.formats import FORMATS, JSON, check_json, negotiate
from service.http.openapi import REFERENCE
from service.http.problem_details import MEDIA_TYPE, Problem, render_problem
from service.http.response import Response, bytes_response, json_response
from service.http.routes import Answer, Example, Handler, Need, Request, RequestBody, Route, RouteGroup, Schema
from service.http.validation_errors import Body, parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import needs, timing_headers
from service.protocols.inlay.embed import EmbedHandler
from service.protocols.inlay.embed_answers import UNAUTHORIZED, VECTOR, VECTORS, VECTORS_ANSWER
from service.protocols.inlay.inputs import decode
from service.protocols.inlay.tags import TEI
from service.protocols.tei import answers, operations, schemas, vector_similarity
from service.protocols.tei.vector_similarity import QUERIES, VectorSimilarity

Result = TypeVar("Result")
DocumentsHandler = Callable[[Request, Any], Awaitable[Response]]
MARKS = (b'"source_sentence"', b'"query"', b'"model"')  # without any, a body for a default model of vectors is /embed's
COMPARED = {"inputs": {"source_sentence": "a text", "sentences": ["another", "a third"]}}
RANKED = {"query": "a text", "texts": ["another", "a third"]}
render_ranking_problem = partial(render_problem, spelling=Spelling(fields={"inputs": "texts"}))
NEITHER = "send texts, as TEI has them, or documents, as Cohere, Jina, vLLM and infinity have them"
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
WRONG_KIND = Answer(description="The model is of another kind.", content={MEDIA_TYPE: Problem})


def routes(context: ServiceContext, rerank_documents: DocumentsHandler) -> RouteGroup:
    """Return text-embeddings-inference's routes.

    Args:
        rerank_documents: answers a body of /rerank that has `documents`, which is another protocol's.
    """
    handlers = Handlers(context, rerank_documents)
    rows = [*_vector_routes(handlers), *_score_routes(handlers), *_token_routes(handlers)]
    rows += [_info_route(handlers)]
    return RouteGroup(rows, render_problem)


def _vector_routes(handlers: "Handlers") -> list[Route]:
    either = _in_every_format({"anyOf": [VECTOR, VECTORS_ANSWER.content[JSON], RANKS, PREDICTIONS]})
    examples = {"texts": {"inputs": ["hello"]}, "similarity": COMPARED, "ranking": RANKED_BY_RERANKER}
    either_body = RequestBody(schema=EITHER, examples=examples)
    by_kind, summary = handlers.by_kind, "/embed, /similarity, /predict or /rerank, as the body and the model say"
    return [
        _post("/", by_kind, "tei_root", summary, either_body, either, vectors=True),
        _post(
            "/invocations", by_kind, "tei_invocations", f"{summary}; SageMaker calls it",
            either_body, either, vectors=True,
        ),
        _post(
            "/embed_all", handlers.embed_all, "tei_embed_all",
            "A vector a token, special ones included, not normalised unless `normalize_tokens` says so",
            _body(schemas.AllVectorsBody, {"inputs": ["hello world"]}),
            _in_every_format({"type": "array", "items": VECTORS}), vectors=True,
        ),
        _post(
            "/embed_sparse", handlers.embed_sparse, "tei_embed_sparse",
            "The sparse vector of each text: its values that are not 0",
            _body(schemas.SparseBody, {"inputs": ["hello world"]}),
            Answer(content={JSON: answers.SPARSE_SCHEMA}, headers=timing_headers.HEADERS | truncation.HEADERS),
            vectors=True, need=needs.SPARSE,
        ),
        _post(
            "/similarity", handlers.similarity, "tei_similarity",
            "The cosine of a text with others, or MaxSim; or the scores of vectors in the body",
            RequestBody(
                model=schemas.SimilarityBody, schema=vector_similarity.VectorsBody.model_json_schema(),
                examples={"texts": COMPARED, "vectors": vector_similarity.EXAMPLE},
            ),
            Answer(
                content={JSON: {"anyOf": [VECTOR, vector_similarity.SCORES]}},
                headers=timing_headers.HEADERS | truncation.HEADERS,
            ), vectors=True,
        ),
    ]  # fmt: skip


def _score_routes(handlers: "Handlers") -> list[Route]:
    headers = timing_headers.HEADERS | truncation.HEADERS
    return [
        _post(
            "/predict", handlers.predict, "tei_predict", "The scores of a text's labels, the best first",
            _body(schemas.PredictBody, {"inputs": "I like it"}), Answer(content={JSON: PREDICTIONS}, headers=headers),
            need=needs.CLASSIFIER,
        ),
        _post(
            "/rerank", handlers.rerank, "tei_rerank", "The scores of texts with a query, the best first",
            RequestBody(schema=EITHER_RANKING, examples={"documents": DOCUMENTS, "texts": RANKED_BY_RERANKER}),
            Answer(content={JSON: {"anyOf": [RANKS, DOCUMENTS_RANKED]}}, headers=headers | ignored_fields.HEADERS),
            other_errors={JSON: DOCUMENTS_ERROR},
        ),
    ]  # fmt: skip


def _token_routes(handlers: "Handlers") -> list[Route]:
    tokenize_body = _body(schemas.TokenizeBody, {"inputs": ["hello world"]})
    decode_body = _body(schemas.DecodeBody, {"ids": [[101, 7592, 102]]})
    tokens, texts = Answer(content={JSON: TOKENS}), Answer(content={JSON: TEXTS})
    return [
        _post("/tokenize", handlers.tokenize, "tei_tokenize", "The tokens of texts", tokenize_body, tokens),
        _post("/decode", handlers.decode, "tei_decode", "The texts of token ids", decode_body, texts),
    ]


def _info_route(handlers: "Handlers") -> Route:
    return Route(
        verb="GET",
        path="/info",
        handler=handlers.info,
        name="tei_info",
        summary="What is served, and its limits",
        tag=TEI,
        query=schemas.InfoQuery,
        answers={200: Answer(content={JSON: schemas.Info}), 401: UNAUTHORIZED},
        admitted=False,
    )


def _post(
    path: str,
    handler: Handler,
    name: str,
    summary: str,
    body: RequestBody,
    answer: Answer,
    *,
    vectors: bool = False,
    need: Need | None = None,
    other_errors: Mapping[str, Schema] | None = None,
) -> Route:
    return Route(
        verb="POST",
        path=path,
        handler=handler,
        name=name,
        summary=summary,
        tag=TEI,
        body=body,
        need=need,
        answers={200: answer, 401: UNAUTHORIZED, 424: WRONG_KIND},
        vectors=vectors,
        other_errors=other_errors or {},
    )


def _in_every_format(schema: Schema) -> Answer:
    """Return the answer of a route with the formats of /embed, its JSON as in `schema`."""
    return Answer(content={**VECTORS_ANSWER.content, JSON: schema}, headers=VECTORS_ANSWER.headers)


def _body(model: type[BaseModel], example: Mapping[str, Any]) -> RequestBody:
    return RequestBody(model=model, examples={"example": example})


class Handlers:
    """Handlers of text-embeddings-inference's REST routes."""

    def __init__(self, context: ServiceContext, rerank_documents: DocumentsHandler) -> None:
        self._context = context
        self._registry = context.registry
        self._embed = EmbedHandler(context)
        self._rerank_documents = rerank_documents
        self._compare = VectorSimilarity(context)
        self._max_inputs = context.settings.max_inputs

    async def by_kind(self, request: Request) -> Response:
        """Answer a body of /rerank, /similarity, /predict or /embed.

        text-embeddings-inference has one of these here, by the kind of its model; huggingface_hub sends all of them.
        """
        body, default = request.body, self._registry.default
        classifies = default is not None and default.card.classifier is not None
        if classifies or await inline_or_in_thread(len(body), _is_marked, body):
            operation = await _read(request, self._operation)
            return await {"rerank": self.rerank, "similarity": self.similarity, "predict": self.predict}.get(
                operation, self._embed
            )(request)
        return await self._embed(request)

    def _operation(self, body: bytes) -> str:
        """Return the name of the operation that a body is for."""
        data = parse_json(body)
        if type(data) is not dict:
            return "embed"
        if "query" in data:
            return "rerank"
        inputs, name = data.get("inputs"), data.get("model")
        if type(inputs) is dict and "source_sentence" in inputs:
            return "similarity"
        model = self._registry.models.get(name) if type(name) is str else self._registry.default
        return "predict" if model is not None and operations.kind_of(model.card) != "embedding" else "embed"

    def _token_vectors_body(self, body: bytes) -> tuple[schemas.AllVectorsBody, list[Input]]:
        fields = _body_of(schemas.AllVectorsBody, body)
        return fields, decode(fields.inputs, self._max_inputs)

    async def embed_all(self, request: Request) -> Response:
        """Return a vector for each token."""
        encode = FORMATS[negotiate(request.headers.get(b"accept"))]
        body, inputs = await _read(request, self._token_vectors_body)
        output = operations.token_output(self._registry.get(body.model).card)
        result = await self._context.embedder.embed(_embed_request(body, inputs, output), request.context)
        if body.normalize_tokens:
            result = await inline_or_in_thread(json_arrays.count(result), _normalized, result)
        bare = result._replace(picked=False)
        headers, parts = await inline_or_in_thread(json_arrays.count(result), encode, bare, False)
        return formats.response(headers, parts, self._timing(request, result))

    async def similarity(self, request: Request) -> Response:
        """Return the score of a text with each of the others, or those of vectors in the body."""
        if QUERIES in request.body:
            data = await _read(request, parse_json)
            if type(data) is dict and "queries" in data:
                return await self._compare(data)
        return await self._similarities(request, await _read(request, _similarity_body))

    async def _similarities(self, request: Request, body: schemas.SimilarityBody) -> Response:
        texts, parameters = body.inputs, body.parameters or schemas.ComparisonParameters()
        model = self._registry.get(body.model)
        operations.check_batch(len(texts.sentences), self._max_inputs - 1, "inputs.sentences")
        side = schemas.direction(parameters.truncation_direction)
        if model.card.multi_vector and POOLED not in model.card.outputs:
            scores, result = await late_interaction.rank(
                self._context.embedder, model, texts.source_sentence, texts.sentences, request.context,
                parameters.truncate, side, parameters.prompt_name,
            )  # fmt: skip
            return json_response(scores.astype(np.float32))._replace(lines=self._timing(request, result))
        output = operations.pooled_output(model.card)
        options = EmbedOptions((output,), parameters.truncate, side, normalize=True, prompt_name=parameters.prompt_name)
        embed_request = EmbedRequest([Text(texts.source_sentence), *map(Text, texts.sentences)], body.model, options)
        result = await self._context.embedder.embed(embed_request, request.context)
        return json_response(_cosines(result))._replace(lines=self._timing(request, result))

    def _timing(self, request: Request, result: EmbedResult) -> bytes:
        return timing_headers.lines(result, self._registry, request.arrived)

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of each text."""
        body = await _read(request, partial(_body_of, schemas.TokenizeBody))
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        model = self._registry.get(body.model)
        document = await operations.tokenize(
            self._context, model, texts, body.add_special_tokens, body.prompt_name, answers.tokens_json
        )
        return bytes_response(document, "application/json")

    async def decode(self, request: Request) -> Response:
        """Return the text of each list of ids."""
        body, sequences = await _read(request, _decode_body)
        model = self._registry.get(body.model)
        return json_response(await operations.decode(self._context, model, sequences, body.skip_special_tokens))

    def _sparse_body(self, body: bytes) -> tuple[schemas.SparseBody, list[Input]]:
        fields = _body_of(schemas.SparseBody, body)
        return fields, decode(fields.inputs, self._max_inputs)

    async def embed_sparse(self, request: Request) -> Response:
        """Return the values of each input's sparse vector that are not 0."""
        body, inputs = await _read(request, self._sparse_body)
        operations.check_batch(len(inputs), self._max_inputs, "inputs")
        output = operations.sparse_output(self._registry.get(body.model).card)
        embed_request = _embed_request(body, inputs, output)
        options = embed_request.options._replace(input_type=body.input_type, max_active_dims=body.max_active_dims)
        embed_request = embed_request._replace(options=options)
        result = await self._context.embedder.embed(embed_request, request.context)
        headers, parts = await inline_or_in_thread(json_arrays.count(result), answers.sparse_json, result)
        return formats.response(headers, parts, self._timing(request, result))

    async def predict(self, request: Request) -> Response:
        """Return the labels of each text or pair and their scores, the best first."""
        body = await _read(request, partial(_body_of, schemas.PredictBody))
        inputs, parameters = body.inputs, body.parameters or schemas.PredictParameters()
        batch = isinstance(inputs, list) and isinstance(inputs[0], list)
        rows: Any = inputs if batch else [[inputs] if isinstance(inputs, str) else inputs]
        operations.check_batch(len(rows), self._max_inputs, "inputs")
        function = parameters.function_to_apply
        labelled = await classifying.classify(
            self._context.embedder,
            self._registry.get(body.model),
            [Text(*row) for row in rows],
            request.context,
            body.truncate,
            schemas.direction(body.truncation_direction),
            "identity" if body.raw_scores or function == "none" else function,
        )
        answer = await inline_or_in_thread(labelled.scores.size, schemas.predictions, labelled, parameters.top_k)
        nested = batch or body.parameters is not None  # the Inference API has a list of lists
        return json_response(answer if nested else answer[0])._replace(lines=self._timing(request, labelled.result))

    async def rerank(self, request: Request) -> Response:
        """Return the texts' numbers and scores, the best first; a body with `documents` is another protocol's."""
        data = await _read(request, parse_json)
        if type(data) is dict and "texts" not in data:
            if "documents" in data:
                return await self._rerank_documents(request, data)
            raise MissingField("is missing", field=("texts",), remedy=NEITHER, verbatim=True)
        request.render_error = render_ranking_problem
        body = await inline_or_in_thread(len(request.body), validated, schemas.RerankBody, data)
        operations.check_batch(len(body.texts), self._max_inputs, "texts")
        model = self._registry.get(body.model)
        ranks = await ranking.rank(
            self._context.embedder,
            model,
            body.query,
            body.texts,
            request.context,
            body.truncate,
            schemas.direction(body.truncation_direction),
            "identity" if body.raw_scores else "sigmoid",
        )
        texts = body.texts if body.return_text else None
        answer = [schemas.rank(index, score, texts) for index, score in ranks.best_first()]
        return json_response(answer)._replace(lines=self._timing(request, ranks.result))

    async def info(self, request: Request) -> Response:
        """Return what is served, and its limits."""
        query = validated(schemas.InfoQuery, dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)))
        return json_response(operations.info(self._context, self._registry.get(query.model)).model_dump())


def _embed_request(body: schemas.TokenVectorsBody, inputs: list[Input], output: str) -> EmbedRequest:
    """Return the request for one output of a model."""
    direction = schemas.direction(body.truncation_direction)
    options = EmbedOptions((output,), body.truncate, direction, prompt_name=body.prompt_name)
    return EmbedRequest(inputs, body.model, options)


async def _read(request: Request, read: Callable[[bytes], Result]) -> Result:
    """Return what `read` makes of a JSON body; a large one is read in a thread."""
    check_json(request.headers.get(b"content-type"))
    return await inline_or_in_thread(len(request.body), read, request.body)


def _is_marked(body: bytes) -> bool:
    """Return whether a body may be of another operation than /embed."""
    return any([mark in body for mark in MARKS])


def _body_of(model: type[Body], body: bytes) -> Body:
    return validated(model, parse_json(body))


def _similarity_body(body: bytes) -> schemas.SimilarityBody:
    return schemas.similarity_body(parse_json(body))


def _decode_body(body: bytes) -> tuple[schemas.DecodeBody, list[list[int]]]:
    fields = _body_of(schemas.DecodeBody, body)
    return fields, schemas.id_lists(fields.ids)


def _normalized(result: EmbedResult) -> EmbedResult:
    """Return the rows of a result's first output scaled to unit length."""
    output = result.outputs[0]
    return result._replace(outputs=(output._replace(rows=normalize(output.rows)),))


def _cosines(result: EmbedResult) -> NDArray[np.float32]:
    """Return the products of the first unit vector with the others, float32 [n - 1]."""
    source, *_ = rows = result.outputs[0].rows.astype(np.float64)
    cosines: NDArray[np.float32] = (rows[1:] @ source).astype(np.float32)
    return cosines

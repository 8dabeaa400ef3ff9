"""text-embeddings-inference's REST routes; POST /embed, whose fields are a superset of TEI's, is in protocols/inlay.

Errors are problem documents, which hold TEI's `error` and `error_type` too.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from service.context import ServiceContext
from service.embedding import truncation
from service.embedding.requests import EmbedRequest, EmbedResult, Input, Text
from service.http import formats, json_arrays
from service.http.formats import FORMATS, JSON, check_json, negotiate
from service.http.openapi import REFERENCE
from service.http.problem_details import MEDIA_TYPE, Problem, render_problem
from service.http.response import Response, json_response
from service.http.routes import Answer, Handler, Request, RequestBody, Route, RouteGroup, Schema
from service.http.validation_errors import Body, parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import timing_headers
from service.protocols.inlay.embed import EmbedHandler
from service.protocols.inlay.embed_answers import UNAUTHORIZED, VECTOR, VECTORS, VECTORS_ANSWER
from service.protocols.inlay.inputs import decode
from service.protocols.tei import operations, schemas

Result = TypeVar("Result")
TAG = "tei"
TAGS = {TAG: "The rest of text-embeddings-inference's contract; /embed is its superset."}
SENTENCES = b'"source_sentence"'  # a body without these bytes is not one of /similarity
COMPARED = {"inputs": {"source_sentence": "a text", "sentences": ["another", "a third"]}}
EITHER = {"anyOf": [{"$ref": REFERENCE.format(model=name)} for name in ("EmbedBody", "SimilarityBody")]}
TOKENS = {"type": "array", "items": {"type": "array", "items": schemas.TextToken.model_json_schema()}}
TEXTS = {"type": "array", "items": {"type": "string"}}
WRONG_KIND = Answer(description="The model is of another kind.", content={MEDIA_TYPE: Problem})


def routes(context: ServiceContext) -> RouteGroup:
    """Return text-embeddings-inference's routes."""
    handlers = Handlers(context)
    rows = [*_vector_routes(handlers), *_token_routes(handlers), *_unserved_routes(handlers), _info_route(handlers)]
    return RouteGroup(rows, render_problem, tags=TAGS)


def _vector_routes(handlers: "Handlers") -> list[Route]:
    either = _in_every_format({"anyOf": [VECTOR, VECTORS_ANSWER.content[JSON]]})
    either_body = RequestBody(schema=EITHER, examples={"texts": {"inputs": ["hello"]}, "similarity": COMPARED})
    embed_or_similarity = handlers.embed_or_similarity
    return [
        _post("/", embed_or_similarity, "tei_root", "/embed or /similarity", either_body, either, vectors=True),
        _post(
            "/invocations", embed_or_similarity, "tei_invocations", "/embed or /similarity, as SageMaker calls them",
            either_body, either, vectors=True,
        ),
        _post(
            "/embed_all", handlers.embed_all, "tei_embed_all",
            "A vector a token, special ones included, never normalised",
            _body(schemas.TokenVectorsBody, {"inputs": ["hello world"]}),
            _in_every_format({"type": "array", "items": VECTORS}), vectors=True,
        ),
        _post(
            "/similarity", handlers.similarity, "tei_similarity", "The cosine of a text with others",
            _body(schemas.SimilarityBody, COMPARED),
            Answer(content={JSON: VECTOR}, headers=timing_headers.HEADERS | truncation.HEADERS), vectors=True,
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


def _unserved_routes(handlers: "Handlers") -> list[Route]:
    rows: tuple[tuple[str, Handler, str, type[BaseModel], Mapping[str, Any]], ...] = (
        ("embed_sparse", handlers.embed_sparse, "is sparse", schemas.TokenVectorsBody, {"inputs": "a"}),
        ("predict", handlers.predict, "classifies", schemas.PredictBody, {"inputs": "a"}),
        ("rerank", handlers.rerank, "ranks", schemas.RerankBody, {"query": "a", "texts": ["b"]}),
    )
    return [
        _post(f"/{name}", handler, f"tei_{name}", f"Always an error: no model here {kind}", _body(model, example))
        for name, handler, kind, model, example in rows
    ]


def _info_route(handlers: "Handlers") -> Route:
    return Route(
        verb="GET",
        path="/info",
        handler=handlers.info,
        name="tei_info",
        summary="What is served, and its limits",
        tag=TAG,
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
    answer: Answer | None = None,
    *,
    vectors: bool = False,
) -> Route:
    answers = {424: WRONG_KIND} if answer is None else {200: answer}
    return Route(
        verb="POST",
        path=path,
        handler=handler,
        name=name,
        summary=summary,
        tag=TAG,
        body=body,
        answers=answers | {401: UNAUTHORIZED},
        vectors=vectors,
    )


def _in_every_format(schema: Schema) -> Answer:
    """Return the answer of a route with the formats of /embed, its JSON as in `schema`."""
    return Answer(content={**VECTORS_ANSWER.content, JSON: schema}, headers=VECTORS_ANSWER.headers)


def _body(model: type[BaseModel], example: Mapping[str, Any]) -> RequestBody:
    return RequestBody(model=model, examples={"example": example})


class Handlers:
    """Handlers of text-embeddings-inference's REST routes."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._registry = context.registry
        self._embed = EmbedHandler(context)
        self._max_inputs = context.settings.max_inputs

    async def embed_or_similarity(self, request: Request) -> Response:
        """Answer a body of /embed or of /similarity: huggingface_hub sends both to the same address."""
        if SENTENCES in request.body:
            body = await _read(request, _similarity_body_or_none)
            if body is not None:
                return await self._similarities(request, body)
        return await self._embed(request)

    def _token_vectors_body(self, body: bytes) -> tuple[schemas.TokenVectorsBody, list[Input]]:
        fields = _body_of(schemas.TokenVectorsBody, body)
        return fields, decode(fields.inputs, self._max_inputs)

    async def embed_all(self, request: Request) -> Response:
        """Return a vector for each token."""
        encode = FORMATS[negotiate(request.headers.get(b"accept"))]
        body, inputs = await _read(request, self._token_vectors_body)
        output = operations.token_output(self._registry.get(body.model).card)
        embed_request = EmbedRequest(
            inputs,
            body.model,
            (output,),
            body.truncate,
            schemas.direction(body.truncation_direction),
            prompt_name=body.prompt_name,
        )
        result = await self._context.embedder.embed(embed_request, request.context)
        bare = result._replace(picked=False)
        headers, parts = await inline_or_in_thread(json_arrays.count(result), encode, bare, False)
        return formats.response(headers, parts, self._timing(request, result))

    async def similarity(self, request: Request) -> Response:
        """Return the cosine of a text with each of the others."""
        return await self._similarities(request, await _read(request, _similarity_body))

    async def _similarities(self, request: Request, body: schemas.SimilarityBody) -> Response:
        texts, parameters = body.inputs, body.parameters or schemas.ComparisonParameters()
        output = operations.pooled_output(self._registry.get(body.model).card)
        operations.check_batch(len(texts.sentences), self._max_inputs - 1, "inputs.sentences")
        embed_request = EmbedRequest(
            [Text(texts.source_sentence), *map(Text, texts.sentences)],
            body.model,
            (output,),
            parameters.truncate,
            schemas.direction(parameters.truncation_direction),
            True,
            prompt_name=parameters.prompt_name,
        )
        result = await self._context.embedder.embed(embed_request, request.context)
        return json_response(_cosines(result))._replace(lines=self._timing(request, result))

    def _timing(self, request: Request, result: EmbedResult) -> bytes:
        return timing_headers.lines(result, self._registry, request.arrived)

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of each text."""
        body = await _read(request, partial(_body_of, schemas.TokenizeBody))
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        model = self._registry.get(body.model)
        tokens = await operations.tokenize(self._context, model, texts, body.add_special_tokens, body.prompt_name)
        return json_response(tokens)

    async def decode(self, request: Request) -> Response:
        """Return the text of each list of ids."""
        body, sequences = await _read(request, _decode_body)
        model = self._registry.get(body.model)
        return json_response(await operations.decode(self._context, model, sequences, body.skip_special_tokens))

    async def embed_sparse(self, request: Request) -> Response:
        """Raise WrongModelKind for a valid body."""
        body, inputs = await _read(request, self._token_vectors_body)
        operations.check_batch(len(inputs), self._max_inputs, "inputs")
        raise operations.not_sparse(self._registry.get(body.model).card)

    async def predict(self, request: Request) -> Response:
        """Raise WrongModelKind for a valid body."""
        body = await _read(request, partial(_body_of, schemas.PredictBody))
        raise operations.not_a_classifier(self._registry.get(body.model).card)

    async def rerank(self, request: Request) -> Response:
        """Raise WrongModelKind for a valid body."""
        body = await _read(request, partial(_body_of, schemas.RerankBody))
        operations.check_batch(len(body.texts), self._max_inputs, "texts")
        raise operations.not_a_ranker(self._registry.get(body.model).card)

    async def info(self, request: Request) -> Response:
        """Return what is served, and its limits."""
        query = validated(schemas.InfoQuery, dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)))
        return json_response(operations.info(self._context, self._registry.get(query.model)).model_dump())


async def _read(request: Request, read: Callable[[bytes], Result]) -> Result:
    """Return what `read` makes of a JSON body; a large one is read in a thread."""
    check_json(request.headers.get(b"content-type"))
    return await inline_or_in_thread(len(request.body), read, request.body)


def _body_of(model: type[Body], body: bytes) -> Body:
    return validated(model, parse_json(body))


def _similarity_body(body: bytes) -> schemas.SimilarityBody:
    return schemas.similarity_body(parse_json(body))


def _similarity_body_or_none(body: bytes) -> schemas.SimilarityBody | None:
    """Return the body of a comparison; None for one of /embed."""
    data = parse_json(body)
    if type(data) is dict and type(data.get("inputs")) is dict and "source_sentence" in data["inputs"]:
        return schemas.similarity_body(data)
    return None


def _decode_body(body: bytes) -> tuple[schemas.DecodeBody, list[list[int]]]:
    fields = _body_of(schemas.DecodeBody, body)
    return fields, schemas.id_lists(fields.ids)


def _cosines(result: EmbedResult) -> NDArray[np.float32]:
    """Return the products of the first unit vector with the others, float32 [n - 1]."""
    source, *_ = rows = result.outputs[0].rows.astype(np.float64)
    cosines: NDArray[np.float32] = (rows[1:] @ source).astype(np.float32)
    return cosines

"""The handlers of text-embeddings-inference's REST routes."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from models.recipes.heads import ScoreActivation
from service.context import ServiceContext
from service.embedding import ranking
from service.embedding.pooling import normalize
from service.embedding.requests import EmbedResult, Input, Text
from service.errors import MissingField, Spelling
from service.http.formats import count_values, encoder
from service.http.problem_details import render_problem
from service.http.response import Response, bytes_response, json_response
from service.http.routes import Request
from service.http.validation_errors import Body, parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import needs, vllm_fields
from service.protocols.inlay.embed import EmbedHandler, timing_lines
from service.protocols.inlay.inputs import decode
from service.protocols.inlay.parsing import read_json
from service.protocols.tei import answers, schemas
from service.protocols.tei.operations import (
    Operations,
    pooled_output,
    reading_of,
    sparse_output,
    token_output,
)
from service.protocols.tei.schemas import TokenVectorsBody, options_of

Vectors = TypeVar("Vectors", bound=TokenVectorsBody)
DocumentsHandler = Callable[[Request, Any], Awaitable[Response]]
MARKS = (b'"source_sentence"', b'"query"', b'"model"')  # without any, a body for a default model of vectors is /embed's
NEITHER = "send texts, as TEI has them, or documents, as Cohere, Jina, vLLM and infinity have them"
ACTIVATIONS: dict[str | None, ScoreActivation] = {"sigmoid": "sigmoid", "softmax": "softmax", "none": "identity"}
"""What `function_to_apply` makes of logits."""
render_ranking_problem = partial(render_problem, spelling=Spelling(fields={"inputs": "texts"}))


class Handlers:
    """Handlers of text-embeddings-inference's REST routes."""

    def __init__(self, context: ServiceContext, rerank_documents: DocumentsHandler) -> None:
        self._registry, self._max_inputs = context.registry, context.settings.max_inputs
        self._embedder, self._operations = context.embedder, Operations(context)
        self._embed = EmbedHandler(context)
        self._rerank_documents = rerank_documents

    async def by_kind(self, request: Request) -> Response:
        """Answer a body of /rerank, /similarity, /predict or /embed.

        text-embeddings-inference has one of these here, by the kind of its model; huggingface_hub sends all of them.
        """
        body, default = request.body, self._registry.default
        classifies = default is not None and needs.kind_of(default) != "embedding"
        if classifies or await inline_or_in_thread(len(body), _is_marked, body):
            return await (await read_json(request, self._handler))(request)
        return await self._embed(request)

    def _handler(self, body: bytes) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a body."""
        data = parse_json(body)
        if type(data) is not dict:
            return self._embed
        if "query" in data:
            return self.rerank
        inputs, name = data.get("inputs"), data.get("model")
        if type(inputs) is dict and "source_sentence" in inputs:
            return self.similarity
        model = self._registry.models.get(name) if type(name) is str else self._registry.default
        return self._embed if model is None or needs.kind_of(model) == "embedding" else self.predict

    def _vectors_body(self, body: bytes, model: type[Vectors]) -> tuple[Vectors, list[Input]]:
        fields = _body_of(body, model)
        return fields, decode(fields.inputs, self._max_inputs)

    async def embed_all(self, request: Request) -> Response:
        """Return a vector for each token."""
        encode = encoder(request.headers.get(b"accept"))
        body, inputs = await read_json(request, self._vectors_body, schemas.AllVectorsBody)
        model = self._registry.get(body.model)
        result = await self._operations.embed(model, inputs, options_of(body), token_output, request.context)
        if body.normalize_tokens:
            result = await inline_or_in_thread(count_values(result), _normalized, result)
        bare = result._replace(picked=False)
        response = await inline_or_in_thread(count_values(result), encode, bare, False)
        return self._timed(request, response, result)

    async def embed_sparse(self, request: Request) -> Response:
        """Return the non-zero values of each input's sparse vector."""
        body, inputs = await read_json(request, self._vectors_body, schemas.SparseBody)
        self._operations.check_batch(len(inputs), "inputs")
        options = options_of(body)._replace(input_type=body.input_type, max_active_dims=body.max_active_dims)
        model = self._registry.get(body.model)
        result = await self._operations.embed(model, inputs, options, sparse_output, request.context)
        response = await inline_or_in_thread(count_values(result), answers.sparse_json, result)
        return self._timed(request, response, result)

    async def similarity(self, request: Request) -> Response:
        """Return the similarity of a text to each of the others."""
        body, texts, parameters = await read_json(request, schemas.similarity_body)
        model, options = self._registry.get(body.model), options_of(parameters)
        self._operations.check_batch(len(texts.sentences), "inputs.sentences", besides=1)
        scores: NDArray[Any]
        if needs.compares_tokens(model):
            scores, result = await ranking.rank_by_maxsim(
                self._embedder, model, texts.source_sentence, texts.sentences, request.context, options
            )
        else:
            inputs = [Text(texts.source_sentence), *map(Text, texts.sentences)]
            options = options._replace(normalize=True)
            result = await self._operations.embed(model, inputs, options, pooled_output, request.context)
            scores = _cosines(result)
        return self._timed(request, json_response(scores.astype(np.float32)), result)

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of each text."""
        body = await read_json(request, _body_of, schemas.TokenizeBody)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        document = await self._operations.tokenize(
            self._registry.get(body.model), texts, body.add_special_tokens, body.prompt_name, answers.tokens_json
        )
        return bytes_response(document, "application/json")

    async def decode(self, request: Request) -> Response:
        """Return the text of each list of ids."""
        body, sequences = await read_json(request, _decode_body)
        model = self._registry.get(body.model)
        return json_response(await self._operations.decode(model, sequences, body.skip_special_tokens))

    async def predict(self, request: Request) -> Response:
        """Return the labels of each text or pair and their scores, the best first."""
        body = await read_json(request, _body_of, schemas.PredictBody)
        inputs, parameters = body.inputs, body.parameters or schemas.PredictParameters()
        batch = isinstance(inputs, list) and isinstance(inputs[0], list)
        rows: Any = inputs if batch else [[inputs] if isinstance(inputs, str) else inputs]
        self._operations.check_batch(len(rows), "inputs")
        activation = ACTIVATIONS.get("none" if body.raw_scores else parameters.function_to_apply)
        labelled = await self._operations.label(
            self._registry.get(body.model), [Text(*row) for row in rows], options_of(body), activation, request.context
        )
        predictions = await inline_or_in_thread(
            labelled.scores.size, vllm_fields.best_labels, labelled, parameters.top_k
        )
        nested = batch or body.parameters is not None  # the Inference API has a list of lists
        document = predictions if nested else predictions[0]
        return self._timed(request, json_response(document), labelled.result)

    async def rerank(self, request: Request) -> Response:
        """Return the texts' numbers and scores, the best first; a body with `documents` goes to Cohere's handler."""
        data = await read_json(request, parse_json)
        if type(data) is dict and "texts" not in data:
            if "documents" in data:
                return await self._rerank_documents(request, data)
            raise MissingField("is missing", field=("texts",), remedy=NEITHER, verbatim=True)
        request.render_error = render_ranking_problem
        body = await inline_or_in_thread(len(request.body), validated, schemas.RerankBody, data)
        model, reading = self._registry.get(body.model), reading_of(options_of(body), body.raw_scores)
        ranks = await self._operations.rank(model, body.query, body.texts, reading, request.context)
        best: list[dict[str, Any]] = [{"index": index, "score": score} for index, score in ranks.best_first()]
        if body.return_text:
            best = [entry | {"text": body.texts[entry["index"]]} for entry in best]
        return self._timed(request, json_response(best), ranks.result)

    async def info(self, request: Request) -> Response:
        """Return the default model, this server's version and its limits."""
        query = validated(schemas.InfoQuery, dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)))
        return json_response(self._operations.info(self._registry.get(query.model)).model_dump())

    def _timed(self, request: Request, response: Response, result: EmbedResult) -> Response:
        return response._replace(lines=timing_lines(result, self._registry, request.arrived))


def _is_marked(body: bytes) -> bool:
    """Return whether a body may be for another operation than /embed."""
    return any([mark in body for mark in MARKS])


def _body_of(body: bytes, model: type[Body]) -> Body:
    return validated(model, parse_json(body))


def _decode_body(body: bytes) -> tuple[schemas.DecodeBody, list[list[int]]]:
    fields = _body_of(body, schemas.DecodeBody)
    return fields, schemas.id_lists(fields.ids)


def _normalized(result: EmbedResult) -> EmbedResult:
    """Return the rows of a result's first output scaled to unit length."""
    output = result.outputs[0]
    return result._replace(outputs=(output._replace(rows=normalize(output.rows)),))


def _cosines(result: EmbedResult) -> NDArray[np.float64]:
    """Return the cosines of the first vector with the others, [n - 1]."""
    source, *_ = rows = result.outputs[0].rows.astype(np.float64)
    return np.asarray(rows[1:] @ source)

"""The operations of text-embeddings-inference, which gRPC shares, and the handlers of its REST routes.

Operations raise WrongModelKind where a model does not do what they are for, and the errors of EmbeddingPipeline.embed.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import numpy as np
import orjson

from models.artifacts.card import Card
from models.recipes.heads import ScoreActivation
from service.context import ServiceContext
from service.embedding import ranking
from service.embedding.limits import check_characters, too_many_tokens
from service.embedding.model import Model
from service.embedding.outputs.kind import HIDDEN, POOLED
from service.embedding.pooling import POOLINGS, normalize
from service.embedding.requests import DIRECTIONS, EmbedOptions, EmbedRequest, EmbedResult, Input, Text
from service.embedding.tokenize.prompts import prompt_of
from service.embedding.tokenize.tokenizer import Token, Tokenizer, beside
from service.errors import EmptyRequest, MissingField, Spelling, TooManyInputs, WrongModelKind
from service.http.formats import array_response, count_values, encoder
from service.http.problem_details import render_problem
from service.http.response import JSON_HEADERS, Response, bytes_response
from service.http.routes import Request
from service.http.validation_errors import body_of, parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.machine import available_cpus
from service.protocols.inlay import needs, vllm_fields
from service.protocols.inlay.embed import EmbedHandler, timing_lines
from service.protocols.inlay.inputs import decode
from service.protocols.inlay.options import CutFields
from service.protocols.inlay.parsing import read_json
from service.protocols.tei import answers, schemas
from service.protocols.tei.schemas import TokenVectorsBody
from service.registry.loading import BATCH_VALUES, encoder_tokens
from service.request_context import RequestContext

Vectors = TypeVar("Vectors", bound=TokenVectorsBody)
Written = TypeVar("Written")
DocumentsHandler = Callable[[Request, Any], Awaitable[Response]]
MARKS = (b'"source_sentence"', b'"query"', b'"model"')  # without any, a body for a default model of vectors is /embed's
NEITHER = "send texts, as TEI has them, or documents, as Cohere, Jina, vLLM and infinity have them"
ACTIVATIONS: dict[str | None, ScoreActivation] = {"sigmoid": "sigmoid", "softmax": "softmax", "none": "identity"}
"""What `function_to_apply` makes of logits."""
INPUT_LAYER = "input_embeddings"
POOLING_NAMES = {"lasttoken": "last_token"}  # TEI's names, where they differ: it has cls, mean, last_token and splade
render_ranking_problem = partial(render_problem, spelling=Spelling(fields={"inputs": "texts"}))


class Operations:
    """The operations of text-embeddings-inference over both protocols."""

    def __init__(self, context: ServiceContext) -> None:
        self.context, self.registry, self.settings = context, context.registry, context.settings
        self.scorer = context.scorer

    async def vectors(
        self,
        model: Model,
        inputs: Sequence[Input],
        options: EmbedOptions,
        output_of: Callable[[Card], str],
        call: RequestContext,
    ) -> EmbedResult:
        """Return the one output that `output_of` names for a model."""
        options = options._replace(outputs=(output_of(model.card),))
        return await self.context.embedder.embed(EmbedRequest(inputs, model.card.name, options), call)

    async def tokens(
        self,
        model: Model,
        texts: Sequence[str],
        special_tokens: bool,
        prompt_name: str | None,
        written: Callable[[list[list[Token]]], Written],
    ) -> Written:
        """Return every token of each text after its prompt; offsets count from the prompt's beginning.

        Args:
            written: writes the tokens; a function of a module, which runs off the event loop where they are many.
        """
        tokenizer = tokenizer_of(model)
        self.check_batch(len(texts), "inputs")
        check_characters([Text(text) for text in texts], self.settings)
        prompt, most = prompt_of(model.card, prompt_name), self.settings.max_request_tokens
        texts, budget = [prompt + text for text in texts], self.context.budget
        return await beside(sum(map(len, texts)), budget, tokenizer.tokens, texts, special_tokens, most, written)

    async def texts(self, model: Model, sequences: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        """Return the text of each sequence of ids."""
        tokenizer = tokenizer_of(model)
        self.check_batch(len(sequences), "ids")
        count, most = sum(map(len, sequences)), self.settings.max_request_tokens
        if count > most:
            raise too_many_tokens(count, most, ("ids",))
        ids = [list(each) for each in sequences]
        return await beside(count, self.context.budget, tokenizer.decode, ids, skip_special_tokens)

    def describe(self, model: Model) -> dict[str, Any]:
        """Return the document of /info about this server and a model."""
        card, settings = model.card, self.settings
        lengths = (settings.max_request_tokens, card.max_tokens, card.position.longest())
        batch_tokens = max(1, BATCH_VALUES // card.hidden_size)
        if HIDDEN in card.outputs:
            batch_tokens = settings.max_batch_tokens or encoder_tokens(model.engine, model.choice)
        return {
            "model_id": card.source if "/" in card.source else card.name,
            "model_sha": None,
            "model_dtype": model.choice.precision if model.choice.closeness else card.dtype,
            "served_model_name": card.name,
            "model_type": _model_type(model),
            "max_concurrent_requests": settings.max_concurrent_requests,
            "max_input_length": min([length for length in lengths if length is not None]),
            "max_batch_tokens": batch_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": settings.max_inputs,
            "auto_truncate": settings.auto_truncate,
            "tokenization_workers": available_cpus(),
            "version": self.context.version,
            "sha": None,
            "docker_label": None,
        }

    def check_batch(self, size: int, name: str, *, besides: int = 0) -> None:
        """Raise EmptyRequest for an empty list, TooLarge for one that with `besides` others exceeds the limit."""
        most = self.settings.max_inputs - besides
        if not size:
            raise EmptyRequest(f"`{name}` cannot be empty", remedy="send one at least")
        if size > most:
            raise TooManyInputs(f"batch size {size} > maximum allowed batch size {most}", remedy=f"send fewer {name}")


class Handlers(Operations):
    """Handlers of text-embeddings-inference's REST routes."""

    def __init__(self, context: ServiceContext, rerank_documents: DocumentsHandler) -> None:
        super().__init__(context)
        self._embed, self._rerank_documents = EmbedHandler(context, ignores_fields=True), rerank_documents

    async def by_kind(self, request: Request) -> Response:
        """Answer a body of /rerank, /similarity, /predict or /embed.

        text-embeddings-inference has one of these here, by the kind of its model; huggingface_hub sends all of them.
        """
        body, default = request.body, self.registry.default
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
        model = self.registry.find(name) if type(name) is str else self.registry.default
        return self._embed if model is None or needs.kind_of(model) == "embedding" else self.predict

    def _vectors_body(self, body: bytes, model: type[Vectors]) -> tuple[Vectors, list[Input]]:
        fields = body_of(body, model)
        return fields, decode(fields.inputs, self.settings.max_inputs)

    async def embed_all(self, request: Request) -> Response:
        """Return a vector for each token."""
        encode = encoder(request.head.headers.get(b"accept"))
        body, inputs = await read_json(request, self._vectors_body, schemas.AllVectorsBody)
        model = self.registry.get(body.model)
        result = await self.vectors(model, inputs, options_of(body), token_output, request.context)
        if body.normalize_tokens:
            result = await inline_or_in_thread(count_values(result), _normalized, result)
        bare = result._replace(picked=False)
        response = await inline_or_in_thread(count_values(result), encode, bare, False)
        return response._replace(lines=timing_lines(result, self.registry, request.arrived))

    async def embed_sparse(self, request: Request) -> Response:
        """Return the non-zero values of each input's sparse vector."""
        body, inputs = await read_json(request, self._vectors_body, schemas.SparseBody)
        self.check_batch(len(inputs), "inputs")
        options = options_of(body)._replace(input_type=body.input_type, max_active_dims=body.max_active_dims)
        model = self.registry.get(body.model, needs.has_sparse_vectors)
        result = await self.vectors(model, inputs, options, sparse_output, request.context)
        response = await inline_or_in_thread(count_values(result), answers.sparse_json, result)
        return response._replace(lines=timing_lines(result, self.registry, request.arrived))

    async def similarity(self, request: Request) -> Response:
        """Return the similarity of a text to each of the others."""
        body, texts, parameters = await read_json(request, schemas.similarity_body)
        model, options, call = self.registry.get(body.model), options_of(parameters), request.context
        self.check_batch(len(texts.sentences), "inputs.sentences", besides=1)
        if needs.compares_tokens(model):
            pair = texts.source_sentence, texts.sentences
            scores, result = await self.scorer.maxsim(model, *pair, call, options)
        else:
            inputs, options = map(Text, (texts.source_sentence, *texts.sentences)), options._replace(normalize=True)
            result = await self.vectors(model, list(inputs), options, pooled_output, call)
            source, *_ = rows = result.outputs[0].rows.astype(np.float64)
            scores = rows[1:] @ source
        lines = timing_lines(result, self.registry, request.arrived)
        return array_response(scores.astype(np.float32), 0)._replace(lines=lines)

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of each text."""
        body = await read_json(request, body_of, schemas.TokenizeBody)
        texts, model = [body.inputs] if isinstance(body.inputs, str) else body.inputs, self.registry.get(body.model)
        how = body.add_special_tokens, body.prompt_name, answers.tokens_json
        return bytes_response(await self.tokens(model, texts, *how), "application/json")

    async def decode(self, request: Request) -> Response:
        """Return the text of each list of ids."""
        body, sequences = await read_json(request, _decode_body, self.settings.max_request_tokens)
        texts = await self.texts(self.registry.get(body.model), sequences, body.skip_special_tokens)
        return array_response(texts, 0)

    async def predict(self, request: Request) -> Response:
        """Return the labels of each text or pair and their scores, the best first."""
        body = await read_json(request, body_of, schemas.PredictBody)
        inputs, parameters = body.inputs, body.parameters or schemas.PredictParameters()
        batch = isinstance(inputs, list) and isinstance(inputs[0], list)
        rows: Any = inputs if batch else [[inputs] if isinstance(inputs, str) else inputs]
        self.check_batch(len(rows), "inputs")
        activation = ACTIVATIONS.get("none" if body.raw_scores else parameters.function_to_apply)
        texts, model = [Text(*row) for row in rows], self.registry.get(body.model, *needs.LABELLING)
        labelled = await self.scorer.classify(
            model, texts, request.context, ranking.Reading(options_of(body), activation)
        )
        predictions = await inline_or_in_thread(
            labelled.scores.size, vllm_fields.best_labels, labelled, parameters.top_k
        )
        nested = batch or body.parameters is not None  # the Inference API has a list of lists
        lines = timing_lines(labelled.result, self.registry, request.arrived)
        return array_response(predictions if nested else predictions[0], 0)._replace(lines=lines)

    async def rerank(self, request: Request) -> Response:
        """Return the texts' numbers and scores, the best first; a body with `documents` goes to Cohere's handler."""
        request.render_error = render_ranking_problem
        data, body = await read_json(request, _ranking_body)
        if body is None:
            return await self._rerank_documents(request, data)
        self.check_batch(len(body.texts), "texts")
        pairs = [(body.query, text) for text in body.texts]
        reading = ranking.Reading(options_of(body), "identity" if body.raw_scores else "sigmoid")
        ranks = await self.scorer.score(self.registry.get(body.model, needs.ranks), pairs, request.context, reading)
        best: list[dict[str, Any]] = [{"index": index, "score": score} for index, score in ranks.best_first()]
        if body.return_text:
            best = [entry | {"text": body.texts[entry["index"]]} for entry in best]
        lines = timing_lines(ranks.result, self.registry, request.arrived)
        return Response((orjson.dumps(best),), JSON_HEADERS, lines=lines)

    async def info(self, request: Request) -> Response:
        """Return the default model, this server's version and its limits."""
        sent = parse_qsl(request.head.query.decode("latin-1"), keep_blank_values=True)
        query = validated(schemas.InfoQuery, dict(sent))
        return array_response(self.describe(self.registry.get(query.model)), 0)


# ---- bodies


def _is_marked(body: bytes) -> bool:
    """Return whether a body may be for another operation than /embed."""
    return any([mark in body for mark in MARKS])


def _decode_body(body: bytes, most: int) -> tuple[schemas.DecodeBody, list[list[int]]]:
    fields = body_of(body, schemas.DecodeBody)
    return fields, schemas.id_lists(fields.ids, most)


def _ranking_body(body: bytes) -> tuple[Any, schemas.RerankBody | None]:
    """Return the JSON of a body and, unless it has documents, its fields."""
    data = parse_json(body)
    if type(data) is not dict or "texts" in data:
        return data, validated(schemas.RerankBody, data)
    if "documents" not in data:
        raise MissingField("is missing", field=("texts",), remedy=NEITHER, verbatim=True)
    return data, None


def options_of(body: CutFields) -> EmbedOptions:
    """Return how the texts of a body are cut, and their prompt."""
    return EmbedOptions(
        truncate=body.truncate,
        truncation_direction=DIRECTIONS[body.truncation_direction],
        prompt_name=getattr(body, "prompt_name", None),
    )


def _normalized(result: EmbedResult) -> EmbedResult:
    """Return the rows of a result's first output scaled to unit length."""
    output = result.outputs[0]
    return result._replace(outputs=(output._replace(rows=normalize(output.rows)),))


# ---- what a model gives


def tokenizer_of(model: Model) -> Tokenizer:
    """Return the tokenizer of a model; raise WrongModelKind if it has none."""
    if model.tokenizer is None:
        raise WrongModelKind(f"{model.card.name} was exported without a tokenizer", allowed="it reads ids alone")
    return model.tokenizer


def _model_type(model: Model) -> dict[str, dict[str, Any]]:
    kind, card = needs.kind_of(model), model.card
    if kind == "embedding":
        pooling = card.pooling.mode if card.pooling else "splade" if needs.sparse_output(card) else "none"
        return {kind: {"pooling": POOLING_NAMES.get(pooling, pooling)}}
    labels = {str(number): label for number, label in enumerate(needs.labels_of(model))}
    return {kind: {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}}


def pooled_output(card: Card) -> str:
    """Return the name of the output that holds one vector per text; raise WrongModelKind if there is none."""
    if POOLED in card.outputs:
        return POOLED
    raise WrongModelKind(
        "Model is not an embedding model",
        allowed=f"{card.name} has {', '.join(card.outputs)} and no sentence vector",
        remedy=f"send a pooling ({', '.join(POOLINGS)}) to /embed"
        if HIDDEN in card.outputs
        else "ask /embed for these",
    )


def token_output(card: Card) -> str:
    """Return the name of the output that holds one vector per token: the encoder's, else the input layer's.

    Raises:
        WrongModelKind: the model has neither.
    """
    for name in (HIDDEN, INPUT_LAYER):
        if name in card.outputs:
            return name
    allowed = f"{card.name} gives {', '.join(card.outputs)} alone, by /embed"
    raise WrongModelKind("Model has no token embeddings", allowed=allowed)


def sparse_output(card: Card) -> str:
    """Return the name of the output that holds a sparse vector per text; raise WrongModelKind if there is none."""
    if name := needs.sparse_output(card):
        return name
    dense = f"{card.name} gives {'dense vectors' if POOLED in card.outputs else ', '.join(card.outputs)}, by /embed"
    raise WrongModelKind("Model is not an embedding model with SPLADE pooling", remedy=dense)

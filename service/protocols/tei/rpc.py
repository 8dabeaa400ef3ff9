"""tei.v1 over gRPC: Info, Embed, Predict, Rerank and Tokenize.

Clients name no model, so every call is served by the default model. Fields that are not set have proto3's defaults:
`truncate` and the two flags of special tokens are then false, unlike over REST.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.recipes.classifier import ScoreActivation
from proto import tei_pb2 as pb
from service.context import ServiceContext
from service.embedding import classifying, limits, ranking
from service.embedding.model import Model
from service.embedding.requests import Direction, EmbedRequest, EmbedResult, Text
from service.embedding.scoring import Reading, Scorer, ranks_pairs
from service.errors import BadRequest, EmptyRequest, UnknownValue, WrongShape
from service.grpc.methods import Metadata, Method, Service, serialize
from service.http.formats import buffer
from service.protocols.inlay import timing_headers
from service.protocols.inlay.rpc_messages import varint
from service.protocols.tei import operations, sparse_answers, token_answers
from service.protocols.tei.errors import grpc_message, grpc_status
from service.request_context import RequestContext

DIRECTIONS: dict[int, Direction] = {
    pb.TRUNCATION_DIRECTION_RIGHT: "right",
    pb.TRUNCATION_DIRECTION_LEFT: "left",
}
METADATA_TAGS = (b"\x08", b"\x10", b"\x18", b"\x20", b"\x28", b"\x30")
FIELD_1, FIELD_2 = b"\x0a", b"\x12"  # each is followed by a length and its bytes
VectorsRequest = pb.EmbedRequest | pb.EmbedAllRequest | pb.EmbedSparseRequest
PredictRequest = pb.PredictRequest | pb.PredictPairRequest


class Vectors(NamedTuple):
    """The vectors of one text.

    Args:
        rows: float32 [1, width] of Embed, [tokens, width] of EmbedAll, [values, 1] of EmbedSparse.
        result: of the core.
        seconds: since the request arrived.
    """

    rows: NDArray[np.float32]
    result: EmbedResult
    seconds: float


def services(context: ServiceContext) -> tuple[Service, ...]:
    """Return the services of tei.v1; health checks report NOT_SERVING for those that no model here supports."""
    handlers = Handlers(context)

    def has_default() -> bool:
        return context.registry.default is not None

    def serves(*kinds: str) -> Callable[[], bool]:
        def serving() -> bool:
            default = context.registry.default
            return default is not None and not default.card.image and operations.kind_of(default.card) in kinds

        return serving

    rows: tuple[tuple[str, Sequence[Method], Callable[[], bool]], ...] = (
        ("Info", [Method(name="Info", request=pb.InfoRequest, handler=handlers.info)], has_default),
        ("Embed", _embed_methods(handlers), serves("embedding")),
        ("Predict", _predict_methods(handlers), serves("classifier", "reranker")),
        ("Rerank", _rerank_methods(handlers), serves("reranker")),
        ("Tokenize", _tokenize_methods(handlers), has_default),
    )
    return tuple(
        Service(
            name=f"tei.v1.{name}",
            methods=methods,
            serving=serving,
            metric_prefix="tei.",
            status_of=grpc_status,
            message_of=grpc_message,
        )
        for name, methods, serving in rows
    )


def _embed_methods(handlers: "Handlers") -> list[Method]:
    unary = Method(
        name="Embed",
        request=pb.EmbedRequest,
        handler=handlers.embed,
        serialize=embed_response,
        admitted=True,
        initial_metadata=handlers.initial_metadata,
    )
    unary_all = replace(
        unary, name="EmbedAll", request=pb.EmbedAllRequest, handler=handlers.embed_all, serialize=embed_all_response
    )
    sparse = replace(
        unary,
        name="EmbedSparse",
        request=pb.EmbedSparseRequest,
        handler=handlers.embed_sparse,
        serialize=embed_sparse_response,
    )
    return _with_streams(unary, unary_all, sparse)


def _predict_methods(handlers: "Handlers") -> list[Method]:
    unary = Method(
        name="Predict",
        request=pb.PredictRequest,
        handler=handlers.predict,
        serialize=timed_response,
        admitted=True,
        initial_metadata=handlers.initial_metadata,
    )
    return _with_streams(unary, replace(unary, name="PredictPair", request=pb.PredictPairRequest))


def _rerank_methods(handlers: "Handlers") -> list[Method]:
    unary = Method(
        name="Rerank",
        request=pb.RerankRequest,
        handler=handlers.rerank,
        serialize=timed_response,
        admitted=True,
        initial_metadata=handlers.initial_metadata,
    )
    stream = replace(
        unary,
        name="RerankStream",
        request=pb.RerankStreamRequest,
        handler=handlers.rerank_stream,
        kind="client_stream",
        admitted=False,
        initial_metadata=None,
    )
    return [unary, stream]


def _tokenize_methods(handlers: "Handlers") -> list[Method]:
    return _with_streams(
        Method(name="Tokenize", request=pb.EncodeRequest, handler=handlers.tokenize, serialize=bytes, admitted=True),
        Method(name="Decode", request=pb.DecodeRequest, handler=handlers.decode, admitted=True),
    )


def _with_streams(*methods: Method) -> list[Method]:
    """Return unary methods, and for each the one that answers a stream of its requests."""
    streams = [
        replace(method, name=f"{method.name}Stream", kind="bidirectional", initial_metadata=None) for method in methods
    ]
    return [*methods, *streams]


class Handlers:
    """Handlers of tei.v1, each for one request of the default model."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._scorer = Scorer(context.embedder, context.budget, context.settings)

    def _model(self) -> Model:
        registry = self._context.registry
        if registry.default is None:
            raise BadRequest(
                "calls of tei.v1 name no model",
                allowed=registry.default_fault() or "no model is loaded",
                remedy="set INLAY_DEFAULT_MODEL where the server starts, or call inlay.v1",
            )
        return registry.default

    async def info(self, request: pb.InfoRequest, call: RequestContext) -> pb.InfoResponse:
        """Return the same as /info."""
        info = operations.info(self._context, self._model())
        names = {field.name for field in pb.InfoResponse.DESCRIPTOR.fields} - {"model_type"}
        (kind,) = info.model_type
        facts = {name: getattr(info, name) for name in names}
        return pb.InfoResponse(**facts, model_type=f"MODEL_TYPE_{kind.upper()}")

    async def embed(self, request: pb.EmbedRequest, call: RequestContext) -> Vectors:
        """Return the vector of a text."""
        normalize = request.normalize if request.HasField("normalize") else True
        dimensions = request.dimensions if request.HasField("dimensions") else None
        return await self._vectors(request, call, operations.pooled_output, normalize, dimensions)

    async def embed_all(self, request: pb.EmbedAllRequest, call: RequestContext) -> Vectors:
        """Return the vectors of a text's tokens."""
        return await self._vectors(request, call, operations.token_output, None, None)

    async def _vectors(
        self,
        request: VectorsRequest,
        call: RequestContext,
        output_of: Callable[[Card], str],
        normalize: bool | None,
        dimensions: int | None,
    ) -> Vectors:
        started, model = perf_counter(), self._model()
        embed_request = EmbedRequest(
            [Text(_text(request.inputs))],
            model.card.name,
            (output_of(model.card),),
            request.truncate,
            _direction(request.truncation_direction),
            normalize,
            dimensions,
            prompt_name=_prompt_name(request),
        )
        result = await self._context.embedder.embed(embed_request, call)
        return Vectors(result.outputs[0].rows, result, perf_counter() - started)

    def initial_metadata(self, answer: "Vectors | Timed") -> Metadata:
        """Return the timing headers of an answer."""
        return timing_headers.metadata(answer.result, self._context.registry, perf_counter() - answer.seconds)

    async def tokenize(self, request: pb.EncodeRequest, call: RequestContext) -> bytes:
        """Return the tokens of a text, as wire bytes."""
        texts, special_tokens = [_text(request.inputs)], request.add_special_tokens
        model, prompt_name = self._model(), _prompt_name(request)
        return await operations.tokenize(
            self._context, model, texts, special_tokens, prompt_name, token_answers.message
        )

    async def decode(self, request: pb.DecodeRequest, call: RequestContext) -> pb.DecodeResponse:
        """Return the text of token ids."""
        if not request.ids:
            raise EmptyRequest("`ids` cannot be empty", remedy="send one at least")
        ids, skip = list(request.ids), request.skip_special_tokens
        (text,) = await operations.decode(self._context, self._model(), [ids], skip)
        return pb.DecodeResponse(text=text)

    async def embed_sparse(self, request: pb.EmbedSparseRequest, call: RequestContext) -> Vectors:
        """Return the sparse vector of a text."""
        return await self._vectors(request, call, operations.sparse_output, None, None)

    async def predict(self, request: PredictRequest, call: RequestContext) -> "Timed":
        """Return the labels of a text or pair with their scores, the best first."""
        started, model = perf_counter(), self._model()
        texts = [request.inputs] if isinstance(request, pb.PredictRequest) else list(request.inputs)
        if classifying.classifies(model.card) and not 1 <= len(texts) <= 2:
            allowed = "`inputs` must have a single or two elements"
            raise WrongShape(f"`inputs` has {len(texts)} elements", allowed=allowed)
        labelled = await classifying.classify(
            self._context.embedder,
            model,
            [Text(texts[0], texts[1] if len(texts) == 2 else None)] if texts else [],
            call,
            request.truncate,
            _direction(request.truncation_direction),
            "identity" if request.raw_scores else None,
        )
        best = [pb.Prediction(label=label, score=score) for label, score in labelled.best_first(0)]
        return Timed(pb.PredictResponse(predictions=best), labelled.result, perf_counter() - started)

    async def rerank(self, request: pb.RerankRequest, call: RequestContext) -> "Timed":
        """Return the texts' numbers and scores, the best first."""
        started, model = perf_counter(), self._ranking_model()
        texts = list(request.texts)
        operations.check_batch(len(texts), self._context.settings.max_inputs, "texts")
        ranks = await ranking.rank(
            self._context.embedder,
            model,
            request.query,
            texts,
            call,
            request.truncate,
            _direction(request.truncation_direction),
            "identity" if request.raw_scores else "sigmoid",
        )
        return _ranked(ranks, texts if request.return_text else None, started)

    async def rerank_stream(self, requests: AsyncIterator[pb.RerankStreamRequest], call: RequestContext) -> "Timed":
        """Return the same of the pairs of a stream; the first message says whether scores are raw and texts returned.

        Each pair is cut as its own message says.
        """
        started, model = perf_counter(), self._ranking_model()
        settings, read, characters = self._context.settings, list[pb.RerankStreamRequest](), 0
        async for request in requests:
            read.append(request)
            operations.check_batch(len(read), settings.max_inputs, "texts")
            characters += len(request.query) + len(request.text)
            limits.check_character_count(characters, settings)
        operations.check_batch(len(read), settings.max_inputs, "texts")
        activation: ScoreActivation = "identity" if read[0].raw_scores else "sigmoid"
        pairs = [(request.query, request.text) for request in read]
        readings = [Reading(each.truncate, _direction(each.truncation_direction), activation) for each in read]
        ranks = await self._scorer.score_each(model, pairs, call, readings)
        return _ranked(ranks, [request.text for request in read] if read[0].return_text else None, started)

    def _ranking_model(self) -> Model:
        """Return the default model; raise WrongModelKind before a stream is read if it does not rank."""
        model = self._model()
        if not ranks_pairs(model.card):
            raise ranking.not_a_ranker(model.card)
        return model


class Timed(NamedTuple):
    """A message whose metadata says what it took.

    Args:
        message: without its metadata.
        result: of the core.
        seconds: since the request arrived.
    """

    message: pb.PredictResponse | pb.RerankResponse
    result: EmbedResult
    seconds: float


def _ranked(ranks: ranking.Ranks, texts: Sequence[str] | None, started: float) -> Timed:
    best = [
        pb.Rank(index=index, score=score, text=None if texts is None else texts[index])
        for index, score in ranks.best_first()
    ]
    return Timed(pb.RerankResponse(ranks=best), ranks.result, perf_counter() - started)


def timed_response(answer: Timed) -> bytes:
    """Return a serialized message behind which its metadata stands, field 2 of both."""
    return serialize(answer.message) + _metadata(answer.result, answer.seconds)


def _text(inputs: str) -> str:
    if not inputs:  # proto3 does not tell an empty text from one that was not set
        raise EmptyRequest("`inputs` cannot be empty", remedy="send some text")
    return inputs


def _direction(number: int) -> Direction:
    if number not in DIRECTIONS:
        names = ", ".join(pb.TruncationDirection.keys())
        raise UnknownValue(f"is {number}", field=("truncation_direction",), allowed=f"allowed: {names}")
    return DIRECTIONS[number]


def _prompt_name(request: VectorsRequest | pb.EncodeRequest) -> str | None:
    return request.prompt_name if request.HasField("prompt_name") else None


def embed_response(vectors: Vectors) -> bytes:
    """Return a serialized EmbedResponse, byte for byte protobuf's own.

    Setting a `repeated float` makes a Python float of every number; packed, it is the rows' little-endian bytes after
    their length. Fields are written in the order of their numbers and zeros are left out (protobuf encoding, proto3).
    """
    floats = buffer(vectors.rows)
    return b"".join([FIELD_1, varint(len(floats)), floats, _metadata(vectors.result, vectors.seconds)])


def embed_all_response(vectors: Vectors) -> bytes:
    """Return a serialized EmbedAllResponse, which holds a message for each token."""
    count, width = vectors.rows.shape
    floats = FIELD_1 + varint(4 * width)
    head = np.frombuffer(FIELD_1 + varint(len(floats) + 4 * width) + floats, np.uint8)
    tokens = np.empty((count, len(head) + 4 * width), np.uint8)
    tokens[:, : len(head)] = head
    tokens[:, len(head) :] = np.frombuffer(buffer(vectors.rows), np.uint8).reshape(count, 4 * width)
    return b"".join([tokens.data.cast("B"), _metadata(vectors.result, vectors.seconds)])


def embed_sparse_response(vectors: Vectors) -> bytes:
    """Return a serialized EmbedSparseResponse, which holds a message for each value that is not 0."""
    indices = vectors.result.outputs[0].indices
    assert indices is not None
    values = sparse_answers.messages(indices, vectors.rows[:, 0])
    return values + _metadata(vectors.result, vectors.seconds)


def _metadata(result: EmbedResult, since: float) -> bytes:
    times = result.times
    seconds = (since, times.tokenization, times.queue, times.inference)
    values = (result.characters, result.tokens, *[int(duration * 1e9) for duration in seconds])
    packed = b"".join([tag + varint(value) for tag, value in zip(METADATA_TAGS, values, strict=True) if value])
    return FIELD_2 + varint(len(packed)) + packed

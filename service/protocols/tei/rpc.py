"""tei.v1 over gRPC: Info, Embed, Predict, Rerank and Tokenize.

Clients name no model, so every call is served by the default model of its kind. Fields that are not set have
proto3's defaults: `truncate` and the two flags of special tokens are then false, unlike over REST.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from models.artifacts.card import Card
from proto import tei_pb2 as pb
from service.context import ServiceContext
from service.embedding import limits, ranking
from service.embedding.model import Model
from service.embedding.ranking import classifies, ranks_pairs
from service.embedding.requests import Direction, EmbedOptions, EmbedResult, Text
from service.errors import BadRequest, EmptyRequest, InlayError, Unauthorized, UnknownValue, WrongShape
from service.grpc.methods import Metadata, Method, Service, serialize
from service.http.formats import count_values
from service.http.problem_details import error_type
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import needs
from service.protocols.inlay.embed import timing_metadata
from service.protocols.tei import answers
from service.protocols.tei.handlers import Operations, pooled_output, sparse_output, token_output
from service.registry.registry import Kind
from service.request_context import RequestContext

DIRECTIONS: dict[int, Direction | None] = {
    pb.TRUNCATION_DIRECTION_RIGHT: None,  # a message that leaves it out says the same
    pb.TRUNCATION_DIRECTION_LEFT: "left",
}
KINDS: dict[str, tuple[Kind, ...]] = {"Predict": needs.LABELLING, "Rerank": (needs.ranks,)}
"""Kinds of the default model of a service; any kind for others."""
GRPC_STATUSES = {
    "Unhealthy": "UNAVAILABLE",
    "Backend": "FAILED_PRECONDITION",
    "Overloaded": "RESOURCE_EXHAUSTED",
    "Validation": "INVALID_ARGUMENT",
    "Empty": "INVALID_ARGUMENT",
}
"""gRPC status by `error_type`."""
OTHER_GRPC_STATUSES = {"error": "INTERNAL", "unauthorized": "UNAUTHENTICATED", "deadline_exceeded": "DEADLINE_EXCEEDED"}
"""gRPC status of errors that text-embeddings-inference does not have, by code."""
MESSAGE_COST = 16  # of a sparse value in a message, to one in JSON
VectorsRequest = pb.EmbedRequest | pb.EmbedAllRequest | pb.EmbedSparseRequest
PredictRequest = pb.PredictRequest | pb.PredictPairRequest


class Timed(NamedTuple):
    """An answer whose metadata holds timings.

    Args:
        message: without its metadata.
        result: result of the core.
        entries: wire bytes of the message's first field, which are written apart from it.
        seconds: since the request was taken up.
    """

    message: Any
    result: EmbedResult
    entries: bytes = b""
    seconds: float = 0.0


def services(context: ServiceContext) -> tuple[Service, ...]:
    """Return the services of tei.v1; health checks report NOT_SERVING for those that no loaded model supports."""
    registry, handlers = context.registry, Handlers(context)
    kinds = {"Embed": ("embedding",), "Predict": ("classifier", "reranker"), "Rerank": ("reranker",)}

    def serves(name: str) -> bool:
        default = registry.default_of(*KINDS.get(name, ()))
        if default is None or name not in kinds:
            return default is not None
        return not needs.reads_images(default) and needs.kind_of(default) in kinds[name]

    return tuple(
        Service(
            name=contract.full_name,
            methods=[_method(handlers, rpc) for rpc in contract.methods],
            serving=partial(serves, contract.name),
            metric_prefix="tei.",
            status_of=grpc_status,
            message_of=grpc_message,
        )
        for contract in pb.DESCRIPTOR.services_by_name.values()
    )


def _method(handlers: "Handlers", rpc: Any) -> Method:
    """Return a method of the contract; one named EmbedStream answers a stream of the requests of Embed."""
    handler = handlers.of_methods.get(rpc.name) or handlers.of_methods[rpc.name.removesuffix("Stream")]
    is_unary, is_timed = not rpc.client_streaming, "metadata" in rpc.output_type.fields_by_name
    made: Callable[[Any], bytes] = bytes if rpc.output_type.name == "EncodeResponse" else serialize

    async def timed(request: Any, call: RequestContext) -> Timed:
        started = perf_counter()
        answer: Timed = await handler(request, call)
        return answer._replace(seconds=perf_counter() - started)

    return Method(
        name=rpc.name,
        request=getattr(pb, rpc.input_type.name),
        handler=timed if is_timed else handler,
        serialize=timed_response if is_timed else made,
        kind="unary" if is_unary else "bidirectional" if rpc.server_streaming else "client_stream",
        admitted=rpc.name not in ("Info", "RerankStream"),
        initial_metadata=handlers.initial_metadata if is_timed and is_unary else None,
    )


class Handlers(Operations):
    """Handlers of tei.v1; each serves the default model of its kind.

    Attributes:
        of_methods: the handlers by the names of their methods.
    """

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self.of_methods: dict[str, Callable[[Any, RequestContext], Any]] = {
            "Info": self.info,
            "Embed": self.embed,
            "EmbedAll": self.embed_all,
            "EmbedSparse": self.embed_sparse,
            "Predict": self.predict,
            "PredictPair": self.predict,
            "Rerank": self.rerank,
            "RerankStream": self.rerank_stream,
            "Tokenize": self.tokenize,
            "Decode": self.decode,
        }

    def _model(self, *kinds: Kind) -> Model:
        registry = self.registry
        if (model := registry.default_of(*kinds)) is None:
            raise BadRequest(
                "calls of tei.v1 name no model",
                allowed=registry.default_fault() or "no model is loaded",
                remedy="set INLAY_DEFAULT_MODEL where the server starts, or call inlay.v1",
            )
        return registry.get(model.card.name)

    async def info(self, request: pb.InfoRequest, call: RequestContext) -> pb.InfoResponse:
        """Return the answer of /info."""
        info = self.describe(self._model())
        names = {field.name for field in pb.InfoResponse.DESCRIPTOR.fields} - {"model_type"}
        (kind,) = info["model_type"]
        return pb.InfoResponse(**{name: info[name] for name in names}, model_type=f"MODEL_TYPE_{kind.upper()}")

    async def embed(self, request: pb.EmbedRequest, call: RequestContext) -> Timed:
        """Return the vector of a text."""
        options = _options(request)._replace(
            normalize=request.normalize if request.HasField("normalize") else True,
            dimensions=request.dimensions if request.HasField("dimensions") else None,
        )
        result = await self._of_text(request, options, pooled_output, call)
        return Timed(pb.EmbedResponse(embeddings=result.outputs[0].rows[0].tolist()), result)

    async def embed_all(self, request: pb.EmbedAllRequest, call: RequestContext) -> Timed:
        """Return the vectors of a text's tokens."""
        result = await self._of_text(request, _options(request), token_output, call)
        return Timed(pb.EmbedAllResponse(), result, answers.token_embeddings(result.outputs[0].rows))

    async def embed_sparse(self, request: pb.EmbedSparseRequest, call: RequestContext) -> Timed:
        """Return the sparse vector of a text."""
        result = await self._of_text(request, _options(request), sparse_output, call)
        cost = MESSAGE_COST * count_values(result)
        return Timed(await inline_or_in_thread(cost, answers.sparse_message, result), result)

    async def _of_text(
        self, request: VectorsRequest, options: EmbedOptions, output_of: Callable[[Card], str], call: RequestContext
    ) -> EmbedResult:
        options = options._replace(prompt_name=_prompt_name(request))
        model = self._model(*([needs.has_sparse_vectors] if output_of is sparse_output else []))
        return await self.vectors(model, [Text(_text(request.inputs))], options, output_of, call)

    def initial_metadata(self, answer: Timed) -> Metadata:
        """Return the timing headers of an answer."""
        return timing_metadata(answer.result, self.registry, perf_counter() - answer.seconds)

    async def tokenize(self, request: pb.EncodeRequest, call: RequestContext) -> bytes:
        """Return the tokens of a text, as wire bytes."""
        texts, how = [_text(request.inputs)], (request.add_special_tokens, _prompt_name(request))
        return await self.tokens(self._model(), texts, *how, answers.tokens_message)

    async def decode(self, request: pb.DecodeRequest, call: RequestContext) -> pb.DecodeResponse:
        """Return the text of token ids."""
        if not request.ids:
            raise EmptyRequest("`ids` cannot be empty", remedy="send one at least")
        (text,) = await self.texts(self._model(), [request.ids], request.skip_special_tokens)
        return pb.DecodeResponse(text=text)

    async def predict(self, request: PredictRequest, call: RequestContext) -> Timed:
        """Return the labels of a text or pair with their scores, the best first."""
        model = self._model(*needs.LABELLING)
        texts = [request.inputs] if isinstance(request, pb.PredictRequest) else list(request.inputs)
        if classifies(model.card) and not 1 <= len(texts) <= 2:
            allowed = "`inputs` must have a single or two elements"
            raise WrongShape(f"`inputs` has {len(texts)} elements", allowed=allowed)
        inputs = [Text(texts[0], texts[1] if len(texts) == 2 else None)] if texts else []
        reading = ranking.Reading(_options(request), "identity" if request.raw_scores else None)
        labelled = await self.scorer.classify(model, inputs, call, reading)
        best = [pb.Prediction(label=label, score=score) for label, score in labelled.best_first(0)]
        return Timed(pb.PredictResponse(predictions=best), labelled.result)

    async def rerank(self, request: pb.RerankRequest, call: RequestContext) -> Timed:
        """Return the texts' numbers and scores, the best first."""
        model, texts = self._ranking_model(), list(request.texts)
        self.check_batch(len(texts), "texts")
        query, reading = request.query, _reading(request, request.raw_scores)  # each look makes another string
        ranks = await self.scorer.score(model, [(query, text) for text in texts], call, reading)
        return _ranked(ranks, texts if request.return_text else None)

    async def rerank_stream(self, requests: AsyncIterator[pb.RerankStreamRequest], call: RequestContext) -> Timed:
        """Rank the pairs of a stream; the first message says whether to return raw scores and texts.

        Each pair is cut as its own message says.
        """
        model, read, characters = self._ranking_model(), list[pb.RerankStreamRequest](), 0
        async for request in requests:
            read.append(request)
            self.check_batch(len(read), "texts")
            characters += len(request.query) + len(request.text)
            if characters > self.settings.max_request_characters:
                raise limits.too_many_characters(characters, self.settings.max_request_characters)
        self.check_batch(len(read), "texts")
        pairs = [(request.query, request.text) for request in read]
        readings = [_reading(request, read[0].raw_scores) for request in read]
        ranks = await self.scorer.score_each(model, pairs, call, readings)
        return _ranked(ranks, [request.text for request in read] if read[0].return_text else None)

    def _ranking_model(self) -> Model:
        """Return the default reranker; raise WrongModelKind if the default model is none, before a stream is read."""
        model = self._model(needs.ranks)
        if not ranks_pairs(model.card):
            raise ranking.not_a_ranker(model.card)
        return model


def _ranked(ranks: ranking.Ranks, texts: Sequence[str] | None) -> Timed:
    best = [
        pb.Rank(index=index, score=score, text=None if texts is None else texts[index])
        for index, score in ranks.best_first()
    ]
    return Timed(pb.RerankResponse(ranks=best), ranks.result)


def grpc_status(error: InlayError) -> str:
    """Return the name of an error's gRPC status."""
    return OTHER_GRPC_STATUSES.get(error.code) or GRPC_STATUSES[error_type(error)]


def grpc_message(error: InlayError) -> str:
    """Return the message of an error."""
    return f"No valid auth token: {error.message}" if isinstance(error, Unauthorized) else error.message


def timed_response(answer: Timed) -> bytes:
    """Return a serialized message with its metadata, which follows its entries."""
    result, times = answer.result, answer.result.times
    metadata = pb.Metadata(
        compute_chars=result.characters,
        compute_tokens=result.tokens,
        total_time_ns=int(answer.seconds * 1e9),
        tokenization_time_ns=int(times.tokenization * 1e9),
        queue_time_ns=int(times.queue * 1e9),
        inference_time_ns=int(times.inference * 1e9),
    )
    answer.message.metadata.CopyFrom(metadata)
    return answer.entries + serialize(answer.message)


def _text(inputs: str) -> str:
    if not inputs:  # proto3 does not tell an empty text from one that was not set
        raise EmptyRequest("`inputs` cannot be empty", remedy="send some text")
    return inputs


def _direction(number: int) -> Direction | None:
    if number not in DIRECTIONS:
        names = ", ".join(pb.TruncationDirection.keys())
        raise UnknownValue(f"is {number}", field=("truncation_direction",), allowed=f"allowed: {names}")
    return DIRECTIONS[number]


def _options(request: VectorsRequest | PredictRequest | pb.RerankRequest | pb.RerankStreamRequest) -> EmbedOptions:
    """Return how the texts of a message are cut."""
    return EmbedOptions(truncate=request.truncate, truncation_direction=_direction(request.truncation_direction))


def _reading(request: pb.RerankRequest | pb.RerankStreamRequest, raw: bool) -> ranking.Reading:
    return ranking.Reading(_options(request), "identity" if raw else "sigmoid")


def _prompt_name(request: VectorsRequest | pb.EncodeRequest) -> str | None:
    return request.prompt_name if request.HasField("prompt_name") else None

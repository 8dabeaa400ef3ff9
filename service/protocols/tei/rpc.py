"""tei.v1: Info, Embed and Tokenize over gRPC; Predict and Rerank say that no model here does that.

Its clients name no model, so every call is the default model's. What is unset reads as proto3 has it: `truncate` and
the two flags of special tokens are false here, unlike over REST.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any, Literal, TypeVar

from proto import tei_pb2 as pb
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.requests import EmbedRequest, Text
from service.embedding.tokenization import Token
from service.error_status import STATUSES, TEI_GRPC
from service.errors import BadRequest, EmptyRequest, InlayError
from service.grpc.methods import (
    CALL,
    Context,
    Service,
    abort,
    collects,
    guarded,
    streams,
    unary,
)
from service.protocols.tei import model_kinds as kinds
from service.protocols.tei import rpc_messages as messages
from service.protocols.tei import timing_headers as spent
from service.protocols.tei.info import info
from service.protocols.tei.tokenization import decoded, tokenised

COUNTED = "tei."  # before a method's name in the metrics
SIDES: dict[int, Literal["right", "left"]] = {
    pb.TRUNCATION_DIRECTION_RIGHT: "right",
    pb.TRUNCATION_DIRECTION_LEFT: "left",
}
UNKNOWN_TO_TEI = {"error": "INTERNAL", "unauthorized": "UNAUTHENTICATED", "deadline_exceeded": "DEADLINE_EXCEEDED"}
Answer = TypeVar("Answer")
Work = Callable[[Any], Awaitable[Any]]


def services(context: ServiceContext) -> tuple[Service, ...]:
    """The five services of tei.v1; health checks hear NOT_SERVING of those that no model here is for."""
    own = Methods(context)
    default = context.registry.default
    embeds = default is not None and not default.card.image
    rows: tuple[tuple[str, dict[str, Any], bool], ...] = (
        ("Info", {"Info": own.one("Info", pb.InfoRequest, own.info)}, True),
        ("Embed", own.embed_handlers(), embeds),
        ("Predict", own.predict_handlers(), False),
        ("Rerank", own.rerank_handlers(), False),
        ("Tokenize", own.tokenize_handlers(), True),
    )
    return tuple(
        Service(f"tei.v1.{name}", handlers, serving=serving, counted=COUNTED, status_of=status_of)
        for name, handlers, serving in rows
    )


def status_of(error: InlayError) -> str:
    """The gRPC status text-embeddings-inference gives an error."""
    return UNKNOWN_TO_TEI.get(error.code) or TEI_GRPC[STATUSES[error.code].tei]


class Methods:
    """The methods of every service, on the default model."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def embed_handlers(self) -> dict[str, Any]:
        """Method name → handler; vectors are written by tei/messages.py."""
        bytes_of, bytes_of_all = messages.embed_response, messages.embed_all_response
        return {
            "Embed": self.one("Embed", pb.EmbedRequest, self.embed, bytes_of),
            "EmbedStream": self.many("EmbedStream", pb.EmbedRequest, self.embed, bytes_of),
            "EmbedAll": self.one("EmbedAll", pb.EmbedAllRequest, self.embed_all, bytes_of_all),
            "EmbedAllStream": self.many("EmbedAllStream", pb.EmbedAllRequest, self.embed_all, bytes_of_all),
            "EmbedSparse": self.one("EmbedSparse", pb.EmbedSparseRequest, self.not_sparse),
            "EmbedSparseStream": self.many("EmbedSparseStream", pb.EmbedSparseRequest, self.not_sparse),
        }

    def predict_handlers(self) -> dict[str, Any]:
        """Method name → handler."""
        return {
            "Predict": self.one("Predict", pb.PredictRequest, self.not_a_classifier),
            "PredictPair": self.one("PredictPair", pb.PredictPairRequest, self.not_a_classifier),
            "PredictStream": self.many("PredictStream", pb.PredictRequest, self.not_a_classifier),
            "PredictPairStream": self.many("PredictPairStream", pb.PredictPairRequest, self.not_a_classifier),
        }

    def rerank_handlers(self) -> dict[str, Any]:
        """Method name → handler; RerankStream collects its texts into one answer."""
        one = self._one("RerankStream", self.not_a_ranker)
        return {
            "Rerank": self.one("Rerank", pb.RerankRequest, self.not_a_ranker),
            "RerankStream": collects(one, pb.RerankStreamRequest),
        }

    def tokenize_handlers(self) -> dict[str, Any]:
        """Method name → handler."""
        return {
            "Tokenize": self.one("Tokenize", pb.EncodeRequest, self.tokenize),
            "TokenizeStream": self.many("TokenizeStream", pb.EncodeRequest, self.tokenize),
            "Decode": self.one("Decode", pb.DecodeRequest, self.decode),
            "DecodeStream": self.many("DecodeStream", pb.DecodeRequest, self.decode),
        }

    def one(self, method: str, kind: Any, work: Work, *serialise: Callable[[Any], bytes]) -> Any:
        """A handler of one request and one answer."""
        return unary(self._one(method, work), kind, *serialise)

    def many(self, method: str, kind: Any, work: Work, *serialise: Callable[[Any], bytes]) -> Any:
        """A handler of a stream: answers in the requests' order, the first failure ends it."""
        return streams(partial(self._guarded, method, work), kind, *serialise, ends=status_of)

    def _one(self, method: str, work: Work) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            answer = await self._guarded(method, work, request)
            if isinstance(answer, InlayError):
                await abort(context, answer, status_of)
            if isinstance(answer, messages.Answered):
                await context.send_initial_metadata(self._told(answer))
            return answer

        return call

    async def _guarded(self, method: str, work: Work, request: Any) -> Any:
        return await guarded(self._context.metrics, f"{COUNTED}{method}", work, request, status_of)

    def _told(self, answer: messages.Answered) -> tuple[tuple[str, str], ...]:
        told = spent.headers(answer.result, self._context.registry, perf_counter() - answer.seconds)
        return tuple([(name.decode(), value.decode()) for name, value in told])

    def _model(self) -> Model:
        """The model of every call.

        raises   BadRequest where there is no default
        """
        model = self._context.registry.default
        if model is None:
            raise BadRequest(
                "tei.v1 names no model and this server has no default: set INLAY_DEFAULT_MODEL, or call inlay.v1"
            )
        return model

    async def info(self, request: pb.InfoRequest) -> pb.InfoResponse:
        """What /info says."""
        told = info(self._context, self._model())
        names = {field.name for field in pb.InfoResponse.DESCRIPTOR.fields} - {"model_type"}
        return pb.InfoResponse(**{name: getattr(told, name) for name in names}, model_type=pb.MODEL_TYPE_EMBEDDING)

    async def embed(self, request: pb.EmbedRequest) -> messages.Answered:
        """The text's vector."""
        normalize = request.normalize if request.HasField("normalize") else True
        dimensions = request.dimensions if request.HasField("dimensions") else None
        return await self._vectors(request, kinds.pooled_output, normalize, dimensions)

    async def embed_all(self, request: pb.EmbedAllRequest) -> messages.Answered:
        """The text's token vectors."""
        return await self._vectors(request, kinds.token_output, None, None)

    async def _vectors(
        self, request: Any, output_of: Callable[[Any], str], normalize: bool | None, dimensions: int | None
    ) -> messages.Answered:
        started, model = perf_counter(), self._model()
        asked = EmbedRequest(
            [Text(_text(request.inputs))],
            model.card.name,
            (output_of(model.card),),
            request.truncate,
            _side(request.truncation_direction),
            normalize,
            dimensions,
            prompt_name=_prompt(request),
        )
        with self._context.admission.admitted():
            result = await self._context.embedder.embed(asked, CALL.get())
        return messages.Answered(result.outputs[0].rows, result, perf_counter() - started)

    async def tokenize(self, request: pb.EncodeRequest) -> pb.EncodeResponse:
        """The text's tokens."""
        text, special = _text(request.inputs), request.add_special_tokens
        (tokens,) = await tokenised(self._context, self._model(), [text], special, _prompt(request))
        return pb.EncodeResponse(tokens=map(_token, tokens))

    async def decode(self, request: pb.DecodeRequest) -> pb.DecodeResponse:
        """The ids' text."""
        if not request.ids:
            raise EmptyRequest("`ids` cannot be empty: send one at least")
        (text,) = await decoded(self._context, self._model(), [list(request.ids)], request.skip_special_tokens)
        return pb.DecodeResponse(text=text)

    async def not_sparse(self, request: Any) -> None:
        """No model here gives sparse vectors."""
        raise kinds.not_sparse(self._model().card)

    async def not_a_classifier(self, request: Any) -> None:
        """No model here classifies."""
        raise kinds.not_a_classifier(self._model().card)

    async def not_a_ranker(self, request: Any) -> None:
        """No model here ranks."""
        raise kinds.not_a_ranker(self._model().card)


def _text(inputs: str) -> str:
    if not inputs:  # proto3 can't tell an empty text from one that was never set
        raise EmptyRequest("`inputs` cannot be empty: send some text")
    return inputs


def _side(number: int) -> Literal["right", "left"]:
    if number not in SIDES:
        raise BadRequest(f"truncation_direction is {number}; allowed: {', '.join(pb.TruncationDirection.keys())}")
    return SIDES[number]


def _prompt(request: Any) -> str | None:
    name: str | None = request.prompt_name if request.HasField("prompt_name") else None
    return name


def _token(token: Token) -> pb.SimpleToken:
    return pb.SimpleToken(id=token.id, text=token.text, special=token.special, start=token.start, stop=token.stop)

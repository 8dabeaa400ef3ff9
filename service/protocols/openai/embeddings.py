"""POST /v1/embeddings, /embeddings and /pooling: bodies, the road, answers. Plain ASGI; documents.py describes them."""

from time import perf_counter

from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.output_plan import HIDDEN, POOLED
from service.embedding.requests import EmbedRequest, Ids
from service.errors import BadInput, BadRequest, WrongModelKind
from service.http import json_arrays as numbers
from service.http.endpoint import Answer, Call, Endpoint
from service.http.formats import check_json
from service.protocols.openai import responses as answers
from service.protocols.openai.bodies import (
    EmbeddingsBody,
    PoolingBody,
    Reader,
    Wanted,
)
from service.protocols.openai.errors import refusal

EMBEDDINGS = "/v1/embeddings"
UNVERSIONED = "/embeddings"  # infinity's, and that of a base_url without /v1
POOLING = "/pooling"
TOKENS = "token_embed"


def endpoints(context: ServiceContext) -> dict[str, Endpoint]:
    """The ASGI application of each path."""
    vectors = _endpoint("embeddings", Reader(EmbeddingsBody), answers.EMBEDDING, context)
    pooled = _endpoint("pooling", Reader(PoolingBody), answers.POOLING, context)
    return {EMBEDDINGS: vectors, UNVERSIONED: vectors, POOLING: pooled}


def _endpoint(method: str, read: Reader, shape: answers.Shape, context: ServiceContext) -> Endpoint:
    async def answer(call: Call) -> Answer:
        started = perf_counter()
        check_json(call.fields.get(b"content-type"))
        request, wanted, id_ = read(await call.body())
        model = context.registry.get(request.model)
        request = _fitted(request, wanted, model, shape)
        result = await context.embedder.embed(request, call.request.context)
        if wanted.task == TOKENS and request.normalize is not False:
            result = answers.of_unit_length(result)
        id_ = id_ or call.fields.get(b"x-request-id", b"").decode("latin-1")
        headers, body = await numbers.written(numbers.count(result), answers.answer, result, wanted, shape, id_)
        spent = b"%d" % round(1000 * (perf_counter() - started))
        return Answer((*headers, (b"openai-processing-ms", spent)), body)

    return Endpoint(method, answer, refusal, context)


def _fitted(request: EmbedRequest, wanted: Wanted, model: Model, shape: answers.Shape) -> EmbedRequest:
    """The request with the output this path answers with.

    raises   WrongModelKind, BadRequest or BadInput where the model cannot answer
    """
    card = model.card
    _check_ids(request, card.name, card.vocab_size)
    if wanted.longest is not None and card.max_tokens is not None and wanted.longest > card.max_tokens:
        raise BadRequest(
            f"truncate_prompt_tokens is {wanted.longest}; {card.name} reads {card.max_tokens}: "
            f"send -1, or 1 to {card.max_tokens}"
        )
    if request.outputs and wanted.task:
        raise BadRequest("task and output both say which rows are wanted: send one of them")
    if request.outputs and request.outputs[0] not in card.outputs:
        raise BadRequest(f"output is {request.outputs[0]!r}; {card.name} has {', '.join(card.outputs)}")
    if card.image or request.outputs:
        return request  # the encoder says where images go
    if wanted.task == TOKENS:
        if HIDDEN not in card.outputs:
            raise WrongModelKind(f"{card.name} has no {HIDDEN}: leave out task, or send output, one of its outputs")
        return request._replace(outputs=(HIDDEN,), normalize=False if request.normalize is False else None)
    if (shape is answers.EMBEDDING or wanted.task == "embed") and card.default_output != POOLED:
        raise WrongModelKind(
            f"{card.name} gives a vector a token, {card.default_output}, and no vector of a text: POST to {POOLING} or "
            "/embed, or export it with --pooling"
        )
    return request


def _check_ids(request: EmbedRequest, name: str, vocab_size: int) -> None:
    """Raise BadInput where ids are of another vocabulary; ids of another one that this one has too cannot be told."""
    for index, each in enumerate(request.inputs):
        if isinstance(each, Ids) and len(each.ids) and (largest := int(each.ids.max())) >= vocab_size:
            raise BadInput(
                f"input[{index}] holds the token id {largest}; the vocabulary of {name} ends at {vocab_size - 1}. "
                "If you sent text, your client tokenised it for another model: langchain-openai does unless you pass "
                "check_embedding_ctx_length=False",
                index,
            )

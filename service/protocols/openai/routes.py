"""OpenAI's routes: /v1/embeddings, /embeddings, /v1/models, and vLLM's /pooling, /score and /classify."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from time import perf_counter, time
from typing import Any, NamedTuple

from numpy.typing import NDArray
from pydantic import BaseModel

from models.artifacts.card import IMAGE_VECTOR, SPARSE
from service.context import ServiceContext
from service.embedding import truncation
from service.embedding.images import ImagesRequest, Picture, reads_images
from service.embedding.model import Model
from service.embedding.output_plan import HIDDEN, POOLED
from service.embedding.packing import split
from service.embedding.pooling import normalize
from service.embedding.requests import EmbedRequest, EmbedResult, Ids, Output
from service.errors import ConflictingFields, OutOfRange, UnknownValue, WrongModelKind
from service.http import formats, json_arrays
from service.http.formats import JSON, OCTETS, Body, Headers, check_json, json_body
from service.http.response import Response, json_response
from service.http.routes import Answer, Example, Handler, Request, RequestBody, Route, RouteGroup
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import needs, pooled_bytes
from service.protocols.inlay.models import created
from service.protocols.inlay.tags import EMBED, MODELS
from service.protocols.openai import schemas, scoring
from service.protocols.openai.errors import OpenAIError, render_error
from service.protocols.openai.schemas import Decoder, OpenAIModel, OpenAIModelList, ResponseOptions

PREFIXES = ("/v1", "/embeddings", "/pooling", "/score", "/classify")
TOKEN_EMBED = "token_embed"
EMBEDDINGS_ABOUT = "OpenAI's route, with vLLM's and infinity's fields. One vector an input."
POOLING_ABOUT = "vLLM's route: as /v1/embeddings, and rows of tokens where the model or `task` gives them."
EXAMPLES = schemas.EXAMPLES | {"image": Example(value=schemas.EXAMPLES["image"], need=needs.IMAGES_OF_OPENAI)}
HEADERS = {
    "metadata": "with encoding_format bytes: JSON that says where each vector lies, as vLLM has it"
} | truncation.HEADERS
VECTOR_BYTES = {"type": "string", "format": "binary", "description": "vectors in the order of the inputs"}


class Shape(NamedTuple):
    """How the responses of a path look.

    Args:
        id_prefix: the beginning of the response's id.
        object: the `object` of an entry.
        field: the entry's field that holds the vector.
        any_rows: it may answer with a vector for each token.
    """

    id_prefix: str
    object: str
    field: str
    any_rows: bool


EMBEDDING = Shape("embd-", "embedding", "embedding", False)
POOLING = Shape("pooling-", "pooling", "data", True)


def routes(context: ServiceContext) -> RouteGroup:
    """Return OpenAI's routes."""
    embeddings = _embedding_handler(context, Decoder(schemas.EmbeddingsBody), EMBEDDING)
    pooling = _embedding_handler(context, Decoder(schemas.PoolingBody), POOLING)
    rows = [
        _embedding_route("/v1/embeddings", embeddings, "openai_embeddings", "Embed as OpenAI does"),
        _embedding_route("/embeddings", embeddings, "embeddings", "The same without /v1"),
        _embedding_route("/pooling", pooling, "pooling", "Embed as vLLM's pooling does", pooled=True),
        *scoring.routes(context),
        *_model_routes(context),
    ]
    return RouteGroup(rows, render_error, PREFIXES, (OpenAIError, JSON))


def _embedding_route(path: str, handler: Handler, name: str, summary: str, *, pooled: bool = False) -> Route:
    content: Mapping[str, Any] = {JSON: schemas.PoolingList if pooled else schemas.EmbeddingList, OCTETS: VECTOR_BYTES}
    return Route(
        verb="POST",
        path=path,
        handler=handler,
        name=name,
        summary=summary,
        tag=EMBED,
        description=POOLING_ABOUT if pooled else EMBEDDINGS_ABOUT,
        body=RequestBody(model=schemas.PoolingBody if pooled else schemas.EmbeddingsBody, examples=EXAMPLES),
        answers={200: Answer(description="The vectors, in the order of the inputs.", content=content, headers=HEADERS)},
        vectors=True,
    )


def _model_routes(context: ServiceContext) -> list[Route]:
    registry, settings = context.registry, context.settings

    def entry(model: Model) -> OpenAIModel:
        card = model.card
        return OpenAIModel(
            id=card.name, created=created(settings, model), max_model_len=card.max_tokens, root=card.source
        )

    async def list_models(request: Request) -> Response:
        return _json(OpenAIModelList(data=[entry(model) for model in registry.models.values()]))

    async def get_model(request: Request) -> Response:
        return _json(entry(registry.get(request.parameters["name"])))

    rows: tuple[tuple[str, Handler, str, str, type[BaseModel]], ...] = (
        ("/v1/models", list_models, "openai_models", "Every loaded model, as OpenAI lists them", OpenAIModelList),
        ("/v1/models/{name:path}", get_model, "openai_model", "One model, as OpenAI has it", OpenAIModel),
    )
    return [
        Route(
            verb="GET",
            path=path,
            handler=handler,
            name=name,
            summary=summary,
            tag=MODELS,
            answers={200: Answer(description="What is loaded.", content={JSON: model})},
            admitted=False,
        )
        for path, handler, name, summary, model in rows
    ]


def _json(document: BaseModel) -> Response:
    return json_response(document.model_dump())


def _embedding_handler(context: ServiceContext, decode: Decoder, shape: Shape) -> Handler:
    registry, embedder = context.registry, context.embedder

    async def handler(request: Request) -> Response:
        began = perf_counter()
        check_json(request.headers.get(b"content-type"))
        body = request.body
        decoded, options, caller_id, pictures = await inline_or_in_thread(len(body), decode, body)
        model = registry.get(decoded.model)
        if options.task == TOKEN_EMBED or options.embed_dtype != "float32":
            request.context.copies = 2  # they are scaled, or cast
        if pictures:
            result = await context.images.embed(_of_images(decoded, options, model, pictures, shape), request.context)
        else:
            result = await embedder.embed(_for_model(decoded, options, model, shape), request.context)
        if options.late_chunking:
            result = _vector_a_text(result)
        if options.task == TOKEN_EMBED and decoded.options.normalize is not False:
            result = _normalized_tokens(result)
        response_id = shape.id_prefix + (caller_id or request.context.request_id.decode())
        values = json_arrays.count(result)
        headers, parts = await inline_or_in_thread(values, _encode, result, options, shape, response_id)
        milliseconds = round(1000 * (perf_counter() - began))
        return formats.response(headers, parts, b"openai-processing-ms: %d\r\n" % milliseconds)

    return handler


def _for_model(request: EmbedRequest, options: ResponseOptions, model: Model, shape: Shape) -> EmbedRequest:
    """Return the request with the output that the path answers with.

    Raises:
        WrongModelKind, BadRequest: the model cannot serve it.
    """
    card = model.card
    _check_ids(request, card.name, card.vocab_size)
    _check_options(request, options, model)
    asked = request.options.outputs[0] if request.options.outputs else card.default_output
    if asked == SPARSE and options.task != TOKEN_EMBED and request.options.pooling is None:
        raise WrongModelKind(f"{card.name} gives sparse vectors", remedy="POST to /embed_sparse or /embed")
    if card.image or request.options.outputs:
        return request  # the core names the route for images
    if options.task == TOKEN_EMBED:
        if HIDDEN not in card.outputs:
            remedy = "leave out task, or send output, one of its outputs"
            raise WrongModelKind(f"{card.name} has no {HIDDEN}", remedy=remedy)
        normalize = False if request.options.normalize is False else None
        return request._replace(options=request.options._replace(outputs=(HIDDEN,), normalize=normalize))
    if (not shape.any_rows or options.task == "embed") and card.default_output != POOLED:
        raise WrongModelKind(
            f"{card.name} gives one vector per token ({card.default_output}) and none per text",
            remedy="POST to /pooling or /embed, or export it with --pooling",
        )
    return request


def _of_images(
    request: EmbedRequest, options: ResponseOptions, model: Model, pictures: Sequence[Picture], shape: Shape
) -> ImagesRequest:
    """Return the request for images, with the output that the path answers with; errors as `_for_model`."""
    card = model.card
    reads_images(card)
    _check_options(request, options, model)
    outputs = request.options.outputs or ((HIDDEN,) if options.task == TOKEN_EMBED else (card.default_output,))
    if outputs[0] not in card.outputs:
        raise WrongModelKind(f"{card.name} has no {outputs[0]}", remedy="leave out task")
    if (not shape.any_rows or options.task == "embed") and outputs[0] != IMAGE_VECTOR:
        raise WrongModelKind(
            f"{card.name} gives a vector a patch, {outputs[0]}, and no vector of an image",
            remedy=f"POST to /pooling or /models/{card.name}/images",
        )
    unit = None if options.task == TOKEN_EMBED else request.options.normalize
    return ImagesRequest(pictures, request.model, outputs, "float32", unit, request.options.dimensions)


def _check_options(request: EmbedRequest, options: ResponseOptions, model: Model) -> None:
    card, longest = model.card, model.card.max_tokens
    if options.max_tokens is not None and longest is not None and options.max_tokens > longest:
        raise OutOfRange(
            f"is {options.max_tokens}",
            field=("truncate_prompt_tokens",),
            allowed=f"{card.name} reads {longest}",
            remedy=f"send -1, or 1 to {longest}",
        )
    if request.options.outputs and options.task:
        raise ConflictingFields(
            "is sent, and so is output, which also says which rows to return",
            field=("task",),
            remedy="send one of them",
        )
    if request.options.outputs and request.options.outputs[0] not in card.outputs:
        allowed = f"{card.name} has {', '.join(card.outputs)}"
        raise UnknownValue(f"is {request.options.outputs[0][:40]!r}", field=("outputs",), allowed=allowed)


def _check_ids(request: EmbedRequest, name: str, vocab_size: int) -> None:
    """Raise OutOfRange for ids of a larger vocabulary; ids of another one that also exist here cannot be told apart."""
    for index, sequence in enumerate(request.inputs):
        if isinstance(sequence, Ids) and len(sequence.ids) and (largest := int(sequence.ids.max())) >= vocab_size:
            raise OutOfRange(
                f"holds the token id {largest}",
                field=("inputs", index),
                allowed=f"the vocabulary of {name} ends at {vocab_size - 1}",
                remedy="if you sent text, your client tokenised it for another model, as langchain-openai does unless "
                "you pass check_embedding_ctx_length=False",
            )


def _vector_a_text(result: EmbedResult) -> EmbedResult:
    """Return the result with the vectors of the spans of the joined texts as those of inputs of their own."""
    output = result.outputs[0]
    return result._replace(outputs=(output._replace(lengths=(1,) * len(output.rows), pooled=True),))


def _normalized_tokens(result: EmbedResult) -> EmbedResult:
    """Return the result with the row of each token scaled to unit length, as vLLM's token_embed has them."""
    output = result.outputs[0]
    return result._replace(outputs=(output._replace(rows=normalize(output.rows)),))


def _encode(result: EmbedResult, options: ResponseOptions, shape: Shape, response_id: str) -> tuple[Headers, Body]:
    """Return the headers and the body of a response."""
    if options.encoding in (pooled_bytes.BYTES, pooled_bytes.BYTES_ONLY):
        return pooled_bytes.answer(result, options.encoding, options.embed_dtype, options.endianness, response_id)
    output = result.outputs[0]
    values: list[Any]
    if options.encoding == "base64":
        whole = output.rows.dtype.kind in "iu"  # int8 and its like, which embed_dtype is not of
        rows = output.rows if whole else pooled_bytes.narrowed(output.rows, options.embed_dtype)
        values = _base64(output, rows, options.endianness)
    else:
        values = list(output.rows) if output.pooled else split(output.rows, output.lengths)
    document = {
        "id": response_id,
        "object": "list",
        "created": int(time()),
        "model": result.model,
        "data": [{"object": shape.object, "index": index, shape.field: value} for index, value in enumerate(values)],
        "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
    }
    if result.truncated:
        document["truncated"] = result.truncated
    return json_body(document, output.rows.size)


def _base64(output: Output, rows: NDArray[Any], endianness: str) -> list[json_arrays.Base64]:
    size, width = rows.dtype.itemsize, rows.shape[1]
    data, ends = pooled_bytes.raw(rows, endianness), [width * size * end for end in accumulate(output.lengths)]
    return [json_arrays.Base64(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

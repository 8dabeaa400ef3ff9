"""OpenAI's routes: /v1/embeddings, /embeddings, /v1/models, and vLLM's /pooling, /score and /classify."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from time import perf_counter, time
from typing import Any, NamedTuple

from pydantic import BaseModel

from models.artifacts.card import IMAGE_VECTOR
from service.context import ServiceContext
from service.embedding import truncation
from service.embedding.images import ImagesRequest
from service.embedding.model import Model
from service.embedding.outputs.image import reads_images
from service.embedding.outputs.kind import HIDDEN, POOLED
from service.embedding.pooling import normalize
from service.embedding.requests import EmbedOptions, EmbedRequest, EmbedResult, Ids, Output
from service.embedding.tokenize.packing import split
from service.errors import ConflictingFields, OutOfRange, UnknownValue, WrongModelKind
from service.http.formats import JSON, OCTETS, array_response, buffer, count_values
from service.http.json_arrays import Encoded, base64_text
from service.http.response import Response, json_response
from service.http.routes import Answer, Example, Handler, Request, RequestBody, Route, RouteGroup
from service.http.worker_threads import INLINE_BYTES, in_thread
from service.protocols.inlay import needs, pooled_bytes, vllm_fields
from service.protocols.inlay.openapi_parts import EMBED, MODELS
from service.protocols.inlay.parsing import read_json
from service.protocols.openai import schemas, scoring
from service.protocols.openai.errors import OpenAIError, render_error
from service.protocols.openai.schemas import Decoded, Decoder, EmbeddingsBody, OpenAIModel, OpenAIModelList, PoolingBody
from service.registry.store import created

PREFIXES = ("/v1", "/embeddings", "/pooling", "/score", "/classify")
TOKEN_EMBED = "token_embed"
EXAMPLES = schemas.EXAMPLES | {"image": Example(value=schemas.EXAMPLES["image"], need=needs.IMAGES_OF_OPENAI)}
HEADERS = {
    "metadata": "with encoding_format bytes: JSON that says where each vector lies, as vLLM has it"
} | truncation.HEADERS
VECTOR_BYTES = {"type": "string", "format": "binary", "description": "vectors in the order of the inputs"}


class Shape(NamedTuple):
    """The shape of a path's responses.

    Args:
        id_prefix: the beginning of the response's id.
        object: the `object` of an entry.
        field: the entry's field that holds the vector.
        any_rows: whether the path may answer with a vector for each token.
    """

    id_prefix: str
    object: str
    field: str
    any_rows: bool


EMBEDDING = Shape("embd-", "embedding", "embedding", False)
POOLING = Shape("pooling-", "pooling", "data", True)


def routes(context: ServiceContext) -> RouteGroup:
    """Return OpenAI's routes."""
    rows = [*_embedding_routes(context), *scoring.routes(context), *_model_routes(context)]
    return RouteGroup(rows, render_error, PREFIXES, (OpenAIError, JSON))


def _embedding_routes(context: ServiceContext) -> list[Route]:
    embeddings = _embedding_handler(context, Decoder(EmbeddingsBody), EMBEDDING)
    pooling = _embedding_handler(context, Decoder(PoolingBody), POOLING)
    body, answers = RequestBody(model=EmbeddingsBody, examples=EXAMPLES), _vectors(schemas.EmbeddingList)
    about, summary = "OpenAI's route, with vLLM's and infinity's fields. One vector an input.", "Embed as OpenAI does"
    row = Route("POST", "/v1/embeddings", embeddings, "openai_embeddings", summary, EMBED, description=about)
    row = replace(row, body=body, answers=answers, vectors=True)
    pooling_row = replace(
        row,
        path="/pooling",
        handler=pooling,
        name="pooling",
        summary="Embed as vLLM's pooling does",
        description="vLLM's route: as /v1/embeddings, and rows of tokens where the model or `task` gives them.",
        body=RequestBody(model=PoolingBody, examples=EXAMPLES),
        answers=_vectors(schemas.PoolingList),
    )
    return [row, replace(row, path="/embeddings", name="embeddings", summary="The same without /v1"), pooling_row]


def _vectors(document: type[BaseModel]) -> dict[int, Answer]:
    content: Mapping[str, Any] = {JSON: document, OCTETS: VECTOR_BYTES}
    return {200: Answer(description="The vectors, in the order of the inputs.", content=content, headers=HEADERS)}


def _model_routes(context: ServiceContext) -> list[Route]:
    registry, settings = context.registry, context.settings

    def entry(model: Model) -> OpenAIModel:
        card, since = model.card, created(settings.store, model.card.name)
        return OpenAIModel(id=card.name, created=since, max_model_len=card.max_tokens, root=card.source)

    async def list_models(request: Request) -> Response:
        models = OpenAIModelList(data=[entry(model) for model in registry.models.values()])
        return json_response(models.model_dump())

    async def get_model(request: Request) -> Response:
        return json_response(entry(registry.get(request.parameters["name"])).model_dump())

    def route(path: str, handler: Handler, name: str, summary: str, answer: type[BaseModel]) -> Route:
        answers = {200: Answer(description="What is loaded.", content={JSON: answer})}
        return Route("GET", path, handler, name, summary, MODELS, answers=answers, admitted=False)

    about = "Every loaded model, as OpenAI lists them"
    return [
        route("/v1/models", list_models, "openai_models", about, OpenAIModelList),
        route("/v1/models/{name:path}", get_model, "openai_model", "One model, as OpenAI has it", OpenAIModel),
    ]


def _embedding_handler(context: ServiceContext, decode: Decoder, shape: Shape) -> Handler:
    registry, embedder, images = context.registry, context.embedder, context.images

    async def handler(request: Request) -> Response:
        began = perf_counter()
        decoded = await read_json(request, decode)
        form, model = decoded.form, registry.get(decoded.request.model)
        if form.rows == TOKEN_EMBED or form.embed_dtype != "float32":
            request.context.copies = 2  # they are scaled, or cast
        if form.images:
            result = await images.embed(_of_images(decoded, model, shape), request.context)
        else:
            result = await embedder.embed(_for_model(decoded, model, shape), request.context)
        response_id = shape.id_prefix + (decoded.caller_id or request.context.request_id.decode())
        values = count_values(result)
        if values <= INLINE_BYTES:
            response = _encode(result, decoded, shape, response_id)
        else:
            response = await in_thread(_encode, result, decoded, shape, response_id)
        milliseconds = round(1000 * (perf_counter() - began))
        return response._replace(lines=b"openai-processing-ms: %d\r\n" % milliseconds)

    return handler


def _for_model(decoded: Decoded, model: Model, shape: Shape) -> EmbedRequest:
    """Return the request with the output that the path returns.

    Raises:
        WrongModelKind, BadRequest: the model cannot serve it.
    """
    card, request, rows = model.card, decoded.request, decoded.form.rows
    options = request.options
    _check_ids(request, card.name, card.vocab_size)
    _check_options(decoded, model)
    output = options.outputs[0] if options.outputs else card.default_output
    if output == POOLED and rows != TOKEN_EMBED:
        return request
    if needs.is_sparse(output) and rows != TOKEN_EMBED:
        raise WrongModelKind(f"{card.name} gives sparse vectors", remedy="POST to /embed_sparse or /embed")
    if needs.reads_images(model) or options.outputs:
        return request  # the core names the route for images
    if rows == TOKEN_EMBED:
        if HIDDEN not in card.outputs:
            remedy = "leave out task, or send output, one of its outputs"
            raise WrongModelKind(f"{card.name} has no {HIDDEN}", remedy=remedy)
        normalize = False if options.normalize is False else None
        return request._replace(options=options._replace(outputs=(HIDDEN,), normalize=normalize))
    if not shape.any_rows or rows == "embed":
        raise WrongModelKind(
            f"{card.name} gives one vector per token ({output}) and none per text",
            remedy="POST to /pooling or /embed, or export it with --pooling",
        )
    return request


def _of_images(decoded: Decoded, model: Model, shape: Shape) -> ImagesRequest:
    """Return the request for images, with the output that the path returns; raises as `_for_model`."""
    card, request, rows = model.card, decoded.request, decoded.form.rows
    options = request.options
    reads_images(card)
    _check_options(decoded, model)
    outputs = options.outputs or ((HIDDEN,) if rows == TOKEN_EMBED else (card.default_output,))
    if outputs[0] not in card.outputs:
        raise WrongModelKind(f"{card.name} has no {outputs[0]}", remedy="leave out task")
    if (not shape.any_rows or rows == "embed") and outputs[0] != IMAGE_VECTOR:
        raise WrongModelKind(
            f"{card.name} gives a vector a patch, {outputs[0]}, and no vector of an image",
            remedy=f"POST to /pooling or /models/{card.name}/images",
        )
    normalize = None if rows == TOKEN_EMBED else options.normalize
    wanted = EmbedOptions(outputs, normalize=normalize, dimensions=options.dimensions)
    return ImagesRequest(decoded.pictures, request.model, wanted)


def _check_options(decoded: Decoded, model: Model) -> None:
    """Raise BadRequest for options that the model does not have, or that contradict each other."""
    card, options = model.card, decoded.request.options
    if options.max_tokens and card.max_tokens and options.max_tokens > card.max_tokens:
        raise OutOfRange(
            f"is {options.max_tokens}",
            field=("truncate_prompt_tokens",),
            allowed=f"{card.name} reads {card.max_tokens}",
            remedy=f"send -1, or 1 to {card.max_tokens}",
        )
    if options.outputs and decoded.form.rows:
        received = "is sent, and so is output, which also says which rows to return"
        raise ConflictingFields(received, field=("task",), remedy="send one of them")
    if options.outputs and options.outputs[0] not in card.outputs:
        allowed = f"{card.name} has {', '.join(card.outputs)}"
        raise UnknownValue(f"is {options.outputs[0][:40]!r}", field=("outputs",), allowed=allowed)


def _check_ids(request: EmbedRequest, name: str, vocab_size: int) -> None:
    """Raise OutOfRange for ids outside the vocabulary; ids of another vocabulary within it are not noticed."""
    for index, sequence in enumerate(request.inputs):
        if isinstance(sequence, Ids) and len(sequence.ids) and (largest := int(sequence.ids.max())) >= vocab_size:
            raise OutOfRange(
                f"holds the token id {largest}",
                field=("inputs", index),
                allowed=f"the vocabulary of {name} ends at {vocab_size - 1}",
                remedy="if you sent text, your client tokenised it for another model, as langchain-openai does unless "
                "you pass check_embedding_ctx_length=False",
            )


def _shaped(output: Output, decoded: Decoded) -> Output:
    """Return an output with one vector per text after late chunking, and with normalized rows for token_embed."""
    if decoded.form.late_chunking:  # the spans of the joined texts were inputs of their own
        return output._replace(lengths=(1,) * len(output.rows), pooled=True)
    if decoded.form.rows == TOKEN_EMBED and decoded.request.options.normalize is not False:  # as vLLM has them
        return output._replace(rows=normalize(output.rows))
    return output


def _encode(result: EmbedResult, decoded: Decoded, shape: Shape, response_id: str) -> Response:
    """Return a result in the form that a request asks for."""
    form, output = decoded.form, _shaped(result.outputs[0], decoded)
    if form.encoding in (pooled_bytes.BYTES, pooled_bytes.BYTES_ONLY):
        result = result._replace(outputs=(output,))
        return pooled_bytes.answer(result, form.encoding, form.embed_dtype, form.endianness, response_id)
    values: Sequence[Any]
    if form.encoding == "base64":
        values = _base64(output, form.embed_dtype, form.endianness)
    else:
        values = list(output.rows) if output.pooled else split(output.rows, output.lengths)
    document = {
        "id": response_id,
        "object": "list",
        "created": int(time()),
        "model": result.model,
        "data": [{"object": shape.object, "index": index, shape.field: value} for index, value in enumerate(values)],
        "usage": vllm_fields.usage(result.tokens),
    }
    if result.truncated:
        document["truncated"] = result.truncated
    return array_response(document, output.rows.size)


def _base64(output: Output, embed_dtype: str, endianness: str) -> list[Encoded]:
    """Return the bytes of each input's rows; integers stay as they are, since embed_dtype is of floats."""
    rows = output.rows
    if rows.dtype.kind not in "iu" and rows.dtype.name != embed_dtype:
        rows = pooled_bytes.narrowed(rows, embed_dtype)
    size, data = rows.dtype.itemsize * rows.shape[1], buffer(rows, pooled_bytes.ORDERS[endianness])
    ends = [size * end for end in accumulate(output.lengths)]
    return [base64_text(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

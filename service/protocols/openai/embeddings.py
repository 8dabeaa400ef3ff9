"""Vectors as OpenAI's /v1/embeddings and vLLM's /pooling answer with them: from the body to the response."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from time import perf_counter, time
from typing import Any, NamedTuple

import numpy as np
import orjson

from models.artifacts.card import IMAGE_VECTOR
from service.context import ServiceContext
from service.embedding.images import ImagesRequest
from service.embedding.model import Model
from service.embedding.outputs.image import reads_images
from service.embedding.outputs.kind import HIDDEN, POOLED
from service.embedding.pooling import normalize
from service.embedding.requests import EmbedOptions, EmbedRequest, EmbedResult, Ids, Input, Output, Picture, Spans, Text
from service.embedding.tokenize.packing import split
from service.errors import (
    ConflictingFields,
    EmptyInput,
    EmptyRequest,
    FieldPath,
    OutOfRange,
    WrongModelKind,
    WrongType,
)
from service.http.formats import array_response, buffer, count_values
from service.http.json_arrays import Encoded, base64_text
from service.http.response import Headers, Response
from service.http.routes import Handler, Request
from service.http.validation_errors import CACHED_BYTES, json_bytes, parse_json, quoted, validated, without_ignored
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import needs, pooled_bytes
from service.protocols.inlay.inputs import decode_picture, picture
from service.protocols.inlay.parsing import read_json
from service.protocols.openai.schemas import FORMS, EmbeddingsBody, PoolingBody, options_of
from service.protocols.openai.token_ids import MODEL, TokenIds

TOKEN_EMBED = "token_embed"
JOINED_BY = " "  # texts of late_chunking
ONLY_INT = {int}
OF_MODEL = TokenIds(MODEL, 0)


class Decoded(NamedTuple):
    """A body, decoded.

    Args:
        request: the request.
        fields: the body's other fields, which say what form the response has.
        rows: embed or token_embed, where the body of /pooling says which rows to return.
        caller_id: the caller's own id of the request.
        pictures: the images, if all inputs are images by `modality`.
        headers: what the response says of the token ids that came.
    """

    request: EmbedRequest
    fields: EmbeddingsBody
    rows: str | None
    caller_id: str | None
    pictures: list[Picture]
    headers: Headers = ()


def read(
    body: bytes, model: type[EmbeddingsBody], token_ids: TokenIds = OF_MODEL, embeds_empty: bool = False
) -> Decoded:
    """Return a decoded body; its options are validated once and cached, since callers repeat them.

    Args:
        token_ids: reads token ids.
        embeds_empty: whether an empty text is embedded.

    Raises:
        BadRequest: the body is not JSON, or a field cannot be read.
    """
    data = parse_json(body)
    if type(data) is not dict or "input" not in data:
        validated(model, data)
    data = without_ignored(model, data)
    inputs = data.pop("input")
    user, request_id = data.pop("user", None), data.pop("request_id", None)
    if type(user) not in (str, type(None)) or type(request_id) not in (str, type(None)):
        validated(model, {"input": inputs, "user": user, "request_id": request_id})
    rest = json_bytes(data)
    fields, options = (_options if len(rest) <= CACHED_BYTES else _options.__wrapped__)(model, rest)
    name, rows = fields.named, fields.task if model is PoolingBody else None
    if fields.modality == "image":
        pictures = decode_pictures(inputs)
        return Decoded(EmbedRequest(pictures, name, options), fields, rows, request_id, pictures)
    headers: Headers = ()
    decoded = decode_inputs(inputs, embeds_empty)
    if any(isinstance(item, Ids) for item in decoded):
        decoded, headers = token_ids.read(decoded)
    request = EmbedRequest(decoded, name, options)
    return Decoded(late_chunked(request) if fields.late_chunking else request, fields, rows, request_id, [], headers)


@lru_cache(maxsize=256)
def _options(model: type[EmbeddingsBody], rest: bytes) -> tuple[EmbeddingsBody, EmbedOptions]:
    fields = validated(model, {"input": None} | orjson.loads(rest))
    options = options_of(fields)
    if fields.embedding_type == "base64":  # Jina's name for the encoding
        fields.encoding_format = "base64"
    return fields, options


def handler_of(context: ServiceContext, body: type[EmbeddingsBody]) -> Handler:
    """Return the handler of the paths whose bodies are of one model."""
    registry, embedder, images, settings = context.registry, context.embedder, context.images, context.settings
    reading = TokenIds(settings.openai_token_ids, settings.max_request_tokens), settings.empty_inputs == "vector"

    async def handler(request: Request) -> Response:
        began = perf_counter()
        decoded = await read_json(request, read, body, *reading)
        if decoded.fields.priority > 0 or decoded.fields.service_tier == "flex":
            request.context.make_bulk()
        model = registry.get(decoded.request.model, *([needs.takes_images] if decoded.pictures else []))
        if decoded.rows == TOKEN_EMBED or decoded.fields.embed_dtype != "float32":
            request.context.copies = 2  # they are scaled, or cast
        if decoded.pictures and not model.card.image_tokens:
            result = await images.embed(_of_images(decoded, model), request.context)
        else:
            result = await embedder.embed(_for_model(decoded, model), request.context)
        response_id = body.id_prefix + (decoded.caller_id or request.context.request_id.decode())
        response = await inline_or_in_thread(count_values(result), _encode, result, decoded, response_id)
        milliseconds = round(1000 * (perf_counter() - began))
        lines = b"openai-processing-ms: %d\r\n" % milliseconds
        return response._replace(lines=lines, headers=(*response.headers, *decoded.headers))

    return handler


def _for_model(decoded: Decoded, model: Model) -> EmbedRequest:
    """Return the request with the output that the path returns.

    Raises:
        WrongModelKind, BadRequest: the model cannot serve it.
    """
    card, request, options = model.card, decoded.request, decoded.request.options
    _check_ids(request, card.name, card.vocab_size)
    if options.max_tokens and card.max_tokens and options.max_tokens > card.max_tokens:
        raise OutOfRange(
            f"is {options.max_tokens}",
            field=("truncate_prompt_tokens",),
            allowed=f"{card.name} reads {card.max_tokens}",
            remedy=f"send -1, or 1 to {card.max_tokens}",
        )
    output = card.default_output
    if decoded.rows == TOKEN_EMBED and not needs.reads_images(model):
        if HIDDEN not in card.outputs:
            raise WrongModelKind(f"{card.name} has no {HIDDEN}", remedy="leave out task")
        normalize = False if options.normalize is False else None
        return request._replace(options=options._replace(outputs=(HIDDEN,), normalize=normalize))
    if output == POOLED or needs.reads_images(model):
        return request  # the core names the route for images
    if needs.is_sparse(output):
        raise WrongModelKind(f"{card.name} gives sparse vectors", remedy="POST to /embed_sparse or /embed")
    if not isinstance(decoded.fields, PoolingBody) or decoded.rows == "embed":
        raise WrongModelKind(
            f"{card.name} gives one vector per token ({output}) and none per text",
            remedy="POST to /pooling or /embed, or export it with --pooling",
        )
    return request


def _of_images(decoded: Decoded, model: Model) -> ImagesRequest:
    """Return the request for images, with the output that the path returns; raises as `_for_model`."""
    card, options, tokens = model.card, decoded.request.options, decoded.rows == TOKEN_EMBED
    reads_images(card)
    output = HIDDEN if tokens else card.default_output
    if output not in card.outputs:
        raise WrongModelKind(f"{card.name} has no {output}", remedy="leave out task")
    if (not isinstance(decoded.fields, PoolingBody) or decoded.rows == "embed") and output != IMAGE_VECTOR:
        raise WrongModelKind(
            f"{card.name} gives a vector a patch, {output}, and no vector of an image",
            remedy=f"POST to /pooling or /models/{card.name}/images",
        )
    normalize = None if tokens else options.normalize
    wanted = EmbedOptions((output,), normalize=normalize, dimensions=options.dimensions)
    return ImagesRequest(decoded.pictures, card.name, wanted)


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
    if decoded.fields.late_chunking:  # the spans of the joined texts were inputs of their own
        return output._replace(lengths=(1,) * len(output.rows), pooled=True)
    if decoded.rows == TOKEN_EMBED and decoded.request.options.normalize is not False:  # as vLLM has them
        return output._replace(rows=normalize(output.rows))
    return output


def _encode(result: EmbedResult, decoded: Decoded, response_id: str) -> Response:
    """Return a result in the form that a request asks for."""
    fields, output = decoded.fields, _shaped(result.outputs[0], decoded)
    if fields.encoding_format in (pooled_bytes.BYTES, pooled_bytes.BYTES_ONLY):
        result = result._replace(outputs=(output,))
        return pooled_bytes.answer(result, fields.encoding_format, fields.embed_dtype, fields.endianness, response_id)
    values: Sequence[Any]
    if fields.encoding_format == "base64":
        values = _base64(output, fields.embed_dtype, fields.endianness)
    else:
        values = list(output.rows) if output.pooled else split(output.rows, output.lengths)
    kind, member = fields.entry
    document = {
        "id": response_id,
        "object": "list",
        "created": int(time()),
        "model": result.model,
        "data": [{"object": kind, "index": index, member: value} for index, value in enumerate(values)],
        "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
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


# ---- inputs


def late_chunked(request: EmbedRequest) -> EmbedRequest:
    """Return the request for the vectors of texts that are read as one document.

    The first vector counts the tokens before its text too and the last those behind, as in Jina's own code (tests/
    test_api.py of jina-ai/late-chunking, which compares it with the API).

    Raises:
        ConflictingFields: an input is token ids.
    """
    texts = [item.text for item in request.inputs if isinstance(item, Text)]
    if not request.inputs:
        return request
    if len(texts) < len(request.inputs):
        raise ConflictingFields("joins texts, and token ids came", field=("late_chunking",), remedy="send texts")
    stops = np.cumsum([len(text) + len(JOINED_BY) for text in texts]) - len(JOINED_BY)
    starts = stops - [len(text) for text in texts]
    return request._replace(
        inputs=[Text(JOINED_BY.join(texts))],
        late_chunking=Spans(np.stack([starts, stops], axis=1), (len(texts),), joined=True),
    )


def decode_pictures(value: Any) -> list[Picture]:
    """Return every image of a body, in order, as infinity's clients send them.

    Raises:
        BadInput, BadRequest: an image, or the whole value, is no data URL or base64.
    """
    if type(value) is str:
        return [decode_picture(value, ("inputs",))]
    if type(value) is not list or not all(type(item) is str for item in value):
        raise WrongType(f"is {quoted(value)}", field=("inputs",), allowed="send a data URL or a list of them")
    if not value:
        raise EmptyRequest("is empty", field=("inputs",), remedy="send one image at least")
    return [decode_picture(item, ("inputs", index)) for index, item in enumerate(value)]


def decode_inputs(value: Any, embeds_empty: bool = False) -> list[Input]:
    """Return every input of a body, in order.

    Args:
        embeds_empty: whether an empty text is an input.

    Raises:
        BadInput, BadRequest: an input, or the whole value, has none of FORMS.
    """
    if type(value) is str:
        return [_decode_input(value, ("inputs",), 0, embeds_empty)]
    if type(value) is not list:
        raise WrongType(f"is {quoted(value)}", field=("inputs",), allowed=f"send {FORMS}")
    if value and type(value[0]) is int:
        return [_decode_ids(value, ("inputs",), 0)]
    return [_decode_input(item, ("inputs", index), index, embeds_empty) for index, item in enumerate(value)]


def _decode_input(value: Any, field: FieldPath, index: int, embeds_empty: bool) -> Input:
    if type(value) is str:
        if not value and not embeds_empty:
            raise EmptyInput(
                "is an empty string, which OpenAI's embeddings refuse", index, field=field, remedy="send some text"
            )
        return Text(value)
    if type(value) is list:
        return _decode_ids(value, field, index)
    if type(value) is dict and "image" in value:
        return picture(value, field)
    if type(value) is dict and list(value) == ["text"]:  # Jina's form, beside images
        return _decode_input(value["text"], (*field, "text"), index, embeds_empty)
    raise WrongType(f"is {quoted(value)}", index, field=field, allowed=f"send {FORMS}")


def _decode_ids(values: list[Any], field: FieldPath, index: int) -> Ids:
    if not set(map(type, values)) <= ONLY_INT:  # numpy would read true as 1
        place, value = next((place, value) for place, value in enumerate(values) if type(value) is not int)
        allowed = "a list of token ids holds integers from 0"
        raise WrongType(f"is {quoted(value)}", index, field=(*field, place), allowed=allowed)
    try:
        return Ids(np.array(values, np.int64))
    except OverflowError:
        allowed = "a token id is in the vocabulary"
        raise OutOfRange("holds an integer beyond 64 bits", index, field=field, allowed=allowed) from None

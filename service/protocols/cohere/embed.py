"""POST /v1/embed and /v2/embed: Cohere's sentence vectors of texts or images, in several types.

Source: cohere-python 5.21 (v1, v2: embed); Cohere's reference of Embed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from numpy.typing import NDArray
from pydantic import BaseModel, Field

from models.artifacts.card import IMAGE_VECTOR
from service.context import ServiceContext
from service.embedding.images import ImagesRequest
from service.embedding.model import Model
from service.embedding.outputs.image import reads_images
from service.embedding.outputs.kind import POOLED
from service.embedding.quantization import PRECISIONS, RANGED, quantized
from service.embedding.requests import Direction, EmbedOptions, EmbedRequest, EmbedResult, Picture, Text
from service.embedding.tokenize.prompts import SPELLINGS
from service.errors import (
    SHORTEN_OR_TRUNCATE,
    ConflictingFields,
    EmptyRequest,
    FieldPath,
    MissingField,
    TooLong,
    TooManyInputs,
    WrongModelKind,
    WrongType,
)
from service.http import openapi_data
from service.http.formats import JSON, array_response, buffer, count_values
from service.http.json_arrays import base64_text
from service.http.response import Response
from service.http.routes import Handler, Request, Route, RouteGroup
from service.http.validation_errors import parse_json, quoted, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.cohere.errors import CohereError, render_embed_error
from service.protocols.inlay import DATA as INLAY
from service.protocols.inlay import needs
from service.protocols.inlay.inputs import decode_picture
from service.protocols.inlay.parsing import read_json

PREFIXES = ("/v1/embed", "/v2/embed")
DATA = openapi_data.read(__package__, INLAY.parts)
SOURCES = ("texts", "inputs", "images")
SIDES: dict[str, tuple[bool, Direction]] = {"NONE": (False, "right"), "END": (True, "right"), "START": (True, "left")}
TYPES = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class CohereEmbedBody(BaseModel, strict=True):
    """What to embed, and the types of the vectors. Other fields are ignored, and named in a header."""

    texts: list[str] | None = Field(None, description="texts", fail_fast=True)
    inputs: list[Any] | None = Field(
        None, description='objects {"content": [{"type": "text", "text": …}]}, or with an image_url each'
    )
    images: list[str] | None = Field(None, description="data URLs of images", fail_fast=True)
    model: str | None = Field(None, description="a model's name; left out of v1: the server's default")
    input_type: Literal["search_query", "search_document", "classification", "clustering", "image"] | None = Field(
        None,
        description="search_query, search_document, classification, clustering or image: brings the model's prompt "
        "for it, if it has one",
    )
    embedding_types: list[TYPES] | None = Field(
        None,
        max_length=len(get_args(TYPES)),
        description="float, int8 and uint8 (of a model that was calibrated), binary and ubinary (signs, eight to a "
        "byte), base64 (of float32)",
        fail_fast=True,
    )
    output_dimension: int | None = Field(
        None, ge=1, description="an integer from 1: leading values kept, then normalised"
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None, description="what is cut off a text that is too long: START, END, or NONE, which refuses it"
    )
    max_tokens: int | None = Field(
        None, ge=1, description="an integer from 1: texts are cut to so many tokens, as truncate says"
    )


class CohereV2EmbedBody(CohereEmbedBody):
    """A body of v2, where the model and the use of the texts are required."""

    model: str = Field(description="a model's name")
    input_type: Literal["search_query", "search_document", "classification", "clustering", "image"] = Field(
        description=CohereEmbedBody.model_fields["input_type"].description
    )


class Source(NamedTuple):
    """The inputs of a request: texts, or images."""

    texts: list[str]
    pictures: list[Picture]


def routes(context: ServiceContext) -> RouteGroup:
    """Return Cohere's embed routes."""
    bodies: dict[str, type[CohereEmbedBody]] = {"1": CohereEmbedBody, "2": CohereV2EmbedBody}
    rows = [
        Route("POST", f"/v{version}/embed", _handler(context, body, version), bodies=(body,), vectors=True)
        for version, body in bodies.items()
    ]
    return RouteGroup(rows, render_embed_error, PREFIXES, (CohereError, JSON), data=DATA)


def _handler(context: ServiceContext, model_of_body: type[CohereEmbedBody], version: str) -> Handler:
    registry, max_inputs = context.registry, context.settings.max_inputs

    async def handler(request: Request) -> Response:
        size = len(request.body)
        body, source = await read_json(request, read, model_of_body, max_inputs)
        model = registry.get(body.model, *([needs.reads_images] if source.pictures else []))
        request.context.copies = 2  # of float32, and of all other types together
        if source.pictures:
            result = await _embed_images(context, model, body, source, request)
        else:
            result = await _embed_texts(context, model, body, source, request)
        arguments = result, body, source.texts, request.context.request_id.decode(), version
        return await inline_or_in_thread(size + count_values(result), _answer, *arguments)

    return handler


def read(body: bytes, model_of_body: type[CohereEmbedBody], max_inputs: int) -> tuple[CohereEmbedBody, Source]:
    """Return a body and its inputs; raise BadRequest if it is invalid."""
    data = parse_json(body)
    sent = [name for name in SOURCES if data.get(name) is not None] if type(data) is dict else []
    for name in sent:
        if type(data[name]) is list and len(data[name]) > max_inputs:
            raise TooManyInputs(
                f"holds {len(data[name])}",
                field=(name,),
                allowed=f"this server takes {max_inputs} a request",
                remedy="send fewer",
                verbatim=True,
            )
    fields = validated(model_of_body, data)
    if len(sent) != 1:
        if not sent:
            raise MissingField("is missing", field=("texts",), remedy="send texts, inputs or images", verbatim=True)
        received = f"is sent, and so is {sent[0]}"
        raise ConflictingFields(received, field=(sent[1],), remedy="send one of them", verbatim=True)
    if not data[sent[0]]:
        raise EmptyRequest("is empty", field=(sent[0],), remedy="send one at least", verbatim=True)
    return fields, _source(fields)


def _source(body: CohereEmbedBody) -> Source:
    if body.texts is not None:
        return Source(body.texts, [])
    if body.images is not None:
        return Source([], [decode_picture(each, ("images", index)) for index, each in enumerate(body.images)])
    source = Source([], [])
    for index, item in enumerate(body.inputs or ()):
        _read_input(item, index, source)
    if source.texts and source.pictures:
        remedy = "send them in requests of their own"
        raise ConflictingFields("holds texts and images", field=("inputs",), remedy=remedy, verbatim=True)
    return source


def _read_input(item: Any, index: int, source: Source) -> None:
    """Add the one content of an input to the texts or the images."""
    contents = item.get("content") if type(item) is dict else None
    place: FieldPath = ("inputs", index)
    if type(contents) is not list or len(contents) != 1 or type(contents[0]) is not dict:
        received = f"has {len(contents)} contents" if type(contents) is list else f"is {quoted(item)}"
        allowed = 'an input is {"content": [{"type": "text", "text": …}]}, with one content'
        raise WrongType(received, index, field=place, allowed=allowed, verbatim=True)
    (content,) = contents
    if type(text := content.get("text")) is str:
        source.texts.append(text)
        return
    image = content.get("image_url")
    address = image.get("url") if type(image) is dict else None
    if type(address) is not str:
        allowed = "a content has a text, or an image_url with a url"
        raise WrongType("has neither", index, field=(*place, "content", 0), allowed=allowed, verbatim=True)
    source.pictures.append(decode_picture(address, place))


async def _embed_texts(
    context: ServiceContext, model: Model, body: CohereEmbedBody, source: Source, request: Request
) -> EmbedResult:
    if not needs.reads_images(model) and POOLED not in model.card.outputs:
        remedy = "name another model, or export it with --pooling"
        raise WrongModelKind(f"{model.card.name} gives no vector of a text", remedy=remedy)
    truncate, side = SIDES[body.truncate] if body.truncate else (True, None)
    options = EmbedOptions(
        outputs=(POOLED,),
        truncate=truncate,
        truncation_direction=side,
        dimensions=body.output_dimension,
        max_tokens=body.max_tokens,
        input_type=SPELLINGS.get(body.input_type or ""),
        precisions=_precisions(body),
    )
    texts = EmbedRequest([Text(text) for text in source.texts], body.model, options)
    result = await context.embedder.embed(texts, request.context)
    if result.truncated and not truncate:  # by max_tokens, which alone does not say that texts may be cut
        index, most = result.truncated[0], body.max_tokens
        allowed = f"max_tokens is {most}"
        raise TooLong("has more tokens", field=("inputs", index), allowed=allowed, remedy=SHORTEN_OR_TRUNCATE)
    return result


async def _embed_images(
    context: ServiceContext, model: Model, body: CohereEmbedBody, source: Source, request: Request
) -> EmbedResult:
    reads_images(model.card)
    if IMAGE_VECTOR not in model.card.outputs:
        raise WrongModelKind(f"{model.card.name} gives no vector of an image", remedy="name another model")
    for precision in _precisions(body):
        if precision in RANGED:
            allowed = "images have float, binary, ubinary and base64"
            raise ConflictingFields(f"holds {precision}", field=("dtype",), allowed=allowed)
    options = EmbedOptions((IMAGE_VECTOR,), dimensions=body.output_dimension)
    result = await context.images.embed(ImagesRequest(source.pictures, model.card.name, options), request.context)
    rows = result.outputs[0].rows
    return result._replace(quantized={name: quantized(rows, name) for name in _precisions(body)})


def _precisions(body: CohereEmbedBody) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in body.embedding_types or () if name in PRECISIONS))


def _answer(
    result: EmbedResult, body: CohereEmbedBody, texts: Sequence[str], response_id: str, version: str
) -> Response:
    """Return a result as Cohere's document."""
    rows = result.outputs[0].rows
    by_type = body.embedding_types is not None or version == "2"
    types = dict.fromkeys(body.embedding_types or ("float",))
    units = {"input_tokens": result.tokens} if texts else {"images": len(rows)}
    document = {
        "id": response_id,
        "embeddings": {name: _values(name, rows, result.quantized) for name in types} if by_type else rows,
        "texts": texts,
        "meta": {"api_version": {"version": version}, "billed_units": units},
        "response_type": "embeddings_by_type" if by_type else "embeddings_floats",
    }
    return array_response(document, rows.size * len(types))


def _values(name: str, rows: NDArray[Any], made: Mapping[str, NDArray[Any]]) -> Any:
    if name == "base64":
        return [base64_text(buffer(row)) for row in rows]
    return rows if name == "float" else made[name]

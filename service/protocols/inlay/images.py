"""POST /models/{name}/images and the method Images: pictures and pixel tensors, answered in the formats of /embed.

An image comes as JSON ("data:image/png;base64,...", bare base64, an address, or a tensor), or as the bytes of one file.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from proto import embed_pb2 as pb
from service.context import ServiceContext
from service.embedding.images import ImagesRequest, Values
from service.embedding.requests import EmbedOptions, EmbedResult, Picture
from service.errors import (
    BadInput,
    ConflictingFields,
    FieldPath,
    MissingField,
    UnsupportedMedia,
    WrongType,
)
from service.http.formats import count_values, encoder
from service.http.json_structure import check_structure
from service.http.response import Response
from service.http.routes import Request, Route
from service.http.tensors import tensor
from service.http.validation_errors import quoted, unknown_field, validated
from service.http.worker_threads import in_thread, inline_or_in_thread
from service.protocols.inlay import DATA, needs
from service.protocols.inlay.inputs import decode_picture, picture
from service.protocols.inlay.parsing import parse_json_fields, query_values
from service.protocols.inlay.rpc_fields import array_of, fields_of
from service.request_context import RequestContext

JSON_TYPES = re.compile(r"application/(.+\+)?json")
PICTURES = ("image/jpeg", "image/png", "image/webp")
TENSORS = ("pixel_values", "input_features")
FORMS = '"data:image/png;base64,...", base64, or an object of image, pixel_values or input_features'
FIELDS = ("image", *TENSORS, "grid")
ImageInputs = list[Picture | Values]


class ImagesBody(BaseModel, extra="forbid", strict=True):
    """Images, and the form of the response."""

    inputs: Annotated[Any, WithJsonSchema(DATA.parts["images"])] = Field(description="an image or a list of images")
    outputs: Annotated[list[str], Field(min_length=1, fail_fast=True)] | str | None = Field(
        None, description="one name or a list of names from the model's outputs; left out: its default output"
    )
    dtype: Literal["float32", "float16", "bfloat16"] = Field("float32", description="float32, float16 or bfloat16")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="in JSON responses: float or base64 (little-endian, in `dtype`)"
    )
    normalize: bool | None = Field(
        None, description="scale image_embedding to unit length; left out: if the model compares unit vectors"
    )
    dimensions: int | None = Field(
        None, ge=1, description="leading values of image_embedding to keep, before it is scaled"
    )

    def options(self) -> EmbedOptions:
        """Return the options of the request."""
        outputs = () if self.outputs is None else (self.outputs,) if isinstance(self.outputs, str) else self.outputs
        return EmbedOptions(tuple(outputs), dtype=self.dtype, normalize=self.normalize, dimensions=self.dimensions)


def routes(context: ServiceContext) -> list[Route]:
    """Return POST /models/{name}/images."""
    return [Route("POST", "/models/{name}/images", partial(_answer, context), bodies=(ImagesBody,))]


async def _answer(context: ServiceContext, request: Request) -> Response:
    name = request.parameters["name"]
    context.registry.get(name)
    encode = encoder(request.head.headers.get(b"accept"))
    if not (JSON_TYPES.fullmatch(request.media_type) or request.media_type in PICTURES):
        known = ", ".join(("application/json", *PICTURES))
        raise UnsupportedMedia(f"content-type is {quoted(request.media_type)}", allowed=f"this path reads {known}")
    inputs, body = await in_thread(_read, request)
    result = await context.images.embed(ImagesRequest(inputs, name, body.options()), request.context)
    return await inline_or_in_thread(count_values(result), encode, result, body.encoding_format == "base64")


def _read(request: Request) -> tuple[ImageInputs, ImagesBody]:
    media_type, body = request.media_type, request.body
    if media_type in PICTURES:
        return [Picture(body)], _options(query_values(request))
    check_structure(body)
    fields = parse_json_fields(body, ImagesBody)
    inputs = fields.inputs if isinstance(fields.inputs, list) else [fields.inputs]
    return [image for index, value in enumerate(inputs) for image in read_input(value, index)], fields


def _options(texts: dict[str, str]) -> ImagesBody:
    """Return the options in a query string, where commas separate list items."""
    lists = {"outputs": texts["outputs"].split(",")} if "outputs" in texts else {}
    return validated(ImagesBody, {"inputs": None} | texts | lists, strict=False)


# ---- JSON


def read_input(value: Any, index: int) -> Sequence[Picture | Values]:
    """Return the image of one entry; several of a tensor that holds a stack of one size."""
    path: FieldPath = ("inputs", index)
    if isinstance(value, str):
        return [decode_picture(value, path)]
    if not isinstance(value, dict):
        raise WrongType(f"is {quoted(value)}", field=path, allowed=f"an image is {FORMS}")
    for name in value:
        if name not in FIELDS:
            raise unknown_field(name, FIELDS, path)
    sent = [name for name in FIELDS[:-1] if value.get(name) is not None]
    if len(sent) != 1:
        received = f"has {' and '.join(sent) or 'no image'}"
        kind = ConflictingFields if sent else MissingField
        raise kind(received, field=path, allowed="send one of image, pixel_values")
    name = sent[0]
    if name == "image":
        return [picture({name: value[name]}, path)]
    try:
        array = tensor(value[name])
    except ValueError as error:
        raise BadInput(f"cannot be read: {error}", field=(*path, name)) from None
    return split_stack(name, array, read_grid(value.get("grid"), ("inputs", index, "grid")))


def read_grid(value: Any, path: FieldPath) -> tuple[int, int] | None:
    """Return the rows and columns of flattened patches; raise WrongType for anything but two integers."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(side) is int and side > 0 for side in value):
        raise WrongType(f"is {quoted(value)}", field=path, allowed="send [rows, columns] of the patches")
    return value[0], value[1]


def split_stack(name: str, array: Any, grid: tuple[int, int] | None) -> list[Values]:
    """Return each image of [images, channels, height, width] or [images, bins, frames]; a single image as it is."""
    axes = 2 if name == "input_features" else 3
    return [Values(pixels, grid) for pixels in array] if array.ndim == axes + 1 else [Values(array, grid)]


# ---- gRPC


async def embed_message(context: ServiceContext, message: pb.ImagesRequest, call: RequestContext) -> EmbedResult:
    """Return the outputs of a message's images; raise InlayError where an image or an option cannot be served."""
    name = context.registry.get(message.model or None, needs.reads_images).card.name
    inputs = await inline_or_in_thread(message.ByteSize(), _message_inputs, message)
    message.ClearField("inputs")
    body = validated(ImagesBody, {"inputs": None} | fields_of(message), strict=True)
    return await context.images.embed(ImagesRequest(inputs, name, body.options()), call)


def _message_inputs(message: pb.ImagesRequest) -> ImageInputs:
    return [image for index, sent in enumerate(message.inputs) for image in _message_input(sent, index)]


def _message_input(message: pb.Image, index: int) -> ImageInputs:
    """Return the image of one entry; several of a tensor that holds a stack of one size."""
    path: FieldPath = ("inputs", index)
    name = message.WhichOneof("kind")
    if name is None:
        raise MissingField("has no image", field=path, remedy="set picture, pixel_values or input_features")
    if name == "picture":
        return [Picture(message.picture)]
    grid = read_grid(list(message.grid) or None, (*path, "grid"))
    return [*split_stack(name, array_of(getattr(message, name), (*path, name)), grid)]

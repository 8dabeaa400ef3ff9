"""POST /models/{name}/images: pictures and pixel tensors → an ImagesRequest, and the answer in the formats of /embed.

An image comes as JSON ("data:image/png;base64,...", bare base64, or a tensor), as multipart/form-data, as the bytes of
one file, or in a safetensors body. An address is never fetched. /embed reads text alone, whose forms already overlap.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pybase64
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.context import ServiceContext
from service.embedding.images import (
    Images,
    ImagesRequest,
    Picture,
    Values,
)
from service.errors import BadInput, BadRequest, EmptyRequest, UnsupportedMedia
from service.http import json_arrays as numbers
from service.http.endpoint import StarletteEndpoint as Endpoint
from service.http.formats import FORMATS, SAFETENSORS, negotiate
from service.http.intake import Intake
from service.http.multipart import MULTIPART, parts_of
from service.http.tensors import from_safetensors, tensor
from service.process import cpu_count as cores
from service.protocols.inlay.inputs import show
from service.protocols.inlay.positions import parsing as asked
from service.protocols.inlay.positions.fields import TENSOR

PATH = "/models/{name}/images"
JSON_TYPES = re.compile(r"application/(.+\+)?json")
PICTURES = ("image/jpeg", "image/png", "image/webp")
TENSORS = ("pixel_values", "input_features")
FORMS = '"data:image/png;base64,...", base64, or an object of image, pixel_values or input_features'
IMAGE = {
    "type": "string",
    "contentEncoding": "base64",
    "description": "a JPEG, PNG or WebP file: data URL or bare base64",
}
GRID = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
OBJECT = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"image": IMAGE, "pixel_values": TENSOR, "input_features": TENSOR, "grid": GRID},
}
INPUTS = {"anyOf": [IMAGE, OBJECT, {"type": "array", "items": {"anyOf": [IMAGE, OBJECT]}}]}


class ImagesBody(BaseModel):
    """Images, and how the answer is wanted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    inputs: Annotated[Any, WithJsonSchema(INPUTS), Field(description="an image or a list of images")]
    outputs: Annotated[
        Annotated[list[str], Field(min_length=1)] | str | None,
        Field(description="one name or a list of names from the model's outputs; left out: its default output"),
    ] = None
    dtype: Annotated[Literal["float32", "float16", "bfloat16"], Field(description="float32, float16 or bfloat16")] = (
        "float32"
    )
    encoding_format: Annotated[
        Literal["float", "base64"], Field(description="in JSON answers: float or base64 (little-endian, in `dtype`)")
    ] = "float"


def routes(context: ServiceContext) -> APIRouter:
    """POST /models/{name}/images."""
    settings = context.settings
    images = Images(
        context.registry,
        most_inputs=settings.max_inputs,
        most_pixels=settings.max_image_pixels,
        most_rows=settings.max_request_tokens,
        threads=max(1, cores.available() // settings.workers),
    )

    async def answer(request: Request) -> Response:
        context.registry.get(request.path_params["name"])
        accept = ",".join(request.headers.getlist("accept")).encode("latin-1") or None
        encode = FORMATS[negotiate(accept)]
        wanted, base64 = await _wanted(request)
        result = await images.embed(wanted, request.scope["inlay.request"].context)
        headers, body = await numbers.written(numbers.count(result), encode, result, base64)
        response = Response(b"".join(body))
        response.raw_headers = list(headers)
        return response

    route = Route(PATH, Endpoint(PATH, answer, context), methods=["POST"], include_in_schema=False)
    return APIRouter(routes=[route])


async def _wanted(request: Request, intake: Intake) -> tuple[ImagesRequest, bool]:
    """The request, and whether its rows are wanted in base64."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not (JSON_TYPES.fullmatch(kind) or kind in (*PICTURES, MULTIPART, SAFETENSORS)):
        known = ", ".join(("application/json", MULTIPART, SAFETENSORS, *PICTURES))
        raise UnsupportedMedia(f"content-type is {show(kind)}; this path reads {known}")
    body = await asked.body_of(request, intake)
    inputs, fields = await asyncio.to_thread(_read, kind, request, body)
    name, outputs = request.path_params["name"], fields.outputs
    named = () if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
    return ImagesRequest(inputs, name, named, fields.dtype), fields.encoding_format == "base64"


def _read(kind: str, request: Request, body: bytes) -> tuple[list[Picture | Values], ImagesBody]:
    if kind in PICTURES:
        options = dict(request.query_params)
        return [Picture(body)], _validated(options | _listed(options))
    if kind == MULTIPART:
        return _multipart(request.headers["content-type"], body)
    if kind == SAFETENSORS:
        return _safetensors(body)
    fields = asked.of_json(ImagesBody, body)
    given = fields.inputs if isinstance(fields.inputs, list) else [fields.inputs]
    return [each for index, value in enumerate(given) for each in _one(value, index)], fields


def _validated(options: dict[str, Any]) -> ImagesBody:
    fields: ImagesBody = asked.validated(ImagesBody, {"inputs": None} | options, strict=True)
    return fields


def _listed(options: dict[str, str]) -> dict[str, Any]:
    """Names with commas between, as lists."""
    return {"outputs": options["outputs"].split(",")} if "outputs" in options else {}


def _one(value: Any, index: int) -> Sequence[Picture | Values]:
    """The image of one entry; several of a tensor that holds a stack of one size."""
    if isinstance(value, str):
        return [Picture(_decoded(value, f"inputs[{index}]", index))]
    if not isinstance(value, dict):
        raise BadInput(f"inputs[{index}] is {show(value)}; an image is {FORMS}", index)
    if unknown := [key for key in value if key not in OBJECT["properties"]]:  # type: ignore[operator]
        known = ", ".join(OBJECT["properties"])  # type: ignore[arg-type]
        raise BadInput(f"inputs[{index}] has a member {show(unknown[0])}; allowed: {known}", index)
    given = [key for key in ("image", *TENSORS) if value.get(key) is not None]
    if len(given) != 1:
        raise BadInput(
            f"inputs[{index}] has {' and '.join(given) or 'no image'}; send one of image, pixel_values", index
        )
    path = f"inputs[{index}].{given[0]}"
    if given == ["image"]:
        if not isinstance(value["image"], str):
            raise BadInput(f"{path} is {show(value['image'])}; send a data URL or base64", index)
        return [Picture(_decoded(value["image"], path, index))]
    try:
        array = tensor(value[given[0]])
    except ValueError as error:
        raise BadInput(f"{path}: {error}", index) from None
    return _stacked(given[0], array, _pair(value.get("grid"), f"inputs[{index}].grid", index))


def _decoded(text: str, path: str, index: int) -> bytes:
    """The bytes of a data URL or of bare base64."""
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise BadInput(f"{path} is {show(head)}; a data URL is data:image/png;base64, and base64 after it", index)
    elif "://" in text[:64]:
        raise BadInput(f"{path} is {show(text)}; addresses are not fetched: send the file itself, as a data URL", index)
    try:
        return pybase64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise BadInput(
            f"{path} is not base64: send a data URL or bare base64 of a JPEG, PNG or WebP file", index
        ) from None


def _pair(value: Any, path: str, index: int) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(each) is int and each > 0 for each in value):
        raise BadInput(f"{path} is {show(value)}; send [rows, columns] of the patches", index)
    return value[0], value[1]


def _multipart(content_type: str, body: bytes) -> tuple[list[Picture | Values], ImagesBody]:
    """Every part that names a file or is called image, images or inputs is a picture; the rest are options."""
    pictures: list[Picture | Values] = []
    options: dict[str, Any] = {}
    for part in parts_of(content_type, body):
        if part.file or part.name in ("image", "images", "inputs"):
            pictures.append(Picture(part.data))
        elif part.name in options:
            raise BadRequest(f"{show(part.name)} came twice; send it once")
        else:
            options[part.name] = part.data.decode("utf-8", "replace")
    if not pictures:
        raise EmptyRequest("the form holds no file: send each image as a part called image")
    return pictures, _validated(options | _listed(options))


def _safetensors(body: bytes) -> tuple[list[Picture | Values], ImagesBody]:
    """pixel_values or input_features, one image or a stack; or tensors 0, 1, ...; options in __metadata__."""
    given = from_safetensors(body)
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    options = {name: value for name, value in given.items() if name not in arrays}
    grid = options.pop("grid", None)
    if grid is not None:
        numbers = [int(each) for each in re.findall(r"\d+", str(grid))]
        grid = _pair(numbers, "grid", 0)
    inputs: list[Picture | Values] = []
    for index, name in enumerate(arrays):
        if name not in (*TENSORS, str(index)):
            raise BadRequest(f"there is a tensor {show(name)}; send pixel_values, input_features, or tensors 0, 1, ...")
    for name in arrays:
        inputs += _stacked(name, arrays[name], grid)
    return inputs, _validated(options | _listed(options))


def _stacked(name: str, array: Any, grid: tuple[int, int] | None) -> list[Values]:
    """Images of [channels, height, width] may come as [images, ...], spectrograms of [bins, frames] too."""
    single = 2 if name == "input_features" else 3
    return [Values(each, grid) for each in array] if array.ndim == single + 1 else [Values(array, grid)]

"""What a caller asks for: a query string, a JSON body or a safetensors body → an instance of a scheme's model."""

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request

from service.errors import BadRequest, Malformed, UnsupportedMedia
from service.wire.asgi import check_json, read_body
from service.wire.body import explain
from service.wire.formats import SAFETENSORS
from service.wire.inputs import show
from service.wire.positions.tensors import from_safetensors


def of_query(model: type[BaseModel], query: QueryParams, repeated: tuple[str, ...] = ()) -> Any:
    """The instance a query string stands for; every value is a text there.

    repeated  what may come more than once; the instance holds the last
    raises    BadRequest
    """
    pairs = query.multi_items()
    values = dict(pairs)
    if len(values) < len(pairs):
        for name in values.keys() - set(repeated):
            if (count := len(query.getlist(name))) > 1:
                raise BadRequest(f"{show(name)} came {count} times; send it once")
    return validated(model, values)


async def of_body(model: type[BaseModel], request: Request, max_bytes: int) -> Any:
    """The instance a JSON body stands for, or a safetensors body: tensors by name, the rest in its metadata.

    raises   Malformed, BadRequest, UnsupportedMedia, BodyTooLarge
    """
    declared = request.headers.get("content-type", "").split(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise UnsupportedMedia("the body is compressed; send it without content-encoding")
    if declared != SAFETENSORS:
        check_json(declared.encode("latin-1"))
    length = request.headers.get("content-length")
    body = await read_body(request.receive, length.encode("latin-1") if length else None, max_bytes)
    if declared == SAFETENSORS:
        return validated(model, from_safetensors(body))
    return of_json(model, body)


def of_json(model: type[BaseModel], body: bytes) -> Any:
    """The instance a JSON text stands for; types are taken as they are, "5" is no number.

    raises   Malformed, BadRequest
    """
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        if fault["type"] == "json_invalid":
            raise Malformed(f"the body is not JSON: {fault['msg'].removeprefix('Invalid JSON: ')}") from None
        raise refusal(error, model) from None


def of_values(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """The instance that JSON values stand for."""
    return of_json(model, orjson.dumps(dict(values)))


def validated(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """The instance of texts and arrays; raises BadRequest."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise refusal(error, model) from None


def refusal(error: ValidationError, model: type[BaseModel]) -> BadRequest:
    """The first fault in the caller's words."""
    for fault in error.errors(include_url=False):
        if fault["type"] == "value_error":
            name = fault["loc"][0]
            return BadRequest(f"{name}: {fault['ctx']['error']}; allowed: {model.model_fields[str(name)].description}")
    return BadRequest(explain(error, model))

"""What a caller asks for: a query string, a JSON body or a safetensors body → an instance of a scheme's model."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request

from service.errors import BadRequest, Malformed
from service.http.formats import SAFETENSORS, check_json
from service.http.tensors import from_safetensors
from service.protocols.inlay.embed_body import explain
from service.protocols.inlay.inputs import show

INLINE_BYTES = 65536  # of a body that is read on the event loop


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


async def of_body(model: type[BaseModel], request: Request, intake: Any) -> Any:
    """The instance a JSON body stands for, or a safetensors body: tensors by name, the rest in its metadata.

    raises   Malformed, BadRequest, UnsupportedMedia, BodyTooLarge, Overloaded
    """
    declared = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if declared != SAFETENSORS:
        check_json(declared.encode("latin-1"))
    body = await body_of(request, intake)
    read = of_safetensors if declared == SAFETENSORS else of_json
    return read(model, body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(read, model, body)


async def body_of(request: Request, intake: Any = None) -> bytes:
    """The body of a request without its content coding."""
    return await request.body()


def of_safetensors(model: type[BaseModel], body: bytes) -> Any:
    """The instance whose tensors are those of a safetensors body, other parameters its metadata.

    raises   Malformed, BadRequest
    """
    return validated(model, from_safetensors(body))


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


def validated(model: type[BaseModel], values: Mapping[str, Any], *, strict: bool = False) -> Any:
    """The instance of texts and arrays, strict: of values as JSON has them and arrays; raises BadRequest."""
    try:
        return model.model_validate(dict(values), strict=strict)
    except ValidationError as error:
        raise refusal(error, model) from None


def refusal(error: ValidationError, model: type[BaseModel]) -> BadRequest:
    """The first fault in the caller's words."""
    for fault in error.errors(include_url=False):
        if fault["type"] == "value_error":
            name = fault["loc"][0]
            return BadRequest(f"{name}: {fault['ctx']['error']} ({model.model_fields[str(name)].description})")
    return BadRequest(explain(error, model))

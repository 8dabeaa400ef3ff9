"""Parses query strings and JSON bodies into typed parameters."""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple
from urllib.parse import parse_qsl

from pydantic import BaseModel
from pydantic_core import from_json

from service.errors import BadRequest, ConflictingFields, InvalidJson
from service.http.formats import check_json
from service.http.routes import Request
from service.http.validation_errors import quoted, validated
from service.http.worker_threads import INLINE_BYTES, in_thread, read_whole

MAX_FIELDS = 1000  # of a query string
Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def query_pairs(request: Request) -> list[tuple[str, str]]:
    """Return the names and values of a query string, in order."""
    try:
        return parse_qsl(request.head.query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise BadRequest("the query string is too long", allowed=f"it holds up to {MAX_FIELDS} parameters") from None


def query_values(request: Request, repeated: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the values of a query string by name.

    Args:
        repeated: names that may come more than once; the last value counts.

    Raises:
        ConflictingFields: another name comes more than once.
    """
    pairs = query_pairs(request)
    values = dict(pairs)
    if len(values) < len(pairs):
        for name, count in Counter([name for name, _ in pairs]).items():
            if count > 1 and name not in repeated:
                remedy = "send it once" + ("; within compare, write & as %26" if "compare" in values else "")
                raise ConflictingFields(f"came {count} times", field=(quoted(name),), remedy=remedy, verbatim=True)
    return values


def from_query(model: type[Model], request: Request) -> Model:
    """Return a query string as a model; raise BadRequest if it is invalid."""
    return validated(model, query_values(request))


async def read_json(request: Request, read: Callable[[bytes, *Arguments], Result], *arguments: *Arguments) -> Result:
    """Return `read` of a JSON body and the arguments; a large body is read in a thread.

    Raises:
        UnsupportedMedia: the body is not declared to be JSON.
    """
    check_json(request.head.headers.get(b"content-type"))
    body = request.body
    return read(body, *arguments) if len(body) <= INLINE_BYTES else await in_thread(read, body, *arguments)


async def from_body(model: type[Model], request: Request) -> Model:
    """Return a JSON body as a model; raise Malformed, BadRequest or UnsupportedMedia if it is invalid."""
    check_json(request.head.headers.get(b"content-type"))
    return await read_whole(request.body, parse_json_fields, model)


def parse_json_fields(body: bytes, model: type[Model]) -> Model:
    """Return a JSON body as a model without converting types: "5" is not a number.

    A large one is for `read_whole`, or `check_structure` before.

    Raises:
        Malformed: the body is not JSON.
        BadRequest: the body does not fit the model.
    """
    try:
        data: Any = from_json(body)  # unlike orjson it reads NaN and infinity, so that the field can be named
    except ValueError as error:
        raise InvalidJson(f"the body is not JSON: {str(error)[:200]}") from None
    return validated(model, data, strict=True)

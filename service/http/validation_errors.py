"""Validates JSON bodies with pydantic models, and turns pydantic's faults into errors that a caller can act on."""

from difflib import get_close_matches
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from service.errors import (
    BadRequest,
    FieldPath,
    InvalidJson,
    MissingField,
    OutOfRange,
    UnknownField,
    UnknownValue,
    WrongType,
    first_number,
)
from service.http.json_structure import UNCHECKED_BYTES, check_structure

CACHED_BYTES = 1000  # options that are longer are not kept: few callers repeat them
SHOWN_CHARACTERS = 40  # of a caller's value that a message repeats
LONGEST_COMPARED = 64  # characters of a name that is compared with the known ones

_UNKNOWN_VALUES = ("literal_error", "enum")
_OUT_OF_RANGE = ("greater_than", "less_than", "multiple_of", "finite_number", "int_parsing_size", "too_", "string_too_")
"""Beginnings of pydantic's names of faults; other faults are a WrongType."""

Body = TypeVar("Body", bound=BaseModel)


def parse_json(body: bytes) -> Any:
    """Return the JSON value of a body.

    Raises:
        TooLarge: the body holds more lists, members, strings or values than this server reads.
        InvalidJson: the body is not JSON.
    """
    if len(body) > UNCHECKED_BYTES:
        check_structure(body)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"the body is not JSON: {error}") from None


def validated(model: type[Body], data: Any, path: FieldPath = (), *, strict: bool | None = None) -> Body:
    """Return a JSON value as a pydantic model.

    Args:
        path: where the value stands in the body.
        strict: whether types are taken as they are; None: as the model says.

    Raises:
        BadRequest: the first fault, as an error of its own kind.
    """
    known = model.model_fields
    if type(data) is dict and len(data) > len(known) and model.model_config.get("extra") == "forbid":
        raise unknown_field(next(name for name in data if name not in known), known, path)  # pydantic lists them all
    try:
        return model.model_validate(data, strict=strict)
    except ValidationError as error:
        raise validation_error(error, model, path) from None


def validation_error(error: ValidationError, model: type[BaseModel], path: FieldPath = ()) -> BadRequest:
    """Return pydantic's first fault as an error: the field, what came, and the field's description as what is allowed.

    Args:
        path: where the validated value stands in the body.
    """
    faults = error.errors(include_url=False, include_context=False)
    fault = min(faults, key=lambda error: error["type"] != "extra_forbidden")  # a misspelt field explains a missing one
    if not fault["loc"]:
        received = f"{'' if path else 'the body '}is {quoted(fault['input'])}"
        return WrongType(
            received, first_number(path), field=path, allowed=f"send a JSON object{_fields(model)}", verbatim=True
        )
    name = str(fault["loc"][0])
    if fault["type"] == "missing":
        return _missing([str(error["loc"][0]) for error in faults if error["type"] == "missing"], model, path)
    if fault["type"] == "extra_forbidden":
        return unknown_field(name, model.model_fields, path)
    steps = tuple(step for step in fault["loc"][1:] if isinstance(step, int))
    received = f"is {quoted(fault['input'])}"
    if fault["type"] == "value_error":  # raised by a validator of ours
        received = f"cannot be read: {fault['msg'].removeprefix('Value error, ')}"
    allowed = f"allowed: {model.model_fields[name].description}"
    kind: type[BadRequest] = WrongType
    if fault["type"].startswith((*_UNKNOWN_VALUES, *_OUT_OF_RANGE)):
        kind = UnknownValue if fault["type"] in _UNKNOWN_VALUES else OutOfRange
    return kind(received, first_number(path), field=(*path, name, *steps), allowed=allowed, verbatim=True)


def unknown_field(name: str, known: Any, path: FieldPath = ()) -> UnknownField:
    """Return the error for a field that is not among the `known` names; it suggests the nearest of them."""
    near = get_close_matches(name, known, 1) if len(name) <= LONGEST_COMPARED else []
    allowed = f'did you mean "{near[0]}"?' if near else f"allowed: {', '.join(known)}"
    shown = name if name.isidentifier() and len(name) <= SHOWN_CHARACTERS else quoted(name)
    field = (*path, shown)
    return UnknownField("is not known here", first_number(path), field=field, allowed=allowed, verbatim=True)


def quoted(value: Any) -> str:
    """Return a caller's value for a message, as JSON of at most about 40 characters."""
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= SHOWN_CHARACTERS else f'"{value[:SHOWN_CHARACTERS]}…"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return str(value)[:SHOWN_CHARACTERS]


def json_bytes(data: Any) -> bytes:
    """Return a parsed JSON value as bytes again, e.g. as the key of a cache.

    Raises:
        BadRequest: orjson parses deeper nests than it writes, and no field is one.
    """
    try:
        text = orjson.dumps(data)
    except TypeError:
        raise BadRequest("the body nests hundreds of lists or objects", allowed="no field takes such") from None
    # orjson's bytes hold 4 KiB of memory, however few they are (3.13): these are kept for long
    return bytes(memoryview(text)) if len(text) <= CACHED_BYTES else text


def _missing(names: list[str], model: type[BaseModel], path: FieldPath) -> MissingField:
    others = [name for name in model.model_fields if name not in names]
    received = "is missing" if len(names) == 1 else f"and {', '.join(names[1:])} are missing"
    remedy = ("send it" if len(names) == 1 else "send them") + (
        f"; also allowed: {', '.join(others)}" if others else ""
    )
    return MissingField(received, first_number(path), field=(*path, names[0]), remedy=remedy, verbatim=True)


def _fields(model: type[BaseModel]) -> str:
    """Return the required and the optional fields of an object, as a clause."""
    fields = model.model_fields.items()
    required, optional = ([name for name, field in fields if field.is_required() is each] for each in (True, False))
    text = f" with {', '.join(required)}" if required else ""
    return text + (f"; {'also ' * bool(required)}allowed: {', '.join(optional)}" if optional else "")

"""Validates JSON bodies with pydantic models, and turns pydantic's faults into errors that a caller can act on."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from service.errors import (
    BadRequest,
    FieldPath,
    InvalidJson,
    MissingField,
    OutOfRange,
    TooLarge,
    UnknownField,
    UnknownValue,
    WrongType,
    first_number,
)
from service.http.json_structure import UNCHECKED_BYTES, check_structure
from service.request_context import CURRENT_CALL, NO_CALL

CACHED_BYTES = 1000  # options that are longer are not kept: few callers repeat them
SHOWN_CHARACTERS = 40  # of a caller's value that a message repeats
LONGEST_COMPARED = 64  # characters of a name that is compared with the known ones
MOST_IGNORED = 256  # unknown fields of a body; 60 000, compared with the known ones, took a thread 12 s

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
    if type(data) is dict:
        if model.model_config.get("extra") != "forbid":
            data = without_ignored(model, data, path)
        elif len(data) > len(known):  # pydantic would list all that are unknown
            raise unknown_field(next(name for name in data if name not in known), known, path)
        if any(value is None for value in data.values()):  # arrays compare by element
            data = {name: value for name, value in data.items() if value is not None or not _is_optional(known, name)}
    try:
        return model.model_validate(data, strict=strict)
    except ValidationError as error:
        raise validation_error(error, model, path) from None


def body_of(body: bytes, model: type[Body]) -> Body:
    """Return a JSON body as a pydantic model; raises as `parse_json` and `validated`."""
    return validated(model, parse_json(body))


def _is_optional(known: Mapping[str, FieldInfo], name: str) -> bool:
    """Return whether a field may be left out, so that null leaves it out too."""
    return name in known and not known[name].is_required()


def without_ignored(model: type[BaseModel], data: dict[str, Any], path: FieldPath = ()) -> dict[str, Any]:
    """Return an object without the fields that its model ignores, and note these for the response's header.

    Raises:
        UnknownField: a field is spelt like a known one, or INLAY_STRICT_FIELDS allows none that is unknown.
        TooLarge: the body has more unknown fields than are compared with the known ones.
    """
    known = model.model_fields
    if data.keys() <= known.keys():
        return data
    call, names = CURRENT_CALL.get(), [name for name in data if name not in known]
    if (count := len(call.ignored_fields) + len(names)) > MOST_IGNORED:
        raise TooLarge(f"the body has {count} fields that are not known here", allowed=f"{MOST_IGNORED} are ignored")
    for name in names:
        if call.strict_fields or nearest(name, known):
            raise unknown_field(name, known, path)
    if call is not NO_CALL:
        call.ignored_fields = (*call.ignored_fields, *names)
    return {name: value for name, value in data.items() if name in known}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name from which a misspelt one differs by a letter, or by two of a name of five and more."""
    close = [each for each in known if abs(len(each) - len(name)) <= 2] if len(name) <= LONGEST_COMPARED else []
    return next((each for each in close if _distance(name, each) <= (1 if len(each) < 5 else 2)), None)


def _distance(one: str, other: str) -> int:
    """Return how many letters must be added, removed or replaced to make one name the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        before, row = row, [number]
        for place, each in enumerate(other):
            row.append(min(row[place] + 1, before[place + 1] + 1, before[place] + (letter != each)))
    return row[-1]


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

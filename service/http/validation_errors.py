"""JSON bodies as typed pydantic models, and what pydantic finds wrong with them as errors that a caller can act on."""

from difflib import get_close_matches
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from service.errors import INLAY, BadRequest, FieldPath, Malformed, Spelling

CACHED_BYTES = 1000  # options that are longer are not kept: few callers repeat them
SHOWN_CHARACTERS = 40  # of a caller's value that a message repeats
LONGEST_COMPARED = 64  # characters of a name that is compared with the known ones

Body = TypeVar("Body", bound=BaseModel)


class InvalidField(BadRequest):
    """A field of a body or query; `field` is as the caller's own document has it, so no protocol respells it.

    Args:
        path: where the value that holds the field stands in the body; a number in it is the input to blame.
    """

    def __init__(
        self, received: str, *, field: FieldPath, path: FieldPath = (), allowed: str = "", remedy: str = ""
    ) -> None:
        super().__init__(received, field=(*path, *field), allowed=allowed, remedy=remedy)
        self.index = next((step for step in path if isinstance(step, int)), None)

    def render(self, spelling: Spelling) -> str:
        """Return the sentence."""
        return super().render(INLAY)


def parse_json(body: bytes) -> Any:
    """Return the JSON value of a body; raise Malformed if it is not JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"the body is not JSON: {error}") from None


def validated(model: type[Body], data: Any, path: FieldPath = (), *, strict: bool | None = None) -> Body:
    """Return a JSON value as a pydantic model.

    Args:
        path: where the value stands in the body.
        strict: whether types are taken as they are; None: as the model says.

    Raises:
        InvalidField: the first fault.
    """
    try:
        return model.model_validate(data, strict=strict)
    except ValidationError as error:
        raise validation_error(error, model, path) from None


def validation_error(error: ValidationError, model: type[BaseModel], path: FieldPath = ()) -> InvalidField:
    """Return the first fault that pydantic found: the field, what came, and the field's description as what is allowed.

    Args:
        path: where the validated value stands in the body.
    """
    faults = error.errors(include_url=False, include_context=False)
    fault = min(faults, key=lambda error: error["type"] != "extra_forbidden")  # a misspelt field explains a missing one
    if not fault["loc"]:
        received = f"{'' if path else 'the body '}is {quoted(fault['input'])}"
        return InvalidField(received, field=(), path=path, allowed=f"send a JSON object{_fields(model)}")
    name = str(fault["loc"][0])
    if fault["type"] == "missing":
        return _missing([str(error["loc"][0]) for error in faults if error["type"] == "missing"], model, path)
    if fault["type"] == "extra_forbidden":
        return unknown_field(name, model.model_fields, path)
    steps = tuple(step for step in fault["loc"][1:] if isinstance(step, int))
    received = f"is {quoted(fault['input'])}"
    if fault["type"] == "value_error":  # raised by a validator of ours
        received = f"cannot be read: {fault['msg'].removeprefix('Value error, ')}"
    allowed = f"allowed: {_description(name, model)}"
    return InvalidField(received, field=(name, *steps), path=path, allowed=allowed)


def _description(name: str, model: type[BaseModel]) -> str | None:
    if name in model.model_fields:
        return model.model_fields[name].description
    description: str = model.model_json_schema()["properties"][name]["description"]
    return description


def unknown_field(name: str, known: Any, path: FieldPath = ()) -> InvalidField:
    """Return the error for a field that is not among the `known` names; it suggests the nearest of them."""
    near = get_close_matches(name, known, 1) if len(name) <= LONGEST_COMPARED else []
    allowed = f'did you mean "{near[0]}"?' if near else f"allowed: {', '.join(known)}"
    shown = name if name.isidentifier() and len(name) <= SHOWN_CHARACTERS else quoted(name)
    return InvalidField("is not known here", field=(shown,), path=path, allowed=allowed)


def quoted(value: Any) -> str:
    """Return a caller's value as a message shows it: at most about 40 characters, and as JSON has it."""
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
    """Return a JSON value that was parsed as bytes again, e.g. as the key of a cache.

    Raises:
        BadRequest: orjson parses deeper nests than it writes, and no field is one.
    """
    try:
        text = orjson.dumps(data)
    except TypeError:
        raise BadRequest("the body nests hundreds of lists or objects", allowed="no field takes such") from None
    # orjson's bytes hold 4 KiB of memory, however few they are (3.13): these are kept for long
    return bytes(memoryview(text)) if len(text) <= CACHED_BYTES else text


def _missing(names: list[str], model: type[BaseModel], path: FieldPath) -> InvalidField:
    others = [name for name in model.model_fields if name not in names]
    received = "is missing" if len(names) == 1 else f"and {', '.join(names[1:])} are missing"
    remedy = ("send it" if len(names) == 1 else "send them") + (
        f"; also allowed: {', '.join(others)}" if others else ""
    )
    return InvalidField(received, field=(names[0],), path=path, remedy=remedy)


def _fields(model: type[BaseModel]) -> str:
    """Return the fields that an object must have and those that it may have, as a clause."""
    fields = model.model_fields.items()
    required, optional = ([name for name, field in fields if field.is_required() is each] for each in (True, False))
    text = f" with {', '.join(required)}" if required else ""
    return text + (f"; {'also ' * bool(required)}allowed: {', '.join(optional)}" if optional else "")

"""The kinds of parameters, each once: how a text of a query string and a JSON value become it, and its description.

A number or a word is pydantic's own. Lists are written with commas in a query string, lists of lists with semicolons
between; whatever has names (a config, a tensor with a dtype) is JSON in both. Knows no scheme.
"""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, WithJsonSchema

from models.positions.table import MAX_POSITION, MAX_WIDTH, Positions
from service.http.tensors import tensor

MAX_ROWS = 2**24
MAX_LISTED = 2**20  # positions in a list: they are held in memory
MAX_WORD = 200
REQUIRED: Any = ...
Parameter = tuple[Any, Any]  # type, with its bounds and description, and default
INTEGERS = {"type": "array", "items": {"type": "integer"}}
_SPAN = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")


def whole(least: int, most: int, about: str, default: Any = REQUIRED) -> Parameter:
    """An integer from `least` to `most`."""
    return _parameter(int, f"an integer from {least} to {most} ({about})", default, ge=least, le=most)


def number(about: str, default: Any = REQUIRED) -> Parameter:
    """A finite float."""
    return _parameter(float, f"a number ({about})", default, allow_inf_nan=False)


def switch(about: str, default: Any = REQUIRED) -> Parameter:
    """true or false."""
    return _parameter(bool, f"true or false ({about})", default)


def word(about: str, default: Any = REQUIRED) -> Parameter:
    """Any short text."""
    return _parameter(str, f"a text of at most {MAX_WORD} characters ({about})", default, max_length=MAX_WORD)


def choice(names: Iterable[str], about: str, default: Any = REQUIRED) -> Parameter:
    """One of some words."""
    listed = tuple(names)
    return _parameter(Literal[listed], f"one of {', '.join(listed)} ({about})", default)


def read(reader: Callable[[Any], Any], schema: dict[str, Any], about: str, default: Any = REQUIRED) -> Parameter:
    """What `reader` makes of a text or a JSON value; it raises ValueError where it cannot."""
    if default is REQUIRED:
        reader = _given(reader)
    options = schema.get("anyOf", [schema])
    shown = {"anyOf": [*options, {"type": "null"}]} if default is None else schema
    kind = Annotated[Any, BeforeValidator(reader), WithJsonSchema(shown)]
    return Annotated[kind, Field(description=about)], default


def _given(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The reader of what must be there: null is not."""

    def read_given(value: Any) -> Any:
        if value is None:
            raise ValueError("null stands for nothing: send a value")
        return reader(value)

    return read_given


def _parameter(kind: Any, about: str, default: Any, **bounds: Any) -> Parameter:
    bounded = Annotated[kind, Field(**bounds)] if bounds else kind
    return Annotated[bounded | None if default is None else bounded, Field(description=about)], default


def positions(value: Any) -> Positions | None:
    """`0,5,100-110` (both ends counted) or a list of integers; consecutive ones as a range.

    raises   ValueError
    """
    if value is None or isinstance(value, range):
        return value
    found = _spans(value) if isinstance(value, str) else integers(value, 1)
    if isinstance(found, range):
        return found
    first, last = int(found[0]), int(found[-1])
    if last - first == len(found) - 1 and (np.diff(found) == 1).all():
        return range(first, last + 1)
    return found


def _spans(text: str) -> Positions:
    matches = [(_SPAN.fullmatch(part.strip()), part) for part in text.split(",", MAX_LISTED)]
    for match, part in matches:
        if match is None:
            raise ValueError(f"{part.strip()[:40]!r} is no position and no span of them such as 100-110")
    pairs = [(int(match[1]), int(match[2] or match[1])) for match, _ in matches if match]
    for first, last in pairs:
        if not first <= last < MAX_POSITION:
            raise ValueError(f"{first}-{last} must rise and end below {MAX_POSITION}")
    count = sum(last - first + 1 for first, last in pairs)
    if len(pairs) == 1 and count <= MAX_ROWS:
        return range(pairs[0][0], pairs[0][1] + 1)
    if count > MAX_LISTED:
        raise ValueError(f"{count} positions; at most {MAX_LISTED} can be listed, and {MAX_ROWS} as one span")
    return np.concatenate([np.arange(first, last + 1, dtype=np.int64) for first, last in pairs])


def integers(value: Any, axes: int) -> NDArray[np.int64]:
    """Integers as an array of `axes` axes; a plain list where two are wanted is one row.

    raises   ValueError
    """
    if isinstance(value, str):
        lines = [line.split(",") for line in value.split(";")]
        try:
            value = [[int(item) for item in line] for line in lines]
        except ValueError:
            raise ValueError("write integers with commas between, rows with semicolons between") from None
        value = value[0] if axes == 1 and len(value) == 1 else value
    if not isinstance(value, list):
        raise ValueError("send a list of integers")
    if axes == 2 and value and not isinstance(value[0], list):
        value = [value]
    found = _array(value)
    if found.dtype != np.int64 or found.ndim != axes or not found.size:
        raise ValueError(f"send {'one list' if axes == 1 else 'lists of equal length'} of integers of 64 bits")
    return found


def _array(value: list[Any]) -> NDArray[Any]:
    rows = value if value and isinstance(value[0], list) else [value]
    for row in rows:
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:  # numpy takes true for 1
            raise ValueError("only integers can stand in the list")
    try:
        return np.array(value)
    except (ValueError, OverflowError):
        raise ValueError("the lists are of different lengths") from None


def rows_of_integers(value: Any) -> Any:
    """[B, n]."""
    return None if value is None else integers(value, 2)


def pair(value: Any) -> Any:
    """`14x14`, or a list of two integers."""
    if value is None:
        return None
    parts = re.split("[x,]", value) if isinstance(value, str) else value
    try:
        height, width = (int(part) if isinstance(part, str) else part for part in parts)
    except (TypeError, ValueError):
        raise ValueError("send rows x columns, such as 14x14") from None
    if type(height) is not int or type(width) is not int or not (1 <= height <= MAX_WIDTH and 1 <= width <= MAX_WIDTH):
        raise ValueError(f"rows and columns are integers from 1 to {MAX_WIDTH}")
    return height, width


def parameter(value: Any) -> Any:
    """A value as config.json has them: a number, true or false, a list of numbers.

    raises   ValueError
    """
    if isinstance(value, str):
        value = [_scalar(part) for part in value.split(",")] if "," in value else _scalar(value)
    if isinstance(value, list | tuple):
        if not value or any(isinstance(item, bool) or not _finite(item) for item in value):
            raise ValueError("a list holds finite numbers")
        return tuple(value)
    if value is not None and not _finite(value):
        raise ValueError("send a finite number, true or false, or a list of numbers")
    return value


def _scalar(text: str) -> Any:
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no number") from None


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300


def document(value: Any) -> Any:
    """A JSON object; in a query string its text.

    raises   ValueError
    """
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"it is not JSON: {error}") from None
    if value is not None and not isinstance(value, dict):
        raise ValueError("send a JSON object")
    return value


def floats(value: Any) -> Any:
    """A tensor: nested lists of numbers or {dtype, shape, data}; in a query string its JSON.

    raises   ValueError
    """
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"it is not JSON: {error}") from None
    return value if value is None or isinstance(value, np.ndarray) else tensor(value)


TENSOR = {
    "anyOf": [
        {"type": "array", "title": "Nested lists of numbers", "items": {}},
        {
            "type": "object",
            "title": "Bytes",
            "required": ["dtype", "shape", "data"],
            "additionalProperties": False,
            "properties": {
                "dtype": {"enum": ["float64", "float32", "float16", "bfloat16"]},
                "shape": INTEGERS,
                "data": {"type": "string", "contentEncoding": "base64", "description": "little-endian, row-major"},
            },
        },
    ]
}

GRID = {"anyOf": [{"type": "string", "examples": ["14x14"]}, INTEGERS | {"minItems": 2, "maxItems": 2}]}


def triple(value: Any) -> Any:
    """Three integers; raises ValueError."""
    if value is None:
        return None
    found = integers(value, 1)
    if len(found) != 3:
        raise ValueError(f"{len(found)} numbers came; send three")
    return tuple(found.tolist())


class Sent(NamedTuple):
    """A tensor as it came; `listed`: as lists of numbers, which have no dtype of their own."""

    array: NDArray[Any]
    listed: bool


def sent(value: Any) -> Any:
    """A tensor, and whether it came as lists; raises ValueError."""
    if value is None or isinstance(value, Sent):
        return value
    return Sent(value, False) if isinstance(value, np.ndarray) else Sent(floats(value), isinstance(value, list | str))

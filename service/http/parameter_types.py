"""Types of request parameters, which read a query string and JSON alike, and the options of a response.

In a query string lists are JSON without their brackets, lists of lists with semicolons between them; a config or a
tensor is its JSON.
"""

import re
from array import array
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal, get_args

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    StrictBool,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from models.positions.arithmetic import Arithmetic
from models.positions.rope.frequencies import MAX_ROTARY_DIM
from models.positions.table import DTYPES, MAX_POSITION, MAX_WIDTH, Positions
from service.http.json_structure import check_structure
from service.http.tensors import array_of_lists, tensor

MAX_ROWS = 2**24
MAX_LISTED = 2**20  # positions in a list: they are held in memory
MAX_TEXT = 200
MAX_CONFIG_CHARACTERS = 1 << 18  # of a config.json
ARITHMETIC = "exact: float64, rounded once. parity: the float32 steps of transformers"
_RANGE = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
Int64s = NDArray[np.int64]


def described(description: str, default: Any = ...) -> Any:
    """Return a field; it is required unless it has a default."""
    return Field(default, description=description)


def whole(minimum: int, maximum: int, meaning: str, default: Any = ..., *, multiple_of: int | None = None) -> Any:
    """Return the field of an integer."""
    description = f"an integer from {minimum} to {maximum} ({meaning})"
    return Field(default, ge=minimum, le=maximum, multiple_of=multiple_of, description=description)


def number(
    meaning: str,
    default: Any = ...,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Return the field of a finite float."""
    return Field(default, allow_inf_nan=False, gt=above, ge=minimum, le=maximum, description=f"a number ({meaning})")


def switch(meaning: str, default: Any = ...) -> Any:
    """Return the field of a boolean."""
    return Field(default, description=f"true or false ({meaning})")


def text(meaning: str, default: Any = ...) -> Any:
    """Return the field of a short text."""
    return Field(default, max_length=MAX_TEXT, description=f"a text of at most {MAX_TEXT} characters ({meaning})")


def one_of(names: Iterable[str], meaning: str, default: Any = ...) -> Any:
    """Return the field of one of some names, such as the keys of a table of `models`."""
    field = Field(default, description=f"one of {', '.join(names)} ({meaning})")
    field.metadata.append(_OneOf(names))
    return field


class _OneOf:
    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = core_schema.literal_schema(self._names)
        return core_schema.nullable_schema(schema) if type(None) in get_args(source) else schema


# ---- lists of integers


def read_positions(value: Any) -> Positions:
    """Return the positions in `0,5,100-110` (both ends included) or a list; consecutive ones as a range.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, range):
        return value
    positions = _listed(value) if isinstance(value, str) else integers(value, 1)
    if isinstance(positions, range):
        return positions
    first, last = int(positions[0]), int(positions[-1])
    if last - first == len(positions) - 1 and (np.diff(positions) == 1).all():
        return range(first, last + 1)
    return positions


def _listed(value: str) -> Positions:
    firsts, lasts = array("q"), array("q")
    for part in value.split(",", MAX_LISTED):
        if (match := _RANGE.fullmatch(part.strip())) is None:
            raise ValueError(f"{part.strip()[:40]!r} is neither a position nor a range such as 100-110")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < MAX_POSITION:
            raise ValueError(f"{first}-{last} must rise and end below {MAX_POSITION}")
        firsts.append(first)
        lasts.append(last)
    starts = np.array(firsts, np.int64)
    lengths = np.array(lasts, np.int64) - starts + 1
    count = sum(lengths.tolist())
    if len(starts) == 1 and count <= MAX_ROWS:
        return range(firsts[0], lasts[0] + 1)
    if count > MAX_LISTED:
        raise ValueError(f"{count} positions; at most {MAX_LISTED} can be listed, and {MAX_ROWS} as one range")
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(count)


def integers(value: Any, axes: int) -> Int64s:
    """Return integers as an array of `axes` axes; if two are needed, a plain list is one row.

    Raises:
        ValueError: the value is not a list of 64-bit integers, or of lists of one length.
    """
    if isinstance(value, str):
        rows = _json(f"[[{value.replace(';', '],[')}]]")
        value = rows[0] if axes == 1 and len(rows) == 1 else rows
    if not isinstance(value, list):
        raise ValueError("send a list of integers")
    lists = [value] if axes == 2 and value and not isinstance(value[0], list) else value
    numbers = array_of_lists(lists, {int}, "integers")
    if numbers.dtype != np.int64 or numbers.ndim != axes or not numbers.size:
        raise ValueError(f"send {'one list' if axes == 1 else 'lists of equal length'} of integers of 64 bits")
    return numbers


def _triple(value: Any) -> tuple[int, int, int]:
    items = integers(value, 1)
    if len(items) != 3:
        raise ValueError(f"{len(items)} numbers came; send three")
    first, second, third = items.tolist()
    return first, second, third


def _grid(value: Any) -> tuple[int, int]:
    try:
        height, width = integers(value.replace("x", ",") if isinstance(value, str) else value, 1).tolist()
    except ValueError:
        raise ValueError("send rows x columns, such as 14x14") from None
    if not (1 <= height <= MAX_WIDTH and 1 <= width <= MAX_WIDTH):
        raise ValueError(f"rows and columns are integers from 1 to {MAX_WIDTH}")
    return height, width


INTEGERS = {"type": "array", "items": {"type": "integer"}}
INTEGER_ROWS = {"type": "array", "items": {"anyOf": [{"type": "integer"}, INTEGERS]}}
POSITIONS = {"anyOf": [{"type": "string", "examples": ["0,5,100-110"]}, INTEGERS]}
ROWS = {"anyOf": [{"type": "string", "examples": ["1,1,1,0;1,1,0,0"]}, INTEGER_ROWS]}
GRID = {"anyOf": [{"type": "string", "examples": ["14x14"]}, INTEGERS | {"minItems": 2, "maxItems": 2}]}
PositionList = Annotated[Positions, PlainValidator(read_positions), WithJsonSchema(POSITIONS)]
IntegerRows = Annotated[Int64s, PlainValidator(partial(integers, axes=2)), WithJsonSchema(ROWS)]
Triple = Annotated[tuple[int, int, int], PlainValidator(_triple), WithJsonSchema(INTEGERS)]
Grid = Annotated[tuple[int, int], PlainValidator(_grid), WithJsonSchema(GRID)]


# ---- tensors and configs


def _json(value: str) -> Any:
    check_structure(value.encode())
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def read_tensor(value: Any) -> NDArray[Any]:
    """Return nested lists of numbers or {dtype, shape, data} as an array.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, str):
        value = _json(value)
    return value if isinstance(value, np.ndarray) else tensor(value)


def _object(value: Any) -> dict[str, Any]:
    try:
        characters = len(str(value))
    except RecursionError:
        raise ValueError("its lists and objects nest too deep") from None
    if characters > MAX_CONFIG_CHARACTERS:
        raise ValueError(f"it has {characters} characters, and {MAX_CONFIG_CHARACTERS} are read")
    if isinstance(value, str):
        value = _json(value)
    if not isinstance(value, dict):
        raise ValueError("send a JSON object")
    return value


def value_of_text(kind: str, value: Any) -> Any:
    """Return the JSON value that a text in a query string stands for, a list without its brackets.

    Args:
        kind: one of SCALING_VALUES.
        value: any other value, and a text that stands for none, is returned as it is.
    """
    if not isinstance(value, str):
        return value
    try:
        parts = _json(f"[{value.lower()}]")
    except ValueError:
        return value
    return parts[0] if kind != "numbers" and len(parts) == 1 else parts


_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Numbers = Annotated[list[_Number], Field(min_length=1, max_length=MAX_ROTARY_DIM), AfterValidator(tuple)]
SCALING_VALUES: dict[str, Any] = {"number": _Number, "boolean": StrictBool, "numbers": _Numbers}
"""Types of the parameters of a RoPE scaling, by their kinds in `scaling_parameters.PARAMETERS`."""
TENSOR: dict[str, Any] = {
    "anyOf": [
        {"type": "array", "title": "Nested lists of numbers", "items": {}},
        {
            "type": "object",
            "title": "Bytes",
            "required": ["dtype", "shape", "data"],
            "additionalProperties": False,
            "properties": {
                "dtype": {"enum": list(DTYPES)},
                "shape": INTEGERS,
                "data": {"type": "string", "contentEncoding": "base64", "description": "little-endian, row-major"},
            },
        },
    ]
}


Tensor = Annotated[NDArray[Any], PlainValidator(read_tensor), WithJsonSchema(TENSOR)]
JsonObject = Annotated[dict[str, Any], PlainValidator(_object), WithJsonSchema({"type": "object"})]


# ---- options of a response

Format = Literal["json", "raw", "npy", "safetensors"]


class Parameters(BaseModel, extra="forbid", arbitrary_types_allowed=True):
    """Parameters of a request; unknown ones are rejected."""


class ArrayOptions(Parameters):
    """The form of the arrays in a response."""

    format: Format | None = one_of(get_args(Format), "of the response; left out: as Accept says, else json", None)
    output: str | None = text("one output by its name; left out: all", None)
    encoding_format: str = one_of(("float", "base64"), "of the arrays in JSON", "float")


class TypedArrayOptions(ArrayOptions):
    """The form and the dtype of the arrays in a response."""

    dtype: str = one_of(DTYPES, "of floating-point outputs", "float32")


class TableOptions(TypedArrayOptions):
    """The form of a table, and the arithmetic that computes it."""

    arithmetic: Arithmetic = one_of(get_args(Arithmetic), ARITHMETIC, "exact")


class ModelTableOptions(TableOptions):
    """The options of a model's table; its default arithmetic is the one that the model was trained with."""

    arithmetic: Arithmetic = one_of(get_args(Arithmetic), ARITHMETIC, "parity")

"""PARAMETERS: kind, range and meaning of each parameter of a RoPE scaling, and the checks of values.

The rows are in scaling_parameters.json: values are checked by them, and the API's schemas and documentation made of
them.
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

from models.errors import BadScaling

TRAINED = "original_max_position_embeddings"


class Bounds(NamedTuple):
    """The range of a number.

    Attributes:
        minimum: the smallest value; None: see `above`.
        above: the value must be larger than this; None: see `minimum`.
        maximum: the largest value; None: there is no limit.
    """

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None

    def contain(self, value: float) -> bool:
        """Return whether a value is in the range."""
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
        )

    def __str__(self) -> str:
        """Return the range in words."""
        lower = f"above {self.above:g}" if self.above is not None else f"{self.minimum:g} or more"
        return lower if self.maximum is None else f"{lower}, up to {self.maximum:g}"


POSITIVE = Bounds(above=0)


class ScalingParameter(NamedTuple):
    """The kind, meaning and range of one parameter of a RoPE scaling.

    Attributes:
        kind: the type of its value; numbers: a list.
        description: meaning, range and default, as a clause.
        bounds: bounds of a number, or of each number of a list.
        default: the value that counts where an optional parameter is left out; None: it depends on other parameters.
        example: a usual value; lists are for rotary_dim 64.
    """

    kind: Literal["number", "boolean", "numbers"]
    description: str
    bounds: Bounds = POSITIVE
    default: float | bool | None = None
    example: float | bool | tuple[float, ...] | None = None


def _parameter(row: dict[str, Any]) -> ScalingParameter:
    """Return a row of scaling_parameters.json."""
    example = tuple(row["example"]) if isinstance(row["example"], list) else row["example"]
    return ScalingParameter(**row | {"bounds": Bounds(**row.get("bounds", {"above": 0})), "example": example})


_ROWS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PARAMETERS: dict[str, ScalingParameter] = {name: _parameter(row) for name, row in _ROWS.items()}
"""Every parameter of a row of scalings.SCALINGS, by its name in config.json."""


def checked(name: str, value: Any) -> Any:
    """Return the value of a scaling's parameter, checked by its row of PARAMETERS; BadScaling if it breaks it."""
    row = PARAMETERS[name]
    if row.kind == "boolean":
        return _flag(name, value)
    if row.kind == "number":
        return _within(row.bounds, name, value)
    if not isinstance(value, tuple):
        raise BadScaling(f"{name} is {shorten(value)}; it must be a list of numbers {row.bounds}")
    return tuple(_within(row.bounds, f"{name}[{index}]", item) for index, item in enumerate(value))


def positive(name: str, value: Any) -> float:
    """Return the value as a float.

    Raises:
        BadScaling: it is not a finite number above 0.
    """
    return _within(POSITIVE, name, value)


def _within(bounds: Bounds, name: str, value: Any) -> float:
    number = finite(name, value)
    if not bounds.contain(number):
        raise BadScaling(f"{name} is {value!r}; it must be {bounds}")
    return number


def finite(name: str, value: Any) -> float:
    """Return the value as a float.

    Raises:
        BadScaling: it is not a finite number.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise BadScaling(f"{name} is {shorten(value)}; it must be a number")
    return float(value)


def shorten(value: Any) -> str:
    """Return a value as messages show it, in 60 characters at most."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadScaling(f"{name} is {shorten(value)}; it must be true or false")
    return value

"""PARAMETERS: kind, range and meaning of each parameter of a RoPE scaling, and the checks of values.

Values are checked by these rows, and the API's schemas and documentation are made from them.
"""

import sys
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
AT_LEAST_ONE = Bounds(minimum=1)
NOT_NEGATIVE = Bounds(minimum=0)
SHARE = Bounds(above=0, maximum=1)


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


_GROWING = tuple(round(1.14**pair, 2) for pair in range(32))
PARAMETERS: dict[str, ScalingParameter] = {
    "factor": ScalingParameter(
        "number",
        "new context length / trained context length, at least 1; larger: positions are squeezed more",
        AT_LEAST_ONE,
        example=4,
    ),
    "alpha": ScalingParameter(
        "number",
        "the slowest pair turns this many times slower, faster ones less, by a larger theta; at least 1",
        AT_LEAST_ONE,
        example=4,
    ),
    TRAINED: ScalingParameter("number", "trained context length in tokens, before scaling, above 0", example=4096),
    "low_freq_factor": ScalingParameter(
        "number",
        "turns within the trained context below which a pair is slowed by the whole factor; above 0; "
        "larger: more pairs are slowed",
        example=1,
    ),
    "high_freq_factor": ScalingParameter(
        "number",
        "turns within the trained context above which a pair keeps its frequency; at least low_freq_factor; "
        "larger: fewer pairs keep it",
        example=4,
    ),
    "beta_fast": ScalingParameter(
        "number",
        "turns within the trained context above which a pair keeps its frequency; default 32; "
        "larger: fewer pairs keep it",
        default=32,
        example=32,
    ),
    "beta_slow": ScalingParameter(
        "number",
        "turns within the trained context below which a pair is slowed by the whole factor; default 1; "
        "larger: more pairs are slowed",
        default=1,
        example=1,
    ),
    "attention_factor": ScalingParameter(
        "number",
        "cos and sin are multiplied by it, above 0; larger: attention is sharper; default: see formula",
        example=1.2,
    ),
    "mscale": ScalingParameter(
        "number",
        "weight of ln(factor) in the attention factor, 0 or more; larger: attention is sharper",
        NOT_NEGATIVE,
        example=1,
    ),
    "mscale_all_dim": ScalingParameter(
        "number",
        "weight of ln(factor) in the denominator of the attention factor, 0 or more; equal to mscale: the factor is 1",
        NOT_NEGATIVE,
        example=1,
    ),
    "truncate": ScalingParameter(
        "boolean",
        "widen the range of pairs between beta_fast and beta_slow to whole pairs, default true",
        default=True,
        example=True,
    ),
    "short_factor": ScalingParameter(
        "numbers",
        "rotary_dim/2 numbers, each above 0: each pair is slowed so many times, up to the trained length",
        example=(1.0,) * 32,
    ),
    "long_factor": ScalingParameter(
        "numbers",
        "rotary_dim/2 numbers, each above 0: each pair is slowed so many times, beyond the trained length",
        example=_GROWING,
    ),
    "short_mscale": ScalingParameter(
        "number", "cos and sin are multiplied by it up to the trained length, above 0", example=1
    ),
    "long_mscale": ScalingParameter(
        "number", "cos and sin are multiplied by it beyond the trained length, above 0", example=1.2
    ),
    "partial_rotary_factor": ScalingParameter(
        "number", "share of the head's channel pairs that turn, above 0, at most 1", SHARE, 1, 0.5
    ),
}
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

"""PARAMETERS: kind, range and meaning of each parameter of a RoPE scaling.

`frequencies` checks values by these rows, and the API's schemas and documentation are made from them.
"""

from typing import Literal, NamedTuple

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
        """The range in words."""
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
        description: its meaning, range and default, as a clause.
        bounds: of a number, or of each number of a list.
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
        "number", "new context length / trained context length, at least 1", AT_LEAST_ONE, example=4
    ),
    "alpha": ScalingParameter("number", "stretch of theta, at least 1", AT_LEAST_ONE, example=4),
    TRAINED: ScalingParameter("number", "trained context length in tokens, before scaling, above 0", example=4096),
    "low_freq_factor": ScalingParameter(
        "number", "pairs that turn less often in the trained context are divided", example=1
    ),
    "high_freq_factor": ScalingParameter("number", "pairs that turn more often in the trained context stay", example=4),
    "beta_fast": ScalingParameter(
        "number", "pairs that turn more often in the trained context stay, default 32", default=32, example=32
    ),
    "beta_slow": ScalingParameter(
        "number", "pairs that turn less often in the trained context are divided, default 1", default=1, example=1
    ),
    "attention_factor": ScalingParameter(
        "number", "cos and sin are multiplied by it, above 0; default: see formula", example=1.2
    ),
    "mscale": ScalingParameter(
        "number", "weight of ln(factor) in the attention factor, 0 or more", NOT_NEGATIVE, example=1
    ),
    "mscale_all_dim": ScalingParameter(
        "number", "the same in the attention factor's denominator, 0 or more", NOT_NEGATIVE, example=1
    ),
    "truncate": ScalingParameter(
        "boolean", "round the ends of the blend outwards to whole channels, default true", default=True, example=True
    ),
    "short_factor": ScalingParameter(
        "numbers", "rotary_dim/2 divisors up to the trained length, each above 0", example=(1.0,) * 32
    ),
    "long_factor": ScalingParameter(
        "numbers", "rotary_dim/2 divisors beyond the trained length, each above 0", example=_GROWING
    ),
    "short_mscale": ScalingParameter("number", "attention factor up to the trained length, above 0", example=1),
    "long_mscale": ScalingParameter("number", "attention factor beyond the trained length, above 0", example=1.2),
    "partial_rotary_factor": ScalingParameter(
        "number", "fraction of the head's pairs that turn, above 0, at most 1", SHARE, 1, 0.5
    ),
}
"""Every parameter of a row of scalings.SCALINGS, by its name in config.json."""

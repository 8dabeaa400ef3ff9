"""PARAMETERS: the meaning of each parameter of a RoPE scaling, for the API's schemas and documentation."""

from typing import Literal, NamedTuple

TRAINED = "original_max_position_embeddings"


class ScalingParameter(NamedTuple):
    """The kind and meaning of one parameter of a RoPE scaling.

    Attributes:
        kind: the type of its value; numbers: a list.
        description: its meaning, range and default, as a clause.
    """

    kind: Literal["number", "boolean", "numbers"]
    description: str


PARAMETERS: dict[str, ScalingParameter] = {
    "factor": ScalingParameter("number", "new context length / trained context length, at least 1"),
    "alpha": ScalingParameter("number", "stretch of theta, at least 1"),
    TRAINED: ScalingParameter("number", "trained context length in tokens, before scaling, above 0"),
    "low_freq_factor": ScalingParameter("number", "pairs that turn less often in the trained context are divided"),
    "high_freq_factor": ScalingParameter("number", "pairs that turn more often in the trained context stay"),
    "beta_fast": ScalingParameter("number", "pairs that turn more often in the trained context stay, default 32"),
    "beta_slow": ScalingParameter("number", "pairs that turn less often in the trained context are divided, default 1"),
    "attention_factor": ScalingParameter("number", "cos and sin are multiplied by it, above 0; default: see formula"),
    "mscale": ScalingParameter("number", "weight of ln(factor) in the attention factor, 0 or more"),
    "mscale_all_dim": ScalingParameter("number", "the same in the attention factor's denominator, 0 or more"),
    "truncate": ScalingParameter("boolean", "round the ends of the blend outwards to whole channels, default true"),
    "short_factor": ScalingParameter("numbers", "rotary_dim/2 divisors up to the trained length, each above 0"),
    "long_factor": ScalingParameter("numbers", "rotary_dim/2 divisors beyond the trained length, each above 0"),
    "short_mscale": ScalingParameter("number", "attention factor up to the trained length, above 0"),
    "long_mscale": ScalingParameter("number", "attention factor beyond the trained length, above 0"),
    "partial_rotary_factor": ScalingParameter("number", "fraction of the head's pairs that turn, above 0, at most 1"),
}
"""Every parameter of a row of scalings.SCALINGS, by its name in config.json."""

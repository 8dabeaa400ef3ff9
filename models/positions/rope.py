"""RoPE frequencies: a scaling is a function and a row of SCALINGS; a table is numbers, never nodes. Rotates nothing.

A scaling gives `Frequencies`: the angle of position m in channel pair i is m * inverse_frequency[i], and cos and sin
are both multiplied by attention_factor. All in float64.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.card import RopeTable
from models.config import Config
from models.errors import BadScaling

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rope:
    """What every scaling starts from: theta > 1, rotary_dim even."""

    theta: float
    rotary_dim: int

    def unscaled(self) -> Float64s:
        """theta^(-2i/rotary_dim), float64 (rotary_dim/2,), fastest first."""
        return self.theta ** (-np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim)


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """inverse_frequency float64 (rotary_dim/2,), radians per position, fastest first; a factor for cos and sin."""

    inverse_frequency: Float64s
    attention_factor: float = 1.0


def default(rope: Rope) -> Frequencies:
    """No scaling.

    source   Su et al. 2021, arXiv:2104.09864
    """
    return Frequencies(rope.unscaled())


def linear(rope: Rope, factor: float) -> Frequencies:
    """Positions squeezed by `factor`, 1 or more.

    source   Chen et al. 2023, arXiv:2306.15595; transformers 5.23 `linear`
    """
    return Frequencies(rope.unscaled() / factor)


def llama3(
    rope: Rope, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_position_embeddings: float
) -> Frequencies:
    """Slow channels divided by `factor`, fast ones left, a linear blend between.

    raises   BadScaling unless high_freq_factor > low_freq_factor
    source   transformers 5.23 `llama3` (Llama 3.1)
    """
    if high_freq_factor <= low_freq_factor:
        raise BadScaling(
            f"llama3 RoPE needs high_freq_factor above low_freq_factor; got {high_freq_factor} and {low_freq_factor}"
        )
    plain = rope.unscaled()
    turns = original_max_position_embeddings * plain / (2.0 * math.pi)  # within the trained context
    blend = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return Frequencies((1.0 - blend) * plain / factor + blend * plain)


def yarn(
    rope: Rope,
    factor: float,
    original_max_position_embeddings: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    truncate: bool = True,
) -> Frequencies:
    """Channels that turn under beta_slow times in the trained context are divided by `factor`, above beta_fast left.

    attention_factor  None: m(mscale) / m(mscale_all_dim) where both are given, else m(1); m(k) = 0.1 k ln(factor) + 1
    truncate          round the blend's ends outwards to whole channels
    source            Peng et al. 2023, arXiv:2309.00071; transformers 5.23 `yarn`
    """

    def channel(turns: float) -> float:
        trained = original_max_position_embeddings / (turns * 2.0 * math.pi)
        return rope.rotary_dim * math.log(trained) / (2.0 * math.log(rope.theta))

    low, high = channel(beta_fast), channel(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001
    plain = rope.unscaled()
    squeezed = np.clip((np.arange(len(plain)) - low) / (high - low), 0.0, 1.0)
    if attention_factor is None:
        both = (mscale, mscale_all_dim) if mscale and mscale_all_dim else (1.0, 0.0)
        attention_factor = _yarn_magnitude(factor, both[0]) / _yarn_magnitude(factor, both[1])
    return Frequencies(squeezed * plain / factor + (1.0 - squeezed) * plain, attention_factor)


def _yarn_magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """A row: the function, and the parameters a config must and may give it."""

    frequencies: Callable[..., Frequencies]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


_TRAINED = "original_max_position_embeddings"
SCALINGS: dict[str, Scaling] = {
    "default": Scaling(default),
    "linear": Scaling(linear, ("factor",)),
    "llama3": Scaling(llama3, ("factor", "low_freq_factor", "high_freq_factor", _TRAINED)),
    "yarn": Scaling(
        yarn,
        ("factor", _TRAINED),
        ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    ),
}
_AT_LEAST_ONE = ("factor",)
_NOT_SCALING = ("rope_type", "type", "rope_theta", "partial_rotary_factor", _TRAINED, "finetuned")


def frequencies(rope: Rope, rope_type: str, parameters: Mapping[str, Any]) -> Frequencies:
    """Frequencies of one scaling.

    parameters  by the names config.json uses; null counts as absent
    raises      BadScaling: rope_type unknown, a parameter missing, unknown or impossible
    """
    if rope_type not in SCALINGS:
        raise BadScaling(f"rope_type {rope_type!r} is not one of {', '.join(SCALINGS)}")
    row = SCALINGS[rope_type]
    given = {name: value for name, value in parameters.items() if value is not None}
    if missing := [name for name in row.required if name not in given]:
        raise BadScaling(f"{rope_type} RoPE needs {', '.join(row.required)}; the config gives no {missing[0]}")
    allowed = row.required + row.optional
    if unknown := [name for name in given if name not in allowed + _NOT_SCALING]:
        raise BadScaling(f"{rope_type} RoPE has no parameter {unknown[0]!r}; it reads {', '.join(allowed) or 'none'}")
    return row.frequencies(rope, **{name: _checked(rope_type, name, given[name]) for name in allowed if name in given})


def _checked(rope_type: str, name: str, value: Any) -> float | bool:
    if name == "truncate":
        if not isinstance(value, bool):
            raise BadScaling(f"{rope_type} RoPE: truncate is {value!r}; it must be true or false")
        return value
    number = positive(f"{rope_type} RoPE: {name}", value)
    if name in _AT_LEAST_ONE and number < 1.0:
        raise BadScaling(f"{rope_type} RoPE: {name} is {value!r}; it must be 1 or more")
    return number


def positive(what: str, value: Any) -> float:
    """A finite number above 0; raises BadScaling."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not (math.isfinite(value) and value > 0):
        raise BadScaling(f"{what} is {value!r}; it must be a number above 0")
    return float(value)


def rope_of(config: Config, layout: str) -> RopeTable:
    """The table's numbers from a config, in any spelling transformers has written.

    v5        rope_parameters {rope_theta, rope_type, partial_rotary_factor, ...}
    v4        top-level rope_theta and partial_rotary_factor, rope_scaling {type or rope_type, ...}
    raises    BadScaling, or BadCheckpoint for sizes that are no sizes
    """
    parameters = _parameters(config)
    head_dim = config.head_dim()
    theta = positive("rope_theta", parameters["rope_theta"])
    rotary_dim = int(head_dim * positive("partial_rotary_factor", parameters["partial_rotary_factor"]))
    if theta <= 1.0 or rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
        raise BadScaling(
            f"RoPE needs rope_theta above 1 and an even number of rotated channels from 2 to the head's {head_dim}; "
            f"got rope_theta {theta} and {rotary_dim} channels"
        )
    trained = config.count("max_position_embeddings")
    rope_type = parameters["rope_type"]
    found = frequencies(Rope(theta, rotary_dim), rope_type, parameters)
    return RopeTable(
        rope_type=rope_type,
        theta=theta,
        rotary_dim=rotary_dim,
        head_dim=head_dim,
        layout=layout,
        arithmetic="exact",
        attention_factor=found.attention_factor,
        trained_positions=trained,
        inverse_frequency=tuple(found.inverse_frequency.tolist()),
    )


def _parameters(config: Config) -> dict[str, Any]:
    """One flat dict of parameters, whatever the spelling; nested values win over top-level ones."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(nested, dict) or any(isinstance(value, dict) for value in nested.values()):
        raise BadScaling(f"config.json describes RoPE as {str(nested)[:120]}; one flat object of parameters is read")
    parameters = {
        "rope_theta": config.get("rope_theta") or 10000.0,
        "partial_rotary_factor": config.get("partial_rotary_factor") or 1.0,
        **{name: value for name, value in nested.items() if value is not None},
    }
    parameters["rope_type"] = parameters.get("rope_type", parameters.get("type", "default"))
    if (trained := config.get(_TRAINED)) is not None:  # where both are written, transformers takes this one (Phi-3)
        parameters[_TRAINED] = trained
    return {
        _TRAINED: config.get("max_position_embeddings")
    } | parameters  # transformers' own stand-in where it is missing


def table(rope: RopeTable, positions: NDArray[np.int64]) -> tuple[Float64s, Float64s]:
    """cos and sin of each position.

    positions  int64 [N], 0 or more
    returns    float64 [N, rotary_dim/2] each, multiplied by attention_factor
    """
    angles = positions[:, None].astype(np.float64) * np.asarray(rope.inverse_frequency, np.float64)
    return np.cos(angles) * rope.attention_factor, np.sin(angles) * rope.attention_factor

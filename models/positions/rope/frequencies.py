"""What decides a RoPE table, and the frequencies that come of it. Reads no config, makes no table, rotates nothing.

The angle of position m in channel pair i is m * inverse_frequency[i]. scalings.py has the formulas.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadScaling
from models.positions.arithmetic import DIGITS, NUMBERS
from models.positions.rope.scaling import Call, Scaling
from models.positions.rope.scalings import SCALINGS
from models.positions.table import MAX_POSITION, Arithmetic

Float64s = NDArray[np.float64]
MAX_ROTARY_DIM = 8192


@dataclass(frozen=True, slots=True)
class Rope:
    """All that decides the frequencies of one table.

    theta       above 1
    rotary_dim  channels of a head that are rotated; even, 2 or more
    rope_type   a row of SCALINGS
    parameters  (name, value) by the names of config.json; lists as tuples
    head_dim    channels of a head; None: rotary_dim. `proportional` spreads its exponents over it
    max_position_embeddings  dynamic needs it, yarn and longrope where no factor is given
    """

    theta: float
    rotary_dim: int
    rope_type: str = "default"
    parameters: tuple[tuple[str, Any], ...] = ()
    head_dim: int | None = None
    max_position_embeddings: int | None = None

    @classmethod
    def of(
        cls,
        theta: float,
        rotary_dim: int,
        rope_type: str = "default",
        parameters: Mapping[str, Any] | None = None,
        **rest: Any,
    ) -> "Rope":
        """A Rope of parameters as JSON has them: null counts as absent, lists become tuples."""
        given = ((name, _hashable(name, value)) for name, value in (parameters or {}).items() if value is not None)
        return cls(theta, rotary_dim, rope_type, tuple(sorted(given)), **rest)


def _hashable(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(name, each) for each in value)
    if isinstance(value, str | int | float):
        return value
    raise BadScaling(f"{name} is {_shown(value)}; it must be a number, true or false, or a list of numbers")


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """The numbers every cos and sin of a table come from.

    inverse_frequency  float64 (r/2,), radians per position, fastest first; parity: float32 values, widened
    residue            float64 (r/2,): what float64 leaves out of it (exact); zeros (parity)
    attention_factor   both cos and sin are multiplied by it, so attention scores by its square
    """

    inverse_frequency: Float64s
    residue: Float64s
    attention_factor: float
    arithmetic: Arithmetic


@lru_cache(maxsize=512)
def frequencies(rope: Rope, arithmetic: Arithmetic = "exact", seq_len: int | None = None) -> Frequencies:
    """The frequencies of a rope, in one arithmetic.

    seq_len  tokens of the sequence at hand, which dynamic and longrope ask for
    raises   BadScaling: rope_type unknown, sizes impossible, a parameter missing, unknown or impossible
    source   transformers 5.23 modeling_rope_utils (parity); the same formulas in 50 digits (exact)
    """
    row, given = _checked_row(rope), _checked_parameters(rope)
    _check_sizes(rope)
    if seq_len is not None and not 1 <= seq_len <= MAX_POSITION:
        raise BadScaling(f"seq_len is {seq_len}; it must be 1 to {MAX_POSITION}")
    numbers = NUMBERS[arithmetic]
    head_dim = rope.head_dim or rope.rotary_dim
    with localcontext(DIGITS), np.errstate(over="raise", invalid="raise", divide="raise"):
        numbered = {name: numbers.number(each) if type(each) is float else each for name, each in given.items()}
        theta = numbers.number(rope.theta)
        call = Call(numbers, theta, rope.rotary_dim, head_dim, rope.max_position_embeddings, seq_len)
        try:
            found, factor = row.frequencies(call, **numbered)
        except BadScaling as error:
            raise BadScaling(f"{rope.rope_type} RoPE {error}") from None
        except (ArithmeticError, ValueError):
            given = {"theta": rope.theta, **dict(rope.parameters)}
            raise BadScaling(f"{rope.rope_type} RoPE has no {arithmetic} frequencies for {_shown(given)}") from None
        return _split(found, float(factor), arithmetic)


def remarks(rope: Rope) -> tuple[str, ...]:
    """What a reader of the table should know: parameters some library ignores, forms in which libraries differ."""
    return tuple(_checked_row(rope).remarks(_checked_parameters(rope)))


def _split(found: NDArray[Any], attention_factor: float, arithmetic: Arithmetic) -> Frequencies:
    nearest = found.astype(np.float64)
    residue = np.zeros(len(found))
    if arithmetic == "exact":
        residue = np.array([float(value - Decimal(float(near))) for value, near in zip(found, nearest, strict=True)])
    nearest.flags.writeable = residue.flags.writeable = False  # lent to every caller
    return Frequencies(nearest, residue, attention_factor, arithmetic)


def _checked_row(rope: Rope) -> Scaling:
    if rope.rope_type not in SCALINGS:
        raise BadScaling(f"rope_type {rope.rope_type!r} is not one of {', '.join(SCALINGS)}")
    return SCALINGS[rope.rope_type]


def _check_sizes(rope: Rope) -> None:
    theta = positive("rope_theta", rope.theta)
    head_dim = rope.head_dim or rope.rotary_dim
    if theta <= 1.0 or rope.rotary_dim < 2 or rope.rotary_dim % 2 or rope.rotary_dim > head_dim:
        raise BadScaling(
            f"RoPE needs rope_theta above 1 and an even number of rotated channels, from 2 to the head's {head_dim}; "
            f"got rope_theta {theta:g} and rotary_dim {rope.rotary_dim}"
        )
    if rope.rotary_dim > MAX_ROTARY_DIM:
        raise BadScaling(f"rotary_dim is {rope.rotary_dim}; up to {MAX_ROTARY_DIM} are computed")


def _checked_parameters(rope: Rope) -> dict[str, Any]:
    row, name = _checked_row(rope), rope.rope_type
    given = dict(rope.parameters)
    allowed = row.required + row.optional
    if unknown := [parameter for parameter in given if parameter not in allowed]:  # a misspelt one explains a missing
        near = get_close_matches(unknown[0], allowed, 1)
        hint = f"did you mean {near[0]!r}? It" if near else "it"
        raise BadScaling(f"{name} RoPE has no parameter {unknown[0]!r}; {hint} reads {', '.join(allowed) or 'none'}")
    if missing := [parameter for parameter in row.required if parameter not in given]:
        one = len(missing) == 1
        raise BadScaling(
            f"{name} RoPE: {', '.join(missing)} {'is' if one else 'are'} missing; give {'it' if one else 'them'}"
        )
    return {parameter: _check(parameter)(parameter, value) for parameter, value in given.items()}


def _check(parameter: str) -> Callable[[str, Any], Any]:
    return _CHECKS.get(parameter, positive)


def positive(what: str, value: Any) -> float:
    """A finite number above 0; raises BadScaling."""
    number = finite(what, value)
    if number <= 0:
        raise BadScaling(f"{what} is {value!r}; it must be above 0")
    return number


def finite(what: str, value: Any) -> float:
    """A finite number; raises BadScaling."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise BadScaling(f"{what} is {_shown(value)}; it must be a number")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _at_least_one(what: str, value: Any) -> float:
    if (number := positive(what, value)) < 1.0:
        raise BadScaling(f"{what} is {value!r}; it must be 1 or more")
    return number


def _not_negative(what: str, value: Any) -> float:
    if (number := finite(what, value)) < 0:
        raise BadScaling(f"{what} is {value!r}; it must be 0 or more")
    return number


def _share(what: str, value: Any) -> float:
    if (number := positive(what, value)) > 1.0:
        raise BadScaling(f"{what} is {value!r}; it must be above 0, up to 1")
    return number


def _flag(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadScaling(f"{what} is {_shown(value)}; it must be true or false")
    return value


def _positives(what: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, tuple):
        raise BadScaling(f"{what} is {_shown(value)}; it must be a list of numbers above 0")
    return tuple(positive(f"{what}[{index}]", each) for index, each in enumerate(value))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "factor": _at_least_one,
    "alpha": _at_least_one,
    "mscale": _not_negative,
    "mscale_all_dim": _not_negative,
    "partial_rotary_factor": _share,
    "truncate": _flag,
    "short_factor": _positives,
    "long_factor": _positives,
}

"""Rope, the parameters of one RoPE table, and the frequencies computed from them.

The angle of position m in channel pair i is m * inverse_frequency[i]. scalings.py has the formulas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadScaling
from models.positions.arithmetic import DIGITS, NUMBERS, Arithmetic, Frequencies
from models.positions.rope.scaling_parameters import TRAINED, checked, positive, shorten
from models.positions.rope.scalings import SCALINGS, Scaling, Unscaled
from models.positions.table import MAX_POSITION

MAX_ROTARY_DIM = 8192
BY_LENGTH = ("dynamic", "longrope")  # rope types whose frequencies depend on the sequence's length


@dataclass(frozen=True, slots=True)
class Rope:
    """The parameters that determine the frequencies of one table.

    Attributes:
        theta: base of the frequencies, above 1.
        rotary_dim: channels of a head that are rotated; even, 2 or more.
        rope_type: a row of SCALINGS.
        parameters: (name, value) by the names of config.json; lists as tuples.
        head_dim: channels of a head; None: rotary_dim. `proportional` spreads its exponents over it.
        max_position_embeddings: dynamic needs it, yarn and longrope where no factor is given.
        stored: the frequencies of a weights file that holds its own (ESM-2), used instead of the formula's.
    """

    theta: float
    rotary_dim: int
    rope_type: str = "default"
    parameters: tuple[tuple[str, Any], ...] = ()
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    stored: tuple[float, ...] | None = None

    @classmethod
    def of(
        cls,
        theta: float,
        rotary_dim: int,
        rope_type: str = "default",
        parameters: Mapping[str, Any] | None = None,
        **rest: Any,
    ) -> "Rope":
        """Return a Rope from parameters as JSON has them: null counts as absent, lists become tuples.

        Raises:
            BadScaling: a parameter is neither a number, a boolean, a text nor a list of these.
        """
        entries = ((name, _hashable(name, value)) for name, value in (parameters or {}).items() if value is not None)
        return cls(theta, rotary_dim, rope_type, tuple(sorted(entries)), **rest)


def _hashable(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(name, item) for item in value)
    if isinstance(value, str | int | float):
        return value
    raise BadScaling(f"{name} is {shorten(value)}; it must be a number, true or false, or a list of numbers")


@lru_cache(maxsize=64)  # of up to 64 KiB, and their ropes with lists as long
def frequencies(rope: Rope, arithmetic: Arithmetic = "exact", seq_len: int | None = None) -> Frequencies:
    """Return the frequencies of a rope, in one arithmetic.

    Args:
        rope: the encoding, scaled or not.
        arithmetic: exact or parity.
        seq_len: length of the sequence in tokens, which dynamic and longrope read.

    Raises:
        BadScaling: an unknown rope_type, impossible sizes, or a parameter that is missing, unknown or impossible.

    Source: transformers 5.23 modeling_rope_utils (parity); the same formulas in 50 digits (exact).
    """
    scaling, parameters = _scaling_row(rope), _checked_parameters(rope)
    _check_sizes(rope)
    if seq_len is not None and not 1 <= seq_len <= MAX_POSITION:
        raise BadScaling(f"seq_len is {seq_len}; it must be 1 to {MAX_POSITION}")
    if rope.stored is not None:
        return _split(np.array([Decimal(value) for value in rope.stored]), 1.0, arithmetic)
    numbers = NUMBERS[arithmetic]
    head_dim = rope.head_dim or rope.rotary_dim
    with localcontext(DIGITS), np.errstate(over="raise", invalid="raise", divide="raise"):
        scalars = {name: numbers.scalar(value) if type(value) is float else value for name, value in parameters.items()}
        theta = numbers.scalar(rope.theta)
        unscaled = Unscaled(numbers, theta, rope.rotary_dim, head_dim, rope.max_position_embeddings, seq_len)
        try:
            inverse_frequency, factor = scaling.frequencies(unscaled, **scalars)
        except BadScaling as error:
            raise BadScaling(f"{rope.rope_type} RoPE {error}") from None
        except (ArithmeticError, ValueError):
            shown = shorten({"theta": rope.theta, **dict(rope.parameters)})
            raise BadScaling(f"{rope.rope_type} RoPE has no {arithmetic} frequencies for {shown}") from None
        return _split(inverse_frequency, float(factor), arithmetic)


def threshold(rope: Rope) -> int:
    """Return the longest sequence whose frequencies are those of short ones, of a rope_type of BY_LENGTH."""
    return int(dict(rope.parameters).get(TRAINED) or rope.max_position_embeddings or 0)


def remarks(rope: Rope) -> tuple[str, ...]:
    """Return notes for the reader of the table: parameters that some library ignores, forms that differ.

    Raises:
        BadScaling: an unknown rope_type, or a parameter that is missing, unknown or impossible.
    """
    return tuple(_scaling_row(rope).remarks(_checked_parameters(rope)))


def facts_of(rope: Rope, freqs: Frequencies) -> dict[str, Any]:
    """Return, JSON-ready, the frequencies and how they were computed."""
    return {
        "rope_type": rope.rope_type,
        "formula": SCALINGS[rope.rope_type].formula,
        "theta": rope.theta,
        "rotary_dim": rope.rotary_dim,
        "head_dim": rope.head_dim or rope.rotary_dim,
        "max_position_embeddings": rope.max_position_embeddings,
        "parameters": dict(rope.parameters),
        "attention_factor": freqs.attention_factor,
        "inverse_frequency": freqs.inverse_frequency.tolist(),
    }


def _split(inverse_frequency: NDArray[Any], attention_factor: float, arithmetic: Arithmetic) -> Frequencies:
    rounded = inverse_frequency.astype(np.float64)
    residue = np.zeros(len(inverse_frequency))
    if arithmetic == "exact":
        pairs = zip(inverse_frequency, rounded, strict=True)
        residue = np.array([float(value - Decimal(float(near))) for value, near in pairs])
    rounded.flags.writeable = residue.flags.writeable = False  # shared through the cache
    return Frequencies(rounded, residue, attention_factor, arithmetic)


def _scaling_row(rope: Rope) -> Scaling:
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
        raise BadScaling(f"rotary_dim is {rope.rotary_dim}; it must be {MAX_ROTARY_DIM} or less")


def _checked_parameters(rope: Rope) -> dict[str, Any]:
    scaling, name = _scaling_row(rope), rope.rope_type
    parameters = dict(rope.parameters)
    allowed = scaling.required + scaling.optional
    # unknown before missing: a misspelt parameter explains a missing one
    if unknown := [parameter for parameter in parameters if parameter not in allowed]:
        match = get_close_matches(unknown[0], allowed, 1)
        hint = f"did you mean {match[0]!r}? It" if match else "it"
        raise BadScaling(f"{name} RoPE has no parameter {unknown[0]!r}; {hint} reads {', '.join(allowed) or 'none'}")
    if missing := [parameter for parameter in scaling.required if parameter not in parameters]:
        one = len(missing) == 1
        raise BadScaling(
            f"{name} RoPE: {', '.join(missing)} {'is' if one else 'are'} missing; give {'it' if one else 'them'}"
        )
    return {parameter: checked(parameter, value) for parameter, value in parameters.items()}

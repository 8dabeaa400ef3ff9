"""The two number systems in which a frequency formula is evaluated; each formula is written once for both.

- exact: decimals of 50 digits: the formula itself, with parameters taken as the float64 values they are.
- parity: the steps that transformers takes: scalars are Python floats, arrays float32, each step rounded.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

DIGITS = Context(prec=50)
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")

Arithmetic = Literal["exact", "parity"]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Numbers:
    """One number system: its constructors, and the functions that Python's operators do not cover.

    Attributes:
        arithmetic: exact or parity.
        scalar: converts a parameter to a scalar.
        array: converts scalars to a 1-D array.
        power: scalar ** array.
        divide: scalar / array.
        log: natural logarithm of a scalar.
        pi: pi as a scalar.
    """

    arithmetic: Arithmetic
    scalar: Callable[[float], Any]
    array: Callable[[Iterable[float]], Array]
    power: Callable[[Any, Array], Array]
    divide: Callable[[Any, Array], Array]
    log: Callable[[Any], Any]
    pi: Any


def _decimals(values: Iterable[float]) -> Array:
    return np.array([Decimal(value) for value in values], dtype=object)


def _singles(values: Iterable[float]) -> Array:
    return np.array(list(values), np.float32)


def _single_power(base: float, exponents: Array) -> Array:
    """Return float32 powers, correctly rounded: torch 2.13 and numpy 2.4 differ by up to 2 ulp."""
    result: Array = (np.float64(np.float32(base)) ** exponents.astype(np.float64)).astype(np.float32)
    return result


def _single_divide(value: float, array: Array) -> Array:
    result: Array = (np.float32(1.0) / array) * np.float32(value)  # as torch: scalar / tensor multiplies a reciprocal
    return result


EXACT = Numbers(
    "exact",
    scalar=Decimal,
    array=_decimals,
    power=lambda base, exponents: np.array([base**exponent for exponent in exponents], dtype=object),
    divide=lambda value, array: value / array,
    log=lambda value: value.ln(),
    pi=PI,
)
PARITY = Numbers(
    "parity",
    scalar=float,
    array=_singles,
    power=_single_power,
    divide=_single_divide,
    log=lambda value: math.log(value),
    pi=float(PI),
)
NUMBERS: dict[str, Numbers] = {"exact": EXACT, "parity": PARITY}


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """The numbers from which every cos and sin of a table are computed.

    Attributes:
        inverse_frequency: float64 (r/2,), radians per position, fastest first; parity: float32 values, widened.
        residue: float64 (r/2,): the exact frequency minus its float64 value (exact); zeros (parity).
        attention_factor: cos and sin are multiplied by it, so attention scores by its square.
        arithmetic: exact or parity.
    """

    inverse_frequency: NDArray[np.float64]
    residue: NDArray[np.float64]
    attention_factor: float
    arithmetic: Arithmetic

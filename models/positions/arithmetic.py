"""The two number systems a frequency formula is evaluated in. A formula is written once and knows neither.

exact    decimals of 50 digits: the formula itself, its parameters taken as the float64 values they are
parity   the steps transformers takes: scalars are Python floats, arrays float32, each step rounded
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.positions.table import Arithmetic

DIGITS = Context(prec=50)
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Numbers:
    """How numbers are made and the functions that Python's operators do not cover.

    number   a parameter as a scalar
    array    scalars as a 1-D array
    power    scalar ** array
    over     scalar / array
    log      of a scalar
    pi       as a scalar
    """

    arithmetic: Arithmetic
    number: Callable[[float], Any]
    array: Callable[[Iterable[float]], Array]
    power: Callable[[Any, Array], Array]
    over: Callable[[Any, Array], Array]
    log: Callable[[Any], Any]
    pi: Any


def _decimals(values: Iterable[float]) -> Array:
    return np.array([Decimal(value) for value in values], dtype=object)


def _singles(values: Iterable[float]) -> Array:
    return np.array(list(values), np.float32)


def _single_power(base: float, exponents: Array) -> Array:
    """float32 pow, correctly rounded: libraries' own differ from each other by up to 2 ulp (torch 2.13, numpy 2.4)."""
    result: Array = (np.float64(np.float32(base)) ** exponents.astype(np.float64)).astype(np.float32)
    return result


def _single_over(value: float, array: Array) -> Array:
    result: Array = (np.float32(1.0) / array) * np.float32(value)  # as torch: scalar / tensor multiplies a reciprocal
    return result


EXACT = Numbers(
    "exact",
    number=Decimal,
    array=_decimals,
    power=lambda base, exponents: np.array([base**exponent for exponent in exponents], dtype=object),
    over=lambda value, array: value / array,
    log=lambda value: value.ln(),
    pi=PI,
)
PARITY = Numbers(
    "parity",
    number=float,
    array=_singles,
    power=_single_power,
    over=_single_over,
    log=lambda value: math.log(value),
    pi=float(PI),
)
NUMBERS: dict[str, Numbers] = {"exact": EXACT, "parity": PARITY}

"""Tables: floats are rounded once, ranges are not expanded, and invalid positions are rejected."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import BadEncoding
from models.positions.table import checked_positions, rounded, slice_positions


def neighbours(value: Any) -> list[Fraction]:
    """The numbers of its dtype on either side of one, exactly."""
    step = np.array([value]).view(np.uint16)[0]
    bits = np.array([step - 1, step + 1] if step & 0x7FFF else [0x8001, 0x0001], np.uint16)
    return [Fraction(float(each)) for each in bits.view(type(value))]


@given(st.floats(-4.0, 4.0, width=64), st.sampled_from([ml_dtypes.bfloat16, np.float16]))
def test_float64_rounds_to_the_nearest_half_precision(value: float, kind: Any) -> None:
    name = "bfloat16" if kind is ml_dtypes.bfloat16 else "float16"
    actual = rounded(np.array([value]), name)[0]
    distance = abs(Fraction(float(actual)) - Fraction(value))
    assert all(distance <= abs(each - Fraction(value)) for each in neighbours(actual))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("rest", "nearest"), [(2.0**-40, 1.0 + 2.0**-7), (-(2.0**-40), 1.0), (0.0, 1.0)])
def test_bfloat16_is_rounded_once(rest: float, nearest: float, sign: float) -> None:
    """A value so near a tie between two bfloat16 numbers that float32 rounds it to the tie."""
    assert float(rounded(np.array([sign * (1.0 + 2.0**-8 + rest)]), "bfloat16")[0]) == sign * nearest


def test_slice_of_a_range_is_its_integers() -> None:
    assert slice_positions(range(5, 2**53), 2, 4).tolist() == [7, 8]


@pytest.mark.parametrize(
    "positions", [range(-1, 3), range(2**53, 2**53 + 1), np.array([3, -1]), np.array([], np.int64)]
)
def test_rejects_invalid_positions(positions: Any) -> None:
    with pytest.raises(BadEncoding, match="position"):
        checked_positions(positions)

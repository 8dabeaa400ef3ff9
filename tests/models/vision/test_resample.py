"""Properties of resizing; tests/parity compares it with torch."""

from itertools import product

import numpy as np
import pytest

from models.vision.resample import RESIZES, resized, weights
from tests.sweeps import sampled

SIZES = [1, 2, 3, 4, 7, 16]


@pytest.mark.parametrize(("source", "target"), sampled(product(SIZES, SIZES), 5, unpack=True))
@pytest.mark.parametrize("name", RESIZES)
def test_weights_sum_to_one(name: str, source: int, target: int) -> None:
    np.testing.assert_allclose(weights(name, source, target).sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RESIZES)
def test_resizing_to_the_same_size_is_the_identity(name: str, size: int) -> None:
    np.testing.assert_array_equal(weights(name, size, size), np.eye(size))


@pytest.mark.parametrize(("source", "target"), sampled(product(SIZES, SIZES), 5, unpack=True))
@pytest.mark.parametrize("name", [name for name in RESIZES if "corners" not in name])
def test_resizing_commutes_with_flipping(name: str, source: int, target: int) -> None:
    there = weights(name, source, target)
    np.testing.assert_allclose(there[::-1, ::-1], there, atol=1e-12)


def test_cubic_matches_torch_at_two_thirds_of_a_step() -> None:
    """4 -> 6 rows: row 1 stands at (1 + 0.5) * 4/6 - 0.5 = 0.5, halfway; a = -0.75 gives -3/32, 19/32, 19/32, -3/32."""
    np.testing.assert_allclose(weights("bicubic", 4, 6)[1], np.array([-3 + 19, 19, -3, 0]) / 32)


def test_axes_are_resized_independently() -> None:
    grid = np.arange(12.0).reshape(1, 3, 4)
    actual = resized(grid, "bilinear_corners", 5, 7)
    np.testing.assert_allclose(actual[0], np.add.outer(np.linspace(0, 8, 5), np.linspace(0, 3, 7)))

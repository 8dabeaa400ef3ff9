"""Stored vectors, by the formulas that sentence-transformers' documentation and quantize_embeddings (6.2) state."""

import numpy as np
import pytest

from service.bulk.quantization import columns, ranges, stored
from service.errors import StartError

VECTORS = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)


def test_float32_stays_and_float16_is_rounded() -> None:
    assert stored(VECTORS, "float32") is VECTORS
    assert np.abs(stored(VECTORS, "float16") - VECTORS).max() < 2e-3
    with pytest.raises(StartError, match="too large for float16"):
        stored(VECTORS * 1e6, "float16")


def test_int8_fills_the_range_of_each_dimension() -> None:
    limits = ranges(VECTORS)
    codes = stored(VECTORS, "int8", limits)
    assert codes.dtype == np.int8
    assert (codes.min(axis=0) == -128).all()
    assert (codes.max(axis=0) >= 126).all()  # its formula cuts 126.99 down
    back = (codes.astype(np.float64) + 128) * (limits[1] - limits[0]) / 255 + limits[0]
    assert (np.abs(back - VECTORS) <= 1.01 * (limits[1] - limits[0]) / 255).all()


def test_int8_outside_the_ranges_is_the_nearest_inside_and_a_constant_dimension_is_no_nan() -> None:
    codes = stored(VECTORS * 3, "int8", ranges(VECTORS))
    assert codes.min() == -128
    assert codes.max() == 127
    assert (np.sign(codes[ranges(VECTORS)[1] < VECTORS * 3]) == 1).all()
    constant = np.ones((3, 2), np.float32)
    assert (stored(constant, "int8", ranges(constant)) == 0).all()


def test_binary_holds_the_signs() -> None:
    bits = np.unpackbits(stored(VECTORS, "ubinary"), axis=1)[:, :20]
    assert (bits == (VECTORS > 0)).all()
    assert columns("ubinary", 20) == stored(VECTORS, "ubinary").shape[1] == 3
    signed = stored(VECTORS, "binary")
    assert signed.dtype == np.int8
    assert (signed.astype(int) + 128 == stored(VECTORS, "ubinary")).all()

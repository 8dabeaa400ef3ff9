"""The formulas of quantize_embeddings (sentence-transformers 6.2) by what they say; parity asks the library itself."""

import numpy as np
import pytest

from service.embedding.quantization import columns, quantized, ranges

VECTORS = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)


def test_int8_fills_the_range_of_each_dimension():
    limits = ranges(VECTORS)
    codes = quantized(VECTORS, "int8", limits)
    assert codes.dtype == np.int8
    assert (codes.min(axis=0) == -128).all()
    assert (codes.max(axis=0) >= 126).all()  # 254.99 goes down
    below = VECTORS - ((codes.astype(np.float64) + 128) * (limits[1] - limits[0]) / 255 + limits[0])
    step = (limits[1] - limits[0]) / 255
    assert (below > -0.001 * step).all()  # floor: never above the value
    assert (below < 1.001 * step).all()


def test_values_go_down_to_the_step_below_and_not_to_zero():
    limits = np.float32([[-1.275], [1.275]])
    values = np.float32([[-1.275], [-0.005], [0.005], [1.2751]])
    assert quantized(values, "uint8", limits).tolist() == [[0], [127], [128], [255]]
    assert quantized(values, "int8", limits).tolist() == [[-128], [-1], [0], [127]]


def test_values_outside_the_ranges_are_the_nearest_inside():
    codes = quantized(VECTORS * 3, "int8", ranges(VECTORS))
    assert (codes[ranges(VECTORS)[1] < VECTORS * 3] == 127).all()
    assert (codes[ranges(VECTORS)[0] > VECTORS * 3] == -128).all()


def test_a_dimension_of_one_value_is_its_lowest_step():
    constant = np.ones((3, 2), np.float32)
    assert (quantized(constant, "int8", ranges(constant)) == -128).all()


@pytest.mark.parametrize("width", [8, 20])
def test_binary_holds_the_signs(width):
    own = VECTORS[:, :width]
    packed = quantized(own, "ubinary")
    assert (np.unpackbits(packed, axis=1)[:, :width] == (own > 0)).all()
    assert columns("ubinary", width) == packed.shape[1] == -(-width // 8)
    signed = quantized(own, "binary")
    assert signed.dtype == np.int8
    assert (signed.astype(int) + 128 == packed).all()


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_a_row_does_not_depend_on_the_others(precision):
    together = quantized(VECTORS, precision, ranges(VECTORS))
    alone = [quantized(row[None], precision, ranges(VECTORS))[0] for row in VECTORS]
    assert (together == np.stack(alone)).all()

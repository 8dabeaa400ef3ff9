"""Quantized vectors, by the formulas of sentence-transformers 6.2 (quantize_embeddings).

int8 and uint8 need the least and the largest value of each dimension. They are fixed, by `inlay calibrate`: ranges of
the vectors of one request would make a vector depend on those beside it.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Precision = Literal["int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
RANGED = ("int8", "uint8")
"""Those that need ranges."""
NUMPY_DTYPES: dict[str, Any] = {"int8": np.int8, "uint8": np.uint8, "binary": np.int8, "ubinary": np.uint8}


def columns(dtype: str, width: int) -> int:
    """Return the number of bytes of a vector of `width` dimensions; binary and ubinary hold eight in a byte."""
    return -(-width // 8) if dtype in ("binary", "ubinary") else width


def ranges(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the least and the largest value of each dimension of vectors [n, d], [2, d]."""
    return np.stack([vectors.min(axis=0), vectors.max(axis=0)])


def quantized(vectors: NDArray[np.float32], precision: str, limits: NDArray[np.float32] | None = None) -> NDArray[Any]:
    """Return vectors [n, d] as int8 or uint8 [n, `columns`].

    Args:
        precision: int8 and uint8: 256 steps between the ends of each dimension's range; ubinary: the sign of each
            value, 1 above zero, eight to a byte, the first in its highest bit; binary: these bytes minus 128.
        limits: for int8 and uint8, the `ranges`, float32 [2, d]; values outside become the nearest inside.

    Source: sentence-transformers 6.2, util/quantization.py::quantize_embeddings.
    """
    if precision in RANGED:
        assert limits is not None
        starts, steps = limits[0], (limits[1] - limits[0]) / 255
        steps = np.where(steps == 0, 1, steps)  # a dimension with one value
        steps_up: NDArray[np.float32] = np.clip(np.floor((vectors - starts) / steps), 0, 255)
        return steps_up.astype(np.uint8) if precision == "uint8" else (steps_up - 128).astype(np.int8)
    bits: NDArray[np.uint8] = np.packbits(vectors > 0, axis=-1)
    return bits if precision == "ubinary" else (bits - np.uint8(128)).view(np.int8)

"""Vectors in fewer bytes, with the formulas of sentence-transformers 6.2 (quantize_embeddings)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.bulk.plan import Dtype
from service.errors import StartError

STORED: dict[Dtype, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
    "binary": np.int8,
    "ubinary": np.uint8,
}


class Vectors(NamedTuple):
    """The vectors of some texts: rows [n, width], and how many of them each text has; None: one."""

    rows: NDArray[Any]
    lengths: NDArray[np.int64] | None


def columns(dtype: Dtype, width: int) -> int:
    """Return the values of a stored vector of `width` values."""
    return -(-width // 8) if dtype in ("binary", "ubinary") else width


def ranges(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the least and the largest value of each dimension, [2, d], which int8 vectors are made with."""
    return np.stack([vectors.min(axis=0), vectors.max(axis=0)])


def stored(vectors: NDArray[np.float32], dtype: Dtype, limits: NDArray[np.float32] | None = None) -> NDArray[Any]:
    """Return vectors [n, d] as they are stored.

    Args:
        limits: of int8: `ranges`; what lies outside becomes the nearest value inside.

    Raises:
        StartError: a value is too large for float16.
    """
    match dtype:
        case "float32":
            return vectors
        case "float16":
            with np.errstate(over="ignore"):
                narrow = vectors.astype(np.float16)
            if not np.isfinite(narrow).all():
                raise StartError("a value is too large for float16: use --dtype float32")
            return narrow
        case "int8":
            assert limits is not None
            starts, steps = limits[0], (limits[1] - limits[0]) / 255
            with np.errstate(invalid="ignore", divide="ignore"):  # a dimension with one value: 0 / 0
                scaled = np.nan_to_num((vectors - starts) / steps - 128, nan=0.0, posinf=127, neginf=-128)
            whole: NDArray[np.int8] = np.clip(scaled, -128, 127).astype(np.int8)
            return whole
    bits = np.packbits(vectors > 0, axis=1)
    return bits if dtype == "ubinary" else (bits - np.uint8(128)).view(np.int8)

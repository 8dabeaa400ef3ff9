"""Quantized tensors of GGUF files: blocks of values with a shared scale, made float32 by the gguf package.

Source: gguf 0.19 (GGML_QUANT_SIZES, quants.dequantize), which rounds as llama.cpp does.
"""

import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.errors import BadCheckpoint

QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")  # those that are read


class Format(NamedTuple):
    """One of GGML's tensor types: its name, and the values and bytes of a block."""

    name: str
    values: int
    bytes: int


def formats() -> dict[int, Format]:
    """Return GGML's tensor types by their numbers; BadCheckpoint if the gguf package is not installed."""
    return {int(kind): Format(kind.name, *size) for kind, size in _library().GGML_QUANT_SIZES.items()}


def _library() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise BadCheckpoint(
            f"GGUF files need {error.name}, which is not installed: pip install 'inlay[export]'"
        ) from error
    return gguf


class QuantizedTensor:
    """A quantized tensor that is used like a float32 array and makes rows when they are indexed.

    Args:
        data: uint8, the tensor's bytes (a view of the mapped file).
        name: one of QUANTIZED.
        shape: one dimension or more, the last a multiple of the format's block.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, data: NDArray[np.uint8], name: str, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.ndim = len(shape)
        self.nbytes = math.prod(shape) * self.dtype.itemsize  # of its slices; in the file it is smaller
        self._kind = _library().GGMLQuantizationType[name]
        count = shape[0] if self.ndim > 1 else 1
        self._rows = data.reshape(count, data.size // max(1, count))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        """Return rows by slice, number or array of numbers, as float32; a bad scale gives infinity or NaN."""
        selected = self._rows if self.ndim == 1 else self._rows[rows]
        shape = (*selected.shape[:-1], *self.shape[1:]) if self.ndim > 1 else self.shape
        values = np.empty(shape, np.float32)
        if values.size:
            with np.errstate(over="ignore", invalid="ignore"):
                values = _library().dequantize(selected, self._kind).reshape(shape)
        return values if self.ndim > 1 else values[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the whole tensor, in memory; for small tensors."""
        return self[:].astype(dtype or self.dtype, copy=False)

"""GGML's block formats: bytes of a row -> float32 values.

A row is a run of blocks; a block is some values with a shared scale. Each function below takes blocks [n] of its own
record type and gives [n, values] in float32, rounding as llama.cpp does.

Source: llama.cpp's ggml-common.h (records) and ggml-quants.c (dequantize_row_*).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.void]
Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
_HALF, _BYTE, _SIGNED = "<f2", "u1", "i1"
_STRIP = 1 << 20  # values made at once: temporaries stay in cache and off the peak


def _field(blocks: Blocks, name: str) -> Floats:
    """Return a scale as [n, 1]."""
    return blocks[name].astype(np.float32)[:, None]


def _spread(codes: Codes, bits: int, width: int) -> Codes:
    """Unpack codes of `bits` bits to one a byte, [n, values]; runs of `width` bytes hold the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = codes.reshape(len(codes), -1, 1, width) >> shifts  # [n, runs, 8/bits, width]
    return (runs & np.uint8((1 << bits) - 1)).reshape(len(codes), -1)


def _fifth_bits(blocks: Blocks) -> Codes:
    """Return the fifth bit of 32 codes, in its place: 0 or 16."""
    return np.unpackbits(blocks["high"], axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Blocks) -> Floats:
    codes = _spread(blocks["codes"], 4, 16).astype(np.int8) - np.int8(8)
    return _field(blocks, "scale") * codes


def _q4_1(blocks: Blocks) -> Floats:
    return _field(blocks, "scale") * _spread(blocks["codes"], 4, 16) + _field(blocks, "least")


def _q5_0(blocks: Blocks) -> Floats:
    codes = _spread(blocks["codes"], 4, 16) | _fifth_bits(blocks)
    return _field(blocks, "scale") * (codes.astype(np.int8) - np.int8(16))


def _q5_1(blocks: Blocks) -> Floats:
    codes = _spread(blocks["codes"], 4, 16) | _fifth_bits(blocks)
    return _field(blocks, "scale") * codes + _field(blocks, "least")


def _q8_0(blocks: Blocks) -> Floats:
    codes: NDArray[np.int8] = blocks["codes"]
    return _field(blocks, "scale") * codes


def _groups(scales: Floats, codes: NDArray[Any]) -> Floats:
    """Return scales [n, groups] times the codes [n, 256] of their groups."""
    grouped: Floats = scales[:, :, None] * codes.reshape(*scales.shape, -1)
    flat: Floats = grouped.reshape(len(codes), -1)
    return flat


def _q2_k(blocks: Blocks) -> Floats:
    packed: Codes = blocks["scales"]
    scales = _field(blocks, "scale") * (packed & np.uint8(15))
    least: Floats = _field(blocks, "least") * (packed >> np.uint8(4))
    return _groups(scales, _spread(blocks["codes"], 2, 32)) - np.repeat(least, 16, axis=1)


def _q3_k(blocks: Blocks) -> Floats:
    high = _spread(blocks["high"], 1, 32) ^ np.uint8(1)  # a set bit means that nothing is taken away
    codes = _spread(blocks["codes"], 2, 32).astype(np.int8) - (high << np.uint8(2)).astype(np.int8)
    packed = blocks["scales"]
    low, top = _spread(packed[:, :8], 4, 8), _spread(packed[:, 8:], 2, 4)
    scales = (low | (top << np.uint8(4))).astype(np.int8) - np.int8(32)
    return _groups(_field(blocks, "scale") * scales, codes)


def _six_bit(blocks: Blocks) -> tuple[Floats, Floats]:
    """Return scales and minima of eight groups, each of six bits, spread over twelve bytes."""
    first, second, rest = (blocks["scales"][:, at : at + 4] for at in (0, 4, 8))
    four, two = np.uint8(4), np.uint8(2)
    top = np.uint8(0x30)
    scales = np.concatenate([first & np.uint8(63), (rest & np.uint8(15)) | ((first >> two) & top)], axis=1)
    least = np.concatenate([second & np.uint8(63), (rest >> four) | ((second >> two) & top)], axis=1)
    return _field(blocks, "scale") * scales, _field(blocks, "least") * least


def _q4_k(blocks: Blocks) -> Floats:
    scales, least = _six_bit(blocks)
    return _groups(scales, _spread(blocks["codes"], 4, 32)) - np.repeat(least, 32, axis=1)


def _q5_k(blocks: Blocks) -> Floats:
    scales, least = _six_bit(blocks)
    codes = _spread(blocks["codes"], 4, 32) | (_spread(blocks["high"], 1, 32) << np.uint8(4))
    return _groups(scales, codes) - np.repeat(least, 32, axis=1)


def _q6_k(blocks: Blocks) -> Floats:
    codes = _spread(blocks["codes"], 4, 64) | (_spread(blocks["high"], 2, 32) << np.uint8(4))
    scales = _field(blocks, "scale") * blocks["scales"]
    return _groups(scales, codes.astype(np.int8) - np.int8(32))


@dataclass(frozen=True, slots=True)
class Format:
    """One of GGML's tensor types.

    Attributes:
        name: GGML's.
        values, bytes: of one block.
        record: the fields of a block; None: the format is not read.
        floats: makes values of blocks; None: the format is not read, or plain.
        plain: name of the dtype in safetensors, where a block is one such number.
    """

    name: str
    values: int
    bytes: int
    record: np.dtype[Any] | None = None
    floats: Callable[[Blocks], Floats] | None = None
    plain: str | None = None


def _packed(name: str, values: int, floats: Callable[[Blocks], Floats], **fields: Any) -> Format:
    record = np.dtype(
        [(field, *dtype) if isinstance(dtype, tuple) else (field, dtype) for field, dtype in fields.items()]
    )
    return Format(name, values, record.itemsize, record, floats)


def _plain(name: str, size: int) -> Format:
    return Format(name, 1, size, plain=name)


_D: dict[str, Any] = {"scale": _HALF}
_DM: dict[str, Any] = {"scale": _HALF, "least": _HALF}
FORMATS: dict[int, Format] = {
    0: _plain("F32", 4),
    1: _plain("F16", 2),
    2: _packed("Q4_0", 32, _q4_0, **_D, codes=(_BYTE, 16)),
    3: _packed("Q4_1", 32, _q4_1, **_DM, codes=(_BYTE, 16)),
    6: _packed("Q5_0", 32, _q5_0, **_D, high=(_BYTE, 4), codes=(_BYTE, 16)),
    7: _packed("Q5_1", 32, _q5_1, **_DM, high=(_BYTE, 4), codes=(_BYTE, 16)),
    8: _packed("Q8_0", 32, _q8_0, **_D, codes=(_SIGNED, 32)),
    9: Format("Q8_1", 32, 40),
    10: _packed("Q2_K", 256, _q2_k, scales=(_BYTE, 16), codes=(_BYTE, 64), **_DM),
    11: _packed("Q3_K", 256, _q3_k, high=(_BYTE, 32), codes=(_BYTE, 64), scales=(_BYTE, 12), **_D),
    12: _packed("Q4_K", 256, _q4_k, **_DM, scales=(_BYTE, 12), codes=(_BYTE, 128)),
    13: _packed("Q5_K", 256, _q5_k, **_DM, scales=(_BYTE, 12), high=(_BYTE, 32), codes=(_BYTE, 128)),
    14: _packed("Q6_K", 256, _q6_k, codes=(_BYTE, 128), high=(_BYTE, 64), scales=(_SIGNED, 16), **_D),
    15: Format("Q8_K", 256, 292),
    16: Format("IQ2_XXS", 256, 66),
    17: Format("IQ2_XS", 256, 74),
    18: Format("IQ3_XXS", 256, 98),
    19: Format("IQ1_S", 256, 50),
    20: Format("IQ4_NL", 32, 18),
    21: Format("IQ3_S", 256, 110),
    22: Format("IQ2_S", 256, 82),
    23: Format("IQ4_XS", 256, 136),
    24: _plain("I8", 1),
    25: _plain("I16", 2),
    26: _plain("I32", 4),
    27: _plain("I64", 8),
    28: _plain("F64", 8),
    29: Format("IQ1_M", 256, 56),
    30: _plain("BF16", 2),
    34: Format("TQ1_0", 256, 54),
    35: Format("TQ2_0", 256, 66),
    39: Format("MXFP4", 32, 17),
    40: Format("NVFP4", 64, 36),
    41: Format("Q1_0", 128, 18),
}
QUANTIZED = {row.name: row for row in FORMATS.values() if row.floats}


def dequantize(data: NDArray[np.uint8], name: str) -> Floats:
    """Return the values of whole blocks as they lie in the file.

    Args:
        data: uint8.
        name: a key of QUANTIZED.

    Returns:
        float32, one dimension; infinite or NaN where a scale is.
    """
    row = QUANTIZED[name]
    assert row.record is not None
    assert row.floats is not None
    blocks = np.ascontiguousarray(data).reshape(-1).view(row.record)
    out = np.empty((len(blocks), row.values), np.float32)
    strip = max(1, _STRIP // row.values)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), strip):
            out[start : start + strip] = row.floats(blocks[start : start + strip])
    return out.reshape(-1)


class QuantizedTensor:
    """A quantized tensor that is used like a float32 array and makes rows when they are indexed.

    Args:
        data: uint8, the tensor's bytes (a view of the mapped file).
        name: a key of QUANTIZED.
        shape: one dimension or more, the last a multiple of the format's block.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, data: NDArray[np.uint8], name: str, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.name = name
        self._rows = data.reshape(shape[0], -1) if len(shape) > 1 and shape[0] else data.reshape(1, -1)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size as float32, which is what slices have; in the file it is smaller."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Floats:
        """Return rows by slice, number or array of numbers, as float32."""
        if self.ndim == 1:
            one: Floats = dequantize(self._rows, self.name)[rows]
            return one
        selected = self._rows[rows]
        return dequantize(selected, self.name).reshape(*selected.shape[:-1], *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the whole tensor, in memory; for small tensors."""
        return self[:].astype(dtype or self.dtype, copy=False)

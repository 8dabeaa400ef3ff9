"""int8 matrices of an encoder's products: codes, scales and smoothing factors, as export writes them.

A product x @ W.T is computed as (x * smoothing) @ (codes.T * scales).T. Smoothing moves the range of columns in which
activations are large to the weights, whose columns then share the step of their row better.

Source: Xiao et al. 2023, SmoothQuant, arXiv:2211.10438, eq. 4.
"""

import platform
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.recipes.steps import Attention, Experts, FeedForward, Linear, Recipe, ShortConvolution, layers
from models.tables.quantization import RowSource

LARGEST = 127
ALPHA = 0.6  # of MiniLM, 0.5 to 0.65 give the same mean cosine; 0 moves nothing, 1 all of it
_SMALLEST = 1e-5  # column maxima below it count as it
CPUINFO = Path("/proc/cpuinfo")
_SUMS_IN_32_BITS = {"avx512_vnni", "avx_vnni", "amx_int8"}
Float32s = NDArray[np.float32]


class Product(NamedTuple):
    """Linear steps that read one input.

    Args:
        linears: the steps.
        smoothed: the input follows a norm: of these alone a few columns are large, so that smoothing helps.
    """

    linears: tuple[Linear, ...]
    smoothed: bool

    @property
    def smoothing(self) -> str:
        """Name of the tensor of smoothing factors, float32 [K]."""
        return f"{self.linears[0].weight}.smoothing"


def products(encoder: Recipe) -> Iterator[Product]:
    """Yield the products of all blocks, in order."""
    for step in layers(encoder):
        if isinstance(step, Attention):
            read = ((step.query,), (step.key, step.value)) if step.across else ((step.query, step.key, step.value),)
            yield from (Product(linears, smoothed=True) for linears in read)
            yield Product((step.output,), smoothed=False)
        elif isinstance(step, ShortConvolution):
            yield from (Product((linear,), smoothed) for linear, smoothed in ((step.input, True), (step.output, False)))
        elif isinstance(step, Experts):
            for expert in (*step.experts, *([step.shared] if step.shared else [])):
                yield from products_of(expert, smoothed=False)
        else:
            yield from products_of(step)


def products_of(step: FeedForward, smoothed: bool = True) -> tuple[Product, Product]:
    """Return both products of a feed-forward step.

    An expert's are not smoothed: calibration may send it no row. A router's product stays float32.
    """
    first = Product((step.up, step.gate) if step.gate else (step.up,), smoothed)
    return first, Product((step.down,), smoothed=False)


def session_entries(machine: str | None = None, cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Return the session configuration of ONNX Runtime with which int8 products are exact on this CPU.

    On x86 without VNNI it adds pairs of products in 16 bits, which clamp, unless it is told to take other kernels. With
    VNNI these are exact too but take as long as float32, so they are not requested there (1.31).

    Args:
        machine: the architecture; None: this one's.
        cpuinfo: Linux's description of the processor; a missing one counts as without VNNI.
    """
    if (machine or platform.machine()) not in ("x86_64", "AMD64"):
        return {}
    try:
        words = set(cpuinfo.read_text(encoding="utf-8").split())
    except OSError:
        words = set()
    return {} if words & _SUMS_IN_32_BITS else {"session.x64quantprecision": "1"}


def codes_name(weight: str) -> str:
    """Return the name of a matrix's codes, int8 [K, N]."""
    return f"{weight}.int8_codes"


def scales_name(weight: str) -> str:
    """Return the name of a matrix's scales, float32 [N]."""
    return f"{weight}.int8_scales"


def is_addition(name: str) -> bool:
    """Return whether a tensor holds scales or smoothing factors, which are not parameters of the model."""
    return name.endswith((".int8_scales", ".smoothing"))


def holds_codes(names: Container[str], encoder: Recipe) -> bool:
    """Return whether a weights file holds the blocks in int8."""
    return any(codes_name(product.linears[0].weight) in names for product in products(encoder))


def quantized(
    arrays: Mapping[str, RowSource], encoder: Recipe, largest: Mapping[str, Float32s]
) -> dict[str, RowSource]:
    """Return the arrays with every matrix of the blocks replaced by its codes, scales and smoothing factors.

    Args:
        arrays: tensors of the checkpoint, by name.
        encoder: the steps of all blocks.
        largest: for each smoothed product, by the name of its smoothing factors: the largest absolute value that
            calibration saw in each column of its input, [K].
    """
    result = dict(arrays)
    for product in dict.fromkeys(products(encoder)):  # ALBERT's layers share theirs
        matrices = [result.pop(linear.weight) for linear in product.linears]
        smoothing = np.ones(matrices[0].shape[1], np.float32)
        if product.smoothed:
            smoothing = smoothing_factors(largest[product.smoothing], matrices)
            result[product.smoothing] = smoothing
        for linear, matrix in zip(product.linears, matrices, strict=True):
            source = _Matrix(matrix, smoothing)
            result |= {codes_name(linear.weight): source, scales_name(linear.weight): source.scales}
    return result


def smoothing_factors(largest: Float32s, matrices: list[RowSource]) -> Float32s:
    """Return the factor of each column of the input: w^(1 - ALPHA) / a^ALPHA, w and a its largest values."""
    weights = np.max([np.abs(matrix[:].astype(np.float32)).max(axis=0) for matrix in matrices], axis=0)
    factors = np.maximum(weights, _SMALLEST) ** (1 - ALPHA) / np.maximum(largest, _SMALLEST) ** ALPHA
    return np.asarray(factors, np.float32)


@dataclass
class _Matrix:
    """The codes of one matrix, made when they are read: an export holds one matrix at a time."""

    matrix: RowSource
    smoothing: Float32s

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape[::-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int8)

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def scales(self) -> Float32s:
        """float32 [N]; 1 for a row of zeros."""
        largest = np.abs(self._smoothed()).max(axis=1)
        return np.where(largest == 0, 1, largest / LARGEST).astype(np.float32)

    def __getitem__(self, rows: Any) -> NDArray[np.int8]:
        codes = np.rint(self._smoothed() / self.scales[:, None]).T
        return np.ascontiguousarray(codes[rows].clip(-LARGEST, LARGEST).astype(np.int8))

    def _smoothed(self) -> Float32s:
        return np.asarray(self.matrix[:].astype(np.float32) / self.smoothing)


class Int8Matrix:
    """A matrix [N, K] stored as codes, with smoothing undone when it is read.

    Args:
        codes: int8 [K, N].
        scales: float32 [N].
        smoothing: float32 [K]; None: all 1.
    """

    def __init__(self, codes: NDArray[np.int8], scales: Float32s, smoothing: Float32s | None) -> None:
        self.codes, self.scales, self.smoothing = codes, scales, smoothing
        self.shape = codes.shape[::-1]

    def astype(self, dtype: Any) -> NDArray[Any]:
        """Return the values in a dtype."""
        matrix = self.codes.T.astype(dtype) * self.scales[:, None]
        return np.asarray(matrix if self.smoothing is None else matrix * self.smoothing, dtype)


def view(arrays: Mapping[str, Any], encoder: Recipe) -> dict[str, Any]:
    """Return the tensors of a weights file, the parts of each int8 matrix joined under the matrix's own name."""
    result = dict(arrays)
    for product in dict.fromkeys(products(encoder)):  # ALBERT's layers share theirs
        smoothing = result.pop(product.smoothing, None)
        for weight in (linear.weight for linear in product.linears):
            if weight not in result:
                result[weight] = Int8Matrix(result.pop(codes_name(weight)), result.pop(scales_name(weight)), smoothing)
    return result

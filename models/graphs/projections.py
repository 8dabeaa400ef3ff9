"""Emits the matrix products of an encoder's blocks: in float32, in int8, or in float32 while it records their inputs.

int8 takes the largest absolute value of each row of x for its scale, so a row's result depends on that row alone:

    codes = QuantizeLinear(x * smoothing, scale of the row, uint8, zero point 128)
    y     = MatMulIntegerToFloat(codes, matrix, 1, scales of its columns, 128, 0) * scale of the row + bias

The scale of the rows must stay outside: ONNX Runtime 1.31 fuses MatMulInteger, Cast and a Mul by the product of both
scales to MatMulIntegerToFloat, and reads the rows' scales as one number, without an error.
"""

from collections.abc import Sequence

import numpy as np

from models.graphs.adapters import adapted
from models.graphs.builder import CONTRIB, GraphBuilder
from models.recipes.steps import Activation, Linear
from models.tables.int8_matrices import LARGEST, Product, codes_name, scales_name

_ZERO_POINT = 128
_SMALLEST = 1e-9  # largest value of a row of zeros
FLOAT16_ACTIVATIONS: frozenset[Activation] = frozenset({"gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh"})
ROWS = np.array([0])
COLUMNS = np.array([1])


class Float32:
    """Products of float32 matrices, and the interface of the other ways to emit products.

    Attributes:
        element: the ONNX name of the element type of their results.
    """

    element = "FLOAT"

    def narrowed(self, builder: GraphBuilder, value: str) -> str:
        """Return a value in the element type of the products."""
        return value

    def widened(self, builder: GraphBuilder, value: str) -> str:
        """Return a value in float32."""
        return value

    def like(self, value: str, source: str) -> str:
        """Note that a value has the element type of another one, and return it."""
        return value

    def activated_as(self, builder: GraphBuilder, values: list[str], activation: Activation) -> list[str]:
        """Return values in an element type that an activation has a kernel for."""
        return values

    def emit(self, builder: GraphBuilder, product: Product, x: str) -> list[str]:
        """Return the results [N, outputs] of Linear steps that read the same rows x [N, K]."""
        values = [builder.op("Gemm", x, *_parameters(builder, linear), transB=1) for linear in product.linears]
        return _adapted(builder, product, x, values)

    def constant(self, builder: GraphBuilder, product: Product, linear: Linear, x: str) -> str:
        """Return what a Linear step, of the product or another, gives for rows that do not depend on the input."""
        return builder.op("Gemm", x, *_parameters(builder, linear), transB=1)


class Narrow(Float32):
    """Products of float16 or bfloat16 matrices, cast when the session opens; what is added up stays float32.

    The rows between blocks, norms and rotations are float32. A residual in float16 would overflow in T5 and Gemma.
    """

    def __init__(self, element: str) -> None:
        self.element = element
        self._narrow: set[str] = set()

    def narrowed(self, builder: GraphBuilder, value: str) -> str:
        """Return a value in the element type of the products."""
        if value in self._narrow:
            return value
        narrow = builder.cast(value, self.element)
        self._narrow.add(narrow)
        return narrow

    def widened(self, builder: GraphBuilder, value: str) -> str:
        """Return a value in float32."""
        return builder.cast(value, "FLOAT") if value in self._narrow else value

    def like(self, value: str, source: str) -> str:
        """Note that a value has the element type of another one, and return it."""
        if source in self._narrow:
            self._narrow.add(value)
        return value

    def activated_as(self, builder: GraphBuilder, values: list[str], activation: Activation) -> list[str]:
        """Return values in an element type that an activation has a kernel for."""
        if self.element == "FLOAT16" and activation in FLOAT16_ACTIVATIONS:
            return values
        return [self.widened(builder, value) for value in values]

    def emit(self, builder: GraphBuilder, product: Product, x: str) -> list[str]:
        """Return the results of the product's Linear steps; those with adapters in float32."""
        rows, values = self.narrowed(builder, x), []
        for linear in product.linears:
            parameters = [self._weight(builder, name) for name in (linear.weight, linear.bias) if name]
            value = self.like(builder.op("Gemm", rows, *parameters, transB=1), rows)
            values.append(self.widened(builder, value) if linear.adapter else value)
        return _adapted(builder, product, self.widened(builder, x), values)

    def _weight(self, builder: GraphBuilder, name: str) -> str:
        return builder.shared((name, self.element), lambda: builder.cast(builder.weight(name), self.element))


class Recorded(Float32):
    """Products of float32 matrices, which note the largest absolute value of each column of the inputs to smooth.

    Attributes:
        largest: the values of these, float32 [K], by the name of the product's smoothing factors.
    """

    def __init__(self) -> None:
        self.largest: dict[str, str] = {}

    def emit(self, builder: GraphBuilder, product: Product, x: str) -> list[str]:
        """Return the results of the product's Linear steps."""
        if product.smoothed:
            largest = builder.op("ReduceMax", builder.op("Abs", x), builder.constant(ROWS), keepdims=0)
            if (before := self.largest.get(product.smoothing)) is not None:  # of a matrix that layers share
                largest = builder.op("Max", before, largest)
            self.largest[product.smoothing] = largest
        return super().emit(builder, product, x)


class Int8(Float32):
    """Products of int8 matrices, of which the weights file holds codes, scales and smoothing factors."""

    def constant(self, builder: GraphBuilder, product: Product, linear: Linear, x: str) -> str:
        """Return the result of one Linear step by its matrix in float32, computed once when the session opens."""
        if codes_name(linear.weight) not in builder.placed:
            return super().constant(builder, product, linear, x)
        codes, scales = (builder.weight(name(linear.weight)) for name in (codes_name, scales_name))
        matrix = builder.op("Mul", builder.cast(codes, "FLOAT"), scales)  # [K, N]
        smoothed = builder.op("Mul", x, builder.weight(product.smoothing))
        y = builder.op("MatMul", smoothed, matrix)
        return builder.op("Add", y, builder.weight(linear.bias)) if linear.bias else y

    def emit(self, builder: GraphBuilder, product: Product, x: str) -> list[str]:
        """Return the results of the product's Linear steps, for which the rows are quantized once."""
        rows = builder.op("Mul", x, builder.weight(product.smoothing)) if product.smoothed else x
        largest = builder.op("ReduceMax", builder.op("Abs", rows), builder.constant(COLUMNS), keepdims=1)  # (N, 1)
        largest = builder.op("Max", largest, builder.scalar(_SMALLEST))
        scale = builder.op("Mul", largest, builder.scalar(1 / LARGEST))
        flat = builder.op("Squeeze", scale, builder.constant(COLUMNS))  # (N,)
        zero_point = builder.scalar(_ZERO_POINT, np.uint8)
        zero_points = builder.op("Expand", zero_point, builder.op("Shape", flat))
        codes = builder.op("QuantizeLinear", rows, flat, zero_points, axis=0)
        values = [_int8(builder, linear, codes, scale, zero_point) for linear in product.linears]
        return _adapted(builder, product, x, values)


def _adapted(builder: GraphBuilder, product: Product, x: str, values: list[str]) -> list[str]:
    """Emit the terms that the adapters of a product add, in float32 whatever the dtype of its matrices."""
    return [
        adapted(builder, linear.adapter, x, value) if linear.adapter else value
        for linear, value in zip(product.linears, values, strict=True)
    ]


def _int8(builder: GraphBuilder, linear: Linear, codes: str, scale: str, zero_point: str) -> str:
    # x64quantprecision converts the matrix of each product, and fails for one that two products read (1.31; ALBERT)
    matrix = builder.weight(codes_name(linear.weight), apart=True)
    scales = builder.weight(scales_name(linear.weight))
    one, zero = builder.scalar(1.0), builder.scalar(0, np.int8)
    y = builder.op("MatMulIntegerToFloat", codes, matrix, one, scales, zero_point, zero, domain=CONTRIB)
    y = builder.op("Mul", y, scale)
    return builder.op("Add", y, builder.weight(linear.bias)) if linear.bias else y


def _parameters(builder: GraphBuilder, linear: Linear) -> Sequence[str]:
    return [builder.weight(name) for name in (linear.weight, linear.bias) if name]

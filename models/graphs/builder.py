"""`GraphBuilder`: one ONNX graph under construction, whose weights stay in their safetensors files."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints.safetensors import Tensor
from models.tables import quantization

OPSET = 21  # the newest whose Cos, Sin and Gather kernels ONNX Runtime also has on CUDA
OPSET_RMS_NORM = 23
IR_VERSION = 10
CONTRIB = "com.microsoft"
SEQUENCE = "SEQUENCE_"  # before an element type: a sequence of tensors of it
PRODUCT_BYTES = 1 << 23  # of the float32 rows that a product with a table holds at a time
# Bytes of a table that a session copies for products in every request. Of one of 30522 x 384 a token of 8 takes 0.4 ms
# instead of 1.3, one of 64 as long either way (ONNX Runtime 1.31, a core).
MOST_PACKED = 1 << 28

_ELEMENT = {"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16", "U8": "UINT8", "I8": "INT8", "I64": "INT64"}
Inputs = Mapping[str, tuple[str, Sequence[str | int]]]
Outputs = Mapping[str, tuple[str, str, Sequence[str | int]]]


class GraphBuilder:
    """Collects the nodes of one graph; methods that add to it return the name of a value.

    Args:
        placed: place of each tensor in files that must lie beside the .onnx.
        instead: operators that stand for others.
    """

    def __init__(self, placed: Mapping[str, Tensor], instead: Mapping[str, str] | None = None) -> None:
        self.placed = placed
        self.instead = instead or {}
        self._prefix = ""
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._shared: dict[Hashable, str] = {}
        self._opset = OPSET

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """Append a node; with several outputs they are called `name`, `name.1`, `name.2`."""
        from onnx import helper

        kind = self.instead.get(kind, kind)
        if kind == "RMSNormalization":
            self._opset = OPSET_RMS_NORM
        name = f"{self._prefix}{kind}_{len(self._nodes)}"
        names = [name] + [f"{name}.{number}" for number in range(1, outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=name, domain=domain, **attributes))
        return name

    def shared(self, key: Hashable, make: Callable[[], str]) -> str:
        """Return the value that `make` adds, added once for each key."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def constant(self, array: NDArray[Any]) -> str:
        """Add a small array, stored in the graph itself."""
        from onnx import numpy_helper

        name = f"constant_{len(self._initializers)}"
        self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def ints(self, *values: int) -> str:
        """Add a constant int64 of one dimension, such as a shape, bounds or axes."""
        return self.constant(np.array(values, np.int64))

    def cut(self, value: str, start: int, stop: int, axis: int = 0) -> str:
        """Add the part of a value from `start` to before `stop` along an axis."""
        return self.op("Slice", value, *(self.ints(number) for number in (start, stop, axis)))

    def scalar(self, value: float, dtype: Any = np.float32) -> str:
        """Add a constant of no dimensions."""
        return self.constant(np.asarray(value, dtype))

    def weight(self, name: str, apart: bool = False) -> str:
        """Add a tensor of the weights file, mapped from disk, and return its name in the graph.

        Args:
            name: name of the tensor.
            apart: give it a name of its own in the graph, beside an earlier one, if it has been added before.
        """
        from onnx import TensorProto

        tensor = self.placed[name]
        shown, uses = name, 0
        while apart and shown in self._initializers:
            uses += 1
            shown = f"{name}#{uses}"
        proto = TensorProto(name=shown, dims=tensor.shape, data_location=TensorProto.EXTERNAL)
        proto.data_type = getattr(TensorProto, _ELEMENT[tensor.dtype])
        for key, value in (("location", tensor.path.name), ("offset", tensor.offset), ("length", tensor.bytes)):
            proto.external_data.add(key=key, value=str(value))
        self._initializers[shown] = proto
        return shown

    def rows(self, table: str, index: str) -> str:
        """Look up float32 rows [N, d] of a table of any stored dtype, by int64 row numbers [N].

        Rows are looked up first and widened then: arithmetic on the table itself would be done when the session opens,
        and ONNX Runtime would keep its widened copy.
        """
        return _rows(self, table, index)

    def product(self, x: str, table: str, packed: bool = False) -> str:
        """Add x @ table.T, float32 [N, V] of float32 x [N, d], for a table of any stored dtype.

        A table that is not float32 is widened PRODUCT_BYTES at a time, in every run.

        Args:
            packed: a float32 table up to MOST_PACKED bytes is copied, which a product with few rows is faster for.
        """
        return _product(self, x, table, MOST_PACKED if packed else PRODUCT_BYTES)

    def shape_of(self, table: str) -> tuple[int, ...]:
        """Return the shape of a table, however it is stored."""
        return self.placed[table].shape

    def cast(self, value: str, element: str) -> str:
        """Cast a value to another element type, by its ONNX name."""
        from onnx import TensorProto

        return self.op("Cast", value, to=getattr(TensorProto, element))

    def rename(self, old: str, new: str) -> None:
        """Rename a value to the name of a graph output."""
        _rename(self._nodes, old, new)

    def inner(self) -> "GraphBuilder":
        """Return a builder of a graph inside a node of this one, which may use this one's values and weights."""
        inside = GraphBuilder(self.placed, self.instead)
        inside._prefix = f"{self._prefix}inner_{len(self._nodes)}_"
        inside._initializers = self._initializers
        return inside

    def graph(self, name: str, inputs: Inputs, outputs: Outputs, initializers: Sequence[Any] = ()) -> Any:
        """Return the nodes as a GraphProto, for `inner` builders; arguments as for `model`."""
        from onnx import helper

        for output, (value, _, _) in outputs.items():
            self.rename(value, output)
        input_infos = [_value_info(key, kind, dims) for key, (kind, dims) in inputs.items()]
        output_infos = [_value_info(key, kind, dims) for key, (_, kind, dims) in outputs.items()]
        return helper.make_graph(self._nodes, name, input_infos, output_infos, list(initializers))

    def model(self, name: str, inputs: Inputs, outputs: Outputs) -> Any:
        """Return the finished ModelProto.

        Args:
            name: name of the graph.
            inputs: name -> (element type, dimensions).
            outputs: name -> (value, element type, dimensions); a dimension is a number or a name.
        """
        from onnx import helper

        graph = self.graph(name, inputs, outputs, list(self._initializers.values()))
        domains = _domains(self._nodes) - {""}
        opsets = [helper.make_opsetid("", self._opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="inlay")


def _value_info(name: str, kind: str, dims: Sequence[str | int]) -> Any:
    """Return the description of a value; a kind that begins with SEQUENCE_ is a sequence of such tensors."""
    from onnx import TensorProto, helper

    element = getattr(TensorProto, kind.removeprefix(SEQUENCE))
    make = helper.make_tensor_sequence_value_info if kind.startswith(SEQUENCE) else helper.make_tensor_value_info
    return make(name, element, dims)


def _domains(nodes: Iterable[Any]) -> set[str]:
    """Return the operator domains of nodes and of the graphs inside them."""
    inside = (_domains(attribute.g.node) for node in nodes for attribute in node.attribute)
    return {node.domain for node in nodes}.union(*inside)


def _rename(nodes: Sequence[Any], old: str, new: str) -> None:
    for node in nodes:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
        for attribute in node.attribute:
            _rename(attribute.g.node, old, new)


def _rows(builder: GraphBuilder, table: str, index: str) -> str:
    rows = builder.op("Gather", builder.weight(table), index)
    if not quantization.is_quantized(builder.placed, table):
        return rows if builder.placed[table].dtype == "F32" else builder.cast(rows, "FLOAT")
    ranges = builder.op("Gather", builder.weight(quantization.ranges_name(table)), index)  # [N, 1, 2]
    scale = builder.op("Split", ranges, builder.ints(1, 1), outputs=2, axis=2)  # [N, 1, 1] twice
    bias = f"{scale}.1"
    flat = builder.op("Reshape", scale, builder.ints(-1))  # [N]
    steps = builder.op("DequantizeLinear", rows, flat, axis=0)  # [N, d]; a quarter faster than Cast and Mul (1.31)
    return builder.op("Add", steps, builder.op("Squeeze", bias, builder.ints(2)))


def _product(builder: GraphBuilder, x: str, table: str, most_packed: int) -> str:
    count, width = builder.shape_of(table)
    if builder.placed[table].dtype == "F32":
        matrix = builder.weight(table)
        if builder.placed[table].bytes > most_packed:
            # of a shape known at run time alone: of a constant, ONNX Runtime (1.31) packs a copy for itself
            zero = builder.op("Mul", builder.op("Shape", x, start=0, end=1), builder.ints(0))
            matrix = builder.op("Reshape", matrix, builder.op("Add", zero, builder.ints(count, width)))
        return builder.op("Gemm", x, matrix, transB=1)
    block = min(count, max(1, PRODUCT_BYTES // (4 * width)))
    starts = builder.constant(np.arange(0, count, block))
    body = builder.inner()
    numbers = body.op("Add", "start", body.constant(np.arange(block)))
    kept = body.op("Min", numbers, body.ints(count - 1))  # the last block repeats the last row
    part = body.op("Gemm", x, _rows(body, table, kept), transB=1)  # [N, block]
    graph = body.graph("block", {"start": ("INT64", ())}, {"part": (part, "FLOAT", ("tokens", block))})
    blocks = builder.op("Scan", starts, body=graph, num_scan_inputs=1)  # [blocks, N, block]
    padded = -(-count // block) * block
    split = builder.op("Transpose", blocks, perm=[1, 0, 2])  # Scan's own axis ends the process where N is 0 (1.31)
    flat = builder.op("Reshape", split, builder.ints(0, padded))
    return builder.cut(flat, 0, count, axis=1)  # [N, V]


def save(model: Any, path: Path) -> None:
    """Write a ModelProto beside its weights files and check it."""
    import onnx

    path.write_bytes(model.SerializeToString())
    path.chmod(0o644)
    onnx.checker.check_model(path)

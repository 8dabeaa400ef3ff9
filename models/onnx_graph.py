"""One ONNX graph under construction: nodes, constants, and weights that stay in their safetensors. Knows no model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.safetensors import Tensor

OPSET = 21  # the newest whose Cos, Sin and Gather kernels ONNX Runtime also has on CUDA
OPSET_RMS_NORM = 23
IR_VERSION = 10
CONTRIB = "com.microsoft"

_ELEMENT = {"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16"}


class GraphBuilder:
    """Collects the nodes of one graph; every method returns the name of a value.

    placed   where each tensor lies in the weights file, which must be beside the .onnx
    """

    def __init__(self, placed: Mapping[str, Tensor]) -> None:
        self._placed = placed
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._opset = OPSET

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """Append a node; with several outputs they are called `name`, `name.1`, `name.2`."""
        from onnx import helper

        if kind == "RMSNormalization":
            self._opset = OPSET_RMS_NORM
        name = f"{kind}_{len(self._nodes)}"
        names = [name] + [f"{name}.{number}" for number in range(1, outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=name, domain=domain, **attributes))
        return name

    def constant(self, array: NDArray[Any]) -> str:
        """A small array, stored in the graph itself."""
        from onnx import numpy_helper

        name = f"constant_{len(self._initializers)}"
        self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def scalar(self, value: float, dtype: Any = np.float32) -> str:
        """A constant of no dimensions."""
        return self.constant(np.asarray(value, dtype))

    def weight(self, name: str) -> str:
        """A tensor of the weights file, mapped from disk."""
        from onnx import TensorProto

        tensor = self._placed[name]
        proto = TensorProto(name=name, dims=tensor.shape, data_location=TensorProto.EXTERNAL)
        proto.data_type = getattr(TensorProto, _ELEMENT[tensor.dtype])
        for key, value in (("location", tensor.path.name), ("offset", tensor.offset), ("length", tensor.bytes)):
            proto.external_data.add(key=key, value=str(value))
        self._initializers[name] = proto
        return name

    def rows(self, table: str, index: str) -> str:
        """float32 rows of a table. Looked up first, then cast: arithmetic on the table itself would copy it whole."""
        found = self.op("Gather", self.weight(table), index)
        return found if self._placed[table].dtype == "F32" else self.cast(found, "FLOAT")

    def cast(self, value: str, element: str) -> str:
        """The value as another element type, by its ONNX name."""
        from onnx import TensorProto

        return self.op("Cast", value, to=getattr(TensorProto, element))

    def rename(self, old: str, new: str) -> None:
        """Call a value by the name the graph gives to the outside."""
        for node in self._nodes:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]

    def model(
        self,
        name: str,
        inputs: Mapping[str, tuple[str, Sequence[str | int]]],
        outputs: Mapping[str, tuple[str, str, Sequence[str | int]]],
    ) -> Any:
        """The finished ModelProto.

        inputs   name -> (element type, dimensions)
        outputs  name -> (value, element type, dimensions); a dimension is a number or a name
        """
        from onnx import TensorProto, helper

        for given, (value, _, _) in outputs.items():
            self.rename(value, given)
        graph = helper.make_graph(
            self._nodes,
            name,
            [
                helper.make_tensor_value_info(key, getattr(TensorProto, kind), dims)
                for key, (kind, dims) in inputs.items()
            ],
            [
                helper.make_tensor_value_info(key, getattr(TensorProto, kind), dims)
                for key, (_, kind, dims) in outputs.items()
            ],
            list(self._initializers.values()),
        )
        domains = {node.domain for node in self._nodes} - {""}
        opsets = [helper.make_opsetid("", self._opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="inlay")


def save(model: Any, path: Path) -> None:
    """Write a ModelProto beside its weights file and check it."""
    import onnx

    path.write_bytes(model.SerializeToString())
    path.chmod(0o644)
    onnx.checker.check_model(path)

"""The interface of engines, which run the graphs of a loaded model on arrays."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from numpy.typing import NDArray

Name = Literal["onnx", "openvino", "reference"]
Precision = Literal["float32", "bfloat16", "float16", "float64"]


class Closeness(NamedTuple):
    """The least and the mean cosine of vectors to those of the float32 encoder."""

    least: float
    mean: float


class Choice(NamedTuple):
    """The engine that runs a model's encoder.

    Args:
        engine: name of the engine's setting.
        precision: precision of matrix products.
        reason: why this one, for the start-up line; empty: there is one only.
        closeness: cosines to float32, measured when the model was loaded; None: it is float32 or better.
        pooling: the pooling by which the encoder's graph for GPUs makes the vector of a text; "": it makes none.
    """

    engine: Name = "onnx"
    precision: Precision = "float32"
    reason: str = ""
    closeness: Closeness | None = None
    pooling: str = ""


class Engine(Protocol):
    """Runs the graphs of one model.

    Attributes:
        device: "cpu", "cuda", or "cpu (numpy float64)" for the reference.
        widths: values in a row of each output, where it is known before a run.
        runs: best number of concurrent runs of a graph with attention; others and the output head run one at a time.
    """

    device: str
    widths: Mapping[str, int]
    runs: int

    @property
    def alone(self) -> "Engine | None":
        """An engine with the same bits for a run of a graph with attention that has all cores; None: this engine."""
        ...

    def run(self, graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of one graph.

        Args:
            graph: name of the graph in the card.
            feeds: exactly the inputs of the graph, by name.
            outputs: the names of the outputs to return, in order.
        """
        ...

    def shrink(self) -> None:
        """Free the memory that longer runs needed, at once or by the next runs of each graph."""
        ...

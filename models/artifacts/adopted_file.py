"""AdoptedFile: the ONNX file that a model was adopted from, and how close its vectors are to its float32 weights'."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class VectorComparison:
    """How close an adopted model's vectors are to those of its float32 weights.

    Attributes:
        reference: the file of these weights, in the folder or repository that was adopted.
        min_cosine, mean_cosine: between the vectors of both.
        texts: how many texts were compared, those of texts/evaluation.txt.
    """

    reference: str
    min_cosine: float
    mean_cosine: float
    texts: int


@dataclass(frozen=True, slots=True)
class AdoptedFile:
    """The ONNX file that a model was adopted from.

    Attributes:
        path: in the folder or repository.
        comparison: with the float32 weights beside it; None: there was none.
        uncompared: why there was none; None: there was one, or the file is the float32 model itself.
    """

    path: str
    comparison: VectorComparison | None = None
    uncompared: str | None = None


def from_json(data: dict[str, Any]) -> AdoptedFile:
    """Return what the card's JSON says of it; KeyError or TypeError if it is no such object."""
    comparison = data["comparison"]
    return AdoptedFile(data["path"], comparison and VectorComparison(**comparison), data["uncompared"])

"""What a card says about how close a model's vectors are to those of its float32 weights."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class QuantizedEncoder:
    """How the matrices of an encoder's blocks are stored, and how that changes its vectors.

    Attributes:
        dtype: int8: the matrices are int8 by column, the rows that they multiply uint8 by row.
        min_cosine, mean_cosine: between the vectors of this encoder and of the float32 one.
        texts: how many texts were compared, those of texts/evaluation.txt.
    """

    dtype: Literal["int8"]
    min_cosine: float
    mean_cosine: float
    texts: int


@dataclass(frozen=True, slots=True)
class VectorComparison:
    """How close an adopted model's vectors are to those of the float32 file beside it.

    Attributes:
        reference: that file, in the folder or repository that was adopted.
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
        path: path in the folder or repository.
        comparison: comparison with the float32 file beside it; None: there is none.
        uncompared: why there was none; None: there was one, or the file is the float32 model itself.
    """

    path: str
    comparison: VectorComparison | None = None
    uncompared: str | None = None

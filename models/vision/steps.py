"""The steps from pixels to the rows before the first block, and from those behind the last to an image's vector.

They are data that name the tensors they use; the blocks between are those of models/recipes/steps.py. Rows x are
[batch, rows, d]. models/reference/vision.py (numpy float64) and models/graphs/vision.py (ONNX) read them.
"""

from dataclasses import dataclass
from typing import Literal

from models.recipes.sentence_modules import Dense
from models.recipes.steps import Activation, FeedForward, LayerNorm, Linear, RMSNorm

Feed = Literal["pixels", "patches", "features"]  # what a tower reads


@dataclass(frozen=True, slots=True)
class Patchify:
    """x = projected patches of pixels [batch, channels, height, width], row by row; named output `patch_embeddings`.

    Attributes:
        weight: [d, channels, patch, patch].
        bias: [d]; None: none.
        patch: side of a patch in pixels.
        padded: True: incomplete patches at the lower and right edge are filled with zeros (Swin). False: dropped.
    """

    weight: str
    bias: str | None
    patch: int
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Project:
    """x = flattened patches [rows, f] @ weight.T + bias; named output `patch_embeddings`."""

    weight: str
    bias: str | None


@dataclass(frozen=True, slots=True)
class Insert:
    """Insert the rows of `table` [k, d] before row `at` of every image: CLS, distillation and register tokens."""

    table: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class AddGrid:
    """x += a learned grid of positions, resized to the image's patches; named output `position_embeddings`.

    Attributes:
        table: [extra + rows * columns, d]; the extra rows are not resized.
        extra: number of rows before the grid, for CLS and the like.
        rows: rows of the grid.
        columns: columns of the grid.
        resize: a row of resample.RESIZES.
        merge: patches come in blocks of merge x merge (Qwen), not row by row.
    """

    table: str
    extra: int
    rows: int
    columns: int
    resize: str
    merge: int = 1


@dataclass(frozen=True, slots=True)
class AddRows:
    """x += table[: rows of x]; named output `position_embeddings`."""

    table: str


@dataclass(frozen=True, slots=True)
class Convolve:
    """x = gelu(convolution over three neighbouring rows), with zeros beyond both ends.

    Attributes:
        weight: [d, channels, 3].
        bias: [d].
        stride: 1 or 2.
    """

    weight: str
    bias: str
    stride: int


@dataclass(frozen=True, slots=True)
class TakeRow:
    """x [batch, d] = the row `row` of every image."""

    row: int


@dataclass(frozen=True, slots=True)
class AttentionPool:
    """x [batch, d] = output(attention of one learned query over the rows of the image), with biased projections.

    Attributes:
        probe: [d], the query before its projection.
        weight: [3 d, d], the projections of query, keys and values, one under the other; with a `query` the last two.
        bias: [3 d], or [2 d].
        output: the projection behind the heads.
        heads: number of heads.
        query: the projection of the query, where it is a tensor of its own (Nomic).
    """

    probe: str
    weight: str
    bias: str
    output: Linear
    heads: int = 0
    query: Linear | None = None


@dataclass(frozen=True, slots=True)
class AddToRow:
    """x [batch, d] = the row `row` of every image + what `feed_forward` adds to x."""

    row: int
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class Join:
    """x [rows / count, count * d] = so many neighbouring rows side by side."""

    count: int


@dataclass(frozen=True, slots=True)
class Activate:
    """x = activation(x)."""

    activation: Activation


Step = Patchify | Project | Insert | AddGrid | AddRows | Convolve | LayerNorm | RMSNorm
Steps = tuple[Step, ...]

VectorStep = TakeRow | AttentionPool | AddToRow | Dense | LayerNorm | FeedForward | Linear
VectorSteps = tuple[VectorStep, ...]

RowStep = LayerNorm | RMSNorm | Linear | Join | Activate  # from the rows of patches to those of tokens

"""The steps from pixels to the rows before the first block, naming the tensors they use. Values alone, as recipe.py.

Rows x are [batch, rows, d]. Two interpreters read the steps: reference.py (numpy float64, the judge) and graph.py.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from models.families.recipe import LayerNorm, RMSNorm


@dataclass(frozen=True, slots=True)
class Patchify:
    """x = the patches of pixels [batch, channels, height, width], row by row, each a matrix product with its pixels.

    weight [d, channels, patch, patch]. What is left of a patch at the lower and right edge is dropped, or with
    `padded` filled up with zeros (Swin). Named output `patch_embeddings`.
    """

    weight: str
    bias: str | None
    patch: int
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Project:
    """x = patches [rows, f] @ weight.T + bias: patches that come flattened. Named output `patch_embeddings`."""

    weight: str
    bias: str | None


@dataclass(frozen=True, slots=True)
class Insert:
    """The rows of `table` [k, d] put in before row `at` of every image: CLS, distillation and register tokens."""

    table: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class AddGrid:
    """x += a learned grid of positions, resized to the image's patches; named output `position_embeddings`.

    table   [extra + rows * columns, d]; the extra rows stay as they are
    resize  a row of resample.RESIZES
    merge   patches come in blocks of merge x merge (Qwen), not row by row
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
    """x = gelu(convolution over three neighbouring rows), weight [d, channels, 3], zeros beyond both ends."""

    weight: str
    bias: str
    stride: int


Step = Patchify | Project | Insert | AddGrid | AddRows | Convolve | LayerNorm | RMSNorm
Steps = tuple[Step, ...]

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Patchify, Project, Insert, AddGrid, AddRows, Convolve, LayerNorm, RMSNorm)
}


def tensors(steps: Steps) -> tuple[str, ...]:
    """The tensor names the steps read, in order of first use, each once."""
    named = (getattr(step, field, None) for step in steps for field in ("table", "weight", "bias"))
    return tuple(dict.fromkeys(name for name in named if name is not None))


def to_json(steps: Steps) -> list[dict[str, Any]]:
    """The steps as JSON objects, each with its `step` name."""
    return [{"step": type(step).__name__, **asdict(step)} for step in steps]


def from_json(data: list[Mapping[str, Any]]) -> Steps:
    """The inverse of `to_json`; KeyError or TypeError where the data is no list of steps."""
    return tuple(KINDS[entry["step"]](**{key: entry[key] for key in entry if key != "step"}) for entry in data)

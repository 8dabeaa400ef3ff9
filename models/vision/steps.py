"""The steps from pixels to the rows before the first block, and from those behind the last to an image's vector.

They are data that name the tensors they use; the blocks between are those of models/recipes/steps.py. Rows x are
[batch, rows, d]. models/reference/vision.py (numpy float64) and models/graphs/vision.py (ONNX) read them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from models.recipes import recipe_json
from models.recipes import steps as recipe
from models.recipes.steps import FeedForward, LayerNorm, Linear, RMSNorm

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
        rows: of the grid.
        columns: of the grid.
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
        weight: [3 d, d], the projections of query, keys and values, one under the other.
        bias: [3 d].
        output: the projection behind the heads.
        heads: their number.
    """

    probe: str
    weight: str
    bias: str
    output: Linear
    heads: int = 0


Step = Patchify | Project | Insert | AddGrid | AddRows | Convolve | LayerNorm | RMSNorm
Steps = tuple[Step, ...]

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Patchify, Project, Insert, AddGrid, AddRows, Convolve, LayerNorm, RMSNorm)
}

VectorStep = TakeRow | AttentionPool | LayerNorm | FeedForward | Linear
VectorSteps = tuple[VectorStep, ...]
_VECTOR_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (TakeRow, AttentionPool)}


def tensors(steps: Steps) -> tuple[str, ...]:
    """Return the names of the tensors that the steps read, in order of first use, each once."""
    named = (getattr(step, field, None) for step in steps for field in ("table", "weight", "bias"))
    return tuple(dict.fromkeys(name for name in named if name is not None))


def to_json(steps: Steps) -> list[dict[str, Any]]:
    """Return the steps as JSON objects, each with its `step` name."""
    return [{"step": type(step).__name__, **asdict(step)} for step in steps]


def from_json(data: list[Mapping[str, Any]]) -> Steps:
    """Return the steps of `to_json`.

    Raises:
        KeyError: an unknown step or a missing key.
        TypeError: an unknown key.
    """
    return tuple(KINDS[entry["step"]](**{key: entry[key] for key in entry if key != "step"}) for entry in data)


def vector_tensors(steps: VectorSteps) -> tuple[str, ...]:
    """Return the names of the tensors that the steps to an image's vector read, in order of first use, each once."""
    names: list[str] = []
    for step in steps:
        if isinstance(step, AttentionPool):
            names += [step.probe, step.weight, step.bias, *recipe.tensors((step.output,))]
        elif not isinstance(step, TakeRow):
            names += recipe.tensors((step,))
    return tuple(dict.fromkeys(names))


def vector_to_json(steps: VectorSteps) -> list[dict[str, Any]]:
    """Return the steps to an image's vector as JSON objects, each with its `step` name."""
    return [
        {"step": type(step).__name__, **asdict(step)}
        if isinstance(step, TakeRow | AttentionPool)
        else recipe_json.to_json((step,))[0]
        for step in steps
    ]


def vector_from_json(data: list[Mapping[str, Any]]) -> VectorSteps:
    """Return the steps of `vector_to_json`; KeyError or TypeError as `from_json`."""
    return tuple(_vector_step(dict(entry)) for entry in data)


def _vector_step(entry: dict[str, Any]) -> Any:
    kind = _VECTOR_KINDS.get(entry["step"])
    if kind is None:
        return recipe_json.from_json([entry])[0]
    output = {"output": Linear(**entry["output"])} if "output" in entry else {}
    return kind(**{key: value for key, value in entry.items() if key != "step"} | output)

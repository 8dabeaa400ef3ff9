"""A model family as data: the steps from token ids to vectors, naming the tensors they use.

Two interpreters read a recipe: reference.py (numpy float64, the judge) and graphs.py (ONNX). Steps hold values alone.
Every step maps the packed rows x [N, d] to new rows; only Attention mixes rows, and only within one sequence.
"""

from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Literal

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


@dataclass(frozen=True, slots=True)
class Embed:
    """x = table[ids]; named output `token_embeddings`."""

    table: str


@dataclass(frozen=True, slots=True)
class AddType:
    """x += table[types]; named output `token_type_embeddings`. GPT-2 names its word table here."""

    table: str


@dataclass(frozen=True, slots=True)
class AddPosition:
    """x += table[positions]; positions index rows directly; named output `position_embeddings`."""

    table: str


@dataclass(frozen=True, slots=True)
class AddSinusoid:
    """x += sinusoid(positions), computed, of a kind of positions/sinusoids.py; named output `position_embeddings`."""

    kind: str
    dim: int


@dataclass(frozen=True, slots=True)
class MaskRows:
    """x = 0 where the token is masked."""


@dataclass(frozen=True, slots=True)
class Scale:
    """x *= factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """x = (x - mean) / sqrt(variance + eps) * weight + bias."""

    weight: str
    bias: str | None
    eps: float


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x = x / sqrt(mean(x^2) + eps) * weight."""

    weight: str | None
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias, weight [out, in] as PyTorch stores it."""

    weight: str
    bias: str | None


@dataclass(frozen=True, slots=True)
class Attention:
    """x += output(attention(query(x), key(x), value(x))), softmax over the unmasked rows of the same sequence."""

    heads: int
    query: Linear
    key: Linear
    value: Linear
    output: Linear


@dataclass(frozen=True, slots=True)
class FeedForward:
    """x += down(activation(up(x)))."""

    up: Linear
    down: Linear
    activation: Activation


Step = Embed | AddType | AddPosition | AddSinusoid | MaskRows | Scale | LayerNorm | RMSNorm | Attention | FeedForward
Recipe = tuple[Step, ...]

STEPS: dict[str, type[Any]] = {
    step.__name__: step
    for step in (Embed, AddType, AddPosition, AddSinusoid, MaskRows, Scale, LayerNorm, RMSNorm, Attention, FeedForward)
}


def tensors(recipe: Recipe) -> tuple[str, ...]:
    """The tensor names a recipe reads, in order of first use, each once."""
    return tuple(dict.fromkeys(name for step in recipe for name in _names(step)))


def _names(node: Any) -> list[str]:
    names: list[str] = []
    for field in fields(node):
        value = getattr(node, field.name)
        if is_dataclass(value):
            names += _names(value)
        elif field.name in ("table", "weight", "bias") and value is not None:
            names.append(value)
    return names


def to_json(recipe: Recipe) -> list[dict[str, Any]]:
    """The steps as JSON objects, each with its `step` name."""
    return [{"step": type(step).__name__, **asdict(step)} for step in recipe]


def from_json(data: list[dict[str, Any]]) -> Recipe:
    """The inverse of `to_json`; KeyError or TypeError where the data is not a recipe."""
    return tuple(_step(dict(entry)) for entry in data)


def _step(entry: dict[str, Any]) -> Step:
    kind = STEPS[entry.pop("step")]
    step: Step = kind(**{key: Linear(**value) if isinstance(value, dict) else value for key, value in entry.items()})
    return step

"""A model family as data: the steps from token ids to vectors, naming the tensors they use.

Two interpreters read a recipe: reference.py (numpy float64, the judge) and graphs.py (ONNX). Steps hold values alone.
Every step maps the packed rows x [N, d] to new rows; only Attention mixes rows, and only within one sequence.
"""

from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

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
    """x += sinusoid(positions), computed, of a kind of positions/sinusoids.py; named output `position_embeddings`.

    zero_row  the position whose row is all zero: padding_idx of M2M100, FSMT and Speech2Text; None: there is none
    """

    kind: str
    dim: int
    zero_row: int | None = None


@dataclass(frozen=True, slots=True)
class AddIndexed:
    """x += table[extra], a further index of each token (extras.py): ERNIE's tasks, XLM's languages, LayoutLM's boxes.

    index      the name of the extra, as in transformers; a value of -1 adds nothing
    columns    of an extra with several values a token: the one that is read, or two whose difference is (LayoutLM's
               width and height); (): the extra has one value
    """

    table: str
    index: str
    columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDropout:
    """x = 0 where the token is `mask_id`, else x * 0.88 / (1 - masked/attended): ESM's, over the token's sequence.

    Reads the extras masked_tokens and attended_tokens, which hold both counts for every token.
    """

    mask_id: int


@dataclass(frozen=True, slots=True)
class MaskRows:
    """x = 0 where the token is masked."""


@dataclass(frozen=True, slots=True)
class Scale:
    """x *= factor; `outside`: the rows before it are a named output too, `unscaled_embeddings`."""

    factor: float
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """x = x rounded to a narrower type and widened again: arithmetic a checkpoint's own dtype is part of (Gemma)."""

    dtype: Literal["bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """x = (x - mean) / sqrt(variance + eps) * weight + bias."""

    weight: str
    bias: str | None
    eps: float


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x = x / sqrt(mean(x^2) + eps) * weight; no weight: 1."""

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


Step = (
    Embed
    | AddType
    | AddPosition
    | AddSinusoid
    | AddIndexed
    | TokenDropout
    | MaskRows
    | Scale
    | Round
    | LayerNorm
    | RMSNorm
    | Linear
    | Attention
    | FeedForward
)
Recipe = tuple[Step, ...]

STEPS: dict[str, type[Any]] = {step.__name__: step for step in get_args(Step)}
TENSORS = ("table", "weight", "bias")  # fields that name a tensor


def tensors(recipe: Recipe) -> tuple[str, ...]:
    """The tensor names a recipe reads, in order of first use, each once."""
    return tuple(dict.fromkeys(name for step in recipe for name in _names(step)))


def _names(node: Any) -> list[str]:
    names: list[str] = []
    for field in fields(node):
        value = getattr(node, field.name)
        if is_dataclass(value):
            names += _names(value)
        elif field.name in TENSORS and value is not None:
            names.append(value)
    return names


def tables(recipe: Recipe) -> tuple[str, ...]:
    """The tensors among them whose rows are looked up, in order of first use, each once."""
    return tuple(dict.fromkeys(step.table for step in recipe if hasattr(step, "table")))


def to_json(recipe: Recipe) -> list[dict[str, Any]]:
    """The steps as JSON objects, each with its `step` name."""
    return [{"step": type(step).__name__, **asdict(step)} for step in recipe]


def from_json(data: list[dict[str, Any]]) -> Recipe:
    """The inverse of `to_json`; KeyError or TypeError where the data is not a recipe."""
    return tuple(_step(dict(entry)) for entry in data)


def _step(entry: dict[str, Any]) -> Step:
    kind = STEPS[entry.pop("step")]
    step: Step = kind(**{key: _value(value) for key, value in entry.items()})
    return step


def _value(value: Any) -> Any:
    return Linear(**value) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value

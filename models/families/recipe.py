"""Recipes: a model as a tuple of steps from token ids to vectors, which name the tensors they use.

Two interpreters read a recipe: models/reference (numpy float64) and models/graphs (ONNX). Steps hold values only. Every
step maps the packed rows x [N, d] to new rows; only Attention mixes rows, and only within one sequence.
"""

from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
KEPT_IN_TRAINING = 1 - 0.15 * 0.8  # share of embeddings that ESM's masked language modelling keeps


@dataclass(frozen=True, slots=True)
class Embed:
    """x = table[ids]; named output `token_embeddings`."""

    table: str


@dataclass(frozen=True, slots=True)
class AddType:
    """x += table[types]; named output `token_type_embeddings`. GPT-2's table is its word table."""

    table: str


@dataclass(frozen=True, slots=True)
class AddPosition:
    """x += table[positions]; positions index rows directly; named output `position_embeddings`."""

    table: str


@dataclass(frozen=True, slots=True)
class AddSinusoid:
    """x += sinusoid(positions), computed; named output `position_embeddings`.

    Attributes:
        kind: of models/positions/sinusoidal.py.
        dim: width.
        zero_row: position whose row is all zero: padding_idx of M2M100, FSMT and Speech2Text; None: there is none.
    """

    kind: str
    dim: int
    zero_row: int | None = None


@dataclass(frozen=True, slots=True)
class AddIndexed:
    """x += table[extra input], such as ERNIE's tasks, XLM's languages or LayoutLM's boxes.

    Attributes:
        table: the tensor.
        index: name of the extra input, as in transformers; a value of -1 adds nothing.
        columns: of an extra with several values a token: the one that is read, or two whose difference is (LayoutLM's
            width and height); (): the extra has one value.
    """

    table: str
    index: str
    columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDropout:
    """x = 0 where the token is `mask_id`, else x * 0.88 / (1 - masked/attended), over the token's sequence (ESM).

    It reads the extra inputs masked_tokens and attended_tokens, which hold both counts for every token.
    """

    mask_id: int


@dataclass(frozen=True, slots=True)
class MaskRows:
    """x = 0 where the token is masked."""


@dataclass(frozen=True, slots=True)
class Scale:
    """x *= factor; if `outside`, the rows before it are a named output too, `unscaled_embeddings`."""

    factor: float
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """x = x rounded to a narrower type and widened again, where the checkpoint's dtype affects the numbers (Gemma)."""

    dtype: Literal["bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """x = (x - mean) / sqrt(variance + eps) * weight + bias."""

    weight: str
    bias: str | None
    eps: float


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x = x / sqrt(mean(x^2) + eps) * weight; without a weight it is 1."""

    weight: str | None
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias, weight [out, in] as PyTorch stores it."""

    weight: str
    bias: str | None


@dataclass(frozen=True, slots=True)
class ScoreBias:
    """scores += table[bucket of the key's place less the query's], by head, with T5's buckets of both directions.

    Attributes:
        table: the tensor, [buckets, heads].
        buckets: their number.
        reach: distances from here on share a bucket.
    """

    table: str
    buckets: int
    reach: int


@dataclass(frozen=True, slots=True)
class Attention:
    """x += output(attention(query(y), key(y), value(y))), softmax over the unmasked rows of the same sequence.

    Attributes:
        norm: y = norm(x); None: y = x.
        bias: what is added to the scores; None: nothing.
    """

    heads: int
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    norm: LayerNorm | None = None
    bias: ScoreBias | None = None


@dataclass(frozen=True, slots=True)
class FeedForward:
    """x += down(activation(up(y))).

    Attributes:
        norm: y = norm(x); None: y = x.
    """

    up: Linear
    down: Linear
    activation: Activation
    norm: LayerNorm | None = None


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
    """Return the tensor names a recipe reads, in order of first use, each once."""
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
    """Return the tensor names whose rows are looked up, in order of first use, each once."""
    return tuple(dict.fromkeys(step.table for step in recipe if hasattr(step, "table")))


def to_json(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the steps as JSON objects, each with its `step` name."""
    return [{"step": type(step).__name__, **asdict(step)} for step in recipe]


def from_json(data: list[dict[str, Any]]) -> Recipe:
    """Return the recipe of `to_json`'s objects; KeyError or TypeError if the data is not a recipe."""
    return tuple(_step(dict(entry)) for entry in data)


def _step(entry: dict[str, Any]) -> Step:
    kind = STEPS[entry.pop("step")]
    step: Step = kind(**{key: _value(value) for key, value in entry.items()})
    return step


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        kind: type[Any] = LayerNorm if "eps" in value else ScoreBias if "buckets" in value else Linear
        return kind(**value)
    return tuple(value) if isinstance(value, list) else value

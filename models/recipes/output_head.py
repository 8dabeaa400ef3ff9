"""`OutputHead`: how hidden states become logits of the vocabulary, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.recipes.steps import Activation, LayerNorm, Linear

_NORM_COST, _ACTIVATION_COST = 8, 8  # operations a value, as in cost.py


@dataclass(frozen=True, slots=True)
class Transform:
    """norm(activation(dense(h))), applied to the hidden states before the output matrix."""

    dense: Linear
    activation: Activation
    norm: LayerNorm


@dataclass(frozen=True, slots=True)
class OutputHead:
    """An output head: logits = cap * tanh(after * (transform(h) * before @ matrix.T + bias) / cap).

    Attributes:
        width, inner: columns of the hidden states, and of the matrix.
        vocab_size: rows of the matrix.
        matrix, bias: tensors of the weights file.
        tied: whether the matrix is the table of an input layer.
        transform: None: there is none.
        before, after: factors of the hidden states and of the logits.
        cap: None: the logits are not capped.
    """

    width: int
    inner: int
    vocab_size: int
    matrix: str
    tied: bool
    bias: str | None
    transform: Transform | None
    before: float
    after: float
    cap: float | None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor the head reads, each once, the matrix first."""
        names = [self.matrix, self.bias]
        if self.transform:
            dense, norm = self.transform.dense, self.transform.norm
            names += [dense.weight, dense.bias, norm.weight, norm.bias]
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def flops_per_row(self) -> int:
        """Operations for the logits of one row; a multiply and an add count as two."""
        total = self.vocab_size * (2 * self.inner + (self.bias is not None))
        if self.transform:
            total += self.inner * (2 * self.width + 1 + _ACTIVATION_COST + _NORM_COST)
        return total


def from_json(data: Mapping[str, Any] | None) -> OutputHead | None:
    """Return the Head of its dataclasses.asdict; KeyError or TypeError if the data is no such object."""
    if data is None:
        return None
    transform = data["transform"]
    if transform is not None:
        dense, norm = Linear(**transform["dense"]), LayerNorm(**transform["norm"])
        transform = Transform(dense, transform["activation"], norm)
    return OutputHead(**{**data, "transform": transform})

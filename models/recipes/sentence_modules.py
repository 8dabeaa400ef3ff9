"""The modules of sentence-transformers after Pooling, as data: steps from pooled vectors to sentence vectors.

models/graphs/sentence_modules.py and models/reference/sentence_modules.py read them.
"""

from dataclasses import dataclass
from typing import Literal

from models.recipes.steps import Activation, LayerNorm, Linear

LEAST_LENGTH = 1e-12  # that a vector is divided by: torch.nn.functional.normalize


@dataclass(frozen=True, slots=True)
class Dense:
    """x = activation(x @ weight.T + bias), to which a residual may be added.

    Attributes:
        residual: "input": x itself; a Linear: what it makes of x; None: nothing is added.
    """

    linear: Linear
    activation: Activation
    residual: Linear | Literal["input"] | None = None


@dataclass(frozen=True, slots=True)
class Normalize:
    """x = x / max(|x|, LEAST_LENGTH)."""


Module = Dense | LayerNorm | Normalize


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """The modules of a model, without a Normalize at their end, which is the pooling's `normalize`.

    Attributes:
        steps: the steps, in order.
        inner: columns of the pooled vectors.
        width: columns of the sentence vectors.
        flops_per_text: FLOPs of matrix products; a multiply and an add count as two.
        file: file of the exported folder that holds the modules' tensors.
    """

    steps: tuple[Module, ...]
    inner: int
    width: int
    flops_per_text: int
    file: str


def matrices(steps: tuple[Module, ...]) -> list[str]:
    """Return the names of the matrices that modules multiply vectors with."""
    linears = [linear for step in steps if isinstance(step, Dense) for linear in (step.linear, step.residual)]
    return [linear.weight for linear in linears if isinstance(linear, Linear)]

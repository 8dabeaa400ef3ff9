"""The modules of sentence-transformers behind Pooling, as data: steps from pooled vectors to sentence vectors.

models/graphs/sentence_modules.py and models/reference/sentence_modules.py read them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Dense, LayerNorm, Normalize)}


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """The modules of a model, without a Normalize at their end, which is the pooling's `normalize`.

    Attributes:
        steps: in their order.
        inner: columns of the pooled vectors.
        width: columns of the sentence vectors.
        flops_per_text: of matrix products; a multiply and an add count as two.
        file: of the exported folder that holds their tensors.
    """

    steps: tuple[Module, ...]
    inner: int
    width: int
    flops_per_text: int
    file: str


def to_json(modules: SentenceModules) -> dict[str, Any]:
    """Return the modules as JSON, each with the name of its `module`."""
    return asdict(modules) | {"steps": [{"module": type(step).__name__, **asdict(step)} for step in modules.steps]}


def from_json(data: Mapping[str, Any] | None) -> SentenceModules | None:
    """Return the modules of `to_json`'s object, None of None; KeyError or TypeError if the data is no such object."""
    if data is None:
        return None
    return SentenceModules(**{**data, "steps": tuple(_module(dict(entry)) for entry in data["steps"])})


def _module(entry: dict[str, Any]) -> Module:
    kind = _KINDS[entry.pop("module")]
    module: Module = kind(
        **{key: Linear(**value) if isinstance(value, dict) else value for key, value in entry.items()}
    )
    return module
